"""What a simulated master sends its slaves: the log as far as their windows go, and heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandemmq.chaos.sim.network import SimulatedLink
from tandemmq.replication import masterevents as m

if TYPE_CHECKING:
    from tandemmq.chaos.sim.broker import Broker


@dataclass(slots=True)
class Stream:
    """The sending half of one slave's connection."""

    link: SimulatedLink
    cursor: int = -1
    acked: int = 0
    said_us: int = 0
    sent_confirmed: int = -1


def ship(broker: Broker) -> None:
    """Send every slave what it may have."""
    core = broker.core
    if core is None or core.master is None or not broker.streams:
        return
    plan, rng = broker.world.plan, broker.world.rng
    end = core.master.end
    confirmed = broker.visible()
    history = core.master.history
    start = broker.disk.start
    for number, stream in broker.streams.items():
        if 0 <= stream.cursor < start:
            broker.world.mark("stream overtaken by retention")
            del broker.streams[number]
            broker.close_link(stream.link)
            broker.feed(m.SlaveLost(number))  # and on with whoever is left
            return
    for number, stream in broker.streams.items():
        while (
            0 <= stream.cursor < end
            and stream.cursor - stream.acked < plan.window * plan.frame_cells_max
        ):
            at = stream.cursor
            entry = history.at(at)
            limit = end if entry is None else history.end_of_reign(entry.number, end)
            stop = min(limit, at + 1 + int(rng.random() * plan.frame_cells_max))
            epoch, start = entry or (0, 0)
            stream.cursor = stop
            _transfer(broker, number, stream, at, stop, epoch, start, confirmed)
        if stream.sent_confirmed < confirmed and stream.cursor == end and stream.acked == end:
            _transfer(broker, number, stream, end, end, history.last, history.last_start, confirmed)


def ship_heartbeats(broker: Broker) -> None:
    """A word to every slave that has heard nothing for a while."""
    core = broker.core
    if core is None or core.master is None:
        return
    idle_us = broker.world.plan.rules.stream_heartbeat_ms * 1000
    history = core.master.history
    for number, stream in list(broker.streams.items()):
        if stream.cursor >= 0 and broker.world.now_us - stream.said_us > idle_us:
            at = stream.cursor
            _transfer(
                broker, number, stream, at, at, history.last, history.last_start, broker.visible()
            )


def _transfer(
    broker: Broker,
    number: int,
    stream: Stream,
    at: int,
    stop: int,
    epoch: int,
    start: int,
    confirmed: int,
) -> None:
    stream.said_us = broker.world.now_us
    stream.sent_confirmed = confirmed
    cells = broker.disk.cells[at:stop]
    broker.say_stream(number, ("frame", at, cells, epoch, start, confirmed))
