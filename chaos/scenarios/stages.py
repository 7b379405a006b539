"""What a scenario is played on: a group of replicas, and with it the means to break what the stage is for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tandemmq.chaos.faults.clocks import SteppingClock
from tandemmq.chaos.faults.disks import SmallDisk
from tandemmq.chaos.faults.failing_disk import FailingDisk, compiler
from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.faults.links import Link
from tandemmq.chaos.faults.memory import unsupported as no_memory
from tandemmq.chaos.faults.namespaces import Namespaces
from tandemmq.chaos.faults.namespaces import unsupported as no_spaces
from tandemmq.chaos.faults.thin import ThinDisk
from tandemmq.chaos.faults.thin import unsupported as no_thin
from tandemmq.chaos.faults.toxiproxy import Toxiproxy, find_server
from tandemmq.chaos.groups import NAME_SERVER, GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.chaos.hosts import Disks, HostGroup, unsupported
from tandemmq.chaos.ports import LOOPBACK, PORTS

#: what a scenario is played on -> what that needs
STAGES: Final[Mapping[str, str]] = {
    "plain": "processes on loopback",
    "links": "a Toxiproxy server in front of every link (Go builds it, or TOXIPROXY_SERVER names one)",
    "shims": "a C compiler, for shims around system calls and the clock",
    "spaces": "root and iptables: each node in a network namespace of its own",
    "hosts": "root and loop devices: each store on a file system whose power can be cut",
    "small": "root: each store on a small file system that can be filled",
    "thin": "root and loop devices: each store on a file system that promises more room than there is",
    "memory": "root and control groups: a process can be short of memory",
}
PROXIED: Final = "127.0.0.2"  # what brokers advertise: all of 127/8 is loopback on Linux
SMALL_MIB: Final = 192
THIN_MIB: Final = 256
KEEPER: Final = "names"  # the node of name server and controller


class LinkedGroup(ReplicaGroup):
    """A Toxiproxy in front of every link of every replica.

    Each replica has a server of its own, and clients have one: the kernel's counts of what a server sends to the
    controller, or to the name server, would be those of all links together.

    links[n]  of replica n by what they carry: "clients" (clients, and slaves that copy tables) and "stream" lead to
              it, "controller" and "names" from it to the controller and the name server
    routes    from clients to the name server
    """

    def __init__(self, directory: Path, plan: GroupPlan, toxiproxies: Sequence[Toxiproxy]) -> None:
        self.toxiproxies = toxiproxies
        self.links: dict[int, dict[str, Link]] = {}
        super().__init__(directory, plan)
        listen = f"{LOOPBACK}:{PORTS.take((0,))}"
        self.routes = Link(toxiproxies[-1], "routes", listen, self.name_server_address)

    @property
    def routes_address(self) -> str:
        return self.routes.listen

    def settings_of(self, number: int) -> dict[str, object]:
        settings = super().settings_of(number)
        ports = {
            "clients": int(str(settings["listenPort"])),
            "stream": int(str(settings["haListenPort"])),
        }
        made = {
            name: Link(
                self.toxiproxies[number],
                f"{name} of replica {number}",
                f"{PROXIED}:{port}",
                f"{LOOPBACK}:{port}",
            )
            for name, port in ports.items()
        }
        for name, target in (
            ("controller", self.controller_address),
            ("names", self.name_server_address),
        ):
            listen = f"{LOOPBACK}:{PORTS.take((0,))}"
            made[name] = Link(
                self.toxiproxies[number], f"{name} of replica {number}", listen, target
            )
        self.links[number] = made
        return settings | {
            "brokerIP1": PROXIED,
            "brokerIP2": PROXIED,
            "bindAddress": LOOPBACK,
            "registerNameServerPeriod": 10_000,
            "controllerAddr": made["controller"].listen,
            "namesrvAddr": made["names"].listen,
        }

    async def start(self) -> None:
        for links in self.links.values():
            for link in links.values():
                await link.create()
        await self.routes.create()
        await super().start()


class ShimmedGroup(ReplicaGroup):
    """Every replica with a disk that fails and a clock that steps when told to."""

    def __init__(self, directory: Path, plan: GroupPlan) -> None:
        if compiler() is None:
            raise Unsupported("needs a C compiler, for shims around system calls (Debian: gcc)")
        super().__init__(directory, plan)
        self.failing = [
            FailingDisk(directory / f"shims-{each.number}", each.store) for each in self.replicas
        ]
        self.clocks = [SteppingClock(directory / f"shims-{each.number}") for each in self.replicas]
        for replica, disk, clock in zip(self.replicas, self.failing, self.clocks, strict=True):
            preloads = f"{disk.env['LD_PRELOAD']} {clock.env['LD_PRELOAD']}"
            replica.env |= {**disk.env, **clock.env, "LD_PRELOAD": preloads}


class OwnDiskGroup(ReplicaGroup):
    """Every store on a file system of its own, which is mounted before."""

    def store_of(self, number: int) -> Path:
        return disk_of(self.directory, number) / "store"


class SmallGroup(OwnDiskGroup):
    """Every store on a small file system."""

    def settings_of(self, number: int) -> dict[str, object]:
        return (
            super().settings_of(number)
            | {
                "cleanResourceInterval": 300,
                "cleanFileForciblyEnable": "false",  # else a full disk makes room by deleting old messages: its policy
                "diskMaxUsedSpaceRatio": 99,
            }
        )


class ThinGroup(OwnDiskGroup):
    """Every store on a thin disk."""

    def __init__(self, directory: Path, plan: GroupPlan, disks: Sequence[ThinDisk]) -> None:
        self.disks = disks
        super().__init__(directory, plan)


class SpacedGroup(ReplicaGroup):
    """Every node in a network namespace: the replicas, and one with name server and controller."""

    def __init__(self, directory: Path, plan: GroupPlan, spaces: Namespaces) -> None:
        self.spaces = spaces
        super().__init__(directory, plan)
        self.name_server.prefix = spaces.prefix(KEEPER)
        insecure = ["--insecure"] if plan.servers == "tandem" else []
        self.name_server.command += insecure
        for replica in self.replicas:
            replica.prefix = spaces.prefix(replica.name)
            replica.command += insecure
            replica.metrics_port = 0  # it listens in there
        spaces.ports = {
            KEEPER: int(self.name_server_address.rpartition(":")[2]),
            **{each.name: int(each.address.rpartition(":")[2]) for each in self.replicas},
        }

    def host_of(self, number: int) -> str:
        return self.spaces.address(KEEPER if number == NAME_SERVER else f"replica {number}")

    def settings_of(self, number: int) -> dict[str, object]:
        return super().settings_of(number) | {"bindAddress": self.host_of(number)}


def disk_of(directory: Path, number: int) -> Path:
    """Where the small file system of a replica is mounted."""
    return directory / f"replica-{number}" / "disk"


@contextlib.asynccontextmanager
async def staged(
    stage: str, directory: Path, plan: GroupPlan, ground: contextlib.ExitStack
) -> AsyncIterator[ReplicaGroup]:
    """The group of a stage, up and whole. Raises Unsupported, ProcessBroken.

    ground  gets what must outlive the processes: file systems, whose files are judged when they have stopped
    """
    async with contextlib.AsyncExitStack() as stack:
        group: ReplicaGroup
        match stage:
            case "links":
                proxies = [
                    await stack.enter_async_context(Toxiproxy(directory / f"toxiproxy-{number}"))
                    for number in range(plan.replicas + 1)
                ]
                group = LinkedGroup(directory, plan, proxies)
            case "shims":
                group = ShimmedGroup(directory, plan)
            case "spaces":
                nodes = [KEEPER, *(f"replica {number}" for number in range(plan.replicas))]
                group = SpacedGroup(directory, plan, ground.enter_context(Namespaces(nodes)))
            case "hosts":
                if missing := unsupported("ext4"):
                    raise Unsupported(missing)
                disks = ground.enter_context(Disks(directory, plan.replicas, "ext4"))
                group = HostGroup(directory, plan, disks)
            case "small":
                for number in range(plan.replicas):
                    ground.enter_context(SmallDisk(disk_of(directory, number), SMALL_MIB))
                group = SmallGroup(directory, plan)
            case "thin":
                thin = [
                    ground.enter_context(ThinDisk(disk_of(directory, number), THIN_MIB))
                    for number in range(plan.replicas)
                ]
                group = ThinGroup(directory, plan, thin)
            case "memory":
                if missing := no_memory():
                    raise Unsupported(missing)
                group = ReplicaGroup(directory, plan)
            case _:
                group = ReplicaGroup(directory, plan)
        await stack.enter_async_context(group)
        await group.start()
        yield group


def direct_address(replica: ReplicaProcess, group: ReplicaGroup) -> str:
    """Where a replica listens itself, not a proxy in front of it."""
    if isinstance(group, LinkedGroup):
        return replica.address.replace(PROXIED, LOOPBACK)
    return replica.address


def stages_here() -> Mapping[str, str]:
    """stage -> why it is not to be had here, "" where it is. Nothing is built for it."""

    missing = dict.fromkeys(STAGES, "")
    try:
        find_server(build=False)
    except Unsupported as problem:
        missing["links"] = str(problem)
    if compiler() is None:
        missing["shims"] = "needs a C compiler (Debian: gcc)"
    missing["spaces"] = no_spaces()
    missing["hosts"] = unsupported("ext4")
    missing["thin"] = no_thin()
    missing["memory"] = no_memory()
    missing["small"] = "" if not no_spaces().startswith("needs root") else "needs root"
    return missing
