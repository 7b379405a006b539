"""What producers and consumers ask of a broker, request by request."""

from __future__ import annotations

import base64
import time
from typing import Final

from docs.compatibility.asker import CLIENT, Asker
from docs.compatibility.servers import BROKER, CLUSTER
from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting import RequestCode as R

TOPIC: Final = "Compared"
GROUP: Final = "ComparedGroup"
PRODUCERS: Final = "ComparedProducers"
UNKNOWN: Final = "NotThere"
UNIQUE: Final = "7F0000010000000000000000000000A1"
REPLIES: Final = f"{CLUSTER}_REPLY_TOPIC"


def send_fields(topic: str, properties: str = "", queue_id: int = 0) -> dict[str, object]:
    """Header of SEND_MESSAGE."""
    return {
        "producerGroup": PRODUCERS, "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": queue_id, "sysFlag": 0, "bornTimestamp": _now_ms(), "flag": 0, "properties": properties,
        "reconsumeTimes": 0, "unitMode": False, "batch": False,
    }  # fmt: skip


def send_v2(
    topic: str, properties: str = "", queue_id: int = 0, batch: bool = False
) -> dict[str, object]:
    """Header of SEND_MESSAGE_V2: one letter for each field, in the same order."""
    values = [*send_fields(topic, properties, queue_id).values()]
    values[-1:] = [0, batch]  # maxReconsumeTimes stands in front of the last
    return dict(zip("abcdefghijklm", values, strict=True))


def _properties(**given: object) -> str:
    return "".join(f"{key}\x01{value}\x02" for key, value in given.items())


def pull(topic: str, offset: int = 0, sys_flag: int = 4) -> dict[str, object]:
    """Header of PULL_MESSAGE with a subscription of its own, which waits for nothing."""
    return {
        "consumerGroup": GROUP, "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": sys_flag, "commitOffset": 0, "suspendTimeoutMillis": 1_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def subscription(topic: str, text: str = "*", kind: str = "TAG") -> dict[str, object]:
    return {
        "topic": topic, "subString": text, "tagsSet": [], "codeSet": [], "subVersion": 1,
        "classFilterMode": False, "expressionType": kind,
    }  # fmt: skip


def _heartbeat(mode: str) -> dict[str, object]:
    return {
        "clientID": CLIENT,
        "producerDataSet": [{"groupName": PRODUCERS}],
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": mode,
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [subscription(TOPIC), subscription(f"%RETRY%{GROUP}")],
                "unitMode": False,
            }
        ],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }


async def everything(asker: Asker) -> str:
    """In this order: later requests are about what earlier ones made. The offset id of a message."""
    await _members(asker)
    sent = await _sends(asker)
    await _reads(asker, sent)
    await _progress(asker)
    await _retries(asker, sent)
    await _transactions(asker)
    await _timed(asker)
    await _replies(asker)
    await _pop(asker)
    return (sent.ext or {})["msgId"]


async def _members(asker: Asker) -> None:
    made = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    await asker.ask(R.UPDATE_AND_CREATE_TOPIC, made)
    await asker.ask(R.UPDATE_AND_CREATE_TOPIC, {**made, "topic": "a b"}, case="a name that is none")
    for key, value in (
        ("cleanup.policy", "COMPACTION"),
        ("queue.type", "BatchCQ"),
        ("message.type", "FIFO"),
    ):
        special = {**made, "topic": f"Of{value}", "attributes": f"+{key}={value}"}
        await asker.ask(R.UPDATE_AND_CREATE_TOPIC, special, case=f"`{key}={value}`")
    await asker.ask(R.HEART_BEAT, {}, _heartbeat("CLUSTERING"))
    await asker.until_asked(R.NOTIFY_CONSUMER_IDS_CHANGED)
    await asker.ask(R.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
    await asker.ask(R.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": UNKNOWN}, case="of an unknown group")  # fmt: skip
    check = {"clientId": CLIENT, "group": GROUP, "subscriptionData": subscription(TOPIC, "a > 1", "SQL92")}  # fmt: skip
    await asker.ask(R.CHECK_CLIENT_CONFIG, {}, check)
    wrong = {**check, "subscriptionData": subscription(TOPIC, "a >", "SQL92")}
    await asker.ask(R.CHECK_CLIENT_CONFIG, {}, wrong, case="of a wrong expression")


async def _sends(asker: Asker) -> Command:
    known = _properties(KEYS="k1", TAGS="A", UNIQ_KEY=UNIQUE, WAIT="true")  # fmt: skip
    sent = await asker.ask(R.SEND_MESSAGE, send_fields(TOPIC, known), b"one")
    await asker.ask(R.SEND_MESSAGE_V2, send_v2(TOPIC, known), b"two")
    await asker.ask(R.SEND_MESSAGE_V2, send_v2("Made", known), b"1", case="to a new topic")
    await asker.ask(
        R.SEND_MESSAGE_V2,
        {**send_v2(UNKNOWN, known), "c": UNKNOWN},
        b"1",
        case="to an unknown topic",
    )
    await asker.ask(R.SEND_MESSAGE_V2, send_v2(TOPIC, known, 99), b"1", case="to a queue that is none")  # fmt: skip
    await asker.ask(
        R.SEND_MESSAGE_V2, send_v2(TOPIC, known), b"x" * ((4 << 20) + 1), case="of more than 4 MiB"
    )
    half = known.encode()
    item = b"".join((bytes(12), (2).to_bytes(4, "big"), b"hi", len(half).to_bytes(2, "big"), half))
    batch = (len(item) + 4).to_bytes(4, "big") + item
    await asker.ask(R.SEND_BATCH_MESSAGE, send_v2(TOPIC, _properties(WAIT="true"), batch=True), batch * 2)  # fmt: skip
    asked = {"topic": TOPIC, "queueId": 0}
    await asker.until(lambda a: (a.ext or {}).get("offset") == "4", R.GET_MAX_OFFSET, asked)
    return sent


async def _reads(asker: Asker, sent: Command) -> None:
    await asker.ask(R.PULL_MESSAGE, pull(TOPIC))
    await asker.ask(R.PULL_MESSAGE, pull(TOPIC, 4, 6), case="at the end, waiting")
    await asker.ask(R.PULL_MESSAGE, pull(TOPIC, 99), case="beyond the end")
    await asker.ask(R.PULL_MESSAGE, pull(UNKNOWN), case="of an unknown topic")
    sql = {**pull(TOPIC), "subscription": "a > 1", "expressionType": "SQL92"}
    await asker.ask(R.PULL_MESSAGE, sql, case="by SQL92")
    await asker.ask(R.LITE_PULL_MESSAGE, pull(TOPIC, 0, 22))
    until = {"topic": TOPIC, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    by_key = {**until, "key": "k1"}
    await asker.until(lambda a: a.code == 0, R.QUERY_MESSAGE, by_key)
    await asker.ask(R.QUERY_MESSAGE, by_key)
    await asker.ask(R.QUERY_MESSAGE, {**until, "key": "none"}, case="of an unknown key")
    offset = int((sent.ext or {})["msgId"][-16:], 16)
    await asker.ask(R.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": TOPIC})
    await asker.ask(R.VIEW_MESSAGE_BY_ID, {"offset": 1 << 40, "topic": TOPIC}, case="where none is")
    queue = {"topic": TOPIC, "queueId": 0}
    await asker.ask(R.GET_MAX_OFFSET, queue)
    await asker.ask(R.GET_MIN_OFFSET, queue)
    await asker.ask(R.GET_MAX_OFFSET, {**queue, "topic": UNKNOWN}, case="of an unknown topic")
    await asker.ask(R.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": _now_ms()})
    await asker.ask(R.GET_EARLIEST_MSG_STORETIME, queue)
    await asker.ask(R.QUERY_CONSUME_QUEUE, {**queue, "index": 0, "count": 2, "consumerGroup": GROUP})  # fmt: skip
    await asker.ask(R.QUERY_CONSUME_QUEUE, {**queue, "index": 99, "count": 2}, case="beyond the end")  # fmt: skip


async def _progress(asker: Asker) -> None:
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    await asker.ask(R.QUERY_CONSUMER_OFFSET, {**queue, "queueId": 1}, case="of nothing consumed")
    await asker.ask(R.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 2})
    await asker.ask(R.QUERY_CONSUMER_OFFSET, queue)
    locks = {"clientId": CLIENT, "consumerGroup": GROUP, "onlyThisBroker": True,
             "mqSet": [{"brokerName": BROKER, "queueId": 0, "topic": TOPIC}]}  # fmt: skip
    await asker.ask(R.LOCK_BATCH_MQ, {}, locks)
    await asker.ask(R.UNLOCK_BATCH_MQ, {}, locks)


async def _retries(asker: Asker, sent: Command) -> None:
    offset = int((sent.ext or {})["msgId"][-16:], 16)
    back = {"group": GROUP, "delayLevel": 0, "originMsgId": "", "originTopic": TOPIC, "unitMode": False}  # fmt: skip
    await asker.ask(R.CONSUMER_SEND_MSG_BACK, {**back, "offset": offset, "maxReconsumeTimes": 16})
    await asker.ask(R.CONSUMER_SEND_MSG_BACK, {**back, "offset": 1 << 40}, case="of no message")


async def _transactions(asker: Asker) -> None:
    unique = "7F0000010000000000000000000000B1"
    half = _properties(TRAN_MSG="true", PGROUP=PRODUCERS, UNIQ_KEY=unique)
    fields = {**send_v2(TOPIC, half), "f": 4}
    asked = await asker.ask(R.SEND_MESSAGE_V2, fields, b"half", case="half a transaction")
    await asker.until_asked(R.CHECK_TRANSACTION_STATE)
    ext = asked.ext or {}
    ends = {
        "topic": TOPIC, "producerGroup": PRODUCERS, "tranStateTableOffset": ext["queueOffset"],
        "commitLogOffset": int(ext["msgId"][-16:], 16), "commitOrRollback": 8, "fromTransactionCheck": False,
        "msgId": unique, "transactionId": unique,
    }  # fmt: skip
    await asker.ask(R.END_TRANSACTION, ends)
    await asker.ask(R.END_TRANSACTION, {**ends, "producerGroup": UNKNOWN}, case="by another group")
    message = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "msgId": ext["msgId"]}
    await asker.ask(R.RESUME_CHECK_HALF_MESSAGE, message)


async def _timed(asker: Asker) -> None:
    unique = "7F0000010000000000000000000000C1"
    later = _properties(TIMER_DELAY_SEC=3_600, UNIQ_KEY=unique)
    sent = await asker.ask(R.SEND_MESSAGE_V2, send_v2(TOPIC, later), b"later", case="with a delay")
    handle = (sent.ext or {}).get("recallHandle", "")
    recall = {"producerGroup": PRODUCERS, "topic": TOPIC, "recallHandle": handle}
    await asker.ask(R.RECALL_MESSAGE, recall)
    wrong = base64.urlsafe_b64encode(b"v0").decode()
    await asker.ask(R.RECALL_MESSAGE, {**recall, "recallHandle": wrong}, case="by no handle")
    await asker.ask(R.GET_TIMER_CHECK_POINT)
    # one that nobody recalls, or what is counted depends on how far the recall has come
    stays = _properties(TIMER_DELAY_SEC=3_600, UNIQ_KEY="7F0000010000000000000000000000C2")
    await asker.quietly(R.SEND_MESSAGE_V2, send_v2(TOPIC, stays), b"later")
    await asker.until(
        lambda a: a.code == 0 and b'"timingCount":{}' not in bytes(a.body or b""),
        R.GET_TIMER_METRICS,
        {},
    )
    await asker.ask(R.GET_TIMER_METRICS)


async def _replies(asker: Asker) -> None:
    answers = _properties(REPLY_TO_CLIENT=CLIENT, CORRELATION_ID="1", MSG_TYPE="reply", TTL=3_000)
    await asker.ask(R.SEND_REPLY_MESSAGE, send_fields(REPLIES, answers), b"reply")
    await asker.ask(R.SEND_REPLY_MESSAGE_V2, send_v2(REPLIES, answers), b"reply")
    gone = _properties(REPLY_TO_CLIENT="nobody", CORRELATION_ID="1", MSG_TYPE="reply", TTL=3_000)
    await asker.ask(R.SEND_REPLY_MESSAGE_V2, send_v2(REPLIES, gone), b"reply", case="to nobody")
    await asker.until_asked(R.PUSH_REPLY_MESSAGE_TO_CLIENT)


async def _pop(asker: Asker) -> None:
    group = "PopGroup"
    place = {"consumerGroup": group, "topic": TOPIC, "queueId": 0}
    now = _now_ms()
    await asker.ask(R.QUERY_ASSIGNMENT, {}, {
        "clientId": CLIENT, "consumerGroup": GROUP, "messageModel": "CLUSTERING", "strategyName": "AVG", "topic": TOPIC,
    })  # fmt: skip
    mode = {"consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0, "topic": TOPIC}
    await asker.ask(R.SET_MESSAGE_REQUEST_MODE, {}, mode)
    await asker.ask(R.GET_ALL_MESSAGE_REQUEST_MODE)
    await asker.ask(R.PEEK_MESSAGE, {**place, "maxMsgNums": 1})
    popped = await asker.ask(R.POP_MESSAGE, {
        **place, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 1_000, "bornTime": now, "initMode": 0,
        "order": False, "expType": "TAG", "exp": "*",
    })  # fmt: skip
    ext = popped.ext or {}
    keys = ("popTime", "invisibleTime", "reviveQid")
    info = " ".join(["0", *(ext.get(key, "0") for key in keys), "0", BROKER, "0", "0"])
    lasts = {**place, "extraInfo": info, "offset": 0}
    changed = await asker.ask(R.CHANGE_MESSAGE_INVISIBLETIME, {**lasts, "invisibleTime": 60_000})
    later = changed.ext or {}
    info = " ".join(["0", *(later.get(key, "0") for key in keys), "0", BROKER, "0", "0"])
    await asker.ask(R.ACK_MESSAGE, {**place, "extraInfo": info, "offset": 0})
    acks = [
        {
            "c": group,
            "t": TOPIC,
            "r": "0",
            "so": 0,
            "q": 0,
            "rq": 0,
            "pt": now,
            "it": 60_000,
            "b": "AQ==",
        }
    ]
    await asker.ask(R.BATCH_ACK_MESSAGE, {}, {"brokerName": BROKER, "acks": acks})
    await asker.ask(R.NOTIFICATION, {**place, "pollTime": 0, "bornTime": now, "order": False})
    await asker.ask(R.POLLING_INFO, place)
    await asker.ask(R.POP_ROLLBACK)


async def goodbye(asker: Asker) -> None:
    """What a client says at last."""
    gone = {"clientID": CLIENT, "producerGroup": PRODUCERS, "consumerGroup": GROUP}
    await asker.ask(R.UNREGISTER_CLIENT, gone)
