"""A replicated broker group as processes: a name server with its controller, and replicas.

Settings are RocketMQ's, so that the same files start our servers or stock ones (`servers="java"`,
where a JDK and Maven are), which gives the figures to compare ours with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from tandemmq.chaos.java import (
    BROKER_MAIN,
    BROKER_SETTINGS,
    DIRECT_MEMORY,
    NAME_SERVER_MAIN,
    WITHOUT_TLS,
)
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import AsyncProcess, ProcessBroken
from tandemmq.chaos.requests import answer_of
from tandemmq.chaos.routes import brokers_of, topic_fields
from tandemmq.chaos.servers import python_command, python_env, write_settings
from tandemmq.cluster.remoting import ChannelPool, Command, RequestCode, ResponseCode
from tandemmq.java import NEWEST, java_command, java_env, java_missing
from tandemmq.storage import fastjson

ASK_MS: Final = 1000
LOOK_S: Final = 0.02
START_S: Final = {"tandem": 30.0, "java": 90.0}
#: a replica that came back and is not in the set by then is stuck
WHOLE_S: Final = {"tandem": 30.0, "java": 180.0}

# Small files, so that the log, the queues and the index roll again and again.
SMALL_FILES: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 40_000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "fileReservedTime": 87_600,
    "deleteWhen": "04",
}
NAME_SERVER: Final = -1  # the number of what is no replica
Servers = Literal["tandem", "java"]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What to start.

    synchronous  S0 or S1 instead of A0 or A1; sync_flush: the 1 of them
    settings     broker settings on top, by RocketMQ's keys; name_server_settings likewise
    """

    replicas: int = 2
    synchronous: bool = True
    sync_flush: bool = False
    copies_min: int = 1
    servers: Servers = "tandem"
    name: str = "broker-chaos"
    cluster: str = "ChaosCluster"
    settings: Mapping[str, object] = field(default_factory=dict)
    name_server_settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def mode(self) -> str:
        """A0, A1, S0 or S1."""
        return ("S" if self.synchronous else "A") + ("1" if self.sync_flush else "0")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A replica as the controller knows it."""

    broker_id: int
    address: str
    alive: bool
    in_sync: bool


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """The controller's word on the group. master: address, None while there is none."""

    master: str | None
    epoch: int
    set_epoch: int
    members: tuple[GroupMember, ...]

    @property
    def in_sync(self) -> frozenset[str]:
        """Addresses of the sync-state-set."""
        return frozenset(each.address for each in self.members if each.in_sync)


class ReplicaProcess(AsyncProcess):
    """A broker of the group; `store` survives everything but the test."""

    def __init__(
        self,
        number: int,
        port: int,
        store: Path,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str],
    ) -> None:
        super().__init__(f"replica {number}", command, log, env)
        self.number = number
        self.address = f"{LOOPBACK}:{port}"
        self.store = store
        self.metrics_port = 0  # 0: none


class ReplicaGroup:
    """The processes, and questions to the controller and the name server."""

    def __init__(self, directory: Path, plan: GroupPlan) -> None:
        self.plan = plan
        self.directory = directory
        name_server_port, controller_port = PORTS.take(), PORTS.take()
        self.name_server_address = f"{self.host_of(NAME_SERVER)}:{name_server_port}"
        self.controller_address = f"{self.host_of(NAME_SERVER)}:{controller_port}"
        self.name_server = self._make_name_server(name_server_port)
        self.replicas = [self._make_replica(number) for number in range(plan.replicas)]
        self.pool = ChannelPool(connect_timeout_ms=ASK_MS)
        self.last_master: str | None = None  # address of the last one the controller named

    @property
    def processes(self) -> list[AsyncProcess]:
        return [self.name_server, *self.replicas]

    def replica_at(self, address: str) -> ReplicaProcess:
        return next(each for each in self.replicas if each.address == address)

    def host_of(self, number: int) -> str:
        """Where a replica listens, or the name server."""
        return LOOPBACK

    def store_of(self, number: int) -> Path:
        """Where the store of a replica lies."""
        return self.directory / f"replica-{number}" / "store"

    def settings_of(self, number: int) -> dict[str, object]:
        """Settings of one replica, by RocketMQ's keys. Made once, when the group is."""
        plan, directory = self.plan, self.directory / f"replica-{number}"
        port = PORTS.take()
        store = self.store_of(number)
        settings: dict[str, object] = {
            "brokerClusterName": plan.cluster,
            "brokerName": plan.name,
            "brokerId": -1,
            "brokerIP1": self.host_of(number),
            "brokerIP2": self.host_of(number),
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.name_server_address,
            "enableControllerMode": "true",
            "controllerAddr": self.controller_address,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "storePathEpochFile": store / "epochFileCheckpoint",
            "flushDiskType": "SYNC_FLUSH" if plan.sync_flush else "ASYNC_FLUSH",
            "allAckInSyncStateSet": "true" if plan.synchronous else "false",
            "minInSyncReplicas": plan.copies_min,
            "autoCreateTopicEnable": "true",
            **SMALL_FILES,
        }
        if plan.servers == "java":
            settings |= {**BROKER_SETTINGS, "rocketmqHome": directory / "home"}
        else:
            settings |= {
                "brokerRole": "SYNC_MASTER" if plan.synchronous else "ASYNC_MASTER",
                "metricsExporterType": "PROM",
                "metricsPromExporterPort": PORTS.take(),
            }
        return {**settings, **plan.settings}

    async def start(self) -> None:
        """Everything up and in the sync-state-set. Raises ProcessBroken."""
        self.name_server.launch()
        await self._until_up(self.name_server)
        for replica in self.replicas:
            replica.launch()
        await self.whole(START_S[self.plan.servers])

    async def _until_up(self, process: AsyncProcess) -> None:
        deadline = time.monotonic() + START_S[self.plan.servers]
        while await self.view() is None:
            if not process.alive:
                raise process.broken(f"ended by itself ({process.code})")
            if time.monotonic() > deadline:
                raise process.broken("does not answer as a controller")
            await asyncio.sleep(LOOK_S)

    async def view(self) -> SeenGroup | None:
        """What the controller says; None when it does not answer. A group unknown to it has no members."""
        names = fastjson.dumps([self.plan.name])
        ask = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, names)
        answer = await answer_of(self.pool, self.controller_address, ask, ASK_MS)
        if answer is None or not answer.body:
            return None
        view = parse_view(fastjson.loads(bytes(answer.body)), self.plan.name)
        self.last_master = view.master or self.last_master
        return view

    async def whole(self, within_s: float | None = None) -> SeenGroup:
        """Wait until every replica is alive and in the set, and one of them is master; that view.

        Raises ProcessBroken when a replica ended by itself, or when it takes too long.
        """
        within_s = WHOLE_S[self.plan.servers] if within_s is None else within_s
        deadline = time.monotonic() + within_s
        view = None
        while True:
            for replica in self.replicas:
                if not replica.alive:
                    raise replica.broken(f"ended by itself ({replica.code})")
            view = await self.view() or view
            if view is not None and self._is_whole(view):
                return view
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {each.name}\n{each.tail()}" for each in self.processes)
                raise ProcessBroken(
                    f"not whole in {within_s:g} s, the controller says {view}\n{tails}"
                )
            await asyncio.sleep(LOOK_S)

    async def whole_master(self) -> ReplicaProcess:
        """Its master, once it is whole. Raises ProcessBroken."""
        view = await self.whole()
        assert view.master is not None
        return self.replica_at(view.master)

    def _is_whole(self, view: SeenGroup) -> bool:
        alive = sum(each.alive for each in view.members)
        return bool(view.master) and len(view.in_sync) == alive == len(self.replicas)

    @property
    def routes_address(self) -> str:
        """The name server, as clients reach it."""
        return self.name_server_address

    async def addresses(self, topic: str) -> dict[int, str] | None:
        """Broker id to address, as the name server's route of a topic says; None without one."""
        found = await brokers_of(self.pool, self.routes_address, topic, ASK_MS)
        return found.get(self.plan.name)

    async def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic on the master. Raises RemotingError, ProcessBroken."""
        master = await self.whole_master()
        ask = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues))
        answer = await self.pool.request(master.address, ask, 5 * ASK_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise ProcessBroken(f"topic {topic}: {answer.code} {answer.remark}")

    async def close(self) -> None:
        """End what still runs, however it is."""
        await self.pool.close()
        for process in reversed(self.processes):
            process.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- making processes

    def _make_name_server(self, port: int) -> AsyncProcess:
        directory = self.directory / "namesrv"
        peer = f"n0-{self.controller_address}"
        settings = {
            "bindAddress": self.host_of(NAME_SERVER),
            "listenPort": port,
            "kvConfigPath": directory / "kvConfig.json",
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "chaos",
            "controllerDLegerPeers": peer,
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": directory / "controller",
            **self.plan.name_server_settings,
        }
        if self.plan.servers == "java":
            settings |= {"rocketmqHome": directory / "home", "mappedFileSize": 16 << 20}
        conf = write_settings(directory / "namesrv.conf", settings)
        if self.plan.servers == "java":
            command, env = _java(directory / "home", NAME_SERVER_MAIN, conf, 256)
        else:
            command, env = python_command("nameserver", "-c", str(conf)), python_env()
        return AsyncProcess("name server", command, directory / "namesrv.log", env)

    def _make_replica(self, number: int) -> ReplicaProcess:
        settings = self.settings_of(number)
        directory = self.directory / f"replica-{number}"
        store = Path(str(settings["storePathRootDir"]))
        store.mkdir(parents=True)
        conf = write_settings(directory / "broker.conf", settings)
        if self.plan.servers == "java":
            command, env = _java(directory / "home", BROKER_MAIN, conf, 512)
        else:
            command, env = python_command("broker", "-c", str(conf)), python_env()
        port = int(str(settings["listenPort"]))
        replica = ReplicaProcess(number, port, store, command, directory / "broker.log", env)
        replica.address = f"{settings['brokerIP1']}:{port}"
        replica.metrics_port = int(str(settings.get("metricsPromExporterPort", 0)))
        return replica


def parse_view(tree: Mapping[str, Any], name: str) -> SeenGroup:
    """The body of CONTROLLER_GET_SYNC_STATE_DATA's answer.

    Source: RocketMQ's BrokerReplicasInfo.
    """
    entry = (tree.get("replicasInfoTable") or {}).get(name)
    if entry is None:
        return SeenGroup(None, 0, 0, ())
    members = tuple(
        GroupMember(int(each["brokerId"]), str(each["brokerAddress"]), bool(each["alive"]), in_sync)
        for key, in_sync in (("inSyncReplicas", True), ("notInSyncReplicas", False))
        for each in entry.get(key) or ()
    )
    return SeenGroup(
        entry.get("masterAddress") or None,
        int(entry.get("masterEpoch") or 0),
        int(entry.get("syncStateSetEpoch") or 0),
        members,
    )


def _java(home: Path, main: str, conf: Path, heap_mb: int) -> tuple[list[str], dict[str, str]]:
    if missing := java_missing():
        raise ProcessBroken(missing)
    command = java_command(
        NEWEST, main, home, "-c", str(conf), heap_mb=heap_mb, options=[DIRECT_MEMORY, WITHOUT_TLS]
    )
    return command, java_env(home)
