"""A topic that is made again begins empty; what is left of an earlier life is found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Delivered, Send
from tandemmq.chaos.churn import LAST_EVENT, SENDS, TABLES_NS, Churn, check_last_life, check_lives
from tandemmq.chaos.groups import ReplicaGroup
from tandemmq.chaos.journal import Journal, read_events
from tandemmq.chaos.traffic import CHURN_TOPIC, Traffic
from tandemmq.cluster.broker.handlers.masteronly import LEFT_TO_MASTER
from tandemmq.cluster.remoting import Command, RequestCode

LIFE_NS = 100 * 1_000_000_000
DELETED = {1: LIFE_NS + 50, 2: 2 * LIFE_NS + 50}


def life(number: int, *offsets: int, outcome: str = OK, epoch: int = 1) -> list[Send]:
    return [
        Send(
            f"{number}-{at}", CHURN_TOPIC, 0, number, at, 1, number * LIFE_NS + at,
            number * LIFE_NS + at + 1, outcome, 0, "a:1", offset, epoch=epoch,
        )
        for at, offset in enumerate(offsets)
    ]  # fmt: skip


def test_lives_that_begin_empty_are_right() -> None:
    assert not [*check_lives([*life(1, 0, 1, 2), *life(2, 0, 1)], DELETED, {1: 0})]


@pytest.mark.parametrize("offsets", [(3, 4), (1,)])
def test_a_life_that_begins_with_messages_of_the_former_one_is_found(
    offsets: tuple[int, ...],
) -> None:
    problems = [*check_lives([*life(1, 0, 1, 2), *life(2, *offsets)], DELETED, {1: 0})]
    assert [problem.split()[0] for problem in problems] == ["GHOST"] * len(offsets)


def test_a_topic_that_was_not_deleted_goes_on() -> None:
    assert not [*check_lives([*life(1, 0, 1, 2), *life(2, 3)], {}, {1: 0})]


@pytest.mark.parametrize(("after_ns", "found"), [(TABLES_NS - 1, 0), (TABLES_NS + 1, 1)])
def test_a_master_elected_within_the_copying_of_tables_may_not_know(
    after_ns: int, found: int
) -> None:
    sends = [*life(1, 0, 1, 2), *life(2, 3, epoch=2)]
    began = {1: 0, 2: DELETED[1] + after_ns}
    assert len([*check_lives(sends, DELETED, began)]) == found


def test_a_master_elected_right_after_a_deletion_that_was_waited_for_knows_of_it() -> None:
    lives = [*life(1, 0, 1, 2), *life(2, 3, 4, epoch=2)]
    began = {1: 0, 2: DELETED[1] + 1}
    assert not [*check_lives(lives, DELETED, began)]
    assert len([*check_lives(lives, DELETED, began, tables_ns=0)]) == 2


def test_a_slave_that_a_person_made_the_master_does_not_know_what_the_old_one_did_alone() -> None:
    lives = [*life(1, 0, 1, 2), *life(2, 3, 4)]
    deleted_ns = DELETED[1]
    assert not [*check_lives(lives, DELETED, {0: 0}, [(deleted_ns - 9, deleted_ns + 9)])]
    for since, until in ((deleted_ns + 1, deleted_ns + 9), (deleted_ns - 9, deleted_ns - 1)):
        assert len([*check_lives(lives, DELETED, {0: 0}, [(since, until)])]) == 2


def test_a_send_of_unknown_outcome_may_come_after_the_deletion() -> None:
    assert not [*check_lives([*life(1, 0, -1, outcome=INFO), *life(2, 1)], DELETED, {1: 0})]


class Replaced:
    """A master that was replaced, and a name server that says so one question later."""

    def __init__(self) -> None:
        self.route = SimpleNamespace(master="old")
        self.pool = self
        self.deleted: list[str] = []

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.route.master = "new"
        if command.code != RequestCode.DELETE_TOPIC_IN_BROKER:
            return Command(0)
        self.deleted.append(address)
        return Command(0, remark=LEFT_TO_MASTER if address == "old" else None)

    async def attempt(self, *_: object) -> bool:
        return True

    async def end(self, address: str, topic: str, queue_id: int) -> int:
        return SENDS


async def test_a_deletion_that_a_slave_left_to_its_master_is_asked_of_the_master(
    tmp_path: Path,
) -> None:
    group = Replaced()
    with Journal(tmp_path / "journal") as journal:
        churn = Churn(cast(ReplicaGroup, group), journal, cast(Traffic, group), 1)
        done = asyncio.create_task(asyncio.sleep(0))
        assert await churn.finish(done, ["new"]) == []
    assert group.deleted == ["old", "new"]
    deleted, last = read_events(tmp_path / "journal")
    assert deleted["everywhere"] is True
    assert (last["what"], last["life"]) == (LAST_EVENT, 1)


def given(*unique_ids: str) -> list[Delivered]:
    return [Delivered(CHURN_TOPIC, 0, 0, unique_id, 0, 1) for unique_id in unique_ids]


def test_a_last_life_that_its_readers_were_given_is_right() -> None:
    sends = [*life(1, 0, 1), *life(2, 0, 1), *life(2, 2, outcome=FAIL)]
    assert not [*check_last_life(2, sends, given("2-0", "2-1"))]


def test_readers_that_stayed_in_the_former_life_are_found() -> None:
    problems = [*check_last_life(2, [*life(1, 0, 1), *life(2, 0, 1)], given("1-0", "1-1", "2-1"))]
    assert [problem.split()[0] for problem in problems] == ["SKIPPED"]
    assert "2-0" in problems[0]
