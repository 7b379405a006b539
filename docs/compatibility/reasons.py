"""Why an answer of ours differs from RocketMQ 5.3.3's, by hand, one sentence each.

The run fails where a difference has no reason here, and where a reason has no difference any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from docs.compatibility.asker import Asked
from tandemmq.cluster.remoting import RequestCode as R

_SENT: Final = (
    "an answer says in which epoch a message was taken, and how many copies and disks have it; readers skip what they "
    "do not know"
)
_POP: Final = (
    "POP is not here. A remoting client asks for it only where a broker switched its group to it, which ours never "
    "do"
)
_NO_BATCHES: Final = "queues of whole batches are not here: refused, so that nobody counts on them"
_NO_COMPACTION: Final = "compacted topics are not here: refused, so that nobody counts on them"
_STATIC: Final = (
    "static topics are not here; a broker that has some does not start "
    "([from RocketMQ](howto/from-rocketmq.md))"
)
_ROCKSDB: Final = (
    "RocksDB is not here: tables are JSON files, and a broker with `storeType=defaultRocksDB` does not "
    "start"
)
_COLD: Final = "cold data control is not here: the store reads through the page cache alone"
_ACTING: Final = (
    "acting masters are not here: a group whose master is away is read from, or a controller elects "
    "another"
)
_FLUSHED: Final = f"{_ACTING}. How far its master has flushed a slave hears in the stream"
_SETTINGS: Final = (
    "settings that mean something here, in RocketMQ's names, and our own ([settings](config.md)); tools show what they "
    "get"
)
_LEASES: Final = "what our replicas need of our controllers besides; RocketMQ's skip it"
_RUNTIME: Final = (
    "what a replica has confirmed, open transactions, a name of 4.x; the percentiles of 5.3.3 are not measured, and "
    "the exporter shows -1 for them"
)
_UNREAD: Final = "no client reads the fields of this refusal"

REASONS: Final[Mapping[Asked, str]] = {
    # messages
    Asked(R.SEND_MESSAGE): _SENT,
    Asked(R.SEND_MESSAGE_V2): _SENT,
    Asked(R.SEND_MESSAGE_V2, "to a new topic"): _SENT,
    Asked(R.SEND_MESSAGE_V2, "half a transaction"): _SENT,
    Asked(R.SEND_MESSAGE_V2, "with a delay"): _SENT,
    Asked(R.SEND_BATCH_MESSAGE): _SENT,
    Asked(R.SEND_REPLY_MESSAGE): f"{_SENT}. The reply's own id is in it, too",
    Asked(R.SEND_REPLY_MESSAGE_V2): f"{_SENT}. The reply's own id is in it, too",
    Asked(R.SEND_REPLY_MESSAGE_V2, "to nobody"): _UNREAD,
    Asked(R.RECALL_MESSAGE, "by no handle"): _UNREAD,
    Asked(R.RESUME_CHECK_HALF_MESSAGE): (
        "takes up again what was given up after the last check (topic `TRANS_CHECK_MAX_TIME_TOPIC`), and nothing else; "
        "RocketMQ checks any message that it is given as if it were half a transaction"
    ),
    Asked(R.HEART_BEAT): (
        "short heartbeats (`useHeartbeatV2`, off by default) are not here: clients that do not find the fields send "
        "whole ones"
    ),
    Asked(R.GET_TIMER_METRICS): "`tandem admin timers` shows by hour what waits; slaves skip it",
    # topics, groups, positions
    Asked(R.UPDATE_AND_CREATE_TOPIC, "`cleanup.policy=COMPACTION`"): _NO_COMPACTION,
    Asked(R.UPDATE_AND_CREATE_TOPIC, "`queue.type=BatchCQ`"): _NO_BATCHES,
    Asked(R.UPDATE_AND_CREATE_STATIC_TOPIC): _STATIC,
    Asked(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "a name that is none"): (
        "5.3.3 makes a group whose name no client may use"
    ),
    Asked(R.QUERY_CONSUME_QUEUE): (
        "entries are shown as they are; a group's subscription, and which of them it would be given, is not worked out"
    ),
    Asked(
        R.GET_ALL_CONSUMER_OFFSET
    ): "topics by group, which follow from the rest; slaves do without",
    # the broker
    Asked(R.GET_BROKER_RUNTIME_INFO): _RUNTIME,
    Asked(R.GET_BROKER_RUNTIME_INFO, "by the fast port, which the Dashboard prefers"): _RUNTIME,
    Asked(R.GET_BROKER_CONFIG): _SETTINGS,
    Asked(R.GET_NAMESRV_CONFIG): _SETTINGS,
    Asked(R.GET_CONTROLLER_CONFIG): _SETTINGS,
    Asked(
        R.AUTH_LIST_USER, "where access control is off"
    ): "refused by both; here with the code of refusals",
    Asked(R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS): _ROCKSDB,
    Asked(R.EXPORT_ROCKSDB_CONFIG_TO_JSON): _ROCKSDB,
    Asked(R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG): _COLD,
    Asked(R.GET_COLD_DATA_FLOW_CTR_INFO): _COLD,
    Asked(R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG): _COLD,
    Asked(R.SET_COMMITLOG_READ_MODE): _COLD,
    # POP
    Asked(R.QUERY_ASSIGNMENT): f"{_POP}, or with `clientRebalance=false`",
    Asked(R.GET_ALL_MESSAGE_REQUEST_MODE): "no group is switched to POP, so the table is empty",
    **dict.fromkeys(
        map(
            Asked,
            (
                R.SET_MESSAGE_REQUEST_MODE,
                R.POP_MESSAGE,
                R.PEEK_MESSAGE,
                R.ACK_MESSAGE,
                R.BATCH_ACK_MESSAGE,
                R.CHANGE_MESSAGE_INVISIBLETIME,
                R.NOTIFICATION,
                R.POLLING_INFO,
                R.POP_ROLLBACK,
            ),
        ),
        _POP,
    ),
    # replicas and controllers
    Asked(R.EXCHANGE_BROKER_HA_INFO): _ACTING,
    Asked(R.RESET_MASTER_FLUSH_OFFSET): _FLUSHED,
    Asked(R.NOTIFY_MIN_BROKER_ID_CHANGE): _ACTING,
    Asked(R.NOTIFY_BROKER_ROLE_CHANGED): (
        "served on the connection that a broker opened to its controller, and refused to anybody else"
    ),
    Asked(
        R.GET_BROKER_EPOCH_CACHE, "of a broker without controller"
    ): "refused by both; here as any unknown request",
    Asked(R.COMPARE_LOGS): "ours: it holds the logs of a classic group against each other",
    Asked(R.BROKER_HEARTBEAT, "to a controller"): f"the answer carries the lease: {_LEASES}",
    Asked(R.CONTROLLER_ELECT_MASTER): _LEASES,
    Asked(R.CONTROLLER_GET_REPLICA_INFO): _LEASES,
    Asked(R.CONTROLLER_ALTER_SYNC_STATE_SET): _LEASES,
    Asked(R.CONTROLLER_ALTER_SYNC_STATE_SET, "in a wrong epoch"): (
        "the refusal says what is in force, so that a master out of date need not ask again"
    ),
}

#: of what servers ask their clients
OF_CLIENTS: Final[Mapping[R, str]] = {
    R.CHECK_TRANSACTION_STATE: (
        "what is checked here is a copy, which says of which half message; RocketMQ's has the `WAIT` of the broker's "
        "own write; clients read neither"
    ),
    R.RESET_CONSUMER_CLIENT_OFFSET: (
        "`queueId` is left out where it was not given; clients then take RocketMQ's -1 for it, all queues"
    ),
}

#: of commands of mqadmin: why they end otherwise against our servers, or in our tool
OF_COMMANDS: Final[Mapping[str, str]] = {
    "resetMasterFlushOffset": _FLUSHED,
    "electMaster": "asked for the master that leads already, controllers refuse; `tandem admin` says who leads",
    "queryMsgTraceById": "of what was not traced `tandem admin` prints a table without rows",
    "setConsumeMode": _POP,
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "getColdDataFlowCtrInfo": _COLD,
    "updateColdDataFlowCtrGroupConfig": _COLD,
    "removeColdDataFlowCtrGroupConfig": _COLD,
    "setCommitLogReadAheadMode": _COLD,
    "checkRocksdbCqWriteProgress": _ROCKSDB,
}


def unequal(what: str, different: Iterable[object], reasoned: Iterable[object]) -> list[str]:
    """What lacks a reason, and which reasons lack a difference, a sentence each."""
    differ, have = set(map(str, different)), set(map(str, reasoned))
    lacking = [
        f"{what} {each} differs, and reasons.py does not say why" for each in sorted(differ - have)
    ]
    return lacking + [
        f"{what} {each} does not differ: take its reason out of reasons.py"
        for each in sorted(have - differ)
    ]
