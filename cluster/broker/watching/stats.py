"""What the broker counted, as tools ask for it.

Sums and rates over windows, per topic and group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.cluster.broker.watching.putsizes import Put

MINUTE_SAMPLE_S: Final = 10
SAMPLES_PER_HOUR_SAMPLE: Final = 60  # 10 minutes
SAMPLES_PER_DAY_SAMPLE: Final = 360  # 1 hour
RATE_SAMPLES: Final = 601
RATE_WINDOWS_S: Final = (10, 60, 600)

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
TOPIC_PUT_LATENCY: Final = "TOPIC_PUT_LATENCY"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_NO_SYSTEM: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_NUMS_NO_SYSTEM: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"


class Sample(NamedTuple):
    at_ms: int
    value: int
    calls: int


@dataclass(slots=True)
class Window:
    """What one counter did over a while: sum, per second, per call."""

    sum: int = 0
    tps: float = 0.0
    per_call: float = 0.0

    def to_json(self) -> dict[str, float]:
        return {"avgpt": self.per_call, "sum": self.sum, "tps": self.tps}


@dataclass(slots=True)
class Item:
    """One counter and its samples: 7 of the last minute, 7 of the last hour, 25 of the last day."""

    value: int = 0
    calls: int = 0
    minute: deque[Sample] = field(default_factory=lambda: deque(maxlen=7))
    hour: deque[Sample] = field(default_factory=lambda: deque(maxlen=7))
    day: deque[Sample] = field(default_factory=lambda: deque(maxlen=25))

    def window(self, samples: deque[Sample]) -> Window:
        if len(samples) < 2:
            return Window()
        first, last = samples[0], samples[-1]
        found = Window(sum=last.value - first.value)
        if last.at_ms > first.at_ms:
            found.tps = found.sum * 1000 / (last.at_ms - first.at_ms)
        if last.calls > first.calls:
            found.per_call = found.sum / (last.calls - first.calls)
        return found


class Totals(NamedTuple):
    """Counters since the start, from the store and from the pulls."""

    put: int = 0
    get_found: int = 0
    get_missed: int = 0
    transferred: int = 0


class _PullItems(NamedTuple):
    """What the pulls of a group from a topic count in.

    nums   of messages; size: of their bytes; waits: how long it took to find them, by queue
    """

    nums: tuple[Item, ...]
    size: Item
    waits: dict[int, Item]


class BrokerStats:
    """Counters by name and key. Times are the wall clock's, ms; nothing here reads a clock.

    put_counts   topic -> messages ever put, read at each sample: the send path counts nothing for
                 it
    totals       counters since the start, read once a second
    Source: RocketMQ's BrokerStatsManager.
    """

    def __init__(
        self,
        cluster: str,
        put_counts: Callable[[], Iterable[tuple[str, int]]],
        put_total: Callable[[], int],
        now_ms: int,
        is_system: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        self.boot_ms = now_ms
        self._sampled_ms = now_ms
        self._is_system = is_system
        self._cluster = cluster
        self._put_counts = put_counts
        self._put_total = put_total
        self._items: dict[str, dict[str, Item]] = {}
        self._pulled: dict[tuple[str, str], _PullItems] = {}  # by group and topic: looked up once
        self._put_base = dict(put_counts())
        self._samples = 0
        self._rates: deque[tuple[int, Totals]] = deque(maxlen=RATE_SAMPLES)
        self.get_found = 0  # pulls that brought messages
        self.get_missed = 0  # pulls that did not
        self.transferred = 0  # messages that pulls brought
        self._mornings = (Totals(), Totals())  # yesterday's, today's

    # -- counting ----------------------------------------------------------------------

    def pulled(
        self, group: str, topic: str, messages: int, size: int, queue_id: int = 0, took_ms: int = 0
    ) -> None:
        """One pull was answered with so many messages of so many bytes; took_ms: to find them."""
        self.pulled_all(group, topic, messages, size, (queue_id,), took_ms)

    def pulled_all(
        self,
        group: str,
        topic: str,
        messages: int,
        size: int,
        queue_ids: Sequence[int],
        took_ms: int = 0,
    ) -> None:
        """As pulled(), for several pulls, each of its queue."""
        pulls = len(queue_ids)
        self.get_found += pulls
        self.transferred += messages
        items = self._pulled.get((group, topic))
        if items is None:
            items = self._pulled[group, topic] = self._pull_items(group, topic)
        for item in items.nums:
            item.value += messages
            item.calls += pulls
        items.size.value += size
        items.size.calls += pulls
        for queue_id in queue_ids:
            wait = items.waits.get(queue_id)
            if wait is None:
                wait = items.waits[queue_id] = self._item(
                    GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}"
                )
            wait.value += took_ms
            wait.calls += 1

    def _pull_items(self, group: str, topic: str) -> _PullItems:
        key = f"{topic}@{group}"
        nums = [self._item(GROUP_GET_NUMS, key), self._item(BROKER_GET_NUMS, self._cluster)]
        if not self._is_system(topic):
            nums.append(self._item(BROKER_GET_NUMS_NO_SYSTEM, self._cluster))
        return _PullItems(tuple(nums), self._item(GROUP_GET_SIZE, key), {})

    def put(self, puts: Iterable[Put]) -> None:
        """Before a sample of windows: what came in since the one before, by queue."""
        for put in puts:
            wait_ms = round(put.wait_ms * put.messages)
            self._count(TOPIC_PUT_SIZE, put.topic, put.bytes, put.messages)
            self._count(TOPIC_PUT_LATENCY, f"{put.queue_id}@{put.topic}", wait_ms, put.messages)
            if not self._is_system(put.topic):
                self._count(BROKER_PUT_NUMS_NO_SYSTEM, self._cluster, put.messages, put.messages)

    def _count(self, name: str, key: str, value: int, calls: int) -> None:
        items = self._items.setdefault(name, {})
        item = items.get(key)
        if item is None:
            item = items[key] = Item()
            item.minute.append(Sample(self._sampled_ms, 0, 0))
        item.value += value
        item.calls += calls

    def missed(self) -> None:
        """One pull found nothing."""
        self.get_missed += 1

    def sent_back(self, group: str, topic: str) -> None:
        """One message was sent back by a consumer."""
        self.add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def add(self, name: str, key: str, value: int) -> None:
        """Count `value` in one call."""
        item = self._item(name, key)
        item.value += value
        item.calls += 1

    def _item(self, name: str, key: str) -> Item:
        items = self._items.setdefault(name, {})
        item = items.get(key)
        if item is None:
            item = items[key] = Item()
        return item

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted."""
        self._put_base.pop(topic, None)
        for name, items in self._items.items():
            place = 1 if name in (TOPIC_PUT_LATENCY, GROUP_GET_LATENCY) else 0  # behind the queue
            for key in [key for key in items if key.split("@")[place] == topic]:
                del items[key]
        self._pulled.clear()

    # -- sampling ----------------------------------------------------------------------

    def totals(self) -> Totals:
        return Totals(self._put_total(), self.get_found, self.get_missed, self.transferred)

    def sample_rates(self, now_ms: int) -> None:
        """Once a second."""
        self._rates.append((now_ms, self.totals()))

    def sample_windows(self, now_ms: int) -> None:
        """Every 10 seconds."""
        self._take_put_counts()
        self._sampled_ms = now_ms
        self._samples += 1
        for items in self._items.values():
            for item in items.values():
                sample = Sample(now_ms, item.value, item.calls)
                item.minute.append(sample)
                if self._samples % SAMPLES_PER_HOUR_SAMPLE == 1:
                    item.hour.append(sample)
                if self._samples % SAMPLES_PER_DAY_SAMPLE == 1:
                    item.day.append(sample)

    def morning(self) -> None:
        """At midnight: what was today's morning is yesterday's."""
        self._mornings = (self._mornings[1], self.totals())

    def _take_put_counts(self) -> None:
        for topic, ever in self._put_counts():
            counted = ever - self._put_base.setdefault(topic, 0)
            items = self._items.setdefault(TOPIC_PUT_NUMS, {})
            item = items.get(topic)
            if item is None:
                if not counted:
                    continue
                item = items[topic] = Item()
                item.minute.append(Sample(self.boot_ms, 0, 0))
            item.value = item.calls = counted
        total = self._put_total()
        if total:
            broker = self._items.setdefault(BROKER_PUT_NUMS, {}).setdefault(self._cluster, Item())
            broker.value = broker.calls = total

    # -- reading -----------------------------------------------------------------------

    def windows(self, name: str, key: str) -> tuple[Window, Window, Window] | None:
        """Minute, hour and day of one counter; None when it never counted anything."""
        item = self._items.get(name, {}).get(key)
        if item is None:
            return None
        return item.window(item.minute), item.window(item.hour), item.window(item.day)

    def values(self, name: str) -> list[tuple[str, int]]:
        """Every counter of a name, and what it counted since the start."""
        return [(key, item.value) for key, item in self._items.get(name, {}).items()]

    def put_tps(self, topic: str) -> float:
        """Messages per second that came into a topic over the last minute."""
        return self._minute_tps(TOPIC_PUT_NUMS, topic)

    def get_tps(self, topic: str, group: str) -> float:
        """Messages per second that a group took from a topic over the last minute."""
        return self._minute_tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def values_per_second(self, name: str) -> list[tuple[str, float]]:
        """Every counter of a name, and its rate over the last minute."""
        return [
            (key, item.window(item.minute).tps) for key, item in self._items.get(name, {}).items()
        ]

    def rates_now(self) -> tuple[float, float]:
        """Messages per second that came in, and that were pulled, over the last 10 s."""
        put, _, _, pulled = self._rate(RATE_WINDOWS_S[0])
        return put, pulled

    def _minute_tps(self, name: str, key: str) -> float:
        item = self._items.get(name, {}).get(key)
        return item.window(item.minute).tps if item is not None else 0.0

    def rates(self) -> dict[str, str]:
        """The rate entries of the runtime table: three numbers each, over 10, 60 and 600 s.

        Always three: tools split and divide by their count. RocketMQ leaves young ones out.
        """
        triples = [self._rate(seconds) for seconds in RATE_WINDOWS_S]

        def text(pick: Callable[[tuple[float, float, float, float]], float]) -> str:
            return " ".join(repr(pick(rate)) for rate in triples)

        transferred = text(lambda rate: rate[3])
        return {
            "putTps": text(lambda rate: rate[0]),
            "getFoundTps": text(lambda rate: rate[1]),
            "getMissTps": text(lambda rate: rate[2]),
            "getTotalTps": text(lambda rate: rate[1] + rate[2]),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # as 4.x spells it
        }

    def _rate(self, seconds: int) -> tuple[float, float, float, float]:
        if len(self._rates) < 2:
            return (0.0, 0.0, 0.0, 0.0)
        now_ms, last = self._rates[-1]
        then_ms, first = self._rates[max(0, len(self._rates) - 1 - seconds)]
        elapsed_ms = now_ms - then_ms
        if elapsed_ms <= 0:
            return (0.0, 0.0, 0.0, 0.0)
        put, found, missed, transferred = (
            (new - old) * 1000 / elapsed_ms for new, old in zip(last, first, strict=True)
        )
        return (put, found, missed, transferred)

    def day_totals(self) -> dict[str, str]:
        """Messages put and got until yesterday's morning, until today's, and until now."""
        yesterday, today = self._mornings
        now = self.totals()
        return {
            "msgPutTotalYesterdayMorning": str(yesterday.put),
            "msgPutTotalTodayMorning": str(today.put),
            "msgPutTotalTodayNow": str(now.put),
            "msgGetTotalYesterdayMorning": str(yesterday.transferred),
            "msgGetTotalTodayMorning": str(today.transferred),
            "msgGetTotalTodayNow": str(now.transferred),
        }
