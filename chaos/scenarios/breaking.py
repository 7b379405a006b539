"""Turns a planned fault into one that can be entered: whom it meets is who has the role at that moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tandemmq.chaos.checking.judging import FREEZE_EVENT
from tandemmq.chaos.faults.clocks import ClockDrift, ClockJump
from tandemmq.chaos.faults.disks import DiskFull, FailingCalls, PowerLoss
from tandemmq.chaos.faults.fault import Fault, NoEffect
from tandemmq.chaos.faults.grudges import drawn, one_way
from tandemmq.chaos.faults.links import Late, Link, Narrow, Refused, Reset, Silenced, Sliced
from tandemmq.chaos.faults.memory import MIB, MemoryPressure
from tandemmq.chaos.faults.namespaces import PacketLoss
from tandemmq.chaos.faults.processes import Killed, Paused, RestartStorm, Stopped, Stuttering
from tandemmq.chaos.faults.rot import BitRot
from tandemmq.chaos.faults.thin import ThinDiskFull
from tandemmq.chaos.gathering import POWER_EVENT
from tandemmq.chaos.groups import ReplicaGroup, ReplicaProcess
from tandemmq.chaos.hosts import HostGroup
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.scenarios.playing import WrongStage
from tandemmq.chaos.scenarios.schedule import Planned, Value
from tandemmq.chaos.scenarios.stages import (
    KEEPER,
    LinkedGroup,
    ShimmedGroup,
    SmallGroup,
    SpacedGroup,
    ThinGroup,
    direct_address,
    disk_of,
)

PROCESS_KINDS: Final[Mapping[str, Callable[[AsyncProcess, str], Fault]]] = {
    "kill": Killed,
    "stop": Stopped,
    "pause": Paused,
    "stutter": Stuttering,
}
#: links by the word of a schedule; "routes": from clients to the name server, whoever the victim is; "alone": the
#: master hears neither controller nor slave
LINK_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "clients": ("clients",), "stream": ("stream",), "controller": ("controller",), "names": ("names",),
    "routes": ("routes",), "alone": ("controller", "stream"),
}  # fmt: skip


class Breaker:
    """Makes faults for one group. rng: what is drawn when a fault fires, as the shape of a partition."""

    def __init__(self, group: ReplicaGroup, journal: Journal, rng: random.Random) -> None:
        self._group = group
        self._journal = journal
        self._rng = rng

    def happened(self, fault: Fault) -> None:
        """Into the journal, for those who judge by more than the fault itself; after it was entered."""
        match fault:
            case Paused(process=ReplicaProcess(address=address, name=name)):
                self._journal.event(FREEZE_EVENT, process=name, address=address)
            case PowerLoss(victims=victims):
                self._journal.event(
                    POWER_EVENT, at_ns=fault.cut_ns, done_ns=fault.done_ns, everybody=fault.everybody,
                    hosts=[each.name for each in victims],
                )  # fmt: skip

    async def fault(self, planned: Planned) -> Fault:
        """Raises NoEffect when nobody has the role, WrongStage."""
        group, how = self._group, planned.with_
        if planned.kind == "storm":
            return RestartStorm(
                [(each, direct_address(each, group)) for each in group.replicas], self._rng
            )
        if planned.kind in PROCESS_KINDS:
            process = await self._process(planned)
            return PROCESS_KINDS[planned.kind](process, self._address(process))
        if planned.kind == "power" and isinstance(group, HostGroup):
            everybody = planned.victim in ("replicas", "all")
            return PowerLoss(group, group.replicas if everybody else [await self._replica(planned)])
        if isinstance(group, LinkedGroup):
            return self._of_links(planned, await self._links(planned, group))
        replica = await self._replica(planned)
        if planned.kind == "packets" and isinstance(group, SpacedGroup):
            return self._of_packets(planned, group, replica)
        address = direct_address(replica, group)
        if planned.kind == "memory":
            return MemoryPressure(replica, address, int(how["limit_mib"]) * MIB)
        if planned.kind == "rot":
            part: Any = how["part"]
            return BitRot(replica, address, part, self._rng)
        if planned.kind == "thin-disk" and isinstance(group, ThinGroup):
            return ThinDiskFull(replica, address, group.disks[replica.number])
        if planned.kind == "disk-full" and isinstance(group, SmallGroup):
            return DiskFull(replica.name, disk_of(group.directory, replica.number))
        if isinstance(group, ShimmedGroup):
            if planned.kind == "clock":
                clock = group.clocks[replica.number]
                return ClockJump(replica.name, clock, float(how["jump_s"]), replica.metrics_port)
            if planned.kind == "drift":
                clock = group.clocks[replica.number]
                return ClockDrift(replica.name, clock, int(how["ppm"]))
            if planned.kind == "calls":
                return FailingCalls(
                    replica, replica.address, group.failing[replica.number], str(how["call"]),
                    code=int(how.get("errno", 0)), delay_ms=int(how.get("delay_ms", 0)), part=str(how.get("part", "")),
                )  # fmt: skip
        raise WrongStage(f"{type(group).__name__} has no means for {planned}")

    def _of_links(self, planned: Planned, links: Sequence[Link]) -> Fault:
        how: Mapping[str, Value] = planned.with_
        way: Any = how.get("way", "both")
        match planned.kind:
            case "partition":
                return Silenced(links, way)
            case "latency":
                return Late(links, int(how["latency_ms"]), int(how.get("jitter_ms", 0)), way)
            case "bandwidth":
                return Narrow(links, int(how["rate_kb"]), way)
            case "slicing":
                return Sliced(links, int(how["piece_bytes"]), way=way)
            case "reset":
                return Reset(links)
            case "refuse":
                return Refused(links)
        raise WrongStage(f"no link fault is called {planned.kind}")

    def _of_packets(self, planned: Planned, group: SpacedGroup, victim: ReplicaProcess) -> Fault:
        nodes = list(group.spaces.nodes)
        shape: Any = planned.with_["shape"]
        if shape == "loss":
            pairs = one_way(victim.name, nodes)
            return PacketLoss(group.spaces, pairs, "loss", int(planned.with_["percent"]) / 100)
        if shape == "one-way":
            return PacketLoss(group.spaces, one_way(victim.name, [KEEPER]), "one-way")
        return PacketLoss(group.spaces, drawn(shape, self._rng, nodes, victim.name), str(shape))

    async def _links(self, planned: Planned, group: LinkedGroup) -> list[Link]:
        names = LINK_SETS[str(planned.with_["links"])]
        replica = await self._replica(planned)
        links = group.links[replica.number] | {"routes": group.routes}
        return [links[name] for name in names]

    async def _process(self, planned: Planned) -> AsyncProcess:
        if planned.victim == "controller":
            return self._group.name_server
        return await self._replica(planned)

    async def _replica(self, planned: Planned) -> ReplicaProcess:
        """Who has the role now. Raises NoEffect."""
        deadline = time.monotonic() + 5.0
        master = self._group.last_master
        while time.monotonic() < deadline:
            view = await self._group.view()
            if view is not None and view.master:
                master = view.master
                break
        if master is None:
            raise NoEffect("nobody is master: whom the fault was for is unknown")
        of_role = self._group.replica_at(master)
        if planned.victim == "slave":
            return self._rng.choice([each for each in self._group.replicas if each is not of_role])
        return of_role

    def _address(self, process: AsyncProcess) -> str:
        if isinstance(process, ReplicaProcess):
            return direct_address(process, self._group)
        return self._group.name_server_address
