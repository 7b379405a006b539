"""Faults of connections, through a real Toxiproxy in front of every link of a group.

What each toxic does to a link is shown by the bytes that the kernel counts on both sides of the proxy (flows), not by
what the proxy was told. What it cannot do (lost packets, hosts that vanish without a word) is done in network
namespaces (tandemmq.chaos.faults.namespaces).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, until
from tandemmq.chaos.faults.flows import FlowMeter, Passed
from tandemmq.chaos.faults.processes import listens
from tandemmq.chaos.faults.toxiproxy import Stream, Toxiproxy

EFFECT_S: Final = 25.0  # name servers hear of a broker every 10 s
HEALED_S: Final = 20.0
SILENCE_S: Final = 0.3  # bytes come in for so long and none go on
LATE_SHARE: Final = 0.5  # of the delay that was ordered: what is seen is a sample
RATE_SLACK: Final = 1.5
METER_S: Final = 0.05  # between two looks
UP: Final[Stream] = "upstream"
DOWN: Final[Stream] = "downstream"
Shown = Callable[[Passed], str | None]
Way = Literal["both", "up", "down"]
_WAYS: Final[Mapping[Way, tuple[Stream, ...]]] = {"both": (UP, DOWN), "up": (UP,), "down": (DOWN,)}


@dataclass(frozen=True, slots=True)
class Link:
    """One proxied way: whoever connects to `listen` comes out at `upstream`. name: also the proxy's."""

    toxiproxy: Toxiproxy
    name: str
    listen: str
    upstream: str

    async def create(self) -> None:
        await self.toxiproxy.create(self.name, self.listen, self.upstream)

    def meter(self) -> FlowMeter:
        return FlowMeter(self.toxiproxy.process.pid, self.listen, self.upstream)


class LinkFault(Fault):
    """Toxics on one or several links, while it lasts.

    toxic      Toxiproxy's name of it; way: which directions, seen from who connects
    """

    toxic: ClassVar[str] = ""

    def __init__(self, links: Sequence[Link], way: Way = "both", **attributes: int) -> None:
        super().__init__(" and ".join(each.name for each in links))
        self.links = tuple(links)
        self.way: Way = way
        self.attributes = attributes
        self._put: list[tuple[Link, str]] = []

    @property
    def where(self) -> str:
        ways = {"both": "", "up": ", only towards the target", "down": ", only the answers"}
        return f"{self.story.victim}{ways[self.way]}"

    async def inject(self) -> str:
        meters = [
            {stream == UP: each.meter() for stream in _WAYS[self.way]} for each in self.links
        ]  # made before: what was under way then has gone by now
        for meter in [each for of_link in meters for each in of_link.values()]:
            await meter.look()
        for link in self.links:
            for stream in _WAYS[self.way]:
                name = await link.toxiproxy.add(link.name, self.toxic, stream, self.attributes)
                self._put.append((link, name))
        # together: what happens to one of them may end the traffic on the other
        seen = await asyncio.gather(
            *(self.seen(link, of_link) for link, of_link in zip(self.links, meters, strict=True))
        )
        return "; ".join(seen)

    async def seen(self, link: Link, meters: Mapping[bool, FlowMeter]) -> str:
        """Wait for the effect on one link, in any of its directions: a link whose requests are lost has no answers
        to lose. meters: by "upwards". Raises NoEffect."""
        looks = [asyncio.create_task(self.one_way(meter, up)) for up, meter in meters.items()]
        problem: BaseException = NoEffect(link.name)
        try:
            for look in asyncio.as_completed(looks):
                try:
                    return await look
                except NoEffect as none:
                    problem = none
        finally:
            for task in looks:
                task.cancel()
            await asyncio.gather(*looks, return_exceptions=True)
        raise problem

    async def heal(self) -> str:
        for link, name in self._put:
            await link.toxiproxy.remove(link.name, name)
        self._put = []
        return "; ".join([await passes(link) for link in self.links])

    async def one_way(self, meter: FlowMeter, up: bool) -> str:
        """Wait for the effect in one direction; what shows it. Raises NoEffect."""
        begin = await meter.look()
        look = self.shown(begin, up)
        while True:
            now = await meter.look()
            if evidence := look(now):
                return evidence
            if now.at_s - begin.at_s > EFFECT_S:
                came, went, segments = (
                    after - before
                    for after, before in zip(now.side(up), begin.side(up), strict=True)
                )
                raise NoEffect(
                    f"{self.story.victim}: {came} bytes came in and {went} went on, in {segments} packets"
                )
            await asyncio.sleep(METER_S)

    def shown(self, begin: Passed, up: bool) -> Shown:
        """What tells, of each look at the bytes of one direction, whether it shows the effect, and how."""
        raise NotImplementedError


async def passes(link: Link) -> str:
    """Wait until a link has no toxic left and bytes, or at least connections, pass. Raises NotHealed."""
    left = await link.toxiproxy.toxics(link.name)
    if left or not await link.toxiproxy.enabled(link.name):
        raise NotHealed(f"{link.name} still has {left or 'its proxy switched off'}")
    meter = link.meter()
    before = await meter.look()
    deadline = time.monotonic() + HEALED_S
    while True:
        now = await meter.look()
        if now.up_out > before.up_out or now.down_out > before.down_out:
            moved = now.up_out - before.up_out + now.down_out - before.down_out
            return f"{link.name} passes again ({moved} bytes went on)"
        idle = not meter.connections and time.monotonic() > deadline - HEALED_S / 2
        if idle:  # nobody uses it any more: the master is another one
            taken, there = await listens(link.listen), await listens(link.upstream)
            if taken:
                state = "its target listens" if there else "its target does not listen now"
                return f"{link.name} takes connections, nobody uses it now; {state}"
        if time.monotonic() > deadline:
            raise NotHealed(f"nothing passes {link.name} {HEALED_S:g} s after its toxics were gone")
        await asyncio.sleep(0.05)


class Silenced(LinkFault):
    """Bytes are swallowed without a word, on old connections and new ones: a partition, whole or one way."""

    kind = "partition"
    toxic = "timeout"

    def __init__(self, links: Sequence[Link], way: Way = "both") -> None:
        super().__init__(links, way, timeout=0)

    def describe(self) -> str:
        what = "partition" if self.way == "both" else "one-way loss"
        return f"{what}: everything is swallowed on {self.where}"

    def shown(self, begin: Passed, up: bool) -> Shown:
        came, went, _ = begin.side(up)
        since_s = 0.0

        def look(now: Passed) -> str | None:
            nonlocal came, went, since_s
            now_in, now_out, _ = now.side(up)
            if now_out != went:  # what was under way
                came, went, since_s = now_in, now_out, 0.0
            elif now_in > came and not since_s:
                since_s = now.at_s
            elif since_s and now.at_s - since_s > SILENCE_S:
                return f"{now_in - came} bytes came in, none went on{'' if up else ' to who asked'}"
            return None

        return look


class Late(LinkFault):
    """Everything comes later, by a fixed time and some jitter."""

    kind = "latency"
    toxic = "latency"

    def __init__(
        self, links: Sequence[Link], latency_ms: int, jitter_ms: int = 0, way: Way = "both"
    ) -> None:
        super().__init__(links, way, latency=latency_ms, jitter=jitter_ms)
        self.latency_ms = latency_ms
        self.jitter_ms = jitter_ms

    def describe(self) -> str:
        jitter = f" ± {self.jitter_ms} ms" if self.jitter_ms else ""
        return f"latency of {self.latency_ms} ms{jitter} on {self.where}"

    async def one_way(self, meter: FlowMeter, up: bool) -> str:
        wanted_s = LATE_SHARE * max(1, self.latency_ms - self.jitter_ms) / 1000
        late_s = await longest_late_s(meter, up, wanted_s, EFFECT_S)
        if late_s < wanted_s:
            raise NoEffect(f"{self.story.victim}: bytes waited {1000 * late_s:.0f} ms at most")
        return f"bytes waited {1000 * late_s:.0f} ms in the proxy"


class Narrow(LinkFault):
    """No more than so many kilobytes a second pass."""

    kind = "bandwidth"
    toxic = "bandwidth"

    def __init__(self, links: Sequence[Link], rate_kb: int, way: Way = "both") -> None:
        super().__init__(links, way, rate=rate_kb)
        self.rate_kb = rate_kb

    def describe(self) -> str:
        return f"bandwidth of {self.rate_kb} kB/s on {self.where}"

    def shown(self, begin: Passed, up: bool) -> Shown:
        """More comes in than goes out, and what goes out is no more than the limit."""
        _, went_before, _ = begin.side(up)

        def look(now: Passed) -> str | None:
            came, went, _ = now.side(up)
            took_s = now.at_s - begin.at_s
            rate_kb = (went - went_before) / 1000 / max(took_s, 0.001)
            waiting = came - went
            if took_s > 1.0 and waiting > 0 and 1 <= rate_kb <= RATE_SLACK * self.rate_kb:
                return f"{rate_kb:.0f} kB/s went on, {waiting} bytes wait in the proxy"
            return None

        return look


class Sliced(LinkFault):
    """What was written at once arrives in small pieces with pauses between them."""

    kind = "slicing"
    toxic = "slicer"

    def __init__(
        self, links: Sequence[Link], piece_bytes: int = 64, pause_us: int = 200, way: Way = "both"
    ) -> None:
        super().__init__(
            links, way, average_size=piece_bytes, size_variation=piece_bytes // 4, delay=pause_us
        )
        self.piece_bytes = piece_bytes

    def describe(self) -> str:
        return f"slicing into pieces of about {self.piece_bytes} bytes on {self.where}"

    def shown(self, begin: Passed, up: bool) -> Shown:
        _, went_before, segments_before = begin.side(up)

        def look(now: Passed) -> str | None:
            _, went, segments = now.side(up)
            count = segments - segments_before
            size = (went - went_before) / count if count else 0
            if count > 20 and size < 4 * self.piece_bytes:
                return f"{count} packets of {size:.0f} bytes on average went on"
            return None

        return look


class Reset(LinkFault):
    """Every connection is broken with a reset a moment after it began to be used, new ones, too."""

    kind = "reset"
    toxic = "reset_peer"

    def __init__(self, links: Sequence[Link], after_ms: int = 200) -> None:
        super().__init__(links, "both", timeout=after_ms)
        self.after_ms = after_ms

    def describe(self) -> str:
        return f"every connection is reset {self.after_ms} ms after its first bytes on {self.where}"

    async def seen(self, link: Link, meters: Mapping[bool, FlowMeter]) -> str:
        meter = meters[True]
        before = meter.connections

        async def gone() -> str | None:
            await meter.look()
            broken = before - meter.connections
            return f"{len(broken)} connections that were there are broken" if broken else None

        return await until(
            gone, EFFECT_S, NoEffect(f"{link.name}: none of {len(before)} connections broke")
        )


class Refused(Fault):
    """Connections are broken and new ones refused: a port that nobody listens on any more."""

    kind = "refuse"

    def __init__(self, links: Sequence[Link]) -> None:
        super().__init__(" and ".join(each.name for each in links))
        self.links = tuple(links)

    def describe(self) -> str:
        return f"connections broken and refused on {self.story.victim}"

    async def inject(self) -> str:
        for link in self.links:
            await link.toxiproxy.enable(link.name, False)
        for link in self.links:
            if await listens(link.listen):
                raise NoEffect(f"{link.name} still takes connections")
        return "a connection to it is refused"

    async def heal(self) -> str:
        for link in self.links:
            await link.toxiproxy.enable(link.name, True)
        return "; ".join([await passes(link) for link in self.links])


async def longest_late_s(meter: FlowMeter, up: bool, enough_s: float, within_s: float) -> float:
    """The longest that bytes were seen to wait between coming in and going out, until it is enough.

    What waited when the meter was made went out uncounted on its way in: the least that was seen to wait is nothing.
    """
    waiting: deque[tuple[float, int]] = deque()  # (seen to have come in at, how much by then)
    longest_s, deadline = 0.0, time.monotonic() + within_s
    ahead = 0  # bytes that went out and had come in before
    while longest_s < enough_s and time.monotonic() < deadline:
        now = await meter.look()
        came, went, _ = now.side(up)
        ahead = max(ahead, went - came)
        went -= ahead
        while waiting and waiting[0][1] <= went:
            waiting.popleft()
        if came > went and (not waiting or waiting[-1][1] < came):
            waiting.append((now.at_s, came))
        if waiting:
            longest_s = max(longest_s, now.at_s - waiting[0][0])
        await asyncio.sleep(0.01)
    return longest_s
