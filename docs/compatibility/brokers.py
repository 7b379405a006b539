"""What operators and peers ask a broker about itself, and codes that no broker serves."""

from __future__ import annotations

from docs.compatibility.asker import Asker
from docs.compatibility.messages import GROUP, TOPIC
from docs.compatibility.servers import BROKER, CLUSTER
from tandemmq.cluster.remoting import RequestCode as R

#: what RocketMQ defines and no server of it serves, and what servers ask of clients: asked of a broker all the same
NOWHERE = (
    R.QUERY_BROKER_OFFSET, R.GET_TOPIC_CONFIG_LIST, R.GET_TOPIC_NAME_LIST, R.TRIGGER_DELETE_FILES, R.GET_CLIENT_CONFIG,
    R.SUSPEND_CONSUMER, R.RESUME_CONSUMER, R.RESET_CONSUMER_OFFSET_IN_CONSUMER, R.RESET_CONSUMER_OFFSET_IN_BROKER,
    R.ADJUST_CONSUMER_THREAD_POOL, R.WHO_CONSUME_THE_MESSAGE, R.REGISTER_FILTER_SERVER, R.REGISTER_MESSAGE_FILTER_CLASS,
)  # fmt: skip
OF_CLIENTS = (
    R.CHECK_TRANSACTION_STATE, R.NOTIFY_CONSUMER_IDS_CHANGED, R.RESET_CONSUMER_CLIENT_OFFSET,
    R.GET_CONSUMER_STATUS_FROM_CLIENT, R.PUSH_REPLY_MESSAGE_TO_CLIENT,
)  # fmt: skip


async def everything(asker: Asker) -> None:
    await _itself(asker)
    await _peers(asker)
    await _not_here(asker)
    for code in (*NOWHERE, *OF_CLIENTS):
        await asker.ask(code)


async def _itself(asker: Asker) -> None:
    await asker.until(lambda a: a.code == 0, R.GET_BROKER_RUNTIME_INFO, {})
    await asker.ask(R.GET_BROKER_RUNTIME_INFO)
    await asker.ask(R.GET_BROKER_CONFIG)
    await asker.ask(R.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=71")
    await asker.ask(R.UPDATE_BROKER_CONFIG, {}, b"brokerConfigPath=/x", case="of a path")
    stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}
    await asker.until(
        lambda a: a.code == 0, R.VIEW_BROKER_STATS_DATA, stats
    )  # ours counts each 10 s
    await asker.ask(R.VIEW_BROKER_STATS_DATA, stats)
    await asker.ask(R.VIEW_BROKER_STATS_DATA, {**stats, "statsName": "none"}, case="of nothing")
    for name, key in (
        ("TOPIC_PUT_SIZE", TOPIC), ("BROKER_PUT_NUMS", CLUSTER), ("BROKER_GET_NUMS", CLUSTER),
        ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"), ("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"),
        ("SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"),
    ):  # fmt: skip
        named = {"statsName": name, "statsKey": key}
        await asker.until(lambda a: a.code == 0, R.VIEW_BROKER_STATS_DATA, named)
        await asker.ask(R.VIEW_BROKER_STATS_DATA, named, case=f"`{name}`")
    fast = _fast_port(asker.side.broker)
    await asker.ask(
        R.GET_BROKER_RUNTIME_INFO, at=fast, case="by the fast port, which the Dashboard prefers"
    )
    await asker.ask(R.CLEAN_EXPIRED_CONSUMEQUEUE)
    await asker.ask(R.CLEAN_UNUSED_TOPIC)
    await asker.ask(R.DELETE_EXPIRED_COMMITLOG)
    await asker.ask(R.GET_BROKER_HA_STATUS)
    await asker.ask(R.GET_BROKER_HA_STATUS, at=asker.side.replica, case="of a replica")
    await asker.ask(R.GET_BROKER_EPOCH_CACHE, at=asker.side.replica)
    await asker.ask(R.GET_BROKER_EPOCH_CACHE, case="of a broker without controller")


def _fast_port(address: str) -> str:
    """Two below the port that clients are told."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


async def _peers(asker: Asker) -> None:
    await asker.ask(R.EXCHANGE_BROKER_HA_INFO)
    await asker.ask(R.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 0})
    notified = {"minBrokerId": 0, "brokerName": BROKER, "minBrokerAddr": asker.side.broker}
    await asker.ask(R.NOTIFY_MIN_BROKER_ID_CHANGE, notified)
    role = {
        "masterAddress": asker.side.replica,
        "masterEpoch": 0,
        "syncStateSetEpoch": 0,
        "masterBrokerId": 1,
    }
    members = {"syncStateSet": [1], "syncStateSetEpoch": 0}
    await asker.ask(R.NOTIFY_BROKER_ROLE_CHANGED, role, members, at=asker.side.replica)
    await asker.ask(R.ADD_BROKER, {"configPath": "/x"})
    named = {"brokerName": BROKER, "brokerClusterName": CLUSTER, "brokerId": 0}
    await asker.ask(R.REMOVE_BROKER, named)
    await asker.ask(R.ASK_TO_SWITCH)
    await asker.ask(R.COMPARE_LOGS)


async def _not_here(asker: Asker) -> None:
    await asker.ask(R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": TOPIC, "checkStoreTime": 0})
    await asker.ask(R.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics;"})
    await asker.ask(R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, f"{GROUP}=1000\n".encode())
    await asker.ask(R.GET_COLD_DATA_FLOW_CTR_INFO)
    await asker.ask(R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, GROUP.encode())
    await asker.ask(R.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"})
