"""cluster/broker/tables/topics.py: which topics there are, and how new ones come."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from brokerkit import TwoClocks

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.names import check_group_name, check_topic_name
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.storage import StoreNotWritable, jsonfile

STORES = Path(__file__).parents[2] / "golden" / "stores"


def table(tmp_path: Path, clock: TwoClocks, **settings: str) -> TopicTable:
    properties = {
        "storePathRootDir": str(tmp_path),
        "brokerName": "broker-a",
        "brokerClusterName": "TheCluster",
        **settings,
    }
    config = BrokerConfig.from_properties(properties, environment={})
    topics = TopicTable(config, tmp_path / "topics.json", clock)
    topics.load()
    return topics


def test_new_store_has_rocketmqs_topics_and_saves_them(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock)
    found = {topic.topic_name: (topic.read_queue_nums, topic.perm) for topic in topics.all()}
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "TheCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "TheCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_TheCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    assert all(topics.is_system(name) for name in topics)
    saved = jsonfile.load(tmp_path / "topics.json")
    assert saved is not None
    assert saved["topicConfigTable"]["TBW102"] == {
        "attributes": {},
        "order": False,
        "perm": 7,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "TBW102",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }


@pytest.mark.parametrize("name", ["497-clean", "533-clean"])
def test_topics_of_both_releases_are_read(name: str, tmp_path: Path, clock: TwoClocks) -> None:
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        member = archive.extractfile(f"{name}/config/topics.json")
        assert member is not None
        (tmp_path / "topics.json").write_bytes(member.read())
    before = jsonfile.load(tmp_path / "topics.json")
    assert before is not None
    topics = table(tmp_path, clock)
    for topic, entry in before["topicConfigTable"].items():
        found = topics.get(topic)
        assert found is not None
        assert {**found.to_json(), **entry} == found.to_json()
    assert topics.version.counter >= before["dataVersion"]["counter"]


def test_reopened_table_is_what_it_was(tmp_path: Path, clock: TwoClocks) -> None:
    first = table(tmp_path, clock)
    first.create_for_send("T", "TBW102", 4)
    again = table(tmp_path, clock)
    assert again.to_json() == first.to_json()


def test_send_to_an_unknown_topic_makes_it_after_the_template(
    tmp_path: Path, clock: TwoClocks
) -> None:
    topics = table(tmp_path, clock)
    heard: list[TopicConfig] = []
    topics.on_change = heard.extend
    version = topics.version.counter
    made = topics.create_for_send("Fresh", "TBW102", 4, sys_flag=1)
    assert made == TopicConfig("Fresh", 4, 4, perm=6, topic_sys_flag=1)
    assert heard == [made]
    assert topics.version.counter == version + 1
    saved = jsonfile.load(tmp_path / "topics.json")
    assert saved is not None and "Fresh" in saved["topicConfigTable"]
    assert topics.create_for_send("Fresh", "TBW102", 8) is made
    assert heard == [made]


@pytest.mark.parametrize(
    ("topic", "template"),
    [
        ("T", "NoSuchTemplate"),
        ("T", "SELF_TEST_TOPIC"),  # its permission does not inherit
        ("../x", "TBW102"),
        ("a.b", "TBW102"),
        ("", "TBW102"),
        ("x" * 128, "TBW102"),
    ],
)
def test_send_makes_no_topic_without_a_template_or_with_a_bad_name(
    topic: str, template: str, tmp_path: Path, clock: TwoClocks
) -> None:
    topics = table(tmp_path, clock)
    assert topics.create_for_send(topic, template, 4) is None
    assert topic not in topics


def test_template_in_an_old_file_makes_nothing_when_creation_is_off(
    tmp_path: Path, clock: TwoClocks
) -> None:
    table(tmp_path, clock)
    topics = table(tmp_path, clock, autoCreateTopicEnable="false")
    assert topics.create_for_send("T", "TBW102", 4) is None
    template = topics.get("TBW102")
    assert template is not None and template.perm == 6


def test_queue_count_is_the_templates_at_most(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock)
    made = topics.create_for_send("Wide", "TBW102", 1_000_000)
    assert made is not None and made.write_queue_nums == 8
    made = topics.create_for_send("None", "TBW102", -3)
    assert made is not None and made.write_queue_nums == 0


def test_sends_make_no_more_topics_than_allowed(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock, autoCreateTopicsMax="14")
    assert topics.create_for_send("One", "TBW102", 1) is not None
    assert topics.create_for_send("Two", "TBW102", 1) is None


async def test_equal_topic_is_not_a_change(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock)
    await topics.put(TopicConfig("T", 4, 4))
    heard: list[TopicConfig] = []
    topics.on_change = heard.extend
    version = topics.version.counter
    await topics.put(TopicConfig("T", 4, 4), TopicConfig("U", 2, 2))
    assert [topic.topic_name for topic in heard] == ["U"]
    await topics.put(TopicConfig("U", 2, 2))
    assert topics.version.counter == version + 1


async def test_deleted_topic_is_gone_after_a_restart(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock)
    await topics.put(TopicConfig("T", 4, 4))
    assert await topics.delete("T")
    assert not await topics.delete("T")
    assert "T" not in table(tmp_path, clock)


def test_ordered_topics_are_marked_and_never_unmarked(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock)
    made = topics.create_for_send("T", "TBW102", 4)
    assert made is not None
    version = topics.version.counter
    topics.set_ordered(["T", "Unknown"])
    topics.set_ordered([])
    assert made.order
    assert topics.version.counter == version + 1


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("Topic-1_%|x", True),
        ("x" * 127, True),
        ("x" * 128, False),
        ("%RETRY%" + "g" * 248, True),
        ("%RETRY%" + "g" * 249, False),
        ("%DLQ%" + "g" * 120, True),
        ("a.b", False),
        ("a/b", False),
        ("..", False),
        ("a b", False),
        ("a\n", False),
        ("\u0663", False),  # a digit, but not one of ours
        ("", False),
        ("   ", False),
    ],
)
def test_topic_names_keep_to_the_alphabet(name: str, good: bool) -> None:
    # INV-14
    assert (check_topic_name(name) is None) is good


def test_group_names_are_shorter() -> None:
    assert check_group_name("g" * 120) is None
    assert check_group_name("g" * 121) is not None
    assert check_group_name("g.h") is not None


async def test_a_topic_that_cannot_be_saved_is_not_there(tmp_path: Path, clock: TwoClocks) -> None:
    topics = table(tmp_path, clock)
    assert topics.create_for_send("Old", "TBW102", 4) is not None
    before = dict(topics.to_json()["topicConfigTable"])

    def broken(generation: int, content: object) -> None:
        raise OSError(28, "No space left on device")

    write, topics.file._write = topics.file._write, broken  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreNotWritable, match="No space left"):
            topics.create_for_send("New", "TBW102", 4)
        with pytest.raises(StoreNotWritable, match="No space left"):
            topics.create_for_retry("%RETRY%G", 1)
        with pytest.raises(StoreNotWritable, match="No space left"):
            await topics.put(TopicConfig("Other"), TopicConfig("Old", read_queue_nums=1))
    assert topics.to_json()["topicConfigTable"] == before
    topics.file._write = write  # type: ignore[method-assign]
    assert topics.create_for_send("New", "TBW102", 4) is not None
