"""Admin's part about replicated broker groups: who leads, who is in sync, electing and switching over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tandemmq.cluster.client.admin import bodies
from tandemmq.cluster.client.admin.calls import json_body
from tandemmq.cluster.client.admin.cluster import ClusterAdmin
from tandemmq.cluster.client.admin.values import (
    MASTER_ID,
    BrokerMembers,
    ControllerState,
    Election,
    EpochHistory,
    ReplicaSet,
    Switchover,
)
from tandemmq.cluster.client.errors import BrokerUnreachable, ClientError, NoController, NoSuccessor
from tandemmq.cluster.config import format_properties
from tandemmq.cluster.remoting import RequestCode, ResponseCode

SWITCHOVER_MS: Final = 10_000
LOOK_S: Final = 0.01  # between two looks at a name server that announces a new master


class ReplicaAdmin(ClusterAdmin):
    """Groups under a controller.

    controllers  "host:port;host:port" or a sequence; None: the ones that the brokers' settings name
    """

    # Controllers

    async def controllers(self, cluster: str | None = None) -> tuple[str, ...]:
        """The controllers' addresses, as the first broker that answers has them in its settings.

        Raises NoController when no broker runs under one.

        Example: (address,) = await admin.controllers()
        """
        members = await self.cluster(cluster)
        addresses = [at for each in members.values() for at in each.addresses.values()]
        asked = [
            asyncio.create_task(self.broker_config(at), name=f"config {at}") for at in addresses
        ]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    settings = await answer
                except ClientError:
                    continue  # another member knows, too
                if settings.get("enableControllerMode") == "true":
                    return _addresses(settings.get("controllerAddr", ""))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise NoController(
            "no broker that answers runs under a controller (enableControllerMode=true); "
            "if one does, name its controller"
        )

    async def controller_state(self, address: str) -> ControllerState:
        """Who leads the controllers, as the one at `address` says.

        Example: leader = (await admin.controller_state("127.0.0.1:9877")).leader_address
        """
        answer = await self._ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return bodies.controller_state(answer.ext or {})

    async def controller_config(self, address: str) -> dict[str, str]:
        """A controller's settings in force, by RocketMQ's keys.

        Example: wait = (await admin.controller_config(address))["controllerElectionWaitMillis"]
        """
        return bodies.properties((await self._ask(address, RequestCode.GET_CONTROLLER_CONFIG)).body)

    async def update_controller_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running controller. Raises BrokerRefused as update_broker_config.

        Example: await admin.update_controller_config(address, {"enableElectUncleanMaster": "false"})
        """
        body = format_properties(settings).encode()
        await self._ask(address, RequestCode.UPDATE_CONTROLLER_CONFIG, {}, body)

    async def _leader(self, controllers: str | Sequence[str] | None, cluster: str | None) -> str:
        """The address of the controller that leads. Raises NoController."""
        known = await self.controllers(cluster) if controllers is None else _addresses(controllers)
        silent: list[str] = []
        for address in known:
            try:
                leader = (await self.controller_state(address)).leader_address
            except ClientError as problem:
                silent.append(str(problem))
                continue
            if leader:
                return leader
        raise NoController(
            "; ".join(silent) or f"none of {', '.join(known) or 'no addresses'} knows who leads"
        )

    # Groups

    async def replica_sets(
        self,
        broker_names: str | Iterable[str] | None = None,
        *,
        cluster: str | None = None,
        controllers: str | Sequence[str] | None = None,
    ) -> dict[str, ReplicaSet]:
        """Broker name -> its group: master, epoch, sync-state-set; without names, of all registered.

        Names that the controller does not know are left out.
        Raises NoController.

        Example:
            for group in (await admin.replica_sets()).values():
                print(group.broker_name, group.epoch, [each.broker_id for each in group.in_sync])
        """
        if broker_names is None:
            names = sorted(await self.cluster(cluster))
        else:
            names = [broker_names] if isinstance(broker_names, str) else list(broker_names)
        leader = await self._leader(controllers, cluster)
        answer = await self._ask(
            leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json_body(names)
        )
        found = bodies.read(answer.body, bodies.BrokerReplicasInfo, "the sync-state data", leader)
        return found.value()

    async def epoch_history(self, address: str) -> EpochHistory:
        """Which master wrote which part of a broker's log. Raises BrokerRefused without a controller.

        Example: epochs = (await admin.epoch_history("127.0.0.1:10911")).epochs
        """
        code = RequestCode.GET_BROKER_EPOCH_CACHE
        found = await self._fetch(address, code, None, bodies.EpochEntryCache, "the epoch history")
        return found.value()

    # Orders

    async def elect_master(
        self,
        broker_name: str,
        broker_id: int,
        *,
        cluster: str | None = None,
        controllers: str | Sequence[str] | None = None,
        unclean: bool = False,
    ) -> Election:
        """Make this member of the sync-state-set master; returns when it is elected.

        A living master hands over first, so that nothing acknowledged is lost.
        unclean  also a member that is not in the set, when nobody leads: what only others hold is lost
        Raises BrokerRefused (2012) when that member cannot be elected, NoController.

        Example: await admin.elect_master("broker-a", 2)
        """
        if broker_id < 1:
            raise ValueError(f"broker_id must be at least 1, got {broker_id}")
        cluster = cluster or await self._cluster_of(broker_name)
        leader = await self._leader(controllers, cluster)
        fields = {
            "clusterName": cluster,
            "brokerName": broker_name,
            "brokerId": str(broker_id),
            "designateElect": "true",
            "invokeTime": str(self._running().clock.now_ms()),
        }
        if unclean:
            fields["unclean"] = "true"  # ours: RocketMQ's controllers ignore it
        accepted = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        answer = await self._ask(
            leader,
            RequestCode.CONTROLLER_ELECT_MASTER,
            fields,
            accepted=accepted,
            timeout_ms=SWITCHOVER_MS,
        )
        found = bodies.read(answer.body, bodies.ElectMasterResponse, "the election", leader)
        return found.value(answer, broker_name, leader)

    async def switchover(
        self,
        broker_name: str,
        to: int | None = None,
        *,
        cluster: str | None = None,
        controllers: str | Sequence[str] | None = None,
    ) -> Switchover:
        """Hand a group over to another member of its sync-state-set, without losing a message.

        to  its broker id; None: the living one with the lowest
        Returns when the name server sends clients to the new master, or after 10 s.
        Raises NoSuccessor, before anything is changed, when there is no master or nobody who could
        follow it; BrokerRefused when the master would not or could not hand over.

        Example: print((await admin.switchover("broker-a")).elected_ms, "ms")
        """
        before = await self._group(broker_name, cluster, controllers)
        successor = _successor(before, to)
        clock = self._running().clock
        began_ms = clock.monotonic_ms()
        after = await self.elect_master(
            broker_name, successor, cluster=cluster, controllers=controllers
        )
        elected_ms = clock.monotonic_ms() - began_ms
        if after.master_id != successor:
            raise NoSuccessor(f"{broker_name} is led by {after.master_id}, not by {successor}")
        announced = await self._announced(broker_name, after.master_address)
        announced_ms = clock.monotonic_ms() - began_ms if announced else None
        return Switchover(before, after, elected_ms, announced_ms)

    async def clean_broker_metadata(
        self,
        broker_name: str,
        broker_ids: Iterable[int] = (),
        *,
        cluster: str | None = None,
        controllers: str | Sequence[str] | None = None,
        living_too: bool = False,
    ) -> None:
        """Make the controller forget members that will not come back; without ids the whole group.

        Raises BrokerRefused (2009) when one of them is alive, or without ids leads; not with living_too.

        Example: await admin.clean_broker_metadata("broker-a", [3])
        """
        leader = await self._leader(controllers, cluster)
        fields = {"brokerName": broker_name, "isCleanLivingBroker": str(living_too).lower()}
        fields["invokeTime"] = str(self._running().clock.now_ms())
        if cluster:
            fields["clusterName"] = cluster
        if ids := ";".join(map(str, broker_ids)):
            fields["brokerControllerIdsToClean"] = ids
        await self._ask(leader, RequestCode.CLEAN_BROKER_DATA, fields)

    # Parts

    async def _cluster_of(self, broker_name: str) -> str:
        found: BrokerMembers | None = (await self.cluster()).get(broker_name)
        if found is None:
            raise BrokerUnreachable(
                broker_name, "no member of it is registered: say which cluster it is of"
            )
        return found.cluster

    async def _group(
        self, broker_name: str, cluster: str | None, controllers: str | Sequence[str] | None
    ) -> ReplicaSet:
        found = await self.replica_sets(broker_name, cluster=cluster, controllers=controllers)
        if broker_name not in found:
            raise NoSuccessor(f"the controller knows no group {broker_name}")
        return found[broker_name]

    async def _announced(self, broker_name: str, address: str) -> bool:
        try:
            async with asyncio.timeout(SWITCHOVER_MS / 1000):
                # a name server tells nobody: ask until it knows
                while (await self.brokers()).get(broker_name, {}).get(MASTER_ID) != address:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return False
        return True


def _addresses(given: str | Sequence[str]) -> tuple[str, ...]:
    parts = given.split(";") if isinstance(given, str) else given
    return tuple(each.strip() for each in parts if each.strip())


def _successor(group: ReplicaSet, to: int | None) -> int:
    """Who is to lead next. Raises NoSuccessor."""
    name = group.broker_name
    if group.master_id is None:
        raise NoSuccessor(f"{name} has no master; elect one of its members (electMaster)")
    ready = [each.broker_id for each in group.in_sync if each.alive]
    others = [each for each in ready if each != group.master_id]
    if to == group.master_id:
        raise NoSuccessor(f"{to} leads {name} already")
    if to is not None and to not in others:
        state = "is not in the sync-state-set" if to in group.replicas else "is no member"
        raise NoSuccessor(f"{to} {state} of {name}; {_listed(others)} could follow")
    if not others:
        raise NoSuccessor(
            f"nobody can follow {group.master_id} as master of {name}: "
            "no other living member is in the sync-state-set"
        )
    return others[0] if to is None else to


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "nobody"
