"""What brokers and tools ask a controller, both ways: an event of tandemmq.replication.election as a request, and back.

The fields and bodies are RocketMQ's (codes 1001 to 1013, 904). Ours are ext fields beside them, marked "ours": a stock
broker does not send them and a stock controller does not look at them. Whoever sends `incarnation` is ours.
Answers and notices: cluster/controlanswers.py. Source: RocketMQ's ControllerRequestProcessor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.cluster.remoting.headers import Header, Int64
from tandemmq.replication import LeaseTimes
from tandemmq.replication import election as e
from tandemmq.replication.epochs import EPOCH_MAX, OFFSET_MAX

BODY_BYTES_MAX: Final = 64 * 1024
MEMBERS_MAX: Final = 64  # replicas of one group
GROUPS_MAX: Final = 4096  # groups that one request asks about
REPLICA_MAX: Final = (1 << 31) - 1
CHECK_CODE_LENGTH_MAX: Final = 512
LINEAGE_MAX: Final = 32  # processes that had a store
PRIORITY_LAST: Final = (1 << 31) - 1

Name = Annotated[str, Meta(pattern=r"\A[%|a-zA-Z0-9_.-]{1,255}\Z")]
Address = Annotated[str, Meta(pattern=r"\A(?:[a-zA-Z0-9_.:%\[\]-]{1,250}:[0-9]{1,5})\Z")]
AddressOrNone = Annotated[str, Meta(pattern=r"\A(?:[a-zA-Z0-9_.:%\[\]-]{1,250}:[0-9]{1,5})?\Z")]
ReplicaId = Annotated[int, Meta(ge=1, le=REPLICA_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Incarnation = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Millis = Annotated[int, Meta(ge=0, le=3_600_000)]
AckMode = Annotated[str, Meta(pattern=r"\A(?:[AS][01])?\Z")]

_IDS: Final = re.compile(r"\d{1,10}(?:;\d{1,10})*;?")
_LINEAGE: Final = re.compile(r"\d{1,19}(?:;\d{1,19})*")
_INCARNATIONS: Final = re.compile(r"\d{1,10}:\d{1,19}(?:;\d{1,10}:\d{1,19})*")


# --- the headers, RocketMQ's names through Header's camel case ---


class _GroupHeader(Header):
    cluster_name: Name
    broker_name: Name


class _ApplyHeader(_GroupHeader):
    applied_broker_id: ReplicaId
    register_check_code: Annotated[str, Meta(max_length=CHECK_CODE_LENGTH_MAX)] = ""


class _RegisterHeader(_GroupHeader):
    broker_id: ReplicaId
    broker_address: Address
    incarnation: Incarnation | None = None  # ours, from here on
    ha_address: AddressOrNone | None = None
    ack_mode: AckMode | None = None
    suspect: bool | None = None
    epoch: Epoch | None = None
    max_offset: Offset | None = None
    lineage: Annotated[str, Meta(max_length=LINEAGE_MAX * 20)] | None = None
    lease_millis: Millis | None = None
    clock_drift_percent: Annotated[int, Meta(ge=0, le=100)] | None = None


class _AlterHeader(Header):
    broker_name: Name
    master_broker_id: ReplicaId
    master_epoch: Epoch
    incarnations: Annotated[str, Meta(max_length=MEMBERS_MAX * 32)] | None = None  # ours
    reaffirm: bool | None = None  # ours


class _ElectHeader(_GroupHeader):
    broker_id: Annotated[int, Meta(ge=-1, le=REPLICA_MAX)] = -1
    designate_elect: bool = False
    unclean: bool | None = None  # ours, from here on
    spacious: bool | None = None


class _ReplicaInfoHeader(Header):
    broker_name: Name


class _CleanHeader(Header):
    broker_name: Name
    cluster_name: Name | None = None
    broker_controller_ids_to_clean: Annotated[str, Meta(max_length=MEMBERS_MAX * 11)] | None = None
    is_clean_living_broker: bool = False


class _HeartbeatHeader(_GroupHeader):
    """A stock broker that has no epoch yet says -1; what it leaves out has RocketMQ's default."""

    broker_addr: Address
    broker_id: ReplicaId
    epoch: Annotated[int, Meta(ge=-1, le=EPOCH_MAX)] = 0
    max_offset: Int64 = 0
    confirm_offset: Int64 = 0
    heartbeat_timeout_mills: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None
    election_priority: Annotated[int, Meta(ge=-(1 << 31), le=PRIORITY_LAST)] | None = None
    incarnation: Incarnation | None = None  # ours, from here on
    heartbeat_number: Offset | None = None
    leading: bool | None = None
    streaming: bool | None = None
    resigned: bool | None = None
    space: bool | None = None


class SetBody(msgspec.Struct, rename="camel"):
    """The sync-state-set as RocketMQ writes it."""

    sync_state_set: Annotated[list[ReplicaId], Meta(max_length=MEMBERS_MAX)] = []
    sync_state_set_epoch: Epoch = 0


def set_body(members: Iterable[int], number: int) -> bytes:
    """{"syncStateSet":[1,2],"syncStateSetEpoch":7}"""
    return msgspec.json.encode(SetBody(sorted(members), number))


def read_set_body(command: Command) -> tuple[frozenset[int], int]:
    """Members and number. Raises HeaderProblem."""
    body = json_body(command, SetBody)
    return frozenset(body.sync_state_set), body.sync_state_set_epoch


def json_body(command: Command, kind: Any) -> Any:
    """The body as `kind`, in Java's dialect too. Raises HeaderProblem."""
    try:
        return bodies.read(kind, command.body or b"null", bytes_max=BODY_BYTES_MAX)
    except bodies.BodyUnreadable as problem:
        raise HeaderProblem("body", f"the body cannot be read: {problem}"[:256]) from None


# --- ids: 1012, 1013 ---


def encode_next_broker_id(event: e.NextBrokerId) -> Command:
    header = _GroupHeader(event.cluster, event.group)
    return Command(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header.to_ext())


def read_next_broker_id(command: Command, request: int) -> e.NextBrokerId:
    header = _GroupHeader.of(command)
    return e.NextBrokerId(request, header.cluster_name, header.broker_name)


def encode_apply_broker_id(event: e.ApplyBrokerId) -> Command:
    header = _ApplyHeader(event.cluster, event.group, event.replica, event.check_code)
    return Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, header.to_ext())


def read_apply_broker_id(command: Command, request: int) -> e.ApplyBrokerId:
    header = _ApplyHeader.of(command)
    return e.ApplyBrokerId(
        request,
        header.cluster_name,
        header.broker_name,
        header.applied_broker_id,
        header.register_check_code,
    )


# --- 1003 ---


def encode_register_broker(event: e.RegisterBroker, times: LeaseTimes, now_ms: int) -> Command:
    """times: the broker's, so that the controller can refuse a lease that outlives its own wait. now_ms: wall clock."""
    header = _RegisterHeader(
        event.cluster,
        event.group,
        event.replica,
        event.address,
        incarnation=event.incarnation,
        ha_address=event.ha_address,
        ack_mode=event.mode,
        suspect=event.suspect,
        epoch=event.epoch,
        max_offset=event.end,
        lineage=";".join(map(str, event.lineage)) or None,
        lease_millis=times.lease_ms,
        clock_drift_percent=times.drift_percent,
    )
    ext = header.to_ext()
    ext["invokeTime"] = str(now_ms)
    return Command(RequestCode.CONTROLLER_REGISTER_BROKER, ext)


def read_register_broker(
    command: Command, request: int, session: int, times: LeaseTimes, host: str = ""
) -> e.RegisterBroker:
    """times: the controller's; host: where it comes from.

    Raises HeaderProblem, also when the broker's lease would outlive its election wait.
    """
    header = _RegisterHeader.of(command)
    lease_ms = header.lease_millis
    drift_percent = max(header.clock_drift_percent or 0, times.drift_percent)
    if lease_ms and not lease_ends_in_time(lease_ms, drift_percent, times.election_wait_ms):
        raise HeaderProblem(
            "leaseMillis",
            f"haLeaseMillis={lease_ms} of this broker is not below the controller's "
            f"controllerElectionWaitMillis={times.election_wait_ms} with clocks that drift "
            f"{drift_percent} %: make them agree",
        )
    return e.RegisterBroker(
        request,
        session,
        header.cluster_name,
        header.broker_name,
        header.broker_id,
        header.broker_address,
        header.ha_address or "",
        header.incarnation or 0,
        header.ack_mode or "",
        bool(header.suspect),
        header.epoch or 0,
        header.max_offset or 0,
        _lineage(header.lineage or ""),
        host,
    )


def _lineage(text: str) -> tuple[int, ...]:
    """ "88;99" as numbers. Raises HeaderProblem."""
    if not text:
        return ()
    if not _LINEAGE.fullmatch(text) or text.count(";") >= LINEAGE_MAX:
        raise HeaderProblem("lineage", "the request header's lineage cannot be read")
    return tuple(int(each) for each in text.split(";"))


def lease_ends_in_time(lease_ms: int, drift_percent: int, election_wait_ms: int) -> bool:
    """Whether a lease counted by one clock is over before the wait counted by another: LeaseTimes' relation."""
    return lease_ms * (100 + 2 * drift_percent) < election_wait_ms * 100


# --- 1001 ---


def encode_alter_sync_set(event: e.AlterSyncSet, now_ms: int) -> Command:
    """now_ms: wall clock."""
    vouched = ";".join(f"{replica}:{process}" for replica, process in event.incarnations)
    header = _AlterHeader(
        event.group, event.master, event.epoch, vouched or None, event.reaffirm or None
    )
    ext = header.to_ext()
    ext["invokeTime"] = str(now_ms)
    body = set_body(event.members, event.number)
    return Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)


def read_alter_sync_set(
    command: Command, request: int, session: int = 0, host: str = ""
) -> e.AlterSyncSet:
    """session, host: where it comes from."""
    header = _AlterHeader.of(command)
    members, number = read_set_body(command)
    return e.AlterSyncSet(
        request,
        header.broker_name,
        header.master_broker_id,
        header.master_epoch,
        members,
        number,
        _incarnations(header.incarnations or ""),
        bool(header.reaffirm),
        session,
        host,
    )


def _incarnations(text: str) -> tuple[tuple[int, int], ...]:
    """ "1:88;2:99" as pairs. Raises HeaderProblem."""
    if not text:
        return ()
    if not _INCARNATIONS.fullmatch(text) or text.count(";") >= MEMBERS_MAX:
        raise HeaderProblem("incarnations", "the request header's incarnations cannot be read")
    pairs = (each.split(":") for each in text.split(";"))
    return tuple((int(replica), int(process)) for replica, process in pairs)


# --- 1002 ---


def encode_elect_master(event: e.ElectMaster, now_ms: int) -> Command:
    """now_ms: wall clock."""
    header = _ElectHeader(
        event.cluster, event.group, event.replica, event.designated, event.unclean or None,
        event.spacious or None,
    )  # fmt: skip
    ext = header.to_ext()
    ext["invokeTime"] = str(now_ms)
    return Command(RequestCode.CONTROLLER_ELECT_MASTER, ext)


def read_elect_master(command: Command, request: int) -> e.ElectMaster:
    header = _ElectHeader.of(command)
    return e.ElectMaster(
        request,
        header.cluster_name,
        header.broker_name,
        header.broker_id or -1,
        header.designate_elect,
        bool(header.unclean),
        bool(header.spacious),
    )


# --- questions: 1004, 1005, 1006 ---


def encode_replica_info(event: e.ReplicaInfo) -> Command:
    header = _ReplicaInfoHeader(event.group)
    return Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, header.to_ext())


def read_replica_info(command: Command, request: int) -> e.ReplicaInfo:
    return e.ReplicaInfo(request, _ReplicaInfoHeader.of(command).broker_name)


def encode_metadata() -> Command:
    """Who leads the controllers? Every one of them answers."""
    return Command(RequestCode.CONTROLLER_GET_METADATA_INFO)


def encode_sync_state_data(event: e.SyncStateData) -> Command:
    body = msgspec.json.encode(event.groups)
    return Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)


def read_sync_state_data(command: Command, request: int) -> e.SyncStateData:
    names = json_body(command, Annotated[list[Name], Meta(max_length=GROUPS_MAX)])
    return e.SyncStateData(request, tuple(dict.fromkeys(names)))


# --- 1011 ---


def encode_clean_broker_data(event: e.CleanBrokerData, now_ms: int) -> Command:
    """now_ms: wall clock."""
    ids = ";".join(str(each) for each in event.replicas)
    header = _CleanHeader(event.group, event.cluster or None, ids or None, event.living_too)
    ext = header.to_ext()
    ext["invokeTime"] = str(now_ms)
    return Command(RequestCode.CLEAN_BROKER_DATA, ext)


def read_clean_broker_data(command: Command, request: int) -> e.CleanBrokerData:
    header = _CleanHeader.of(command)
    text = header.broker_controller_ids_to_clean or ""
    if text and not _IDS.fullmatch(text):
        raise HeaderProblem(
            "brokerControllerIdsToClean",
            f"brokerControllerIdsToClean {text[:64]!r} must be ids separated by ;",
        )
    replicas = tuple(dict.fromkeys(int(each) for each in text.split(";") if each))
    return e.CleanBrokerData(
        request,
        header.cluster_name or "",
        header.broker_name,
        replicas,
        header.is_clean_living_broker,
    )


# --- 904 ---


def encode_heartbeat(event: e.Heartbeat, cluster: str, address: str) -> Command:
    """Sent as a request to a controller of ours, which answers; oneway to a stock one, which does not.

    address   of the broker, for RocketMQ
    A stock controller thinks the broker dead after event.timeout_ms; one of ours keeps to its lease times.
    """
    header = _HeartbeatHeader(
        cluster,
        event.group,
        address,
        event.replica,
        event.epoch,
        event.end,
        event.confirmed,
        event.timeout_ms or None,
        event.priority,
        incarnation=event.incarnation,
        heartbeat_number=event.number,
        leading=event.leading,
        streaming=event.streaming,
        resigned=event.resigned,
        space=event.space,
    )
    return Command(RequestCode.BROKER_HEARTBEAT, header.to_ext())


def read_heartbeat(command: Command, session: int, host: str = "") -> e.Heartbeat:
    """A stock broker is taken to lead once its log has the epoch it leads, and never to stream: it says neither."""
    header = _HeartbeatHeader.of(command)
    ours = bool(header.incarnation)
    timeout_ms = header.heartbeat_timeout_mills
    return e.Heartbeat(
        session,
        header.broker_name,
        header.broker_id,
        header.incarnation or 0,
        header.heartbeat_number or 0,
        max(header.epoch, 0),
        max(header.max_offset, 0),
        max(header.confirm_offset, 0),
        leading=bool(header.leading) if ours else True,
        streaming=bool(header.streaming),
        resigned=ours and bool(header.resigned),
        priority=PRIORITY_LAST if header.election_priority is None else header.election_priority,
        timeout_ms=0 if ours else (STOCK_TIMEOUT_MS if timeout_ms is None else timeout_ms),
        space=bool(header.space),
        host=host,
    )


STOCK_TIMEOUT_MS: Final = 10_000  # RocketMQ's controllerHeartBeatTimeoutMills
