"""tandemmq/doctor/clusters.py: what of a running cluster looks wrong, by what its servers said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from tandemmq.cluster.client import ReplicaSet
from tandemmq.cluster.client.admin.values import Replica, ReplicaState, SlaveState
from tandemmq.doctor.clusters import (
    BrokerFacts,
    ClusterFacts,
    ControllerFacts,
    GroupFacts,
    NameServerFacts,
    cluster_findings,
    remote_now_ms,
)
from tandemmq.doctor.findings import Finding, Severity

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"
BROKERS = {"broker-a": {0: MASTER, 2: SLAVE}}
STATUS = {
    "brokerVersionDesc": "V5_3_3",
    "commitLogDiskRatio": "0.3",
    "consumeQueueDiskRatio": "0.2",
}
SETTINGS = {"enableControllerMode": "true", "diskMaxUsedSpaceRatio": "75", "brokerPermission": "6"}


def broker(broker_id: int = 0, address: str = MASTER, **changes: Any) -> BrokerFacts:
    facts = BrokerFacts(
        "c", "broker-a", broker_id, address, status=STATUS, settings=SETTINGS, skew_ms=20
    )
    return dataclasses.replace(facts, **changes)


def group(
    in_sync: Mapping[int, str],
    away: Mapping[int, str] = {},
    *,
    alive: bool = False,
    master: int | None = 1,
) -> ReplicaSet:
    return ReplicaSet(
        broker_name="broker-a", master_id=master, master_address=MASTER, epoch=3, set_epoch=5,
        in_sync=tuple(Replica(broker_id=n, address=at, alive=True) for n, at in in_sync.items()),
        out_of_sync=tuple(Replica(broker_id=n, address=at, alive=alive) for n, at in away.items()),
    )  # fmt: skip


WHOLE = group({1: MASTER, 2: SLAVE})
GOOD = ClusterFacts(
    name_servers=(NameServerFacts("10.0.0.9:9876", "", BROKERS), NameServerFacts("10.0.0.8:9876", "", BROKERS)),
    brokers=(broker(), broker(2, SLAVE)),
    controllers=(ControllerFacts("10.0.0.9:9878", "", "10.0.0.9:9878"),),
    groups={"broker-a": WHOLE},
    consumers=(GroupFacts("billing", 17, 2),),
)  # fmt: skip


def found(**changes: Any) -> list[Finding]:
    return cluster_findings(dataclasses.replace(GOOD, **changes))


def one(**changes: Any) -> Finding:
    (finding,) = found(**changes)
    return finding


def with_status(**status: str) -> Finding:
    return one(brokers=(broker(status={**STATUS, **status}), broker(2, SLAVE)))


def test_a_cluster_that_is_well_has_no_finding() -> None:
    assert found() == []


def test_a_silent_name_server_is_a_warning_and_all_of_them_are_more() -> None:
    silent = NameServerFacts("10.0.0.8:9876", "refused")
    shown = one(name_servers=(GOOD.name_servers[0], silent))
    assert (shown.check, shown.severity, shown.where) == (
        "name-server-silent",
        Severity.WARNING,
        "10.0.0.8:9876",
    )
    (shown,) = cluster_findings(ClusterFacts((silent,)))
    assert shown.severity is Severity.CRITICAL


def test_name_servers_that_differ_are_told_with_the_brokers_in_which() -> None:
    other = NameServerFacts("10.0.0.8:9876", "", {"broker-a": {0: MASTER}})
    shown = one(name_servers=(GOOD.name_servers[0], other))
    assert (shown.check, shown.severity) == ("name-servers-differ", Severity.WARNING)
    assert "broker-a differ" in shown.text


def test_no_broker_and_a_group_without_master_are_critical() -> None:
    shown = one(brokers=(), groups=None)
    assert (shown.check, shown.severity) == ("no-broker", Severity.CRITICAL)
    shown = one(brokers=(broker(2, SLAVE),))
    assert (shown.check, shown.severity, shown.where) == (
        "no-master",
        Severity.CRITICAL,
        "broker-a",
    )


def test_a_missing_replica_is_told_with_what_is_left_and_how_to_forget_it() -> None:
    shown = one(groups={"broker-a": group({1: MASTER}, {2: SLAVE})})
    assert (shown.check, shown.severity) == ("replica-missing", Severity.WARNING)
    assert f"member 2 ({SLAVE}) is away: 1 of 2" in shown.text
    assert "cleanBrokerMetadata -bn broker-a -b 2" in shown.do
    shown = one(groups={"broker-a": group({1: MASTER}, {2: SLAVE}, alive=True)})
    assert shown.check == "replica-behind"


def test_a_set_below_its_minimum_is_critical() -> None:
    settings = {**SETTINGS, "minInSyncReplicas": "2"}
    brokers = (broker(settings=settings), broker(2, SLAVE))
    shown = found(brokers=brokers, groups={"broker-a": group({1: MASTER}, {2: SLAVE})})
    checks = {each.check: each.severity for each in shown}
    assert checks == {"replica-missing": Severity.WARNING, "set-too-small": Severity.CRITICAL}


def test_a_group_of_one_is_advised_to_be_two() -> None:
    assert one(groups={"broker-a": group({1: MASTER})}).check == "one-member"


def test_an_address_where_nobody_answers_is_critical_and_a_loopback_one_is_named() -> None:
    gone = broker(problem="timed out", answers=False, status={}, settings={})
    shown = one(brokers=(gone, broker(2, SLAVE)))
    assert (shown.check, shown.severity) == ("broker-unreachable", Severity.CRITICAL)
    assert MASTER in shown.text and "brokerIP1" in shown.do
    here = broker(address="127.0.0.1:10911")
    shown = one(brokers=(here, broker(2, SLAVE)))
    assert (shown.check, shown.severity) == ("broker-loopback", Severity.WARNING)
    local = NameServerFacts("127.0.0.1:9876", "", BROKERS)
    assert found(name_servers=(local,), brokers=(here, broker(2, SLAVE))) == [], (
        "all on one machine"
    )


def test_one_that_refuses_to_tell_is_not_one_that_is_gone() -> None:
    shown = one(brokers=(broker(problem="no permission", status={}, settings={}), broker(2, SLAVE)))
    assert (shown.check, shown.severity) == ("broker-refuses", Severity.ADVICE)


@pytest.mark.parametrize(
    ("ratio", "severity", "word"),
    [
        ("0.71", Severity.WARNING, "from 75%"),
        ("0.80", Severity.WARNING, "it does so now"),
        ("0.93", Severity.CRITICAL, "refused"),
    ],
)
def test_a_disk_near_its_mark(ratio: str, severity: Severity, word: str) -> None:
    shown = with_status(commitLogDiskRatio=ratio)
    assert (shown.check, shown.severity) == ("broker-disk", severity)
    assert word in shown.text


def test_what_a_broker_says_of_itself_is_passed_on() -> None:
    shown = with_status(alarms="the log of 2 parted from ours")
    assert (shown.check, shown.text) == ("broker-alarm", "the log of 2 parted from ours")
    assert with_status(replicaState="waiting").check == "broker-without-role"
    assert with_status(dispatchBehindBytes=str(100 << 20)).check == "dispatch-behind"
    shown = one(brokers=(broker(settings={**SETTINGS, "brokerPermission": "4"}), broker(2, SLAVE)))
    assert shown.check == "broker-read-only"


def test_controllers_that_are_silent_or_without_a_leader() -> None:
    silent = ControllerFacts("10.0.0.8:9878", "refused")
    shown = one(controllers=(*GOOD.controllers, silent))
    assert (shown.check, shown.severity) == ("controller-silent", Severity.WARNING)
    assert one(controllers=(silent,), groups=None).severity is Severity.CRITICAL
    shown = one(controllers=(ControllerFacts("10.0.0.9:9878"),))
    assert (shown.check, shown.severity) == ("controllers-leaderless", Severity.CRITICAL)


def test_a_group_that_is_behind_without_a_member_is_told_and_one_with_members_is_not() -> None:
    shown = one(
        consumers=(GroupFacts("billing", 1_234, 0), GroupFacts("b", 9, 1), GroupFacts("c", 0, 0))
    )
    assert (shown.check, shown.where) == ("group-without-members", "billing")
    assert "1,234 messages" in shown.text


def test_a_clock_that_differs_is_whose_it_is() -> None:
    shown = one(brokers=(broker(skew_ms=9_000), broker(2, SLAVE)))
    assert (shown.where, shown.text) == (
        "broker-a (0)",
        "its clock is 9.0 s ahead of this machine's",
    )
    shown = one(brokers=(broker(skew_ms=-9_000), broker(2, SLAVE)))
    assert "9.0 s behind" in shown.text
    shown = one(brokers=(broker(skew_ms=-9_000), broker(2, SLAVE, skew_ms=-9_300)))
    assert (shown.check, shown.where) == ("clock-skew", "this machine")


def test_the_clock_of_a_broker_is_its_start_and_how_long_it_has_run() -> None:
    status = {"bootTimestamp": "1000000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
    assert remote_now_ms(status) == 1_000_000 + ((26 * 60 + 3) * 60 + 4) * 1000 + 500
    assert remote_now_ms({}) is None
    assert remote_now_ms({"bootTimestamp": "x", "runtime": "[ 1 days ]"}) is None


def test_several_versions_are_an_upgrade_to_finish() -> None:
    shown = one(
        brokers=(broker(status={**STATUS, "brokerVersionDesc": "V5_3_2"}), broker(2, SLAVE))
    )
    assert (shown.check, shown.severity) == ("versions-differ", Severity.ADVICE)


def state(*slaves: SlaveState) -> ReplicaState:
    return ReplicaState(
        is_master=True, max_offset=0, in_sync_count=len(slaves) + 1, slaves=slaves, master_address="",
        received_offset=0, bytes_per_second=0, last_read_ms=0, last_write_ms=0, master_flushed_offset=0,
    )  # fmt: skip


def slave(behind_bytes: int) -> SlaveState:
    return SlaveState(
        address=SLAVE,
        acked_offset=0,
        behind_bytes=behind_bytes,
        in_sync=True,
        bytes_per_second=0,
        sent_from=0,
    )


def test_masters_whose_role_is_fixed_and_their_slaves() -> None:
    fixed = {"brokerRole": "SYNC_MASTER", "enableControllerMode": "false"}
    alone = {"groups": None, "controllers": ()}
    both = (
        broker(settings=fixed, replicas=state(slave(0))),
        broker(2, SLAVE, settings={"brokerRole": "SLAVE"}),
    )
    assert found(brokers=both, **alone) == []
    shown = one(brokers=(broker(settings=fixed, replicas=state()),), **alone)
    assert (shown.check, "SLAVE_NOT_AVAILABLE" in shown.text) == ("replica-missing", True)
    assert (
        found(
            brokers=(broker(settings={**fixed, "brokerRole": "ASYNC_MASTER"}, replicas=state()),),
            **alone,
        )
        == []
    )
    shown = one(brokers=(broker(settings=fixed, replicas=state()), both[1]), **alone)
    assert (shown.check, "haListenPort" in shown.do) == ("replica-missing", True)
    shown = one(brokers=(broker(settings=fixed, replicas=state(slave(1 << 30))), both[1]), **alone)
    assert (shown.check, "1.0 GiB" in shown.text) == ("replica-behind", True)


def test_what_could_not_be_asked_is_said() -> None:
    shown = one(unasked=("broker-a does not tell",))
    assert (shown.check, shown.severity) == ("not-asked", Severity.ADVICE)
