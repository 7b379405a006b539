"""One look at every queue, and at how far every group has come in each: what many metrics are made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.tables import names

if TYPE_CHECKING:
    from tandemmq.cluster.broker.broker import Broker

QUEUES_AT_ONCE: Final = 256  # then others may have their turn
READS_MAX: Final = 200  # of store times in one survey: each may have to come from the disk
TIMES_KEPT: Final = 50_000

_Ends = Mapping[int, int]


class Lag(NamedTuple):
    """How far a group is behind in a topic. Ages are of the oldest message, ms; 0 where there is none.

    lag        messages not yet committed, of them ready not yet pulled
    committed  messages before, in all queues
    """

    group: str
    topic: str
    is_retry: bool
    lag: int
    ready: int
    committed: int
    lag_ms: int
    ready_ms: int


class Survey:
    """What take() found last. On a slave stored alone: its groups and messages are its master's, and counted there.

    puts    topic -> messages ever stored; stored: all of them
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store_ms: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._reads_left = 0
        self.puts: dict[str, int] = {}
        self.stored = 0
        self.lags: list[Lag] = []

    def take(self) -> Iterator[None]:
        """Look again, in steps of a fraction of a millisecond."""
        puts: dict[str, int] = {}
        lags: list[Lag] = []
        for count, (topic, messages) in enumerate(self._broker.put_counts()):
            puts[topic] = messages
            if count % QUEUES_AT_ONCE == 0:
                yield
        self.stored = sum(puts.values())
        if self._broker.standing.role is Role.SLAVE:
            puts.clear()
        else:
            yield from self._look_at_groups(lags)
        self.puts, self.lags = puts, lags

    def _look_at_groups(self, lags: list[Lag]) -> Iterator[None]:
        ends: dict[str, dict[int, int]] = {}
        for count, queue in enumerate(list(self._broker.store.queues)):
            ends.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
            if count % QUEUES_AT_ONCE == 0:
                yield
        pairs: dict[tuple[str, str], bool] = {}
        for _ in self._find_pairs(pairs):
            yield
        self._reads_left = READS_MAX
        looked_at = 0
        for (group, topic), actively_pulling in pairs.items():
            lag = self._lag(group, topic, actively_pulling, ends.get(topic, {}))
            if lag is not None:
                lags.append(lag)
            looked_at += 4 + len(ends.get(topic, ()))
            if looked_at >= QUEUES_AT_ONCE:
                looked_at = 0
                yield

    def _find_pairs(self, found: dict[tuple[str, str], bool]) -> Iterator[None]:
        """(group, topic) -> whether its members pull by themselves: who ever committed, and who subscribes.

        Of a group whose members are gone the lag is wanted most.
        """
        broker = self._broker
        for group in list(broker.offsets.groups()):
            for topic in broker.offsets.topics_of(group):
                found[group, topic] = False
            if len(found) % QUEUES_AT_ONCE == 0:
                yield
        for members in list(broker.consumers):
            for topic in list(members.subscriptions):
                found[members.name, topic] = members.actively_pulling
            if len(found) % QUEUES_AT_ONCE == 0:
                yield

    def _lag(self, group: str, name: str, actively_pulling: bool, ends: _Ends) -> Lag | None:
        broker = self._broker
        topic = broker.topics.get(name)
        is_retry = name.startswith(names.RETRY_PREFIX)
        if topic is None or (is_retry and actively_pulling):
            return None
        committed, pulled = (
            broker.offsets.queues(group, name),
            broker.offsets.pulled_in(group, name),
        )
        lag = ready = done = lag_ms = ready_ms = 0
        for queue_id in range(topic.write_queue_nums):
            end = max(ends.get(queue_id, 0), 0)
            at = committed.get(queue_id, -1)
            if at < 0:
                at = end  # as RocketMQ has it: who never committed does not lag
            next_at = max(pulled.get(queue_id, -1), at)
            done += at
            if end > at:
                lag += end - at
                lag_ms = max(lag_ms, self._age_ms(name, queue_id, at))
            if end > next_at:
                ready += end - next_at
                ready_ms = max(ready_ms, self._age_ms(name, queue_id, next_at))
        return Lag(group, name, is_retry, lag, ready, done, lag_ms, ready_ms)

    def _age_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """How long ago a message was stored; 0 where that is not known, or not found out this time."""
        key = topic, queue_id, queue_offset
        store_ms = self._store_ms.get(key)
        if store_ms is None:
            if self._reads_left <= 0:
                return 0
            self._reads_left -= 1
            store = self._broker.store
            store_ms = store.store_ms(
                topic, queue_id, max(queue_offset, store.min_offset(topic, queue_id))
            )
            self._store_ms[key] = store_ms
            if len(self._store_ms) > TIMES_KEPT:
                self._store_ms.popitem(last=False)
        return 0 if store_ms < 0 else max(0, self._broker.clock.now_ms() - store_ms)
