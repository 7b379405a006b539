"""What a campaign judges while it runs: each word of docs/howto/break-a-group.md turns up when it should."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tandemmq.chaos import campaign as campaign_module
from tandemmq.chaos import churn as churn_module
from tandemmq.chaos import traffic as traffic_module
from tandemmq.chaos.campaign import Campaign
from tandemmq.chaos.churn import SENDS, Churn
from tandemmq.chaos.groups import GroupMember, GroupPlan, ReplicaGroup, SeenGroup
from tandemmq.chaos.hostcuts import DECLARED, HostCuts
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.partitions import Partitions
from tandemmq.chaos.proxy import Direction
from tandemmq.chaos.steady import SLAVE_TIMEOUT_MS, STALL_SLACK_MS, Steady
from tandemmq.chaos.switchover import REFUSALS_MAX, Switchovers
from tandemmq.chaos.traffic import Stall, Traffic, TrafficPlan
from tandemmq.chaos.verdict import Verdict
from tandemmq.cluster.client.errors import ClientError

MS = 1_000_000
PAGE = Path(__file__).parents[2] / "docs/howto/break-a-group.md"

#: each word that a problem may begin with -> what shows it: a test of tests/chaos, or a wrong history of test_checking
SHOWN = {
    "LOST": "a message in the middle is lost",
    "REUSED": "a queue offset is acknowledged twice",
    "MOVED": "an acknowledgement names the wrong log offset",
    "PHANTOM": "what lies there was never sent",
    "ABORTED": "a refused send lies in the log",
    "REPEATED": "a message lies twice in the log",
    "GAP": "a replica has a hole",
    "DAMAGED": "a body rotted in a store",
    "ORDER": "two messages far apart are swapped",
    "VANISHED": "what a reader saw is gone",
    "SKIPPED": "test_a_message_that_the_group_was_never_given_is_found",
    "UNDELIVERED": "test_a_delayed_message_that_never_came_to_its_topic_is_found",
    "EARLY": "a delayed message comes early",
    "GHOST": "test_a_topic_made_again_that_is_served_with_more_is_a_ghost",
    "UNDECLARED": "test_a_loss_that_the_controller_did_not_declare_is_found",
    "TWO MASTERS": "two masters in one epoch",
    "OLD EPOCH": "an old master acknowledges after the new one",
    "EPOCH": "the epoch file names another writer",
    "ENDS": "test_a_replica_that_ends_earlier_is_found",
    "DIFFER": "test_a_replica_with_other_bytes_is_found",
    "HISTORIES": "test_a_replica_with_other_reigns_is_found",
    "UNEQUAL": "test_replicas_that_serve_a_queue_to_other_ends_are_unequal",
    "LOG": "test_a_damaged_body_is_found",
    "FILES": "test_a_queue_that_says_something_else_is_found_in_small_logs_and_large",
    "AUDIT": "test_a_queue_that_says_something_else_is_found_in_small_logs_and_large",
    "MISCOUNTED": "test_a_cut_that_says_another_count_is_found",
    "HIDDEN": "a declared loss is larger than the lag",
    "STUCK": "test_a_group_that_takes_no_message_is_stuck",
    "CHANGED": "test_a_master_that_changed_without_cause_is_found",
    "STALL": "test_a_slow_slave_may_cost_one_slave_timeout_and_no_more",
    "SLOW": "test_a_switchover_that_takes_too_long_is_slow",
    "FAILED": "test_a_failed_send_of_a_client_is_found",
    "REFUSED": "test_a_switchover_that_is_refused_again_and_again_is_found",
    "TOGETHER": "test_two_at_once_are_found_whoever_they_are",
    "OVERTOOK": "test_what_overtakes_is_found",
    "REPLACED": "test_another_message_at_a_place_is_found",
    "STOPPED": "test_a_queue_that_does_not_go_on_is_found",
    "EVIDENCE": "test_a_fault_that_nothing_passed_shows_nothing",
    "UNJUDGED": "test_a_store_that_cannot_be_read_is_not_judged",
}


def test_every_word_of_the_page_has_a_test_that_shows_it() -> None:
    table = PAGE.read_text().split("## What must hold")[1].split("\n\n")[1]
    cells = [line.split("|")[1] for line in table.splitlines() if "`" in line]
    words = {word for cell in cells for word in re.findall(r"`([A-Z][A-Z ]+)`", cell)}
    assert words == set(SHOWN)
    written = "".join(each.read_text() for each in Path(__file__).parent.glob("test_*.py"))
    for word, shown in SHOWN.items():
        plants = f'"{shown}": "{word.split()[0]}"'
        assert f"def {shown}(" in written or plants in written, word


Kind = TypeVar("Kind", bound=Campaign)


def made(kind: type[Kind], directory: Path) -> Kind:
    """A campaign without a group; it acknowledges nothing."""
    run = kind(GroupPlan(), TrafficPlan(), directory, 1, lambda _: None)
    run.journal = SimpleNamespace(event=lambda *_, **__: None)  # type: ignore[assignment]
    run.traffic = Standing()  # type: ignore[assignment]
    run.group = Standing()  # type: ignore[assignment]
    return run


class Standing:
    """A group and its traffic at once. masters: what it says next of who is master, the last for ever."""

    def __init__(self) -> None:
        self.masters = [("a", 1)]
        self.stalls: list[Stall] = []
        self.round = 0
        self.route = SimpleNamespace(addresses={}, master="a")
        self.controller_address = self.name_server_address = "c"
        self.last_master: str | None = "a"
        self.replicas: list[Any] = []

    async def view(self) -> SeenGroup:
        master, epoch = self.masters[0] if len(self.masters) == 1 else self.masters.pop(0)
        members = tuple(GroupMember(number, at, True, True) for number, at in enumerate("ab"))
        return SeenGroup(master, epoch, 1, members)

    whole = view

    def replica_at(self, address: str) -> Any:
        return SimpleNamespace(store=Path("/nowhere"))

    def check(self) -> None:
        pass

    async def writable(self, fault_ns: int, within_s: float, *, stable: bool = True) -> int | None:
        return None


def kinds(run: Campaign) -> list[str]:
    return [each.split()[0] for each in run.outcome.problems]


@pytest.mark.parametrize(("said", "found"), [("", ["UNDECLARED"]), (DECLARED, [])])
def test_a_loss_that_the_controller_did_not_declare_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, found: list[str]
) -> None:
    def judged(self: Campaign, stores: object) -> None:
        self.outcome.verdict = Verdict(lost=3)

    monkeypatch.setattr(campaign_module.Campaign, "_judge", judged)
    log = tmp_path / "log"
    log.write_text(f"a\n{said}\n")
    run = made(HostCuts, tmp_path)
    run.group = SimpleNamespace(name_server=SimpleNamespace(log=log))  # type: ignore[assignment]
    run._judge([])
    assert kinds(run) == found


async def test_a_topic_made_again_that_is_served_with_more_is_a_ghost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(churn_module, "SERVED_S", 0.05)
    ends = {"a": SENDS, "b": 2 * SENDS}

    async def end(address: str, topic: str, queue_id: int) -> int:
        return ends[address]

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(Churn, "_live", nothing)
    monkeypatch.setattr(Churn, "_delete", nothing)
    traffic: Any = SimpleNamespace(end=end)
    with Journal(tmp_path / "journal") as journal:
        churn = Churn(Standing(), journal, traffic, 1)  # type: ignore[arg-type]
        (problem,) = await churn.finish(asyncio.create_task(asyncio.sleep(0)), ["a", "b"])
        assert problem.startswith("GHOST ")
        ends["b"] = SENDS
        assert await churn.finish(asyncio.create_task(asyncio.sleep(0)), ["a", "b"]) == []


async def test_replicas_that_serve_a_queue_to_other_ends_are_unequal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: dict[str, int | None] = {"a": 7, "b": 6, "c": None}

    async def end(pool: object, address: str, topic: str, queue_id: int) -> int | None:
        return ends[address]

    monkeypatch.setattr(traffic_module, "max_offset", end)
    with Journal(tmp_path / "journal") as journal:
        group: ReplicaGroup = Standing()  # type: ignore[assignment]
        traffic = Traffic(group, journal, random.Random(1), TrafficPlan(queues=1))
        for others in ("ab", "ac"):
            found = await traffic.settled(others, 0.0)
            assert [each.split()[0] for each in found] == ["UNEQUAL", "UNEQUAL"]
        assert await traffic.settled("aa", 0.0) == []


async def test_a_group_that_takes_no_message_is_stuck(tmp_path: Path) -> None:
    run = made(Partitions, tmp_path)
    assert await run.writable("kill", 0) is None
    assert kinds(run) == ["STUCK"]


@pytest.mark.parametrize(
    ("after", "found"), [(("a", 1), []), (("a", 2), ["CHANGED"]), (("b", 2), ["CHANGED"])]
)
async def test_a_master_that_changed_without_cause_is_found(
    tmp_path: Path, after: tuple[str, int], found: list[str]
) -> None:
    run = made(Partitions, tmp_path)
    run.group.masters = [("a", 1), after]  # type: ignore[attr-defined]
    async with run._same_master():
        pass
    assert kinds(run) == found


@pytest.mark.parametrize(
    ("stalled_ms", "found"),
    [(SLAVE_TIMEOUT_MS, []), (SLAVE_TIMEOUT_MS + STALL_SLACK_MS + 1, ["STALL"])],
)
def test_a_slow_slave_may_cost_one_slave_timeout_and_no_more(
    tmp_path: Path, stalled_ms: int, found: list[str]
) -> None:
    run = made(Steady, tmp_path)
    run.traffic.stalls = [Stall(10, 10 + int(stalled_ms) * MS)]
    run._check_stalls("frozen slave", 0)
    assert kinds(run) == found


@pytest.mark.parametrize(
    ("stalled_ms", "master", "found"),
    [(9, ("b", 2), []), (11, ("b", 2), ["SLOW"]), (9, ("a", 3), ["CHANGED"]), (9, ("b", 1), ["CHANGED"])],
)  # fmt: skip
async def test_a_switchover_that_takes_too_long_is_slow(
    tmp_path: Path, stalled_ms: int, master: tuple[str, int], found: list[str]
) -> None:
    run = made(Switchovers, tmp_path)
    run.stall_ms_max, run._slowest_ms = 10.0, 0.0
    run.traffic.stalls = [Stall(10, 10 + stalled_ms * MS)]
    run.group.masters = [master]  # type: ignore[attr-defined]
    await run._check(1, 0, 1, "b")
    assert kinds(run) == found


def test_a_failed_send_of_a_client_is_found(tmp_path: Path) -> None:
    run = made(Switchovers, tmp_path)
    run._failed("timed out")
    assert kinds(run) == ["FAILED"]


async def test_a_switchover_that_is_refused_again_and_again_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: float) -> None:
        run.outcome.count("client sends")

    async def refuse(*_: object, **__: object) -> None:
        raise ClientError("too slow")

    monkeypatch.setattr(asyncio, "sleep", at_once)
    run = made(Switchovers, tmp_path)
    run._refusals = 0
    admin: Any = SimpleNamespace(switchover=refuse)
    for number in range(REFUSALS_MAX):
        await run._round(number, admin)
    assert kinds(run) == []
    await run._round(REFUSALS_MAX, admin)
    assert kinds(run) == ["REFUSED"]


@pytest.mark.parametrize(("used", "found"), [(True, []), (False, ["EVIDENCE"])])
async def test_a_fault_that_nothing_passed_shows_nothing(
    tmp_path: Path, used: bool, found: list[str]
) -> None:
    run = made(Partitions, tmp_path)
    run.notes = []
    link: Any = SimpleNamespace(used=used, name="stream", hold=lambda _: None, held=lambda _: True)
    await run._hold(link, Direction.BOTH)
    assert kinds(run) == found


@pytest.mark.parametrize(("late", "found"), [(True, []), (False, ["EVIDENCE"])])
async def test_a_fault_comes_after_an_acknowledgement_however_late_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool, found: list[str]
) -> None:
    monkeypatch.setattr(campaign_module, "ACKNOWLEDGED_S", 0.5)
    run = made(Partitions, tmp_path)
    counts = {"ok": 7}
    run.journal.counts = counts
    if late:
        asyncio.get_running_loop().call_later(0.3, counts.update, {"ok": 8})
    await run.loaded(1, 0.2)
    assert kinds(run) == found


def test_a_store_that_cannot_be_read_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object, **__: object) -> Verdict:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(campaign_module, "judge", unreadable)
    run = made(Partitions, tmp_path)
    run._judge_what_is_left()
    assert kinds(run) == ["UNJUDGED"]
