"""What RocketMQ left open in a store is found, counted once, and stops whoever would have to finish it."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokerkit import SMALL_STORE

from tandemmq.cluster.broker import leftopen
from tandemmq.cluster.broker.leftopen import LeftOpen
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.names import HALF_TOPIC, OP_TOPIC
from tandemmq.cluster.config import ConfigError
from tandemmq.storage import Draft, MessageStore, encode_properties, open_store, pack_host

NOW_MS = 1_700_000_000_000


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return settings(tmp_path)


def settings(tmp_path: Path, **more: str) -> BrokerConfig:
    given = {"storePathRootDir": str(tmp_path / "store"), **SMALL_STORE, **more}
    return BrokerConfig.from_properties(given, environment={})


@pytest.fixture
def store(config: BrokerConfig) -> Iterator[MessageStore]:
    with open_store(config.storage) as opened:
        yield opened


def put(store: MessageStore, topic: str, body: bytes = b"x", **properties: str) -> None:
    draft = Draft(topic=topic, queue_id=0, body=body, properties=encode_properties(properties))
    store.put(draft)
    store.dispatch(1 << 20)


def timer(store: MessageStore, key: str, due_ms: int, **more: str) -> None:
    properties = {"UNIQ_KEY": key, "REAL_TOPIC": "Later", "TIMER_OUT_MS": str(due_ms), **more}
    put(store, leftopen.TIMER_TOPIC, **properties)


def save(config: BrokerConfig, name: str, content: object) -> None:
    config.config_path.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (config.config_path / name).write_bytes(data)


def texts(config: BrokerConfig, store: MessageStore) -> list[str]:
    found = leftopen.in_messages(Path(config.storage.root), store.log, store.queues)
    return [each.text for each in found]


def test_a_store_of_ours_leaves_nothing_open(config: BrokerConfig, store: MessageStore) -> None:
    put(store, "Plain")
    assert leftopen.look(config.storage) == []
    leftopen.check_messages(config, store)


def test_timers_wait_that_are_not_delivered_nor_deleted_and_count_once(
    config: BrokerConfig, store: MessageStore
) -> None:
    timer(store, "delivered", NOW_MS - 1)
    for _ in range(3):  # put again while it waits
        timer(store, "waits", NOW_MS + 90_000)
    timer(store, "deleted", NOW_MS + 90_000)
    put(store, leftopen.TIMER_TOPIC, TIMER_DEL_UNIQKEY="Later+deleted")
    timer(store, "too late for the wheel", NOW_MS - 5)
    save(config, "timercheck", struct.pack(">4q", NOW_MS, 0, 6, 6) + bytes(100))
    (text,) = texts(config, store)
    assert "Later: 2" in text
    assert "2023-11-14T22:13:19+00:00" in text  # the first of them


def test_without_a_checkpoint_every_timer_may_wait(
    config: BrokerConfig, store: MessageStore
) -> None:
    timer(store, "a", NOW_MS - 1)
    timer(store, "b", NOW_MS + 1)
    assert "Later: 2" in texts(config, store)[0]


def test_halves_wait_that_no_operation_names_and_no_progress_covers(
    config: BrokerConfig, store: MessageStore
) -> None:
    for number in range(6):
        put(store, HALF_TOPIC, REAL_TOPIC=f"T{number % 2}")
    put(store, OP_TOPIC, b"1,4,", TAGS="d")  # as 5.x
    put(store, OP_TOPIC, b"2", TAGS="d")  # as 4.x
    save(
        config,
        "consumerOffset.json",
        {"offsetTable": {f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 1}}},
    )
    (text,) = texts(config, store)
    assert "T1: 2" in text  # 3 and 5; 0 is below the progress
    assert "T0" not in text


@pytest.mark.parametrize(
    ("more", "starts"),
    [
        ({}, False),
        ({"startDespite": "timers"}, True),
        ({"startDespite": "compaction"}, False),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, True),  # its master delivers them
        ({"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878"}, True),
    ],
)
def test_who_would_have_to_finish_them_does_not_start_unless_told(
    tmp_path: Path, store: MessageStore, caplog: pytest.LogCaptureFixture,
    more: dict[str, str], starts: bool,
) -> None:  # fmt: skip
    timer(store, "a", NOW_MS + 1, REAL_TOPIC="Orders")
    more = {"timerWheelEnable": "false", **more}
    if starts:
        with caplog.at_level(logging.WARNING):
            leftopen.check_messages(settings(tmp_path, **more), store)
        assert "Orders: 1" in caplog.text
    else:
        with pytest.raises(LeftOpen, match=r"Orders: 1.*startDespite=timers"):
            leftopen.check_messages(settings(tmp_path, **more), store)


MAPPING = {"topicQueueMappingInfoMap": {"Static": {"totalQueues": 4}}}


@pytest.mark.parametrize(
    ("path", "content", "part", "word"),
    [
        ("config/topics/CURRENT", "MANIFEST-000005\n", "topics are in RocksDB", ""),
        ("config/consumerOffsets/CURRENT", "x", "consumerOffsets are in RocksDB", ""),
        ("config/rdb/CURRENT", "x", "configManagerVersion=v2", ""),
        ("dledger-n0/data/00000000000000000000", "x", "enableDLegerCommitLog", ""),
        ("consumequeue_ext/T/0/0", "x", "enableConsumeQueueExt", ""),
        ("config/topicQueueMapping.json", json.dumps(MAPPING), "Static", "staticTopics"),
        ("compaction/compactionLog/C/0/0", "x", "C", "compaction"),
        ("batchconsumequeue/B/0/0", "x", "B", "batchQueues"),
        ("config/lmqConsumerOffset.json", '{"lmqOffsetTable":{"%LMQ%1":3}}', "%LMQ%1", "lightQueues"),
    ],
)  # fmt: skip
def test_files_whose_content_would_be_missing_stop_the_start(
    tmp_path: Path, path: str, content: str, part: str, word: str
) -> None:
    file = tmp_path / "store" / path
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(LeftOpen) as caught:
        leftopen.check_files(settings(tmp_path))
    assert part in str(caught.value)
    assert bool(word) == ("startDespite" in str(caught.value))
    if word:
        leftopen.check_files(settings(tmp_path, startDespite=f"timers {word}"))


def test_files_that_lose_nothing_are_a_warning(
    config: BrokerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    save(
        config,
        "topics.json",
        {"topicConfigTable": {"C": {"attributes": {"cleanup.policy": "COMPACTION"}}}},
    )
    save(config, "topicQueueMapping.json", {"topicQueueMappingInfoMap": {}})
    save(config, "tieredStoreMetadata.json", {})
    position = Path(config.storage.root) / "compaction" / "position-checkpoint"
    position.parent.mkdir()
    position.write_text("{}")  # RocketMQ writes it at each clean stop
    with caplog.at_level(logging.WARNING):
        leftopen.check_files(config)
    assert "C (cleanup.policy=COMPACTION)" in caplog.text
    assert "way back" not in caplog.text
    assert len(caplog.records) == 2


def test_the_way_back_of_a_topic_of_batches_is_told(config: BrokerConfig) -> None:
    attributes = {"queue.type": "BatchCQ"}
    save(config, "topics.json", {"topicConfigTable": {"B": {"attributes": attributes}}})
    (found,) = leftopen.look(config.storage)
    assert "B (queue.type=BatchCQ)" in found.text and "way back remove the directory" in found.text
    assert not found.mend


def test_groups_that_need_what_only_a_tiered_store_has_are_named(
    config: BrokerConfig, store: MessageStore
) -> None:
    for _ in range(10):
        put(store, "T")
    queue = store.queues.get("T", 0)
    assert queue is not None
    fourth = queue.entry(3)
    assert fourth is not None
    progress = {"T@Late": {"0": 1}, "T@There": {"0": 3}, "Elsewhere@Late": {"0": 0}}
    save(config, "consumerOffset.json", {"offsetTable": progress})
    save(config, "tieredStoreMetadata.json", {})
    assert texts(config, store) == []
    store.queues.start_at(fourth[0])
    (text,) = texts(config, store)
    assert "(Late of T: 2)" in text
    (config.config_path / "tieredStoreMetadata.json").unlink()
    assert texts(config, store) == []


def test_compacted_files_of_deleted_topics_are_no_reason_and_those_of_others_are(
    config: BrokerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("Gone", "There"):
        directory = Path(config.storage.root) / "compaction" / "compactionLog" / topic / "0"
        directory.mkdir(parents=True)
        (directory / "0").write_text("x")
    save(config, "topics.json", {"topicConfigTable": {"Other": {}}})
    leftopen.check_files(config)
    assert "Gone, There" in caplog.text and "compactionLog" in caplog.text
    save(config, "topics.json", {"topicConfigTable": {"There": {}}})
    with pytest.raises(LeftOpen, match=r"compacted topics \(There\)"):
        leftopen.check_files(config)


def test_what_startdespite_may_name(tmp_path: Path) -> None:
    assert settings(tmp_path, startDespite="timers; halves").despite == {"timers", "halves"}
    with pytest.raises(ConfigError, match="everything"):
        settings(tmp_path, startDespite="everything")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"brokerIP1": "127.0.0.1", "listenPort": "10911"}, False),
        ({"brokerIP1": "127.0.0.2", "listenPort": "10911"}, True),
        ({"brokerIP1": "127.0.0.1", "listenPort": "20911"}, True),
        ({"brokerIP1": "127.0.0.2", "brokerRole": "SLAVE", "brokerId": "1"}, False),
    ],
)
def test_another_address_than_messages_were_stored_under_is_warned_of(
    tmp_path: Path, store: MessageStore, caplog: pytest.LogCaptureFixture,
    more: dict[str, str], said: bool,
) -> None:  # fmt: skip
    """mqadmin takes a message for consumed only if the host in it is where its master is registered."""
    leftopen.check_messages(settings(tmp_path, **more), store)
    assert not caplog.records  # no message yet
    for host, port in (("10.0.0.9", 1), ("127.0.0.1", 10911)):  # the newest counts
        store.put(Draft(topic="T", queue_id=0, body=b"x", store_host=pack_host(host, port)))
    store.dispatch(1 << 20)
    leftopen.check_messages(settings(tmp_path, **more), store)
    assert ("NOT_CONSUME_YET" in caplog.text) == said
    assert ("brokerIP1=127.0.0.1 with listenPort=10911" in caplog.text) == said
