"""Load on a replicated group: senders, a prober that looks every 10 ms, and readers of every replica.

Everything goes through the routes of the name server, as clients do, and nothing is ever sent twice:
each attempt is a message of its own with an outcome of its own in the journal.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

from msgspec.structs import replace

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Seen, Send
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.requests import answer_of, messages_from, pull_command, send_command
from tandemmq.cluster.remoting import (
    ChannelPool,
    Command,
    ConnectFailed,
    ConnectionLost,
    RequestCode,
    RequestTimedOut,
    ResponseCode,
)
from tandemmq.storage import parse_offset_message_id

GROUP: Final = "ChaosGroup"
TOPIC: Final = "ChaosOrders"
PROBE_TOPIC: Final = "ChaosProbe"
DELAYED_TOPIC: Final = "ChaosDelayed"
CHURN_TOPIC: Final = "ChaosChurn"  # deleted and made again
DELAYS_S: Final = (1.0, 5.0)  # of delay levels 1 and 2
PROBE_INTERVAL_S: Final = 0.01
PROBE_TIMEOUT_MS: Final = 500
STABLE_NS: Final = 1_000_000_000
STALL_NS: Final = 50_000_000  # probes alone acknowledge every 10 ms
CONNECT_TIMEOUT_MS: Final = 500
LATE_MS: Final = 60_000  # an answer that comes so late is still recorded
ROUTE_INTERVAL_S: Final = 0.25
ROUTE_INTERVAL_TROUBLED_S: Final = 0.01
RETRY_S: Final = 0.01
SETTLED_S: Final = 20.0
NOT_SENT: Final = -1  # stands for a response code: no request left
NO_ANSWER: Final = -2

#: stored, outcome unknown: never counted as acknowledged (INV-7)
STORED_UNKNOWN: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
#: refused before the append
REFUSED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.MESSAGE_ILLEGAL,
    }
)


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """rate: messages/s of all lanes together, 0 for as many as go. timeout_ms: of the senders.

    delayed_rate  messages/s with a delay level, beside those
    """

    producers: int = 4
    queues: int = 4
    rate: float = 800.0
    body_bytes_max: int = 2000
    timeout_ms: int = 3000
    readers: bool = True
    delayed_rate: float = 10.0


class Probe:
    """One look of the prober; ended_ns is 0 while it is under way."""

    __slots__ = ("began_ns", "ended_ns", "ok")

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.ended_ns = 0
        self.ok = False


def writable_after(
    probes: Iterable[Probe], fault_ns: int, stable_ns: int = STABLE_NS
) -> int | None:
    """When the group took writes again: the end of the first probe begun after the fault that succeeded,
    and after whose beginning no other failed for `stable_ns`. None: not yet."""
    candidate: Probe | None = None
    for probe in probes:
        if probe.began_ns < fault_ns or not probe.ended_ns:
            continue
        if candidate is not None and probe.began_ns - candidate.began_ns > stable_ns:
            break
        if not probe.ok:
            candidate = None
        elif candidate is None:
            candidate = probe
    return candidate.ended_ns if candidate is not None else None


class Stall(NamedTuple):
    """A stretch without any acknowledgement."""

    began_ns: int
    ended_ns: int

    @property
    def ms(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e6


def stalls_between(stalls: Iterable[Stall], began_ns: int, ended_ns: int) -> list[Stall]:
    """Those that touch [began_ns, ended_ns), longest first."""
    touching = [each for each in stalls if each.ended_ns > began_ns and each.began_ns < ended_ns]
    return sorted(touching, key=lambda each: -each.ms)


def longest_stall_ms(stalls: Iterable[Stall], since_ns: int) -> float:
    """Of those that touch the time since then; 0 without any."""
    found = stalls_between(stalls, since_ns, time.monotonic_ns())
    return found[0].ms if found else 0.0


class Routed(Protocol):
    """What knows where a topic is served."""

    async def addresses(self, topic: str) -> dict[int, str] | None:
        """Broker id to address; None without a route."""


class Route:
    """Who is master and who is there, as the name server says; asked often while something fails."""

    def __init__(self, group: Routed) -> None:
        self._group = group
        self._troubled = asyncio.Event()
        self.addresses: dict[int, str] = {}

    @property
    def master(self) -> str | None:
        return self.addresses.get(0)

    def trouble(self) -> None:
        """A send failed: look again at once."""
        self._troubled.set()

    async def run(self) -> None:
        while True:
            asked_s = time.monotonic()
            found = await self._group.addresses(TOPIC)
            if found is not None:
                self.addresses = found
            self._troubled.clear()
            try:
                async with asyncio.timeout(ROUTE_INTERVAL_S):
                    await self._troubled.wait()
            except TimeoutError:
                continue
            rest_s = ROUTE_INTERVAL_TROUBLED_S - (time.monotonic() - asked_s)
            await asyncio.sleep(max(0.0, rest_s))


class Traffic:
    """Senders, prober and readers until quiet() or the end of the block."""

    def __init__(
        self, group: Routed, journal: Journal, rng: random.Random, plan: TrafficPlan
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.route = Route(group)
        self.round = 0
        self.unusual: Counter[str] = (
            Counter()
        )  # answers that were neither success nor known refusals
        self.stalls: list[Stall] = []
        self._last_ok_ns = time.monotonic_ns()
        self.late = 0  # acknowledgements that came after the sender had given up
        self.probes: list[Probe] = []
        self._rng = rng
        self._numbers = itertools.count(1)
        self._pool = ChannelPool(connect_timeout_ms=CONNECT_TIMEOUT_MS)
        self._filler = rng.randbytes(plan.body_bytes_max + 4096)
        self._jobs: list[asyncio.Task[None]] = []
        self._sending: list[asyncio.Task[None]] = []
        self._probing: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def __aenter__(self) -> Self:
        self._jobs = [asyncio.create_task(self.route.run(), name="route")]
        if self.plan.readers:
            queues = [(TOPIC, number) for number in range(self.plan.queues)] + [(PROBE_TOPIC, 0)]
            self._jobs += [asyncio.create_task(self._read(*each), name="read") for each in queues]
        lanes = itertools.product(range(self.plan.producers), range(self.plan.queues))
        self._sending = [
            asyncio.create_task(self._lane(lane, queue_id), name=f"lane {lane}")
            for lane, (_, queue_id) in enumerate(lanes, 1)
        ]
        self._sending.append(asyncio.create_task(self._probe(), name="probe"))
        if self.plan.delayed_rate:
            self._sending.append(asyncio.create_task(self._delayed(), name="delayed"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._sending, *self._jobs):
            task.cancel()
        results = await asyncio.gather(*self._sending, *self._jobs, return_exceptions=True)
        await asyncio.gather(*self._probing, return_exceptions=True)
        await self._pool.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    @property
    def last_acknowledged_ns(self) -> int:
        """When a send was acknowledged last; before the first of them, when this was made."""
        return self._last_ok_ns

    def check(self) -> None:
        """Raise what ended a task that should still run."""
        for task in (*self._sending, *self._jobs):
            if task.done() and not task.cancelled() and (problem := task.exception()) is not None:
                raise problem

    async def quiet(self) -> None:
        """No new sends; wait for the outcome of those under way."""
        self._stopping = True
        await asyncio.gather(*self._sending)
        await asyncio.gather(*self._probing)

    async def settled(self, addresses: Iterable[str], within_s: float = SETTLED_S) -> list[str]:
        """Wait until all addresses serve every queue to the same end; what still differs when time is up."""
        queues = [(TOPIC, number) for number in range(self.plan.queues)] + [(PROBE_TOPIC, 0)]
        everywhere = list(addresses)
        deadline = time.monotonic() + within_s
        while True:
            ends = {
                queue: {each: await max_offset(self._pool, each, *queue) for each in everywhere}
                for queue in queues
            }
            apart = [
                f"UNEQUAL {queue} ends at {found}"
                for queue, found in ends.items()
                if len(set(found.values())) > 1 or None in found.values()
            ]
            if not apart or time.monotonic() > deadline:
                return apart
            await asyncio.sleep(0.05)

    async def writable(self, fault_ns: int, within_s: float, *, stable: bool = True) -> int | None:
        """Wait until probes succeed again; when they did (ns), None if not in time.

        stable: only successes followed by a second of nothing else count (writable_after).
        """
        deadline = time.monotonic() + within_s
        while True:
            self.check()
            after = [probe for probe in self.probes[-3000:] if probe.began_ns >= fault_ns]
            found_ns = writable_after(after, fault_ns, STABLE_NS if stable else 0)
            if found_ns is not None:
                if not stable or time.monotonic_ns() - found_ns > STABLE_NS:
                    return found_ns
            elif time.monotonic() > deadline:
                return None
            await asyncio.sleep(0.002 if not stable else 0.02)

    # --- sending

    async def _lane(self, lane: int, queue_id: int) -> None:
        lanes = self.plan.producers * self.plan.queues
        interval_s = lanes / self.plan.rate if self.plan.rate else 0.0
        next_s = time.monotonic() + self._rng.random() * interval_s
        sequence = 0
        while not self._stopping:
            await asyncio.sleep(max(0.0, next_s - time.monotonic()) if interval_s else 0)
            next_s = max(next_s + interval_s, time.monotonic() - interval_s)
            size = self._rng.randrange(1, self.plan.body_bytes_max)
            sequence += 1
            if not await self.attempt(TOPIC, queue_id, lane, sequence, size, self.plan.timeout_ms):
                self.route.trouble()
                await asyncio.sleep(RETRY_S)

    async def _delayed(self) -> None:
        """Messages of the delay levels in turn."""
        lane = self.plan.producers * self.plan.queues + 1
        sequence = 0
        while not self._stopping:
            sequence += 1
            sent = await self.attempt(DELAYED_TOPIC, 0, lane, sequence, 200, self.plan.timeout_ms)
            await asyncio.sleep(1 / self.plan.delayed_rate if sent else RETRY_S)

    async def _probe(self) -> None:
        """A small message every 10 ms, however long the answers of earlier ones take."""
        next_s = time.monotonic()
        sequence = 0
        while not self._stopping:
            sequence += 1
            probe = Probe(time.monotonic_ns())
            self.probes.append(probe)
            task = asyncio.create_task(self._probe_once(probe, sequence), name="one probe")
            self._probing.add(task)
            task.add_done_callback(self._probing.discard)
            next_s = max(next_s + PROBE_INTERVAL_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())

    async def _probe_once(self, probe: Probe, sequence: int) -> None:
        probe.ok = await self.attempt(PROBE_TOPIC, 0, 0, sequence, 64, PROBE_TIMEOUT_MS)
        probe.ended_ns = time.monotonic_ns()
        if not probe.ok:
            self.route.trouble()

    async def attempt(
        self, topic: str, queue_id: int, lane: int, sequence: int, size: int, timeout_ms: int
    ) -> bool:
        """Send one new message to the master of the moment; whether it was acknowledged."""
        master = self.route.master
        if master is None:
            return False
        number = next(self._numbers)
        start = number % 4096
        body = self._filler[start : start + size] + number.to_bytes(8, "big")
        unique_id = f"{number:016x}{body_hash(body)}"
        send = Send(
            unique_id, topic, queue_id, lane, sequence, self.round, time.monotonic_ns(), 0, INFO,
            NO_ANSWER, master, size=len(body),
        )  # fmt: skip
        try:
            send = await self._outcome(send, body, timeout_ms)
        finally:  # a cancelled attempt is in the journal too: it may be stored
            now_ns = time.monotonic_ns()
            self.journal.send(replace(send, ended_ns=now_ns))
        if send.outcome != OK:
            return False
        if now_ns - self._last_ok_ns > STALL_NS:
            self.stalls.append(Stall(self._last_ok_ns, now_ns))
        self._last_ok_ns = now_ns
        return True

    async def _outcome(self, send: Send, body: bytes, timeout_ms: int) -> Send:
        try:
            channel = await self._pool.get(send.broker)
        except ConnectFailed:
            return replace(send, outcome=FAIL, code=NOT_SENT)
        try:
            coming = channel.request_nowait(request_of(send, body), LATE_MS)
        except ConnectionLost:
            return send
        await asyncio.wait({coming}, timeout=timeout_ms / 1000)
        if not coming.done():
            coming.add_done_callback(lambda late: self._late(send, late))
            return send
        return self._judged(send, coming)

    def _late(self, send: Send, coming: asyncio.Future[Command]) -> None:
        """An answer nobody waited for any more is a word all the same: a second line for this send."""
        if coming.cancelled():
            return
        answered = self._judged(send, coming)
        self.late += answered.outcome == OK
        if answered.outcome != INFO:
            self.journal.send(replace(answered, ended_ns=time.monotonic_ns()))

    def _judged(self, send: Send, coming: asyncio.Future[Command]) -> Send:
        try:
            answer = coming.result()
        except (ConnectionLost, RequestTimedOut):
            return send
        if answer.code == ResponseCode.SUCCESS:
            return placed(send, answer)
        if answer.code in STORED_UNKNOWN:
            return replace(send, code=answer.code)  # stored, whatever becomes of it
        self.unusual[f"{answer.code} {(answer.remark or '')[:80]}"] += 1
        return replace(send, outcome=FAIL if answer.code in REFUSED else INFO, code=answer.code)

    # --- reading

    async def end(self, address: str, topic: str, queue_id: int) -> int | None:
        """Where this broker says that a queue ends; None when it does not say."""
        return await max_offset(self._pool, address, topic, queue_id)

    async def _read(self, topic: str, queue_id: int) -> None:
        """Read a queue on and on, each time from any replica that the name server shows."""
        offset = 0
        while True:
            addresses = list(self.route.addresses.values())
            found = None
            if addresses:
                address = self._rng.choice(addresses)
                found = await pull(self._pool, address, topic, queue_id, offset)
            if found:
                self.journal.seen(
                    Seen(topic, queue_id, offset, found, address, time.monotonic_ns())
                )
                offset += len(found)
            else:
                await asyncio.sleep(0.05)


def request_of(send: Send, body: bytes) -> Command:
    """One message to a fixed queue; the levels of delayed ones take turns."""
    properties = {"UNIQ_KEY": send.unique_id, "KEYS": send.unique_id[:16], "WAIT": "true"}
    if send.topic == DELAYED_TOPIC:
        properties["DELAY"] = str(1 + send.sequence % len(DELAYS_S))
    return send_command(GROUP, send.topic, send.queue_id, properties, body)


async def max_offset(pool: ChannelPool, address: str, topic: str, queue_id: int) -> int | None:
    """Where a broker says that a queue ends; None when it does not say."""
    ask = Command(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
    answer = await answer_of(pool, address, ask, 1000)
    return None if answer is None else int((answer.ext or {})["offset"])


def placed(send: Send, answer: Command) -> Send:
    """The send with what its acknowledgement says."""
    given = answer.ext or {}
    return replace(
        send,
        outcome=OK,
        code=0,
        queue_id=int(given["queueId"]),
        queue_offset=int(given["queueOffset"]),
        offset=parse_offset_message_id(given["msgId"])[1],
        epoch=int(given.get("epoch", -1)),
        copies=int(given.get("copies", -1)),
        durable=int(given.get("durable", -1)),
    )


async def pull(
    pool: ChannelPool, address: str, topic: str, queue_id: int, offset: int, timeout_ms: int = 1000
) -> tuple[str, ...] | None:
    """Unique ids of the messages from `offset` on, which must be the first; None: nothing to be had."""
    ask = pull_command(GROUP, topic, queue_id, offset)
    answer = await answer_of(pool, address, ask, timeout_ms)
    if answer is None:
        return None
    return tuple(each.property_map["UNIQ_KEY"] for each in messages_from(answer, offset)) or None
