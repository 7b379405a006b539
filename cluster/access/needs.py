"""The one table: what each request needs, at a broker, a name server and a controller. Core.

A row says which resources a request touches and what it does to them, read from what the handler will act on: the topic
in the name of a retry topic, the record that an offset means, every name in a body. Each must be allowed. A code
without a row is for Super users.
Source: RocketMQ's DefaultAuthorizationContextBuilder, with the holes closed that it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from tandemmq.cluster.access.rights import AccessRefused, Action, Actions, Need, ResourceKind
from tandemmq.cluster.access.signature import ACCESS_KEY, SIGNATURE, SIGNED_CODE
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import RequestCode as C
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import parse_offset_message_id

RETRY_PREFIX: Final = "%RETRY%"
UNREADABLE: Final = "parse authorization context error."
#: a slave of ours names the state of the table that it has; users come with the groups then
TABLE_STAMP: Final = "tableStamp"


class Facts(Protocol):
    """What only the process knows that is asked."""

    @property
    def cluster(self) -> str:
        """The name of its cluster."""

    def topic_of(self, offset: int) -> str | None:
        """The topic that the message at a log offset was sent to; None where no message begins."""


Needs = Iterable[Need]
Row = Callable[[Command, Facts], Needs]
Body = TypeVar("Body")

PUB: Final = frozenset({Action.PUB})
SUB: Final = frozenset({Action.SUB})
GET: Final = frozenset({Action.GET})
LIST: Final = frozenset({Action.LIST})
CREATE: Final = frozenset({Action.CREATE})
UPDATE: Final = frozenset({Action.UPDATE})
DELETE: Final = frozenset({Action.DELETE})
SUB_OR_GET: Final = SUB | GET
SUB_OR_UPDATE: Final = SUB | UPDATE
ANY_USE: Final = PUB | SUB | GET


def refused(remark: str) -> AccessRefused:
    return AccessRefused(ResponseCode.NO_PERMISSION, remark)


def only_super(command: Command, facts: Facts) -> Needs:
    """The row of what nobody is given a right to: users and rules, peers of the group, what no broker is asked."""
    raise refused("Super users alone may.")


def is_for_super(row: Row, command: Command) -> bool:
    """Whether a request is for Super users whatever rules say, also where rights are not checked."""
    if row is only_super:
        return True
    # a slave of ours gets the passwords of users with the table of groups
    return command.code == C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG and TABLE_STAMP in (command.ext or {})


#: fields of the requests that touch users, rules and accounts, and no others: see check_fields
_FIELDS: Final[Mapping[int, tuple[str, ...]]] = {
    C.UPDATE_AND_CREATE_ACL_CONFIG: (
        "accessKey", "secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
        "groupPerms", "admin",
    ),
    C.DELETE_ACL_CONFIG: ("accessKey",),
    C.GET_BROKER_CLUSTER_ACL_INFO: (),
    C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ("globalWhiteAddrs", "aclFileFullPath"),
    C.GET_BROKER_CLUSTER_ACL_CONFIG: (),
    C.AUTH_CREATE_USER: ("username",),
    C.AUTH_UPDATE_USER: ("username",),
    C.AUTH_DELETE_USER: ("username",),
    C.AUTH_GET_USER: ("username",),
    C.AUTH_LIST_USER: ("filter",),
    C.AUTH_CREATE_ACL: ("subject",),
    C.AUTH_UPDATE_ACL: ("subject",),
    C.AUTH_DELETE_ACL: ("subject", "resource", "policyType"),
    C.AUTH_GET_ACL: ("subject",),
    C.AUTH_LIST_ACL: ("subjectFilter", "resourceFilter"),
}  # fmt: skip
_WITH_BODY: Final = frozenset(
    {C.AUTH_CREATE_USER, C.AUTH_UPDATE_USER, C.AUTH_CREATE_ACL, C.AUTH_UPDATE_ACL}
)
_TABLE_FIELDS: Final = {
    TABLE_STAMP: re.compile(r"([0-9a-f]{1,32}-[0-9]{1,20})?", re.ASCII).fullmatch,
    "tableReader": re.compile(r"[0-9]{1,20}", re.ASCII).fullmatch,
    "tableReaderLife": re.compile(r"[0-9]{1,40}", re.ASCII).fullmatch,
    "tableHold": re.compile(r"true").fullmatch,
}


def check_fields(command: Command) -> None:
    """Names of fields and the code are not signed: whoever heard a signed request of a Super user could send its values
    as fields that nobody reads, with the code of listUser. So requests that touch users have their own fields alone.
    Raises AccessRefused.
    """
    ext = command.ext or {}
    if command.code in _FIELDS:
        known = {*_FIELDS[command.code], ACCESS_KEY, SIGNATURE}
        if ext.keys() - known or (command.body and command.code not in _WITH_BODY):
            raise refused("fields or a body that the request does not have")
    elif command.code == C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG and TABLE_STAMP in ext:
        fields = ext.keys() - {ACCESS_KEY, SIGNATURE, SIGNED_CODE}
        sound = all(name in _TABLE_FIELDS and _TABLE_FIELDS[name](ext[name]) for name in fields)
        if not sound or command.body or ext.get(SIGNED_CODE) != f"{int(command.code)}.":
            raise refused("a slave of ours asks otherwise")


def _value(command: Command, field: str) -> str:
    value = (command.ext or {}).get(field, "")
    if not value.strip():
        raise refused(f"{field} is null.")
    return value


def _number(command: Command, field: str) -> int:
    text = _value(command, field).strip()
    if len(text) > 20 or not text.lstrip("-").isdecimal():
        raise refused(UNREADABLE)
    return int(text)


def _body(kind: type[Body], command: Command) -> Body:
    try:
        return bodies.read(kind, command.body or b"")
    except bodies.BodyUnreadable:
        raise refused(UNREADABLE) from None


def _topic(name: str | None, actions: Actions) -> Need:
    if not name or not name.strip():
        raise refused("topic is null.")
    return Need(ResourceKind.TOPIC, name, actions)


def _group(name: str | None, actions: Actions) -> Need:
    if not name or not name.strip():
        raise refused("group is null.")
    return Need(ResourceKind.GROUP, name, actions)


def _read(topic: str | None, group: str, actions: Actions) -> Iterator[Need]:
    """A group reads a topic; a retry topic is its own or nobody's."""
    if topic and topic.startswith(RETRY_PREFIX):
        if topic != RETRY_PREFIX + group:
            raise refused("retry topic does not match consumer group.")
    else:
        yield _topic(topic, actions)


# -- rows, by what they are about


def _topics(actions: Actions, *fields: str) -> Row:
    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        for field in fields:
            yield _topic(_value(command, field), actions)

    return needs


def _groups(actions: Actions, *fields: str) -> Row:
    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        for field in fields:
            yield _group(_value(command, field), actions)

    return needs


def _cluster(actions: Actions) -> Row:
    """Of the process that is asked, whatever cluster a field names."""

    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        yield Need(ResourceKind.CLUSTER, facts.cluster, actions)

    return needs


def _all_of(*kinds: ResourceKind) -> Row:
    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        for kind in kinds:
            yield Need(kind, None, LIST)

    return needs


def _and(*rows: Row) -> Row:
    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        for row in rows:
            yield from row(command, facts)

    return needs


def _topic_or_its_group(field: str, of_topic: Actions, of_group: Actions) -> Row:
    """A retry topic is its group's: of that group, whatever header fields say."""

    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        topic = _value(command, field)
        if topic.startswith(RETRY_PREFIX):
            yield _group(topic.removeprefix(RETRY_PREFIX), of_group)
        else:
            yield _topic(topic, of_topic)

    return needs


def _send(field: str) -> Row:
    """Into a retry topic only members of its group may write."""
    return _topic_or_its_group(field, PUB, SUB)


def _consume(actions: Actions, group_field: str = "consumerGroup") -> Row:
    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        group = _value(command, group_field)
        yield from _read(_value(command, "topic"), group, actions)
        yield _group(group, actions)

    return needs


def _end_transaction(command: Command, facts: Facts) -> Iterator[Need]:
    """The topic of the half message, not the one that the field names; both where both are known."""
    found = facts.topic_of(_number(command, "commitLogOffset"))
    said = (command.ext or {}).get("topic", "")
    if found is None and not said:
        raise refused("topic is null.")
    for topic in dict.fromkeys(filter(None, (found, said))):
        yield _topic(topic, PUB)


def _send_back(command: Command, facts: Facts) -> Iterator[Need]:
    """The message that is copied must be one that the group may read."""
    group = _value(command, "group")
    yield _group(group, SUB)
    found = facts.topic_of(_number(command, "offset"))
    if found is not None:
        yield from _read(found, group, SUB)


def _view(command: Command, facts: Facts) -> Iterator[Need]:
    found = facts.topic_of(_number(command, "offset"))
    said = (command.ext or {}).get("topic", "")
    for topic in dict.fromkeys(filter(None, (found, said))):
        yield _topic(topic, GET)
    if found is None and not said:
        yield Need(ResourceKind.TOPIC, None, GET)


def _resume(command: Command, facts: Facts) -> Iterator[Need]:
    """The topic of the message that is resumed, not only the one that the field names."""
    try:
        _, offset = parse_offset_message_id(_value(command, "msgId"))
    except ValueError:
        raise refused(UNREADABLE) from None
    for topic in dict.fromkeys(filter(None, (facts.topic_of(offset), _value(command, "topic")))):
        yield _topic(topic, UPDATE)


def _consume_directly(command: Command, facts: Facts) -> Iterator[Need]:
    group = _value(command, "consumerGroup")
    yield _group(group, SUB)
    try:
        _, offset = parse_offset_message_id(_value(command, "msgId"))
    except ValueError:
        raise refused(UNREADABLE) from None
    topics = facts.topic_of(offset), (command.ext or {}).get("topic", "")
    for topic in dict.fromkeys(filter(None, topics)):
        yield from _read(topic, group, SUB)


def _unregister(command: Command, facts: Facts) -> Iterator[Need]:
    group = (command.ext or {}).get("consumerGroup", "")
    if group.strip():
        yield _group(group, SUB)


def _if_given(field: str, need: Callable[[str], Need], separator: str = "") -> Row:
    """The name in a field, or each of a list there; a field that is not there names nothing."""

    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        said = (command.ext or {}).get(field, "")
        for name in said.split(separator) if separator else (said,):
            if name.strip():
                yield need(name)

    return needs


# -- rows that read bodies. Members are those of the handler's own struct, read by the same rule.


class _Subscription(msgspec.Struct):
    topic: str = ""


class _Consumer(msgspec.Struct):
    groupName: str = ""
    subscriptionDataSet: list[_Subscription] | None = None


class _Heartbeat(msgspec.Struct):
    consumerDataSet: list[_Consumer] | None = None


class _Locks(msgspec.Struct):
    consumerGroup: str = ""
    mqSet: list[_Subscription] | None = None


class _Check(msgspec.Struct):
    group: str | None = None
    subscriptionData: _Subscription | None = None


class _Assignment(msgspec.Struct):
    consumerGroup: str = ""
    topic: str = ""


class _Group(msgspec.Struct):
    groupName: str = ""


class _GroupList(msgspec.Struct):
    groupConfigList: list[_Group] | None = None


class _Topic(msgspec.Struct):
    topicName: str = ""


class _TopicList(msgspec.Struct):
    topicConfigList: list[_Topic] | None = None


class _Ack(msgspec.Struct):
    c: str = ""  # consumer group
    t: str = ""  # topic
    r: str = ""  # "1": of the retry topic


class _Acks(msgspec.Struct):
    acks: list[_Ack] | None = None


def _heartbeat(command: Command, facts: Facts) -> Iterator[Need]:
    """Producers need nothing yet: what they send is asked for then."""
    for consumer in _body(_Heartbeat, command).consumerDataSet or ():
        yield _group(consumer.groupName, SUB)
        for subscription in consumer.subscriptionDataSet or ():
            yield from _read(subscription.topic, consumer.groupName, SUB)


def _locks(command: Command, facts: Facts) -> Iterator[Need]:
    body = _body(_Locks, command)
    yield _group(body.consumerGroup, SUB)
    for topic in dict.fromkeys(queue.topic for queue in body.mqSet or ()):
        yield from _read(topic, body.consumerGroup, SUB)


def _check_client(command: Command, facts: Facts) -> Iterator[Need]:
    body = _body(_Check, command)
    yield _group(body.group, SUB)
    if body.subscriptionData is not None and body.subscriptionData.topic:
        yield from _read(body.subscriptionData.topic, body.group or "", SUB)


def _assignment(of_group: Actions) -> Row:
    def needs(command: Command, facts: Facts) -> Iterator[Need]:
        body = _body(_Assignment, command)
        yield from _read(body.topic, body.consumerGroup, SUB)
        yield _group(body.consumerGroup, of_group)

    return needs


def _made_group(command: Command, facts: Facts) -> Iterator[Need]:
    yield _group(_body(_Group, command).groupName, CREATE)


def _made_groups(command: Command, facts: Facts) -> Iterator[Need]:
    groups = _body(_GroupList, command).groupConfigList
    if not groups:
        raise refused("group is null.")
    for group in groups:
        yield _group(group.groupName, CREATE)


def _made_topics(command: Command, facts: Facts) -> Iterator[Need]:
    topics = _body(_TopicList, command).topicConfigList
    if not topics:
        raise refused("topic is null.")
    for topic in topics:
        yield _topic(topic.topicName, CREATE)


def _cold_limits(command: Command, facts: Facts) -> Iterator[Need]:
    """Lines `group=limit`, or one group."""
    said = bytes(command.body or b"").decode("utf-8", "replace")
    names = [line.partition("=")[0].strip() for line in said.splitlines() if line.strip()]
    for name in names or [""]:
        yield _group(name, UPDATE)


def _acks(command: Command, facts: Facts) -> Iterator[Need]:
    acks = _body(_Acks, command).acks
    if not acks:
        raise refused("ack is null.")
    for group, topic in dict.fromkeys((ack.c, ack.t) for ack in acks):
        yield from _read(topic, group, SUB)
        yield _group(group, SUB)


_offsets: Final = _topic_or_its_group("topic", SUB_OR_GET, SUB_OR_GET)
_TOPIC: Final = ResourceKind.TOPIC
_GROUP: Final = ResourceKind.GROUP


def _both(topic: Actions, group: Actions, group_field: str = "group") -> Row:
    return _and(_groups(group, group_field), _topics(topic, "topic"))


#: what a broker answers. What has no row here (clients, name servers and controllers are asked it) is for Super users
BROKER: Final[Mapping[int, Row]] = {
    # messages
    C.SEND_MESSAGE: _send("topic"),
    C.SEND_MESSAGE_V2: _send("b"),
    C.SEND_BATCH_MESSAGE: _send("b"),
    C.SEND_REPLY_MESSAGE: _send("topic"),
    C.SEND_REPLY_MESSAGE_V2: _send("b"),
    C.RECALL_MESSAGE: _topics(PUB, "topic"),
    C.END_TRANSACTION: _end_transaction,
    C.CONSUMER_SEND_MSG_BACK: _send_back,
    C.PULL_MESSAGE: _consume(SUB),
    C.LITE_PULL_MESSAGE: _consume(SUB),
    C.QUERY_MESSAGE: _topics(SUB_OR_GET, "topic"),
    C.VIEW_MESSAGE_BY_ID: _view,
    # progress and offsets
    C.QUERY_CONSUMER_OFFSET: _consume(SUB_OR_GET),
    C.UPDATE_CONSUMER_OFFSET: _consume(SUB_OR_UPDATE),
    C.SEARCH_OFFSET_BY_TIMESTAMP: _offsets,
    C.GET_MAX_OFFSET: _offsets,
    C.GET_MIN_OFFSET: _offsets,
    C.GET_EARLIEST_MSG_STORETIME: _offsets,
    # clients
    C.HEART_BEAT: _heartbeat,
    C.UNREGISTER_CLIENT: _unregister,
    C.GET_CONSUMER_LIST_BY_GROUP: _groups(SUB_OR_GET, "consumerGroup"),
    C.LOCK_BATCH_MQ: _locks,
    C.UNLOCK_BATCH_MQ: _locks,
    C.CHECK_CLIENT_CONFIG: _check_client,
    C.QUERY_ASSIGNMENT: _assignment(SUB),
    C.SET_MESSAGE_REQUEST_MODE: _assignment(UPDATE),
    C.GET_ROUTEINFO_BY_TOPIC: _topic_or_its_group("topic", ANY_USE, SUB_OR_GET),
    # POP
    C.POP_MESSAGE: _consume(SUB),
    C.ACK_MESSAGE: _consume(SUB),
    C.PEEK_MESSAGE: _consume(SUB),
    C.CHANGE_MESSAGE_INVISIBLETIME: _consume(SUB),
    C.NOTIFICATION: _consume(SUB),
    C.POLLING_INFO: _consume(GET),
    C.BATCH_ACK_MESSAGE: _acks,
    C.POP_ROLLBACK: _cluster(UPDATE),
    # topics and groups
    C.UPDATE_AND_CREATE_TOPIC: _topics(CREATE, "topic"),
    C.UPDATE_AND_CREATE_TOPIC_LIST: _made_topics,
    C.UPDATE_AND_CREATE_STATIC_TOPIC: _topics(CREATE, "topic"),
    C.DELETE_TOPIC_IN_BROKER: _topics(DELETE, "topic"),
    C.GET_TOPIC_CONFIG: _topics(GET, "topic"),
    C.GET_TOPIC_STATS_INFO: _topics(GET, "topic"),
    C.QUERY_TOPIC_CONSUME_BY_WHO: _topics(GET, "topic"),
    C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _topics(GET, "topic"),
    C.RESUME_CHECK_HALF_MESSAGE: _resume,
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _made_group,
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _made_groups,
    C.DELETE_SUBSCRIPTIONGROUP: _groups(DELETE, "groupName"),
    C.GET_SUBSCRIPTIONGROUP_CONFIG: _groups(GET, "group"),
    C.QUERY_TOPICS_BY_CONSUMER: _groups(GET, "group"),
    C.GET_CONSUMER_CONNECTION_LIST: _groups(GET, "consumerGroup"),
    C.GET_CONSUMER_RUNNING_INFO: _groups(GET, "consumerGroup"),
    C.GET_CONSUME_STATS: _and(
        _groups(GET, "consumerGroup"),
        _if_given("topic", lambda name: _topic(name, GET)),
        _if_given("topicList", lambda name: _topic(name, GET), ";"),
    ),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(UPDATE, UPDATE),
    C.INVOKE_BROKER_TO_RESET_OFFSET: _both(UPDATE, UPDATE),
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both(GET, GET),
    C.QUERY_CONSUME_TIME_SPAN: _both(GET, GET),
    C.QUERY_CONSUME_QUEUE: _and(
        _topics(GET, "topic"),
        _if_given("consumerGroup", lambda name: _group(name, GET)),
    ),
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: _both(GET, GET),
    C.QUERY_CORRECTION_OFFSET: _and(
        _if_given("filterGroups", lambda name: _group(name, GET), ","),
        _both(GET, GET, "compareGroup"),
    ),
    C.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    C.CLONE_GROUP_OFFSET: _and(
        _groups(GET, "srcGroup"), _groups(UPDATE, "destGroup"), _topics(UPDATE, "topic")
    ),
    # tables
    C.GET_ALL_TOPIC_CONFIG: _all_of(_TOPIC),
    C.GET_TIMER_METRICS: _all_of(_TOPIC),
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _all_of(_TOPIC),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _all_of(_GROUP),
    C.GET_COLD_DATA_FLOW_CTR_INFO: _all_of(_GROUP),
    C.GET_ALL_MESSAGE_REQUEST_MODE: _all_of(_TOPIC, _GROUP),
    C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _cold_limits,
    C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _cold_limits,
    # the broker
    C.GET_BROKER_CONFIG: _cluster(GET),
    C.GET_BROKER_RUNTIME_INFO: _cluster(GET),
    C.GET_ALL_CONSUMER_OFFSET: _cluster(GET),
    C.GET_ALL_DELAY_OFFSET: _cluster(GET),
    C.GET_TIMER_CHECK_POINT: _cluster(GET),
    C.GET_BROKER_HA_STATUS: _cluster(GET),
    C.GET_BROKER_EPOCH_CACHE: _cluster(GET),
    C.GET_PRODUCER_CONNECTION_LIST: _cluster(GET),
    C.GET_ALL_PRODUCER_INFO: _cluster(GET),
    C.VIEW_BROKER_STATS_DATA: _cluster(GET),
    C.GET_BROKER_CONSUME_STATS: _cluster(GET),
    C.EXPORT_ROCKSDB_CONFIG_TO_JSON: _cluster(GET),
    C.GET_BROKER_MEMBER_GROUP: _cluster(GET),
    C.UPDATE_BROKER_CONFIG: _cluster(UPDATE),
    C.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(UPDATE),
    C.CLEAN_UNUSED_TOPIC: _cluster(UPDATE),
    C.DELETE_EXPIRED_COMMITLOG: _cluster(UPDATE),
    C.SET_COMMITLOG_READ_MODE: _cluster(UPDATE),
    # peers
    C.ADD_BROKER: only_super,
    C.REMOVE_BROKER: only_super,
    C.NOTIFY_MIN_BROKER_ID_CHANGE: only_super,
    C.EXCHANGE_BROKER_HA_INFO: only_super,
    C.RESET_MASTER_FLUSH_OFFSET: only_super,
    C.NOTIFY_BROKER_ROLE_CHANGED: only_super,
    C.ASK_TO_SWITCH: only_super,
    C.COMPARE_LOGS: only_super,
    # users, rules and accounts
    **dict.fromkeys(_FIELDS, only_super),
}

#: what everybody may ask a name server: where topics are. It knows no users of clients, so all else is for Super users
NAME_SERVER_OPEN: Final = frozenset(
    {
        C.GET_ROUTEINFO_BY_TOPIC,
        C.GET_BROKER_CLUSTER_INFO,
        C.GET_BROKER_MEMBER_GROUP,
        C.GET_KV_CONFIG,
        C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        C.GET_TOPICS_BY_CLUSTER,
        C.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        C.GET_UNIT_TOPIC_LIST,
        C.GET_HAS_UNIT_SUB_TOPIC_LIST,
        C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)
NAME_SERVER_SUPER: Final = frozenset(
    {
        C.REGISTER_BROKER,
        C.UNREGISTER_BROKER,
        C.BROKER_HEARTBEAT,
        C.QUERY_DATA_VERSION,
        C.WIPE_WRITE_PERM_OF_BROKER,
        C.ADD_WRITE_PERM_OF_BROKER,
        C.DELETE_TOPIC_IN_NAMESRV,
        C.REGISTER_TOPIC_IN_NAMESRV,
        C.PUT_KV_CONFIG,
        C.DELETE_KV_CONFIG,
        C.GET_KVLIST_BY_NAMESPACE,
        C.UPDATE_NAMESRV_CONFIG,
        C.GET_NAMESRV_CONFIG,
    }
)
#: who leads is how the leading controller is found; all else is said between replicas, or by operators
CONTROLLER_OPEN: Final = frozenset({C.CONTROLLER_GET_METADATA_INFO})
CONTROLLER_SUPER: Final = frozenset(
    {
        C.CONTROLLER_ALTER_SYNC_STATE_SET,
        C.CONTROLLER_ELECT_MASTER,
        C.CONTROLLER_REGISTER_BROKER,
        C.CONTROLLER_GET_REPLICA_INFO,
        C.CONTROLLER_GET_SYNC_STATE_DATA,
        C.UPDATE_CONTROLLER_CONFIG,
        C.GET_CONTROLLER_CONFIG,
        C.CLEAN_BROKER_DATA,
        C.CONTROLLER_GET_NEXT_BROKER_ID,
        C.CONTROLLER_APPLY_BROKER_ID,
        C.BROKER_HEARTBEAT,
    }
)
