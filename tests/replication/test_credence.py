"""INV-44 at the controller: who says it is a replica is believed only if it can be that replica."""

from __future__ import annotations

import msgspec
import pytest
from controlkit import Bench

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.controlevents import (
    AlterSyncSet,
    Announce,
    Heartbeat,
    Kind,
    RegisterBroker,
)
from tandemmq.replication.election import (
    Answer,
    AnswerHeartbeat,
    ApplyBrokerId,
    Code,
    Effect,
    NotifyRole,
)


def stock(
    replica: int, host: str, session: int = 77, address: str = "10.0.0.9:1"
) -> RegisterBroker:
    """What anybody can send: a registration as a stock broker's, without any number or token."""
    return RegisterBroker(0, session, "c", "a", replica, address, host=host)


def code_of(effects: list[Effect]) -> Code:
    (answer,) = [each for each in effects if isinstance(each, Answer)]
    return answer.code


@pytest.fixture
def bench() -> Bench:
    """Master 1 and slave 2 of ours, and stock replica 3 at 10.0.0.3."""
    bench = Bench(2)
    for replica in (1, 2):
        event = RegisterBroker(
            0, 10 + replica, "c", "a", replica, f"10.0.0.{replica}:1", incarnation=10 + replica,
            mode="S0", lineage=(replica,),
        )  # fmt: skip
        assert code_of(bench.step(event)) is Code.SUCCESS
    bench.step(apply_of(3))
    assert code_of(bench.step(stock(3, "10.0.0.3", 13, "10.0.0.3:1"))) is Code.SUCCESS
    bench.beat(1, leading=True)
    bench.beat(2)
    return bench


def apply_of(replica: int) -> ApplyBrokerId:
    return ApplyBrokerId(0, "c", "a", replica, f"code{replica}")


@pytest.mark.parametrize("host", ["203.0.113.5", "10.0.0.1", "127.0.0.1"])
def test_one_forged_registration_deposes_no_living_master(bench: Bench, host: str) -> None:
    before = bench.record
    effects = bench.step(stock(1, host))
    assert code_of(effects) is Code.BROKER_ID_INVALID
    assert bench.record == before and not any(isinstance(each, NotifyRole) for each in effects)
    assert [each.kind for each in effects if isinstance(each, Announce)] == [Kind.DOUBTED]


def test_nobody_takes_the_place_of_a_replica_that_is_gone(bench: Bench) -> None:
    bench.now_ms = 60_000
    for event in (
        stock(2, "203.0.113.5"),
        msgspec.structs.replace(stock(2, "203.0.113.5"), incarnation=99),
        msgspec.structs.replace(stock(2, "203.0.113.5"), incarnation=99, lineage=(2, 98)),
        stock(3, "203.0.113.5"),
    ):
        assert code_of(bench.step(event)) is Code.BROKER_ID_INVALID, event


def test_the_store_that_is_known_comes_back_from_anywhere_when_its_process_is_silent(
    bench: Bench,
) -> None:
    bench.now_ms = LeaseTimes().election_wait_ms + 1
    event = RegisterBroker(
        0,
        99,
        "c",
        "a",
        2,
        "10.5.5.5:1",
        incarnation=99,
        mode="S0",
        lineage=(2, 12),
        host="10.5.5.5",
    )
    assert code_of(bench.step(event)) is Code.SUCCESS
    assert bench.record.members[2].address == "10.5.5.5:1"


def test_no_refusal_says_by_which_number_a_replica_is_known(bench: Bench) -> None:
    for incarnation, number in ((1, 111), (2, 112)):
        members = dict(bench.record.members)
        member = msgspec.structs.replace(members[incarnation], incarnation=number * 1_000_003)
        bench.core.groups["a"].record = msgspec.structs.replace(
            bench.record, members={**members, incarnation: member}
        )
        event = msgspec.structs.replace(
            stock(incarnation, "127.0.0.1"), incarnation=99, lineage=(5,)
        )
        effects = bench.step(event)
        assert code_of(effects) is Code.BROKER_ID_INVALID
        assert str(number * 1_000_003) not in str(effects)


def test_a_stock_replica_restarts_on_its_host_and_elsewhere_only_if_hosts_are_not_looked_at(
    bench: Bench,
) -> None:
    bench.now_ms = 60_000
    assert code_of(bench.step(stock(3, "10.0.0.3", 78))) is Code.SUCCESS
    bench.now_ms = 120_000
    assert code_of(bench.step(stock(3, "10.0.0.77", 79))) is Code.BROKER_ID_INVALID
    bench.core.by_host = False
    assert code_of(bench.step(stock(3, "10.0.0.77", 80))) is Code.SUCCESS


def test_a_stock_replica_beats_from_its_host_only(bench: Bench) -> None:
    for host, known in (("10.0.0.3", True), ("203.0.113.5", False)):
        effects = bench.step(Heartbeat(13, "a", 3, timeout_ms=10_000, host=host))
        (answer,) = [each for each in effects if isinstance(each, AnswerHeartbeat)]
        assert answer.known is known


def test_only_the_masters_connection_changes_its_set(bench: Bench) -> None:
    record = bench.record
    asked = AlterSyncSet(
        0, "a", 1, record.epoch, frozenset({1}), record.set_number, session=77, host="10.0.0.1"
    )
    assert code_of(bench.step(asked)) is Code.INVALID_REQUEST
    assert bench.record.sync_set == (1, 2)
    assert code_of(bench.step(msgspec.structs.replace(asked, session=11))) is Code.SUCCESS
    assert bench.record.sync_set == (1,)
