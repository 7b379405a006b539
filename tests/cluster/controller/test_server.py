"""The controller's requests beside the core: settings, limits, refusals, probes, notices."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from controllerkit import Table

from tandemmq.cluster import controlplane as plane
from tandemmq.cluster.access.needs import CONTROLLER_OPEN, CONTROLLER_SUPER
from tandemmq.cluster.config import parse_properties
from tandemmq.cluster.controller.measures import Measures
from tandemmq.cluster.controller.notices import refuses
from tandemmq.cluster.controller.reign import HELD_MAX
from tandemmq.cluster.controller.server import LINES, reply_to
from tandemmq.cluster.metrics import MetricTable, page
from tandemmq.cluster.remoting import Command, HeaderProblem, RequestCode, ResponseCode
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.replication import GroupRecord, LeaseTimes
from tandemmq.replication import election as e
from tandemmq.replication.election import Member

TIMES = LeaseTimes()
UNCLEAN_LINE = (
    "enableElectUncleanMaster is on: when nobody in a group's set is left another replica becomes master, "
    "and confirmed messages that only others hold are lost"
)


def apply(replica: int, group: str = "a") -> Command:
    return plane.encode_apply_broker_id(e.ApplyBrokerId(0, "c", group, replica, f"code{replica}"))


def register(replica: int, *, process: int = 0, mode: str = "S0") -> Command:
    event = e.RegisterBroker(
        0, 0, "c", "a", replica, f"10.0.0.{replica}:1", "", process or 10 + replica, mode
    )
    return plane.encode_register_broker(event, TIMES, 0)


def beat(replica: int, **fields: Any) -> Command:
    event = e.Heartbeat(0, "a", replica, 10 + replica, **fields)
    return plane.encode_heartbeat(event, "c", f"10.0.0.{replica}:1")


async def test_every_controller_code_has_a_handler_and_a_row() -> None:
    async with Table() as table:
        named = {
            code
            for code in RequestCode
            if code.name.startswith("CONTROLLER_") or code.name.endswith("_CONTROLLER_CONFIG")
        }
        others = {RequestCode.CLEAN_BROKER_DATA, RequestCode.BROKER_HEARTBEAT}
        assert set(table.controller.table()) == named | others
        assert set(table.controller.table()) == CONTROLLER_OPEN | CONTROLLER_SUPER
        assert not CONTROLLER_OPEN & CONTROLLER_SUPER


# --- settings over the wire ---


async def test_settings_are_shown_and_only_the_unclean_election_can_be_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "controller.conf"
    file.write_text("# ours\ncontrollerDLegerGroup = group1\nenableElectUncleanMaster=false\n")
    async with Table(at_once=True, configStorePath=str(file)) as table:
        await table.ask(1, apply(1))
        shown = await table.answered(1, Command(RequestCode.GET_CONTROLLER_CONFIG))
        settings = parse_properties(bytes(shown.body or b"").decode())
        assert settings["enableElectUncleanMaster"] == "false"
        assert settings["haLeaseMillis"] == "2000"

        update = Command(
            RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n"
        )
        with caplog.at_level(logging.WARNING):
            assert (await answered_soon(table, update)).code == ResponseCode.SUCCESS
        assert UNCLEAN_LINE in caplog.text, "never silently"
        assert table.controller.reign is not None and table.controller.reign.core.unclean
        assert file.read_text() == (
            "# ours\ncontrollerDLegerGroup = group1\nenableElectUncleanMaster=true\n"
        )
        await table.controller.end()
        assert table.controller.begin([]).core.unclean, "and so it stays in the next reign"


async def test_an_unclean_election_that_the_file_allows_is_said_at_each_start_and_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with Table(enableElectUncleanMaster="true") as table:
            assert table.controller.reign is not None and table.controller.reign.core.unclean
            assert [each.getMessage() for each in caplog.records] == [UNCLEAN_LINE]
            assert "tandem_controller_unclean_allowed 1.0" in shown(table)
            await table.controller.end()
            table.controller.begin([])
            assert [each.getMessage() for each in caplog.records] == [UNCLEAN_LINE] * 2
        caplog.clear()
        async with Table() as table:
            assert "tandem_controller_unclean_allowed 0.0" in shown(table)
        assert not caplog.records


async def test_switching_is_as_loud_without_groups_and_counts_as_no_election(
    caplog: pytest.LogCaptureFixture,
) -> None:
    update = Command(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true")
    with caplog.at_level(logging.WARNING):
        async with Table(configStorePath="") as table:
            assert (await answered_soon(table, update)).code == ResponseCode.SUCCESS
            assert [each.getMessage() for each in caplog.records] == [UNCLEAN_LINE]
            assert "tandem_controller_unclean_allowed 1.0" in shown(table)
            assert "elections_total{" not in shown(table)


def shown(table: Table) -> str:
    """The page of its metrics."""
    return page(MetricTable(Measures(table.controller).readers(), {})).decode()


async def answered_soon(table: Table, command: Command) -> Command:
    """The answer of a request that works in a thread."""
    answer = table.controller.table()[command.code](command, cast(Connection, table.line(1)))
    assert answer is not None and not isinstance(answer, Command)
    try:
        found = await answer
    except Exception as problem:
        mapped = reply_to(problem)
        assert mapped is not None
        found = command.reply(*mapped)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"controllerStorePath=/etc", ResponseCode.NO_PERMISSION),
        (b"configStorePath=/etc/passwd", ResponseCode.NO_PERMISSION),
        (b"haLeaseMillis=1", ResponseCode.NO_PERMISSION),
        (b"nonsense=1", ResponseCode.NO_PERMISSION),
        (b"enableElectUncleanMaster=true\nhaLeaseMillis=1", ResponseCode.NO_PERMISSION),
        (b"enableElectUncleanMaster=perhaps", ResponseCode.SYSTEM_ERROR),
        (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
        (b"a=" + b"x" * (64 * 1024), ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_an_update_is_refused_as_a_whole(body: bytes, code: int, tmp_path: Path) -> None:
    file = tmp_path / "controller.conf"
    async with Table(configStorePath=str(file)) as table:
        update = Command(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body)
        assert (await answered_soon(table, update)).code == code
        assert not table.controller.config.unclean and not file.exists()


# --- limits ---


async def test_what_strangers_can_make_us_remember_is_bounded() -> None:
    async with Table() as table:
        members = {each: Member() for each in range(1, plane.MEMBERS_MAX + 1)}
        assert table.controller.reign is not None
        table.controller.reign.core.load([GroupRecord("c", "full", members, 65)])
        answer = await table.answered(1, apply(65, "full"))
        assert answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        assert "clean the ones that are gone" in (answer.remark or "")
        again = await table.answered(1, apply(64, "full"))
        assert again.remark == "id 64 of full is taken", "it is known: no growth"

        table.controller.reign.core.load([GroupRecord("c", "b", {1: Member()}, 2)])
        far = await table.answered(1, apply(2 + plane.MEMBERS_MAX + 1, "b"))
        assert far.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        many = [GroupRecord("c", f"g{number}") for number in range(plane.GROUPS_MAX)]
        table.controller.reign.core.load(many)
        answer = await table.answered(1, apply(1, "new"))
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert "4096 groups" in (answer.remark or "")


async def test_requests_are_refused_while_the_store_is_stuck() -> None:
    async with Table() as table:
        await table.ask(1, apply(1))
        assert table.controller.reign is not None
        table.controller.reign._held.extend([e.Tick()] * HELD_MAX)  # type: ignore[list-item]
        answer = await table.answered(
            2, Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "a"})
        )
        assert answer.code == ResponseCode.SYSTEM_BUSY
        table.controller.reign._held.clear()


async def test_an_unreadable_request_is_an_invalid_one() -> None:
    async with Table() as table:
        answer = await table.answered(1, Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert answer.remark == "the request header has no brokerName"
    assert reply_to(HeaderProblem("x", "y")) == (2005, "y")
    assert reply_to(RuntimeError()) is None, "a bug of ours is not explained away"


async def test_a_lease_that_outlives_our_wait_is_refused_at_registration() -> None:
    async with Table(at_once=True) as table:
        await table.ask(1, apply(1))
        slow = LeaseTimes(lease_ms=5000, election_wait_ms=6000)
        event = e.RegisterBroker(0, 0, "c", "a", 1, "10.0.0.1:1", "", 11, "S0")
        answer = await table.answered(1, plane.encode_register_broker(event, slow, 0))
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert "make them agree" in (answer.remark or "")


# --- connections and effects ---


async def test_a_closed_connection_is_forgotten_with_all_it_waits_for() -> None:
    async with Table() as table:
        await table.ask(1, apply(1))
        await table.ask(
            2,
            Command(
                RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, {"clusterName": "c", "brokerName": "a"}
            ),
        )
        line = table.line(1)
        await table.close_line(1)
        table.store.finish("stored")
        await table.settle()
        assert line.sent == [] and len(table.line(2).sent) == 1
        assert not table.controller._asked


async def test_a_probe_that_ends_after_its_reign_is_nobodys() -> None:
    async with Table(at_once=True) as table:
        await table.ask(1, apply(1))
        await table.ask(1, register(1))
        await table.ask(1, plane.encode_elect_master(e.ElectMaster(0, "c", "a", 1), 0))
        await table.ask(1, beat(1, epoch=1, leading=True))
        await table.close_line(1)
        assert "  probe 10.0.0.1:1" in table.lines
        await table.controller.end()
        assert not table.controller._probes
        with pytest.raises(asyncio.CancelledError):
            await cast(asyncio.Future[bool], table._probing)


async def test_elections_and_their_kinds_are_counted_and_shown() -> None:
    async with Table(at_once=True) as table:
        for replica in (1, 2):
            await table.ask(replica, apply(replica))
            await table.ask(replica, register(replica))
        await table.ask(1, plane.encode_elect_master(e.ElectMaster(0, "c", "a", 1), 0))
        await table.ask(1, beat(1, epoch=1, leading=True))
        await table.close_line(1)
        table.probed(True)
        table.clock.ms += 5000
        await table.ask(2, beat(2, epoch=1))  # not in the set: nobody can be elected
        measures = Measures(table.controller)
        text = page(MetricTable(measures.readers(), {})).decode()
        for line in (
            "tandem_controller_leading 1.0",
            'tandem_controller_epoch{broker="a"} 1.0',
            'tandem_controller_masters{broker="a"} 0.0',  # it is gone, whatever the record says
            'tandem_controller_replicas_alive{broker="a"} 1.0',
            'tandem_controller_in_sync_replicas{broker="a"} 1.0',
            'tandem_controller_elections_total{broker="a"} 1.0',
            'tandem_controller_failed_elections_total{broker="a"} 1.0',
            "tandem_controller_store_failing 0.0",
        ):
            assert line in text, text
        assert 'tandem_controller_lossy_elections_total{broker="a"} 0.0' in text
        assert 'tandem_controller_replicas{broker="a"} 2.0' in text
        table.controller.reign.feed(e.AllowUnclean(True))  # type: ignore[union-attr]
        none_yet = 'tandem_controller_lossy_elections_total{broker="a"} 0.0'
        assert none_yet in shown(table), "nothing was elected yet"
        await table.ask(2, beat(2, epoch=1))
        text = shown(table)
        assert 'tandem_controller_lossy_elections_total{broker="a"} 1.0' in text
        assert 'tandem_controller_elections_total{broker="a"} 2.0' in text, "an election too"
        await table.controller.end()
        assert "tandem_controller_leading 0.0" in page(MetricTable(measures.readers(), {})).decode()


async def test_a_changed_set_and_a_lossy_election_are_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Table(at_once=True) as table:
        for replica in (1, 2):
            await table.ask(replica, apply(replica))
            await table.ask(replica, register(replica))
        await table.ask(1, plane.encode_elect_master(e.ElectMaster(0, "c", "a", 1), 0))
        await table.ask(1, beat(1, epoch=1, leading=True, end=1200))
        with caplog.at_level(logging.INFO):
            for members, number in (({1, 2}, 1), ({1}, 2)):
                alter = e.AlterSyncSet(0, "a", 1, 1, frozenset(members), number, ((2, 12),))
                await table.ask(1, plane.encode_alter_sync_set(alter, 0))
            unclean = e.ElectMaster(0, "c", "a", 2, designated=True, unclean=True)
            await table.close_line(1)
            table.clock.ms += 5000
            await table.ask(2, beat(2, epoch=1, end=1000))
            await table.ask(2, plane.encode_elect_master(unclean, 0))
            await table.ask(2, register(2, mode="A0"))
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    by = "asked for by master 1"
    assert (
        "INFO",
        "every replica is in the sync-state-set broker=a epoch=1 "
        f"why=set [1] -> [1, 2], number 2: {by}",
    ) in said
    assert (
        "WARNING",
        f"one copy is left broker=a epoch=1 why=set [1, 2] -> [1], number 3: {by}",
    ) in said
    assert (
        "ERROR",
        "confirmed messages may be lost broker=a epoch=2 why=replica 2 follows 1 in epoch 2, "
        "old end 1200, new end 1000, from (1,): chosen by an operator",
    ) in said
    assert [text for level, text in said if "in another mode" in text and level == "WARNING"] == [
        "replica in another mode than its group broker=a epoch=2 why=replica 2 is configured A0, "
        "the group's mode is S0 until no replica asks for it"
    ]


async def test_every_kind_of_announcement_has_a_line() -> None:
    assert set(LINES) == set(e.Kind)


async def test_heartbeats_of_stock_brokers_are_not_answered_and_not_remembered() -> None:
    async with Table(at_once=True) as table:
        command = beat(1)
        command.flag |= 2
        await table.ask(1, command)
        assert table.line(1).sent == [] and not table.controller._beats


async def test_an_address_that_is_none_does_not_refuse() -> None:
    assert not await refuses("nowhere")
    assert not await refuses("")


async def test_a_refused_change_of_a_set_is_in_the_log_and_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stock master asks again with every report of its slave: 46,431 times and no line here, once."""
    async with Table(at_once=True) as table:
        for replica in (1, 2):
            await table.ask(replica, apply(replica))
            await table.ask(replica, register(replica))
        await table.ask(1, plane.encode_elect_master(e.ElectMaster(0, "c", "a", 1), 0))
        await table.ask(1, beat(1, epoch=1, leading=True))
        alter = e.AlterSyncSet(0, "a", 1, 1, frozenset({1, 2}), 1, ((2, 99),))
        for _ in range(1000):
            answer = await table.answered(1, plane.encode_alter_sync_set(alter, 0))
            assert answer.code == ResponseCode.CONTROLLER_INVALID_REPLICAS
    said = [each.getMessage() for each in caplog.records if "not changed" in each.getMessage()]
    assert said == [
        "sync-state-set not changed broker=a master=1 code=2003 "
        "why=replica 2 is another process by now suppressed=0"
    ]


# --- who is believed: INV-44 ---

ELSEWHERE = "203.0.113.5:40000"


async def answer_of(table: Table, session: int, command: Command) -> Command:
    await table.ask(session, command)
    return table.line(session).sent[-1]


def by_operator() -> list[Command]:
    elect = e.ElectMaster(0, "c", "a", 2, designated=True)
    return [
        plane.encode_clean_broker_data(e.CleanBrokerData(0, "c", "a", (), True), 0),
        plane.encode_elect_master(elect, 0),
        Command(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n"),
    ]


async def test_strangers_from_elsewhere_stop_no_group_and_give_it_no_other_master(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Table(at_once=True) as table:
        await table.ask(1, apply(1))
        await table.ask(1, register(1))
        table.line(2).address = ELSEWHERE
        for command in by_operator():
            with caplog.at_level(logging.WARNING):
                answer = await answer_of(table, 2, command)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "controllerAllowedAddresses" in (answer.remark or "")
            assert f"was not believed peer={ELSEWHERE}" in caplog.text
        assert table.controller.reign is not None
        assert list(table.controller.reign.core.groups) == ["a"]


@pytest.mark.parametrize("place", ["127.0.0.1:9", "10.0.0.1:40000", "10.7.7.7:1"])
async def test_an_operator_is_believed_here_on_hosts_of_replicas_and_where_we_were_told(
    place: str,
) -> None:
    async with Table(at_once=True, controllerAllowedAddresses="10.7.7.0/24, 10.0.0.1") as table:
        table.line(1).address = "10.0.0.1:50000"
        await table.ask(1, apply(1))
        await table.ask(1, register(1))
        table.line(2).address = place
        clean = by_operator()[0]
        assert (await answer_of(table, 2, clean)).code == ResponseCode.SUCCESS


async def test_a_replica_hands_over_on_its_own_connection() -> None:
    async with Table(at_once=True) as table:
        table.line(1).address = ELSEWHERE
        await table.ask(1, apply(1))
        await table.ask(1, register(1))
        answer = await answer_of(table, 1, by_operator()[1])
        assert answer.code != ResponseCode.NO_PERMISSION


async def test_where_brokers_are_named_nobody_else_gets_an_id_or_registers() -> None:
    async with Table(at_once=True, controllerAllowedAddresses="10.0.0.0/24") as table:
        table.line(1).address = ELSEWHERE
        for command in (apply(1), register(1)):
            answer = await answer_of(table, 1, command)
            assert answer.code == ResponseCode.NO_PERMISSION
        table.line(2).address = "10.0.0.1:50000"
        assert (await answer_of(table, 2, apply(1))).code == ResponseCode.SUCCESS


async def test_routes_of_a_controlled_group_follow_the_master_that_the_controller_knows() -> None:
    async with Table(at_once=True) as table:
        refuse = table.controller.refuse_route
        assert refuse("a", 0, "10.0.0.9:1", "10.0.0.9") is None, "not one of our groups"
        for replica in (1, 2):
            await table.ask(replica, apply(replica))
            await table.ask(replica, register(replica))
        await table.ask(1, plane.encode_elect_master(e.ElectMaster(0, "c", "a", 1), 0))
        assert refuse("a", 0, "10.0.0.1:1", "10.0.0.1") is None
        assert refuse("a", 1, "10.0.0.2:1", "10.0.0.2") is None
        assert refuse("a", 3, "10.0.0.3:1", "10.0.0.3") is None, "it registers here next"
        for address, host in (
            ("203.0.113.5:1", "203.0.113.5"),  # a stranger
            ("10.0.0.2:1", "10.0.0.2"),  # a replica that is not the master
            ("10.0.0.1:1", "203.0.113.5"),  # somebody in the master's name
        ):
            assert refuse("a", 0, address, host) is not None
        assert refuse("a", -1, "10.0.0.1:1", "203.0.113.5") is not None, "nor its goodbye"
