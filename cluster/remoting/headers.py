"""Typed request headers: ext fields, all of them text on the wire, as the numbers they stand for.

Fields keep RocketMQ's names in camel case on the wire and are snake case here. A field without a
default is required: missing or unreadable it raises HeaderProblem, which names it as the wire does.
Booleans are true when they say "true" in any case, or "1" (the C++ client); anything else is false.
Source: RocketMQ's RemotingCommand.decodeCommandCustomHeader and the header class of each request.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Final, Self, cast

import msgspec
from msgspec import inspect

from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import HeaderProblem

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_FIELD_IN_PROBLEM: Final = re.compile(r"at `\$\.?([^`]*)`|field `([^`]+)`")
_TRUE_WORDS: Final = frozenset({"true", "1"})


class Header(msgspec.Struct, gc=False, rename="camel"):
    """Base of all header structs. Unknown ext fields are ignored."""

    @classmethod
    def of(cls, command: Command) -> Self:
        """The header of a request, or of a response. Raises HeaderProblem."""
        return cls.from_ext(command.ext)

    @classmethod
    def from_ext(cls, ext: Mapping[str, str] | None) -> Self:
        """The header in these ext fields. Raises HeaderProblem."""
        try:
            return msgspec.convert(ext or {}, cls, strict=False)
        except msgspec.ValidationError:
            pass
        try:
            return msgspec.convert(_forgiven(cls, ext or {}), cls, strict=False)
        except msgspec.ValidationError as problem:
            raise _problem(problem) from None

    def to_ext(self) -> dict[str, str]:
        """As ext fields: None is left out, booleans are true and false."""
        ext: dict[str, str] = {}
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            if value is None:
                continue
            ext[field.encode_name] = str(value).lower() if isinstance(value, bool) else str(value)
        return ext


@functools.cache
def _fields(kind: type[Header]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Looked up once: it costs as much as a hundred headers."""
    return msgspec.structs.fields(kind)


def _forgiven(kind: type[Header], ext: Mapping[str, str]) -> dict[str, str]:
    """The same fields with every boolean readable, and without empty numbers: "" means absent."""
    fields = dict(ext)
    for field in _fields(kind):
        value = fields.get(field.encode_name)
        if value is None:
            continue
        types = _plain_types(field.type)
        if bool in types:
            fields[field.encode_name] = "true" if value.strip().lower() in _TRUE_WORDS else "false"
        elif int in types and not value.strip():
            del fields[field.encode_name]
    return fields


def _plain_types(kind: object) -> set[type]:
    info = inspect.type_info(kind)
    each = info.types if isinstance(info, inspect.UnionType) else (info,)
    found: set[type] = set()
    for one in each:
        if isinstance(one, inspect.BoolType):
            found.add(bool)
        elif isinstance(one, inspect.IntType):
            found.add(int)
    return found


def _problem(problem: msgspec.ValidationError) -> HeaderProblem:
    text = str(problem)
    match = _FIELD_IN_PROBLEM.search(text)
    name = (match.group(1) or match.group(2) or "") if match else ""
    if "missing required" in text:
        return HeaderProblem(name, f"the request header has no {name}")
    return HeaderProblem(name, f"the request header's {name} cannot be read")


# ---- messages


class SendHeader(Header):
    """SEND_MESSAGE and its family; `batch` decides whether the body is a batch, not the code."""

    topic: str
    queue_id: Int32
    producer_group: str = ""
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 4
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @classmethod
    def of(cls, command: Command) -> Self:
        """Single-letter names with codes 310, 320 and 325, full names with 10 and 324."""
        if command.code in _SHORT_NAMED and cls is SendHeader:
            return cast(Self, SendHeaderV2.from_ext(command.ext))
        return cls.from_ext(command.ext)


_SHORT_NAMED: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)


class SendHeaderV2(SendHeader):
    """The same with its short names on the wire: what nearly every client sends."""

    topic: str = msgspec.field(name="b")
    queue_id: Int32 = msgspec.field(name="e")
    producer_group: str = msgspec.field(default="", name="a")
    default_topic: str = msgspec.field(default="", name="c")
    default_topic_queue_nums: Int32 = msgspec.field(default=4, name="d")
    sys_flag: Int32 = msgspec.field(default=0, name="f")
    born_timestamp: Int64 = msgspec.field(default=0, name="g")
    flag: Int32 = msgspec.field(default=0, name="h")
    properties: str | None = msgspec.field(default=None, name="i")
    reconsume_times: Int32 = msgspec.field(default=0, name="j")
    unit_mode: bool = msgspec.field(default=False, name="k")
    max_reconsume_times: Int32 | None = msgspec.field(default=None, name="l")
    batch: bool = msgspec.field(default=False, name="m")
    broker_name: str | None = msgspec.field(default=None, name="n")


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class EndTransactionHeader(Header):
    """END_TRANSACTION."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    topic: str | None = None
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None


class PullHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class QueryMessageHeader(Header):
    """QUERY_MESSAGE."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID."""

    offset: Int64
    topic: str | None = None


class CompareLogsHeader(Header):
    """COMPARE_LOGS, ours.

    log_start, log_end  the stretch that was digested; the slave's log ends at log_end
    boundary            where the slave's last whole record ends
    digest              SHA-256 of the stretch, in hex
    cluster_name, broker_name  whose log it is; None from a release that does not say
    """

    log_start: Int64
    log_end: Int64
    boundary: Int64
    digest: str
    cluster_name: str | None = None
    broker_name: str | None = None


# ---- offsets


class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP; boundary_type is UPPER in any case, or LOWER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"


class QueryConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET; a missing number is the handler's to answer: code 29."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None
    only_forward: bool = False  # ours: keep what is further already


# ---- clients


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP."""

    consumer_group: str


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str | None = None
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None


# ---- name server


class RouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool = False


class BrokerHeader(Header):
    """UNREGISTER_BROKER, QUERY_DATA_VERSION: which broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 = 0


class BrokerHeartbeatHeader(Header):
    """BROKER_HEARTBEAT; the controller reads more of it than the name server."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class RegisterBrokerHeader(BrokerHeader):
    """REGISTER_BROKER; enable_acting_master is missing in brokers older than 5.0."""

    ha_server_addr: str = ""
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class TopicHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV, REGISTER_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class MemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP."""

    broker_name: str
    cluster_name: str = ""


class KeyHeader(Header):
    """PUT_KV_CONFIG, GET_KV_CONFIG, DELETE_KV_CONFIG, GET_KVLIST_BY_NAMESPACE."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None
