"""INV-44: who is not registered with the controller is let in by no master, however it introduces itself."""

from __future__ import annotations

import pytest

from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.group import GroupRecord, Member
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import (
    Acknowledge,
    Admit,
    Appended,
    Drop,
    Effect,
    LeaseRenewed,
    Propose,
    ReplicasLearned,
    SlaveGreeted,
    SlaveReported,
    Tick,
)
from tandemmq.replication.registered import KnownReplica, Registry

OURS = KnownReplica(1, 11, ("10.0.0.1",))
SLAVE = KnownReplica(2, 12, ("10.0.0.2",))
STOCK = KnownReplica(3, 0, ("10.0.0.3", "10.1.0.3"))


@pytest.fixture
def core() -> MasterCore:
    """A master whose slave is in the set and holds everything."""
    core = MasterCore(
        1, Mode.S0, StreamRules(), EpochHistory((Epoch(1, 0),)), incarnation=11, end=100,
        granted=frozenset({1, 2}), number=2, registered=(OURS, SLAVE, STOCK),
    )  # fmt: skip
    core.step(LeaseRenewed(1_000_000), 0)
    greet(core, 2, 12)
    report(core, 2, 100)
    assert core.acknowledged == 100
    return core


def greet(
    core: MasterCore,
    replica: int,
    incarnation: int = 0,
    host: str = "10.0.0.9",
    connection: int = 0,
) -> list[Effect]:
    return core.step(SlaveGreeted(connection or replica, replica, incarnation, host=host), 0)


def report(core: MasterCore, connection: int, received: int, now_ms: int = 0) -> list[Effect]:
    return core.step(SlaveReported(connection, received, None, None, received, core.end), now_ms)


def test_a_stranger_is_dropped_counts_as_no_copy_and_holds_up_nobody(core: MasterCore) -> None:
    (dropped,) = greet(core, 99)
    assert dropped == Drop(99, "replica 99 is not registered with the controller", True)
    assert report(core, 99, 100) == [], "nobody listens"
    assert core.copies(100) == (2, 0) and core.union == {1, 2}
    core.step(Appended(200), 1)
    assert core.acknowledged == 100
    effects = report(core, 2, 200, 1)
    assert Acknowledge(200, 1, 2, 0) in effects, "what the registered slave has is acknowledged"
    assert not any(isinstance(each, Propose) for each in core.step(Tick(), 400))


def test_a_stranger_takes_no_registered_replicas_place(core: MasterCore) -> None:
    for incarnation in (0, 13):
        (dropped,) = greet(core, 2, incarnation, host="10.0.0.2", connection=7)
        assert isinstance(dropped, Drop) and dropped.connection == 7 and dropped.unregistered
    assert core.slaves[2].connection == 2, "the stream of the true one goes on"


def test_a_strangers_epoch_is_no_news(core: MasterCore) -> None:
    effects = core.step(SlaveGreeted(99, 99, 5, epoch=7), 0)
    assert [type(each) for each in effects] == [Drop]


def test_who_registers_is_let_in_and_who_is_registered_no_more_goes(core: MasterCore) -> None:
    core.step(ReplicasLearned((OURS, SLAVE, KnownReplica(4, 14))), 5)
    assert Admit(4) in greet(core, 4, 14)
    effects = core.step(ReplicasLearned((OURS, KnownReplica(2, 22))), 6)
    assert {each.connection for each in effects if isinstance(each, Drop)} == {2, 4}
    assert not core.slaves
    assert Admit(8) in greet(core, 2, 22, connection=8), "the restarted process"


def test_a_master_that_was_told_of_nobody_lets_nobody_in() -> None:
    core = MasterCore(1, Mode.S0, StreamRules(), granted=frozenset({1}), number=1, registered=())
    (dropped,) = greet(core, 2, 12)
    assert isinstance(dropped, Drop) and dropped.unregistered


# --- a stock replica proves nothing: its host does ---


def registry(*others: KnownReplica, by_host: bool = True) -> Registry:
    return Registry((OURS, SLAVE, STOCK, *others), own=1, by_host=by_host)


@pytest.mark.parametrize("host", ["10.0.0.3", "10.1.0.3", "::ffff:10.0.0.3", ""])
def test_a_stock_replica_comes_from_a_host_that_it_registered(host: str) -> None:
    assert registry().refuse(3, 0, host) is None


def test_a_stock_replica_from_elsewhere_is_refused_unless_hosts_are_not_looked_at() -> None:
    why = registry().refuse(3, 0, "10.0.0.4")
    assert why == (
        "replica 3 is registered at 10.0.0.3 or 10.1.0.3, not at 10.0.0.4: if it sends from "
        "another address set haReplicaHostCheck=false"
    )
    assert registry(by_host=False).refuse(3, 0, "10.0.0.4") is None
    assert registry(by_host=False).refuse(9, 0, "10.0.0.4") is not None, "but never any id"


def test_a_replica_of_our_own_machine_may_come_over_loopback() -> None:
    known = registry(KnownReplica(4, 0, ("10.0.0.1",)))
    assert known.refuse(4, 0, "127.0.0.1") is None
    assert known.refuse(3, 0, "127.0.0.1") is not None


def test_a_name_may_stand_for_any_address() -> None:
    assert registry(KnownReplica(4, 0, ("broker-4",))).refuse(4, 0, "10.0.0.77") is None
    assert registry(KnownReplica(4, 0, ("localhost",))).refuse(4, 0, "127.0.0.1") is None
    assert registry(KnownReplica(4, 0, ("localhost",))).refuse(4, 0, "10.0.0.77") is not None


def test_who_only_applied_for_an_id_is_not_registered() -> None:
    members = {
        1: Member("10.0.0.1:10911", "10.1.0.1:10912", "x", 11),
        2: Member(check_code="y"),
        3: Member("[::1]:10911"),
    }
    assert GroupRecord("c", "a", members).replicas() == (
        KnownReplica(1, 11, ("10.0.0.1", "10.1.0.1")),
        KnownReplica(3, 0, ("::1",)),
    )
