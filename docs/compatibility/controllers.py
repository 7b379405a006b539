"""What brokers and operators ask a controller: a group of two replicas that only says that it is there."""

from __future__ import annotations

import time
from typing import Final

from docs.compatibility.asker import Asker
from docs.compatibility.servers import CLUSTER, REPLICA
from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting import RequestCode as R

GROUP: Final = "broker-y"
ADDRESS: Final = "127.0.0.1:3"


async def everything(asker: Asker) -> None:
    at = asker.side.controller
    group = {"clusterName": CLUSTER, "brokerName": GROUP}
    now = {"invokeTime": time.time_ns() // 1_000_000}

    async def ask(
        code: R, ext: dict[str, object] | None = None, body: object = None, case: str = ""
    ) -> Command:
        return await asker.ask(code, ext, body, case=case, at=at)

    await ask(R.CONTROLLER_GET_METADATA_INFO)
    await ask(R.CONTROLLER_GET_NEXT_BROKER_ID, {**group})
    applied = {**group, "appliedBrokerId": 1, "registerCheckCode": "127.0.0.1:3;1"}
    await ask(R.CONTROLLER_APPLY_BROKER_ID, applied)
    await ask(R.CONTROLLER_APPLY_BROKER_ID, {**applied, "registerCheckCode": "x"}, case="that another has")  # fmt: skip
    registered = {**group, "brokerId": 1, "brokerAddress": ADDRESS, **now}
    await ask(R.CONTROLLER_REGISTER_BROKER, registered)
    await ask(R.CONTROLLER_REGISTER_BROKER, {**registered, "brokerId": 9}, case="of an unknown id")
    for more in (
        (
            R.CONTROLLER_APPLY_BROKER_ID,
            {**applied, "appliedBrokerId": 2, "registerCheckCode": "127.0.0.1:4;1"},
        ),
        (
            R.CONTROLLER_REGISTER_BROKER,
            {**registered, "brokerId": 2, "brokerAddress": "127.0.0.1:4"},
        ),
    ):
        await asker.quietly(*more, at=at)
    alive = {
        **group, "brokerAddr": ADDRESS, "brokerId": 1, "epoch": 0, "maxOffset": 0, "confirmOffset": 0,
        "heartbeatTimeoutMills": 60_000, "electionPriority": 1,
    }  # fmt: skip
    await asker.ask(R.BROKER_HEARTBEAT, alive, at=at, case="to a controller", timeout_ms=3_000)
    second = {**alive, "brokerId": 2, "brokerAddr": "127.0.0.1:4"}
    await asker.quietly(R.BROKER_HEARTBEAT, second, at=at, timeout_ms=3_000)
    elected = {**group, "brokerId": 1, "designateElect": False, **now}
    await ask(R.CONTROLLER_ELECT_MASTER, {**elected})
    await ask(R.CONTROLLER_ELECT_MASTER, {**elected, "brokerName": "none"}, case="of an unknown group")  # fmt: skip
    await ask(R.CONTROLLER_GET_REPLICA_INFO, {"brokerName": REPLICA})
    await ask(R.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "none"}, case="of an unknown group")
    await ask(R.CONTROLLER_GET_SYNC_STATE_DATA, {}, [REPLICA])
    altered = {"brokerName": GROUP, "masterBrokerId": 1, "masterEpoch": 99, **now}
    members = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
    await ask(R.CONTROLLER_ALTER_SYNC_STATE_SET, altered, members, case="in a wrong epoch")
    await ask(R.CONTROLLER_ALTER_SYNC_STATE_SET, {**altered, "masterEpoch": 1}, members)
    await ask(R.GET_CONTROLLER_CONFIG)
    await ask(R.UPDATE_CONTROLLER_CONFIG, {}, b"enableElectUncleanMaster=false")
    await ask(R.CLEAN_BROKER_DATA, {**group, "isCleanLivingBroker": True, **now})
