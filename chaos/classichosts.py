"""A master and its slaves by their settings, each a host with a disk: RocketMQ's classic replication."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tandemmq.chaos.gauges import metric_values, scrape
from tandemmq.chaos.groups import GroupMember, GroupPlan, ReplicaProcess, SeenGroup
from tandemmq.chaos.hosts import Disks, HostGroup
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.requests import answer_of
from tandemmq.chaos.servers import write_settings
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import fastjson

NEAR_BYTES: Final = 256 << 10  # two logs are not asked at one moment
SLAVE: Final = "SLAVE"


class ClassicHosts(HostGroup):
    """Nobody elects: roles are in each host's broker.conf, and whoever changes them is a person (chaos.person)."""

    def __init__(self, directory: Path, plan: GroupPlan, disks: Disks) -> None:
        self._files: dict[int, dict[str, object]] = {}  # what each broker.conf says
        super().__init__(directory, plan, disks)

    def settings_of(self, number: int) -> dict[str, object]:
        settings = super().settings_of(number)
        for key in ("enableControllerMode", "controllerAddr", "allAckInSyncStateSet"):
            del settings[key]
        role = settings["brokerRole"] if number == 0 else SLAVE
        self._files[number] = settings | {"brokerId": number, "brokerRole": role}
        return self._files[number]

    def change_settings(self, replica: ReplicaProcess, **changed: object) -> None:
        """Write its broker.conf anew; it reads that when it starts."""
        settings = self._files[replica.number] | changed
        self._files[replica.number] = settings
        write_settings(self.directory / f"replica-{replica.number}" / "broker.conf", settings)

    def setting(self, replica: ReplicaProcess, key: str) -> object:
        return self._files[replica.number][key]

    def move_store_away(self, replica: ReplicaProcess) -> Path:
        """`mv` of a stopped broker's store, on its disk for good; where it is now."""
        store = replica.store
        number = len(list(store.parent.glob("store-moved-*")))
        away = store.rename(store.with_name(f"store-moved-{number}"))
        directory = os.open(store.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return away

    async def view(self) -> SeenGroup | None:
        """What the name server shows. In sync is a slave that is streamed to and ends close to its master's end."""
        ask = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await answer_of(self.pool, self.name_server_address, ask, 1000)
        if answer is None:
            return None
        table = fastjson.loads(bytes(answer.body or b"")).get("brokerAddrTable") or {}
        shown = (table.get(self.plan.name) or {}).get("brokerAddrs") or {}
        addresses = {int(number): str(address) for number, address in shown.items()}
        found = {
            number: await self._end(self.replica_at(address))
            for number, address in addresses.items()
        }
        master_end, _ = found.get(0, (-1, True))
        members = tuple(
            GroupMember(
                number,
                addresses[number],
                end >= 0,
                streamed and 0 <= master_end <= end + NEAR_BYTES,
            )
            for number, (end, streamed) in found.items()
        )
        master = addresses.get(0) if master_end >= 0 else None
        self.last_master = master or self.last_master
        return SeenGroup(master, 0, 0, members)

    async def _end(self, replica: ReplicaProcess) -> tuple[int, bool]:
        """Where its log ends, -1 when it does not say; whether it is a master, or follows one."""
        try:
            text = await scrape(replica.metrics_port)
        except ProcessBroken:
            return -1, False
        end = int(next(metric_values(text, "tandem_log_end_bytes"), -1))
        return end, all(metric_values(text, "tandem_stream_up"))

    async def end_of(self, replica: ReplicaProcess) -> int:
        """Where its log ends, -1 when it does not say."""
        end, _ = await self._end(replica)
        return end

    async def alarms_of(self, replica: ReplicaProcess) -> int:
        """How many things it says a person must look at; 0 when it does not answer."""
        try:
            text = await scrape(replica.metrics_port)
        except ProcessBroken:
            return 0
        return int(next(metric_values(text, "tandem_alarms"), 0))
