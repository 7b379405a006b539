"""What of RocketMQ is not here yet, from the tables of handlers: README's list is written from it."""

from __future__ import annotations

import random
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tandemmq.cluster.broker import replies
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.handlers.admin_topics import NOT_SERVED
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.nameserver.config import NameServerConfig
from tandemmq.cluster.nameserver.kvconfig import KvConfig
from tandemmq.cluster.nameserver.server import NameServer
from tandemmq.cluster.remoting.codes import RequestCode as R
from tandemmq.storage import SystemClock, open_store

BEGINS: Final = "* Not here yet: "

#: what is there when one of these requests has a handler
BY_REQUEST: Final[Mapping[str, tuple[R, ...]]] = {
    "transactions": (R.END_TRANSACTION, R.RESUME_CHECK_HALF_MESSAGE),
    "request-reply": (R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2),
    "POP": (
        R.POP_MESSAGE, R.ACK_MESSAGE, R.PEEK_MESSAGE, R.CHANGE_MESSAGE_INVISIBLETIME, R.NOTIFICATION, R.POLLING_INFO,
        R.POP_ROLLBACK, R.BATCH_ACK_MESSAGE, R.QUERY_ASSIGNMENT, R.SET_MESSAGE_REQUEST_MODE,
    ),
    "static topics": (R.UPDATE_AND_CREATE_STATIC_TOPIC,),
    "stores in RocksDB": (R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, R.EXPORT_ROCKSDB_CONFIG_TO_JSON),
    "cold-data flow control": (
        R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, R.GET_COLD_DATA_FLOW_CTR_INFO,
        R.SET_COMMITLOG_READ_MODE,
    ),
    "acting masters": (R.EXCHANGE_BROKER_HA_INFO, R.RESET_MASTER_FLUSH_OFFSET, R.NOTIFY_MIN_BROKER_ID_CHANGE),
    "access control": tuple(code for code in R if code.name.startswith("AUTH_")),
}  # fmt: skip

#: what a refusal of its own stands for
BY_REFUSAL: Final[Mapping[str, type[Exception]]] = {}
BY_ATTRIBUTE: Final = {"queue.type": "{} queues", "cleanup.policy": "topics with {}"}

#: asked of clients, of replicas of a group, of controllers; or RocketMQ itself has no handler for it
ELSEWHERE: Final = frozenset(code for code in R if code.name.startswith("CONTROLLER_")) | {
    R.ADD_BROKER, R.ADJUST_CONSUMER_THREAD_POOL, R.ASK_TO_SWITCH, R.CHECK_TRANSACTION_STATE, R.CLEAN_BROKER_DATA,
    R.GET_BROKER_EPOCH_CACHE, R.GET_CLIENT_CONFIG, R.GET_CONSUMER_STATUS_FROM_CLIENT, R.GET_CONTROLLER_CONFIG,
    R.GET_TOPIC_CONFIG_LIST, R.GET_TOPIC_NAME_LIST,
    R.NOTIFY_BROKER_ROLE_CHANGED, R.NOTIFY_CONSUMER_IDS_CHANGED, R.PUSH_REPLY_MESSAGE_TO_CLIENT, R.QUERY_BROKER_OFFSET,
    R.REGISTER_FILTER_SERVER, R.REGISTER_MESSAGE_FILTER_CLASS, R.REMOVE_BROKER, R.RESET_CONSUMER_CLIENT_OFFSET,
    R.RESET_CONSUMER_OFFSET_IN_BROKER, R.RESET_CONSUMER_OFFSET_IN_CONSUMER, R.RESUME_CONSUMER, R.SUSPEND_CONSUMER,
    R.TRIGGER_DELETE_FILES, R.UPDATE_CONTROLLER_CONFIG, R.WHO_CONSUME_THE_MESSAGE,
    # known where aclEnable is on
    R.UPDATE_AND_CREATE_ACL_CONFIG, R.DELETE_ACL_CONFIG, R.GET_BROKER_CLUSTER_ACL_INFO,
    R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, R.GET_BROKER_CLUSTER_ACL_CONFIG,
}  # fmt: skip


def handled() -> frozenset[int]:
    """Every request that a broker or a name server has a handler for."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"storePathRootDir": f"{directory}/store", "brokerName": "b", "brokerIP1": "127.0.0.1"}  # fmt: skip
        config = BrokerConfig.from_properties(settings, file="", environment={})
        with open_store(config.storage, clock) as store:
            broker = Broker(config, store, clock, random.Random(1)).table
        path = Path(directory) / "kv.json"
        names = NameServer(NameServerConfig(kv_config_path=str(path)), KvConfig.load(path), clock)
        return frozenset(broker) | frozenset(names.table())


def missing(codes: frozenset[int]) -> list[str]:
    """What is not here. Raises ValueError for a request that has no handler and no name here."""
    known = ELSEWHERE.union(*BY_REQUEST.values())
    if nameless := [code.name for code in R if code not in codes and code not in known]:
        raise ValueError(f"docs/missing.py says of no feature that it lacks {nameless}")
    found = [what for what, wanted in BY_REQUEST.items() if not codes.intersection(wanted)]
    found += [what for what, refusal in BY_REFUSAL.items() if refusal in replies.CODES]
    found += [BY_ATTRIBUTE[key].format(value) for key, value in NOT_SERVED]
    return [*dict.fromkeys(found), "the gRPC protocol"]


def sentence() -> str:
    """The item of README's list, wrapped as the rest of it."""
    text = (
        f"{BEGINS}{', '.join(missing(handled()))}. Requests for them get RocketMQ's refusal, never silence: "
        "[docs/compatibility.md](docs/compatibility.md) has each with what RocketMQ answers."
    )
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)
