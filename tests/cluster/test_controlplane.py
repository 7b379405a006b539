"""Controller requests and answers: each comes back as it went, and as RocketMQ 5.3.3 wrote it."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandemmq.cluster import controlanswers as answers
from tandemmq.cluster import controlplane as plane
from tandemmq.cluster.remoting import Command, HeaderProblem, RequestCode, ResponseCode
from tandemmq.replication import GroupRecord, GroupView, LeaseTimes
from tandemmq.replication import election as e
from tandemmq.replication import replica as r

GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "controller-remoting.jsonl.xz"
TIMES = LeaseTimes()
A, B = "10.9.9.1:29911", "10.9.9.1:29921"
MEMBERS = {1: e.Member(A, "10.9.9.1:29912", "c1", 11), 2: e.Member(B, "", "c2", 22)}
RECORD = GroupRecord("GoldCluster", "ctl-a", MEMBERS, 3, 2, 1, 2, (1, 2), 4, (), (), 1, "S0")
VIEW = GroupView(2, 2, B, "", frozenset({1, 2}), 4, 1)


def wired(command: Command, binary: bool) -> Command:
    """The command as its reader gets it."""
    command.binary = binary
    return Command.decode(command.encode())


REQUESTS: list[tuple[Command, Callable[[Command], Any], Any]] = [
    (
        plane.encode_next_broker_id(e.NextBrokerId(0, "c", "g")),
        lambda command: plane.read_next_broker_id(command, 9),
        e.NextBrokerId(9, "c", "g"),
    ),
    (
        plane.encode_apply_broker_id(e.ApplyBrokerId(0, "c", "g", 2, "10.0.0.1:1;5")),
        lambda command: plane.read_apply_broker_id(command, 9),
        e.ApplyBrokerId(9, "c", "g", 2, "10.0.0.1:1;5"),
    ),
    (
        plane.encode_register_broker(
            e.RegisterBroker(0, 0, "c", "g", 2, A, B, 1 << 62, "S0", True, 7, 1 << 40), TIMES, 5
        ),
        lambda command: plane.read_register_broker(command, 9, 3, TIMES),
        e.RegisterBroker(9, 3, "c", "g", 2, A, B, 1 << 62, "S0", True, 7, 1 << 40),
    ),
    (
        plane.encode_alter_sync_set(
            e.AlterSyncSet(0, "g", 1, 7, frozenset({1, 3}), 4, ((1, 5), (3, 1 << 62)), True), 5
        ),
        lambda command: plane.read_alter_sync_set(command, 9),
        e.AlterSyncSet(9, "g", 1, 7, frozenset({1, 3}), 4, ((1, 5), (3, 1 << 62)), True),
    ),
    (
        plane.encode_elect_master(e.ElectMaster(0, "c", "g", 2, True, True), 5),
        lambda command: plane.read_elect_master(command, 9),
        e.ElectMaster(9, "c", "g", 2, True, True),
    ),
    (
        plane.encode_elect_master(e.ElectMaster(0, "c", "g"), 5),
        lambda command: plane.read_elect_master(command, 9),
        e.ElectMaster(9, "c", "g"),
    ),
    (
        plane.encode_replica_info(e.ReplicaInfo(0, "g")),
        lambda command: plane.read_replica_info(command, 9),
        e.ReplicaInfo(9, "g"),
    ),
    (
        plane.encode_sync_state_data(e.SyncStateData(0, ("g", "h"))),
        lambda command: plane.read_sync_state_data(command, 9),
        e.SyncStateData(9, ("g", "h")),
    ),
    (
        plane.encode_clean_broker_data(e.CleanBrokerData(0, "c", "g", (1, 2), True), 5),
        lambda command: plane.read_clean_broker_data(command, 9),
        e.CleanBrokerData(9, "c", "g", (1, 2), True),
    ),
    (
        plane.encode_heartbeat(
            e.Heartbeat(0, "g", 2, 88, 6, 7, 900, 800, True, True, True, 5, 10_000), "c", A
        ),
        lambda command: plane.read_heartbeat(command, 3),
        e.Heartbeat(3, "g", 2, 88, 6, 7, 900, 800, True, True, True, 5, 0),
    ),
]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("command", "read", "event"), REQUESTS)
def test_a_request_of_ours_arrives_as_the_event_it_was_made_from(
    command: Command, read: Callable[[Command], Any], event: Any, binary: bool
) -> None:
    assert read(wired(command, binary)) == event


def test_the_recorded_requests_of_a_java_broker_are_read_and_written_alike() -> None:
    seen: set[int] = set()
    for code, request, _ in golden():
        ext = request.ext or {}
        event: Any
        match code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                event = plane.read_next_broker_id(request, 0)
                again = plane.encode_next_broker_id(event)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                event = plane.read_apply_broker_id(request, 0)
                again = plane.encode_apply_broker_id(event)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                event = plane.read_register_broker(request, 0, 0, TIMES)
                assert event.incarnation == 0 and event.mode == ""
                again = plane.encode_register_broker(event, TIMES, int(ext["invokeTime"]))
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                event = plane.read_alter_sync_set(request, 0)
                again = plane.encode_alter_sync_set(event, int(ext["invokeTime"]))
                assert again.body == request.body
            case RequestCode.CONTROLLER_ELECT_MASTER:
                event = plane.read_elect_master(request, 0)
                again = plane.encode_elect_master(event, int(ext["invokeTime"]))
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                event = plane.read_replica_info(request, 0)
                again = plane.encode_replica_info(event)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                event = plane.read_sync_state_data(request, 0)
                again = plane.encode_sync_state_data(event)
                assert again.body == request.body
            case RequestCode.CONTROLLER_GET_METADATA_INFO:
                again = plane.encode_metadata()
            case RequestCode.BROKER_HEARTBEAT if "electionPriority" in ext:
                beat = plane.read_heartbeat(request, 0)
                assert beat.leading and not beat.streaming and beat.timeout_ms == 10_000
                again = plane.encode_heartbeat(beat, ext["clusterName"], ext["brokerAddr"])
                if ext["epoch"] == "-1":
                    assert beat.epoch == 0
                    continue
            case _:
                continue
        seen.add(code)
        written = again.ext or {}
        assert {name: written[name] for name in ext} == ext
    assert len(seen) == 9, seen


def test_the_recorded_answers_of_a_java_controller_are_read_and_written_alike() -> None:
    seen: set[int] = set()
    for code, request, response in golden():
        if response is None:
            continue
        match code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                next_id = answers.read_next_broker_id_answer(response)
                assert next_id in (1, 2)
                answer = e.Answer(0, next_id=next_id)
                again = answers.answer_next_broker_id(request, answer)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                assert answers.read_apply_broker_id_answer(response).succeeded
                again = answers.answer_apply_broker_id(request, e.Answer(0))
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                read = answers.read_register_answer(response, TIMES)
                assert isinstance(read.event, r.Registered) and not read.leases
                record = record_of(read.event.view)
                again = answers.answer_register_broker(
                    request, e.Answer(0, records=(record,)), TIMES
                )
                assert "electionWaitMillis" not in (again.ext or {}), "for ours only"
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                asked = plane.read_alter_sync_set(request, 0)
                view = answers.read_alter_answer(response, asked).view
                assert view is not None and view.master == asked.master
                assert view.number == asked.number + 1 and view.members == asked.members
                again = answers.answer_alter_sync_set(
                    request, e.Answer(0, records=(record_of(view),))
                )
            case RequestCode.CONTROLLER_ELECT_MASTER:
                view = answers.read_elect_answer(response).view
                assert view == GroupView(1, 1, A, "", frozenset({1}), 1)
                record = record_of(view, {1: e.Member(A)})
                again = answers.answer_elect_master(request, e.Answer(0, records=(record,)))
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                view = answers.read_replica_info_answer(response).view
                assert view is not None and view.epoch in (1, 2) and view.master == view.epoch
                again = answers.answer_replica_info(
                    request, e.Answer(0, records=(record_of(view),))
                )
            case RequestCode.CONTROLLER_GET_METADATA_INFO:
                leadership = answers.read_metadata_answer(response)
                assert leadership.addresses() == [leadership.controller_leader_address]
                again = answers.answer_metadata(request, leadership)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                states = answers.read_sync_state_answer(response)
                assert [each.broker_id for each in states["ctl-a"].in_sync_replicas] == [1, 2]
                answer = e.Answer(
                    0, records=(RECORD,), alive=frozenset({("ctl-a", 1), ("ctl-a", 2)})
                )
                again = answers.answer_sync_state_data(request, answer)
            case _:
                continue
        seen.add(code)
        ext = response.ext or {}
        written = again.ext or {}
        assert {name: written.get(name) for name in ext} == ext
        if response.body:
            mine, theirs = (json.loads(fixed(each.body or b"")) for each in (again, response))
            assert mine == theirs
    assert len(seen) == 8, seen


@pytest.mark.parametrize("binary", [False, True])
def test_a_view_with_our_fields_arrives_whole_in_every_answer(binary: bool) -> None:
    answer = e.Answer(0, records=(RECORD,))
    asked = e.AlterSyncSet(0, "ctl-a", 2, 2, frozenset({1, 2}), 3)
    register = REQUESTS[2][0]

    def back(command: Command) -> Command:
        return wired(command, binary)

    registered = answers.read_register_answer(
        back(answers.answer_register_broker(register, answer, TIMES)), TIMES
    )
    assert registered == answers.RegisterAnswer(r.Registered(VIEW), True, 0)
    request = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    altered = answers.answer_alter_sync_set(request, answer)
    assert answers.read_alter_answer(back(altered), asked).view == VIEW
    elected = answers.answer_elect_master(request, answer)
    assert answers.read_elect_answer(back(elected)).view == VIEW
    shown = answers.answer_replica_info(request, answer)
    assert answers.read_replica_info_answer(back(shown)).view == VIEW
    notice = answers.encode_role_notice(VIEW)
    assert answers.read_role_notice(back(notice)) == r.RoleNotified(VIEW)
    beat = answers.answer_heartbeat(request, e.AnswerHeartbeat(3, "ctl-a", 2, 6, True, True, VIEW))
    assert answers.read_heartbeat_answer(back(beat)) == r.HeartbeatAnswered(6, True, True, VIEW)


def test_a_group_without_a_master_is_told_apart_from_one_that_never_had_one() -> None:
    request = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    headless = e.Answer(0, records=(record_of(VIEW, MEMBERS, master=0),))
    view = answers.read_replica_info_answer(answers.answer_replica_info(request, headless)).view
    assert view == GroupView(2, 0, "", "", frozenset({1, 2}), 4, 1)
    fresh = e.Answer(0, records=(GroupRecord("c", "g"),))
    shown = answers.answer_replica_info(request, fresh)
    assert shown.ext is None
    assert answers.read_replica_info_answer(shown).view == GroupView()


def test_a_refusal_brings_code_remark_and_the_view() -> None:
    request = Command(RequestCode.CONTROLLER_ELECT_MASTER)
    answer = e.Answer(0, e.Code.MASTER_STILL_EXIST, "it lives", records=(RECORD,))
    reply = answers.read_elect_answer(answers.answer_elect_master(request, answer))
    assert reply == answers.Reply(2011, "it lives", VIEW) and not reply.succeeded
    request = Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
    answer = e.Answer(0, e.Code.FENCED_MASTER_EPOCH, "epoch is 2, not 1", records=(RECORD,))
    asked = e.AlterSyncSet(0, "ctl-a", 1, 1, frozenset({1}), 3)
    refused = answers.read_alter_answer(answers.answer_alter_sync_set(request, answer), asked)
    assert refused == answers.Reply(2000, "epoch is 2, not 1", VIEW)


def test_lease_times_that_do_not_fit_are_refused_on_both_sides() -> None:
    event = e.RegisterBroker(0, 0, "c", "g", 2, A, B, 88, "S0")
    slow = LeaseTimes(lease_ms=5000, election_wait_ms=6000)
    command = plane.encode_register_broker(event, slow, 5)
    with pytest.raises(
        HeaderProblem, match=r"haLeaseMillis=5000.*controllerElectionWaitMillis=2300"
    ):
        plane.read_register_broker(command, 1, 1, TIMES)
    answer = answers.answer_register_broker(command, e.Answer(0, records=(RECORD,)), TIMES)
    read = answers.read_register_answer(answer, slow)
    assert isinstance(read.event, r.RegistrationRefused) and not read.leases
    assert "elects after 2300 ms" in read.event.why


def test_a_stock_controller_renews_only_for_the_master_it_names() -> None:
    view = GroupView(3, 1, A, "", frozenset({1}), 4)
    reply = answers.Reply(ResponseCode.SUCCESS, "", view)
    good = answers.stock_heartbeat_answer(7, reply, 1, 3, leading=True)
    assert good == r.HeartbeatAnswered(7, True, True, view)
    for replica, epoch, leading in ((2, 3, True), (1, 2, True), (1, 3, False)):
        found = answers.stock_heartbeat_answer(7, reply, replica, epoch, leading=leading)
        assert not found.lease
    unknown = answers.Reply(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "", None)
    assert not answers.stock_heartbeat_answer(7, unknown, 1, 3, leading=True).known
    assert answers.read_heartbeat_answer(Command(0)) is None, "a stock answer has no fields"


def test_a_switch_request_reaches_only_its_group() -> None:
    effect = e.AskToSwitch(3, "g", 1, 7, 2)
    command = wired(answers.encode_switch_request(effect), True)
    assert command.code == RequestCode.ASK_TO_SWITCH
    assert answers.read_switch_request(command, "g") == r.SwitchAsked(7, 2)
    with pytest.raises(HeaderProblem, match="asked to switch g, this is h"):
        answers.read_switch_request(command, "h")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("brokerName", "a b"),
        ("brokerName", ""),
        ("brokerName", "x" * 256),
        ("brokerName", "a\n"),
        ("clusterName", "../x"),
        ("brokerId", "0"),
        ("brokerId", "-1"),
        ("brokerId", str(1 << 31)),
        ("brokerId", "one"),
        ("brokerAddress", "nowhere"),
        ("brokerAddress", "host:port"),
        ("brokerAddress", "a b:1"),
        ("haAddress", "http://x:1"),
        ("incarnation", str(1 << 63)),
        ("ackMode", "S2"),
        ("epoch", "-1"),
        ("maxOffset", "-1"),
        ("leaseMillis", "99999999"),
    ],
)
def test_a_registration_with_an_impossible_field_is_refused_by_its_name(
    field: str, value: str
) -> None:
    command = REQUESTS[2][0]
    spoilt = Command(command.code, {**(command.ext or {}), field: value})
    with pytest.raises(HeaderProblem) as caught:
        plane.read_register_broker(spoilt, 1, 1, TIMES)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"syncStateSet":[0],"syncStateSetEpoch":1}',
        b'{"syncStateSet":"1","syncStateSetEpoch":1}',
        b'{"syncStateSet":[1],"syncStateSetEpoch":-1}',
        b'{"syncStateSet":[99999999999],"syncStateSetEpoch":1}',
        b'{"syncStateSet":[%b1],"syncStateSetEpoch":1}' % (b"1," * 64),
        b"[" * 100_000,
    ],
)
def test_an_impossible_set_is_refused(body: bytes) -> None:
    command = Command(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, dict(REQUESTS[3][0].ext or {}), body
    )
    with pytest.raises(HeaderProblem, match="body"):
        plane.read_alter_sync_set(command, 1)


@pytest.mark.parametrize("text", ["1", "1:2;", "a:b", "1:2;3:x", ";".join(["1:2"] * 65)])
def test_impossible_incarnations_are_refused(text: str) -> None:
    good = REQUESTS[3][0]
    command = Command(good.code, {**(good.ext or {}), "incarnations": text}, good.body)
    with pytest.raises(HeaderProblem, match="incarnations"):
        plane.read_alter_sync_set(command, 1)


@pytest.mark.parametrize("ids", ["1,2", "a", ";", "1;;2", "-1"])
def test_impossible_ids_to_clean_are_refused(ids: str) -> None:
    ext = {"brokerName": "g", "brokerControllerIdsToClean": ids}
    with pytest.raises(HeaderProblem, match="brokerControllerIdsToClean"):
        plane.read_clean_broker_data(Command(RequestCode.CLEAN_BROKER_DATA, ext), 1)


# --- what was recorded ---


def golden() -> list[tuple[int, Command, Command | None]]:
    """(code, request, its response) of the recorded session between Java brokers, tools and controller."""
    found: list[tuple[int, Command, Command | None]] = []
    waiting: dict[tuple[int, int], int] = {}
    with lzma.open(GOLDEN, "rt") as lines:
        for line in lines:
            item = json.loads(line)
            if item["k"] != "frame":
                continue
            command = Command.decode(base64.b64decode(item["b"]))
            key = (item["c"], command.opaque)
            if command.is_response:
                index = waiting.pop(key, None)
                if index is not None:
                    code, request, _ = found[index]
                    found[index] = (code, request, command)
            else:
                waiting[key] = len(found)
                found.append((command.code, command, None))
    return found


def record_of(
    view: GroupView, members: dict[int, e.Member] | None = None, *, master: int | None = None
) -> GroupRecord:
    """A record that shows this view."""
    if members is None:
        members = {view.master: e.Member(view.address, view.ha_address)} if view.master else {}
    return GroupRecord(
        "GoldCluster",
        "ctl-a",
        members,
        master=view.master if master is None else master,
        epoch=view.epoch,
        sync_set=tuple(sorted(view.members)),
        set_number=view.number,
        lossy_epoch=view.lossy_epoch,
    )


def fixed(body: bytes) -> bytes:
    """Java's {1:"x"} as JSON."""
    return body.replace(b"{1:", b'{"1":')


# --- who may know by which numbers replicas prove who they are ---

HA = e.Member("[fe80::1%eth0]:10911", "ha.example:10912")


def view_of_record() -> GroupView:
    """B, replica 2, is the master."""
    return msgspec.structs.replace(RECORD, members={**MEMBERS, 3: HA}).view()


def asked_by(replica: int, incarnation: int) -> Command:
    beat = e.Heartbeat(3, "ctl-a", replica, incarnation, 6, leading=True)
    command = plane.encode_heartbeat(beat, "c", B)
    if not incarnation:
        del command.ext["incarnation"]  # type: ignore[union-attr]
    return command


def test_a_master_of_ours_learns_which_replicas_are_registered() -> None:
    # INV-44
    effect = e.AnswerHeartbeat(3, "ctl-a", 2, 6, True, True, view_of_record())
    answer = wired(answers.answer_heartbeat(asked_by(2, 22), effect), False)
    found = answers.read_heartbeat_answer(answer)
    assert found is not None and found.view == view_of_record()
    assert [(each.replica, each.incarnation) for each in found.view.registered or ()] == [
        (1, 11), (2, 22), (3, 0),
    ]  # fmt: skip
    notice = wired(answers.encode_role_notice(view_of_record(), for_master=True), False)
    assert answers.read_role_notice(notice).view == view_of_record()


@pytest.mark.parametrize(("replica", "incarnation"), [(1, 11), (2, 0)])
def test_nobody_else_learns_by_which_numbers_replicas_prove_who_they_are(
    replica: int, incarnation: int
) -> None:
    # INV-44: a slave need not know, and a stock broker proves nothing
    effect = e.AnswerHeartbeat(3, "ctl-a", replica, 6, True, False, view_of_record())
    answer = answers.answer_heartbeat(asked_by(replica, incarnation), effect)
    assert "registeredReplicas" not in (answer.ext or {})
    record = msgspec.structs.replace(RECORD, members={**MEMBERS, 3: HA})
    everybodys = e.Answer(9, records=(record,))
    asked = plane.encode_replica_info(e.ReplicaInfo(9, "ctl-a"))
    for answering in (
        answers.answer_replica_info,
        answers.answer_elect_master,
        answers.answer_alter_sync_set,
        answers.answer_sync_state_data,
        lambda command, found: answers.answer_register_broker(command, found, TIMES),
    ):
        shown = bytes(answering(asked, everybodys).encode())
        assert b"registeredReplicas" not in shown and b"incarnation" not in shown


def test_a_list_of_replicas_that_cannot_be_read_is_said_so() -> None:
    notice = answers.encode_role_notice(view_of_record(), for_master=True)
    for text in ("1", "1,2,3,4,5", "x,1", "1,2;;3"):
        notice.ext["registeredReplicas"] = text  # type: ignore[index]
        with pytest.raises(HeaderProblem):
            answers.read_role_notice(notice)
