"""What a controller says, both ways: answers to the requests of cluster/controlplane.py, and its notices to brokers.

A group's view goes out in RocketMQ's fields (masterBrokerId, masterAddress, masterEpoch, syncStateSetEpoch, the set as
the body), ours beside them: masterHaAddress, lossyEpoch, masterMode, and in answers to a broker of ours what a lease
needs. No masterBrokerId means that there is no master. Source: RocketMQ's ControllerRequestProcessor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tandemmq.cluster.controlplane import (
    MEMBERS_MAX,
    AckMode,
    AddressOrNone,
    Epoch,
    Millis,
    Name,
    Offset,
    ReplicaId,
    json_body,
    lease_ends_in_time,
    read_set_body,
    set_body,
)
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.cluster.remoting.headers import Header
from tandemmq.replication import GroupView, LeaseTimes
from tandemmq.replication import election as e
from tandemmq.replication import replica as r
from tandemmq.replication.registered import KnownReplica, host_of

REMARK_LENGTH_MAX: Final = 512
PEERS_LENGTH_MAX: Final = 4096
REPLICA_TEXT_MAX: Final = 540  # of one replica in registeredReplicas


Replicas = Annotated[
    str, Meta(pattern=r"\A[0-9a-zA-Z_.:%;,\[\]-]*\Z", max_length=MEMBERS_MAX * REPLICA_TEXT_MAX)
]
_REPLICA: Final = re.compile(r"\d{1,10},\d{1,19}(?:,[a-zA-Z0-9_.:%-]{1,250}){0,2}")


class _ViewHeader(Header):
    master_broker_id: ReplicaId | None = None
    master_address: AddressOrNone | None = None
    master_epoch: Epoch | None = None
    sync_state_set_epoch: Epoch | None = None
    master_ha_address: AddressOrNone | None = None  # ours
    lossy_epoch: Epoch | None = None  # ours
    master_mode: AckMode | None = None  # ours
    registered_replicas: Replicas | None = None  # ours, for the group's master


class _HeartbeatAnswer(Header):
    """Ours: RocketMQ's heartbeats have no answer."""

    heartbeat_number: Offset
    known: bool
    lease: bool


class _RegisterAnswer(Header):
    """Ours: how long this controller waits before it takes a silent master's lease for over."""

    election_wait_millis: Millis | None = None


# --- views ---


def view_fields(view: GroupView, *, for_master: bool = False) -> dict[str, str]:
    """A view's ext fields; none for a group that never had a master, as RocketMQ.

    for_master   who gets it proved to be the group's master: it learns by which numbers its replicas prove who they are
    """
    if not view.epoch:
        return {}
    there_is_one = view.master != e.NOBODY
    return _ViewHeader(
        view.master if there_is_one else None,
        view.address if there_is_one else None,
        view.epoch,
        view.number,
        view.ha_address or None,
        view.lossy_epoch,
        view.mode or None,
        _replicas_text(view.registered) if for_master and view.registered is not None else None,
    ).to_ext()


def _replicas_text(replicas: tuple[KnownReplica, ...]) -> str:
    """ "1,88,10.0.0.1;2,0,10.0.0.2,10.1.0.2": id, incarnation, hosts."""
    return ";".join(f"{each.replica},{each.incarnation}{_hosts(each)}" for each in replicas)


def _hosts(replica: KnownReplica) -> str:
    return "".join(f",{host}" for host in replica.hosts)


def _read_replicas(text: str) -> tuple[KnownReplica, ...]:
    """Raises HeaderProblem."""
    found: list[KnownReplica] = []
    for part in filter(None, text.split(";")):
        if not _REPLICA.fullmatch(part) or len(found) >= MEMBERS_MAX:
            raise HeaderProblem("registeredReplicas", f"registeredReplicas {part[:64]!r}")
        replica, incarnation, *hosts = part.split(",")
        found.append(KnownReplica(int(replica), int(incarnation), tuple(hosts)))
    return tuple(found)


def read_view(command: Command) -> GroupView:
    """The view in an answer or a notice; its set is the body. Raises HeaderProblem."""
    header = _ViewHeader.of(command)
    members, number = read_set_body(command) if command.body else (frozenset[int](), 0)
    if header.sync_state_set_epoch is not None:
        number = header.sync_state_set_epoch
    if header.master_epoch is None and (members or header.master_broker_id):
        raise HeaderProblem("masterEpoch", "the answer names a set but no masterEpoch")
    return GroupView(
        header.master_epoch or 0,
        header.master_broker_id or e.NOBODY,
        header.master_address or "",
        header.master_ha_address or "",
        members,
        number,
        header.lossy_epoch or 0,
        header.master_mode or "",
        None if header.registered_replicas is None else _read_replicas(header.registered_replicas),
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a controller answered.

    code   a ResponseCode; CONTROLLER_NOT_LEADER: ask the next address
    view   the group as the controller sees it, also beside most refusals; None where it did not say.
           Feed it as RoleNotified whatever the code is
    """

    code: int
    remark: str
    view: GroupView | None

    @property
    def succeeded(self) -> bool:
        return self.code == ResponseCode.SUCCESS


def _answer(
    request: Command, answer: e.Answer, ext: Mapping[str, str], body: bytes | None = None
) -> Command:
    """The response with the group's view beside what the request asked for."""
    fields = dict(ext)
    if answer.records:
        view = answer.records[0].view()
        fields = view_fields(view) | fields
        if body is None:
            body = set_body(view.members, view.number)
    remark = answer.remark[:REMARK_LENGTH_MAX] or None
    return request.reply(int(answer.code), remark, fields or None, body)


def refusal(request: Command, code: int, remark: str) -> Command:
    """A response that refuses before the controller's core has seen the request."""
    return request.reply(code, remark[:REMARK_LENGTH_MAX])


def _echoed(request: Command) -> dict[str, str]:
    ext = request.ext or {}
    return {name: ext[name] for name in ("clusterName", "brokerName") if name in ext}


def _read(response: Command) -> Reply:
    has_view = bool(response.ext and "masterEpoch" in response.ext) or bool(response.body)
    view = read_view(response) if has_view else None
    return Reply(response.code, (response.remark or "")[:REMARK_LENGTH_MAX], view)


# --- ids: 1012, 1013 ---


def answer_next_broker_id(request: Command, answer: e.Answer) -> Command:
    return _answer(request, answer, {**_echoed(request), "nextBrokerId": str(answer.next_id)})


def read_next_broker_id_answer(response: Command) -> int | None:
    """The id to apply for; None when refused. Raises HeaderProblem."""
    if response.code != ResponseCode.SUCCESS:
        return None
    return _NextIdHeader.of(response).next_broker_id


class _NextIdHeader(Header):
    next_broker_id: ReplicaId


def answer_apply_broker_id(request: Command, answer: e.Answer) -> Command:
    return _answer(request, answer, _echoed(request))


def read_apply_broker_id_answer(response: Command) -> Reply:
    """CONTROLLER_BROKER_ID_INVALID: somebody else has that id, ask for the next one again."""
    return Reply(response.code, response.remark or "", None)


# --- 1003 ---


def answer_register_broker(request: Command, answer: e.Answer, times: LeaseTimes) -> Command:
    ext = _echoed(request)
    if "incarnation" in (request.ext or {}):
        ext |= _RegisterAnswer(times.election_wait_ms).to_ext()
    return _answer(request, answer, ext)


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    """What the core is fed, and what answered.

    leases   False: a stock controller. It grants no lease and answers no heartbeat; see stock_heartbeat_answer
    code     ResponseCode: CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, CONTROLLER_NOT_LEADER, ...
    """

    event: r.Registered | r.RegistrationRefused
    leases: bool
    code: int


def read_register_answer(response: Command, times: LeaseTimes) -> RegisterAnswer:
    """times: the broker's. A controller that waits too short for them is refused. Raises HeaderProblem."""
    code = response.code
    if code != ResponseCode.SUCCESS:
        why = response.remark or f"code {code}"
        return RegisterAnswer(r.RegistrationRefused(why[:REMARK_LENGTH_MAX]), False, code)
    wait_ms = _RegisterAnswer.of(response).election_wait_millis
    if wait_ms is not None and not lease_ends_in_time(times.lease_ms, times.drift_percent, wait_ms):
        why = (
            f"the controller elects after {wait_ms} ms, too soon for our lease of {times.lease_ms} ms: "
            "make haLeaseMillis and controllerElectionWaitMillis agree"
        )
        return RegisterAnswer(r.RegistrationRefused(why), False, code)
    return RegisterAnswer(r.Registered(read_view(response)), wait_ms is not None, code)


# --- 1001, 1002, 1004 ---


def answer_alter_sync_set(request: Command, answer: e.Answer) -> Command:
    ext = {}
    if answer.code is e.Code.SUCCESS:
        ext["newSyncStateSetEpoch"] = str(answer.records[0].set_number)
    return _answer(request, answer, ext)


def read_alter_answer(response: Command, asked: e.AlterSyncSet) -> Reply:
    """A stock controller names only the new set: then the rest of the view is what we asked with."""
    if response.code != ResponseCode.SUCCESS or "masterEpoch" in (response.ext or {}):
        return _read(response)
    members, number = read_set_body(response)
    view = GroupView(asked.epoch, asked.master, "", "", members, number)
    return Reply(response.code, "", view)


def answer_elect_master(request: Command, answer: e.Answer) -> Command:
    body = None
    if answer.records:
        record = answer.records[0]
        group = {
            "brokerAddrs": {str(each): member.address for each, member in record.members.items()},
            "brokerName": record.name,
            "cluster": record.cluster,
        }
        body = msgspec.json.encode(
            {"brokerMemberGroup": group, "syncStateSet": sorted(record.sync_set)}
        )
    return _answer(request, answer, {}, body)


class _ElectBody(msgspec.Struct, rename="camel"):
    sync_state_set: Annotated[list[ReplicaId], Meta(max_length=MEMBERS_MAX)] = []


def read_elect_answer(response: Command) -> Reply:
    """CONTROLLER_MASTER_STILL_EXIST brings the view, too. Raises HeaderProblem."""
    header = _ViewHeader.of(response)
    remark = (response.remark or "")[:REMARK_LENGTH_MAX]
    if header.master_epoch is None:
        return Reply(response.code, remark, None)
    members = json_body(response, _ElectBody).sync_state_set if response.body else []
    view = GroupView(
        header.master_epoch,
        header.master_broker_id or e.NOBODY,
        header.master_address or "",
        header.master_ha_address or "",
        frozenset(members),
        header.sync_state_set_epoch or 0,
        header.lossy_epoch or 0,
        header.master_mode or "",
    )
    return Reply(response.code, remark, view)


def answer_replica_info(request: Command, answer: e.Answer) -> Command:
    return _answer(request, answer, {})


def read_replica_info_answer(response: Command) -> Reply:
    """CONTROLLER_BROKER_METADATA_NOT_EXIST: register again. Raises HeaderProblem."""
    return _read(response)


# --- 1005 ---


class Leadership(Header):
    """Who leads the controllers, as every one of them answers.

    peers   "n0:HOST:PORT;n1:HOST:PORT;"
    """

    group: str = ""
    controller_leader_id: str = ""
    controller_leader_address: AddressOrNone = ""
    is_leader: bool = False
    peers: Annotated[str, Meta(max_length=PEERS_LENGTH_MAX)] = ""

    def addresses(self) -> list[str]:
        """HOST:PORT of every controller."""
        found = (each.partition(":")[2] for each in self.peers.split(";"))
        return [address for address in found if address]


def answer_metadata(request: Command, leadership: Leadership) -> Command:
    return request.reply(ext=leadership.to_ext())


def read_metadata_answer(response: Command) -> Leadership:
    """Raises HeaderProblem."""
    return Leadership.of(response)


# --- 1006 ---


class ReplicaState(msgspec.Struct, frozen=True, rename="camel"):
    """One replica in a 1006 answer."""

    broker_name: str
    broker_id: int
    broker_address: str | None = None
    alive: bool | None = None


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """One group in a 1006 answer; no masterBrokerId: no master."""

    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    master_broker_id: int | None = None
    master_address: str | None = None
    in_sync_replicas: list[ReplicaState] = []
    not_in_sync_replicas: list[ReplicaState] = []


class _GroupStates(msgspec.Struct, rename="camel"):
    replicas_info_table: dict[Name, GroupState] = {}


def answer_sync_state_data(request: Command, answer: e.Answer) -> Command:
    table = {record.name: _state(record, answer.alive) for record in answer.records}
    return request.reply(body=msgspec.json.encode(_GroupStates(table)))


def _state(record: e.GroupRecord, alive: frozenset[tuple[str, int]]) -> GroupState:
    inside: list[ReplicaState] = []
    outside: list[ReplicaState] = []
    for replica, member in sorted(record.members.items()):
        lives = (record.name, replica) in alive
        found = ReplicaState(record.name, replica, member.address, lives)
        (inside if replica in record.sync_set else outside).append(found)
    view = record.view()
    has_master = view.master != e.NOBODY
    return GroupState(
        record.epoch,
        record.set_number,
        view.master if has_master else None,
        view.address if has_master else None,
        inside,
        outside,
    )


def registered_in(state: GroupState) -> tuple[KnownReplica, ...]:
    """The group's replicas as far as any controller tells anybody: without a process's number."""
    replicas = (*state.in_sync_replicas, *state.not_in_sync_replicas)
    return tuple(
        KnownReplica(each.broker_id, 0, (host_of(each.broker_address),))
        for each in replicas
        if each.broker_address
    )


def read_sync_state_answer(response: Command) -> dict[str, GroupState]:
    """By group. Raises HeaderProblem."""
    states: _GroupStates = json_body(response, _GroupStates)
    return states.replicas_info_table


# --- 1011 ---


def answer_clean_broker_data(request: Command, answer: e.Answer) -> Command:
    return request.reply(int(answer.code), answer.remark[:REMARK_LENGTH_MAX] or None)


# --- 904 ---


def answer_heartbeat(request: Command, answer: e.AnswerHeartbeat) -> Command:
    view = answer.view
    ours = "incarnation" in (request.ext or {})  # and the right one, or it had no view
    fields = view_fields(view, for_master=ours and answer.replica == view.master)
    ext = _HeartbeatAnswer(answer.number, answer.known, answer.lease).to_ext() | fields
    return request.reply(ext=ext, body=set_body(view.members, view.number))


def read_heartbeat_answer(response: Command) -> r.HeartbeatAnswered | None:
    """None: no controller of ours, or not the leading one. Raises HeaderProblem."""
    if response.code != ResponseCode.SUCCESS or "heartbeatNumber" not in (response.ext or {}):
        return None
    header = _HeartbeatAnswer.of(response)
    return r.HeartbeatAnswered(
        header.heartbeat_number, header.known, header.lease, read_view(response)
    )


def stock_heartbeat_answer(
    number: int, reply: Reply, replica: int, epoch: int, *, leading: bool
) -> r.HeartbeatAnswered:
    """What the core is fed under a stock controller: its answer to 1004, sent behind heartbeat `number`.

    Such a controller promises nothing by an answer. It elects when the timeout that the heartbeat named is over, but
    also at once when the connection closes; so this is a lease only as far as we notice that, too. In S0 and S1 no
    acknowledged message depends on it; in A0 and A1 an old master may go on for one lease (docs/howto/controller.md).
    """
    if reply.view is None:
        known = reply.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        return r.HeartbeatAnswered(number, known, False, GroupView())
    view = reply.view
    lease = reply.succeeded and leading and view.master == replica and view.epoch == epoch
    return r.HeartbeatAnswered(number, True, lease, view)


# --- notices: 1008 and our AskToSwitch ---


def encode_role_notice(view: GroupView, *, for_master: bool = False) -> Command:
    """1008, sent oneway. for_master: as view_fields()."""
    body = set_body(view.members, view.number)
    fields = view_fields(view, for_master=for_master)
    return Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, body)


def read_role_notice(command: Command) -> r.RoleNotified:
    """Raises HeaderProblem."""
    return r.RoleNotified(read_view(command))


class _SwitchHeader(Header):
    broker_name: Name
    master_epoch: Epoch
    successor: ReplicaId


def encode_switch_request(effect: e.AskToSwitch) -> Command:
    """Ours, sent oneway: hand over to `successor`."""
    header = _SwitchHeader(effect.group, effect.epoch, effect.successor)
    return Command(RequestCode.ASK_TO_SWITCH, header.to_ext())


def read_switch_request(command: Command, group: str) -> r.SwitchAsked:
    """group: ours. Raises HeaderProblem, also when it is meant for another group."""
    header = _SwitchHeader.of(command)
    if header.broker_name != group:
        raise HeaderProblem("brokerName", f"asked to switch {header.broker_name}, this is {group}")
    return r.SwitchAsked(header.master_epoch, header.successor)
