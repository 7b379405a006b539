"""cluster/broker/tables/groups.py: subscription groups and what they are forbidden."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from brokerkit import TwoClocks

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.groups import GroupConfig, GroupTable
from tandemmq.cluster.broker.tables.names import SYSTEM_GROUPS
from tandemmq.storage import jsonfile

STORES = Path(__file__).parents[2] / "golden" / "stores"


def table(tmp_path: Path, clock: TwoClocks, **settings: str) -> GroupTable:
    properties = {"storePathRootDir": str(tmp_path), **settings}
    config = BrokerConfig.from_properties(properties, environment={})
    groups = GroupTable(config, tmp_path / "subscriptionGroup.json", clock)
    groups.load()
    return groups


@pytest.mark.parametrize("name", ["497-clean", "533-clean"])
def test_groups_of_both_releases_are_read(name: str, tmp_path: Path, clock: TwoClocks) -> None:
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        member = archive.extractfile(f"{name}/config/subscriptionGroup.json")
        assert member is not None
        (tmp_path / "subscriptionGroup.json").write_bytes(member.read())
    groups = table(tmp_path, clock)
    found = groups.get("GoldCG")
    assert found == GroupConfig("GoldCG")
    assert set(SYSTEM_GROUPS) <= set(groups)


def test_group_in_json_is_as_rocketmq_writes_it() -> None:
    assert GroupConfig("cg1").to_json() == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": "cg1",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def test_use_makes_a_group_when_allowed(tmp_path: Path, clock: TwoClocks) -> None:
    groups = table(tmp_path, clock)
    made = groups.find("Fresh")
    assert made == GroupConfig("Fresh")
    assert groups.find("Fresh") is made
    assert groups.file.unsaved
    groups.file.save()
    assert "Fresh" in table(tmp_path, clock)


def test_use_makes_only_system_groups_when_creation_is_off(
    tmp_path: Path, clock: TwoClocks
) -> None:
    groups = table(tmp_path, clock, autoCreateSubscriptionGroup="false")
    assert groups.find("Fresh") is None
    assert groups.find("CID_RMQ_SYS_X") is not None
    none = table(tmp_path, clock, autoCreateSubscriptionGroup="false", enableCreateSysGroup="false")
    assert none.find("CID_RMQ_SYS_Y") is None


@pytest.mark.parametrize("name", ["", "a.b", "../x", "g" * 121])
def test_use_makes_no_group_with_a_bad_name(name: str, tmp_path: Path, clock: TwoClocks) -> None:
    assert table(tmp_path, clock).find(name) is None


async def test_forbidding_one_topic_leaves_the_others(tmp_path: Path, clock: TwoClocks) -> None:
    # RocketMQ clears the entries of all topics at once, and forgets to save.
    groups = table(tmp_path, clock)
    await groups.set_readable("G", "A", False)
    await groups.set_readable("G", "B", False)
    await groups.set_readable("G", "A", True)
    again = table(tmp_path, clock)
    assert not again.read_forbidden("G", "A")
    assert again.read_forbidden("G", "B")
    saved = jsonfile.load(tmp_path / "subscriptionGroup.json")
    assert saved is not None and saved["forbiddenTable"] == {"G": {"B": 4}}


async def test_changed_groups_survive_a_restart_and_deleted_ones_do_not(
    tmp_path: Path, clock: TwoClocks
) -> None:
    groups = table(tmp_path, clock)
    await groups.put(GroupConfig("A", retry_max_times=3), GroupConfig("B"))
    await groups.delete("B")
    again = table(tmp_path, clock)
    assert again.get("A") == GroupConfig("A", retry_max_times=3)
    assert again.get("B") is None
    assert again.version == groups.version
