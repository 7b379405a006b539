"""handlers/admin_state.py, runtime.py and admin_config.py: what the broker is doing, and its settings."""

from __future__ import annotations

import base64
import json
import lzma
import re
from pathlib import Path

import pytest
from brokerkit import Asker, MakeBroker

from tandemmq.cluster.broker.watching.runtime import duration_text, size_text
from tandemmq.cluster.config import parse_properties
from tandemmq.storage.consumequeue import ConsumeQueue

WIRE = Path(__file__).parents[2] / "golden" / "wire"
SYSTEM_ERROR, NO_PERMISSION = 1, 16
UPDATE_CONFIG, GET_CONFIG, RUNTIME, DELAY_OFFSETS = 25, 26, 28, 45
CLEAN_QUEUES, STATS, CLEAN_TOPICS, QUERY_QUEUE, DELETE_LOG, HA_STATUS = 306, 315, 316, 321, 329, 907


def recorded_runtime() -> dict[str, str]:
    with lzma.open(WIRE / "b53-c53-json.jsonl.xz", "rt") as lines:
        line = next(line for line in map(json.loads, lines) if line.get("req") == RUNTIME)
    frame = base64.b64decode(line["b"])
    table: dict[str, str] = json.loads(frame[len(frame) - line["bodyLen"] :])["table"]
    return table


async def test_runtime_table_has_every_entry_a_running_rocketmq_has(asker: Asker) -> None:
    found = (await asker.json(RUNTIME))["table"]
    assert all(isinstance(value, str) and value for value in found.values())
    recorded = recorded_runtime()
    of_this_store = re.compile(r"commitLogDiskRatio_|scheduleMessageOffset_").match
    not_measured = {
        "putLatency99",
        "putLatency999",
    }  # left out: a constant would be taken for a measurement
    assert {key for key in recorded if not of_this_store(key)} - not_measured <= found.keys()
    assert not not_measured & found.keys()
    for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert len([float(part) for part in found[key].split(" ")]) == 3
    assert len(found["commitLogDirCapacity"].split(" ")) == len(
        recorded["commitLogDirCapacity"].split(" ")
    )


async def test_runtime_table_counts(asker: Asker) -> None:
    asker.put("T")
    asker.clock.advance(3_723_000)
    found = (await asker.json(RUNTIME))["table"]
    assert found["putMessageTimesTotal"] == "1"
    assert found["timerCongestNum"] == "0"
    assert "transactionsPending" not in found  # the log was not read for them yet
    await asker.broker.transactions.replay()
    assert (await asker.json(RUNTIME))["table"]["transactionsPending"] == "0"
    assert found["runtime"] == "[ 0 days, 1 hours, 2 minutes, 3 seconds ]"
    assert found["commitLogMaxOffset"] == str(asker.broker.store.end)
    assert int(found["earliestMessageTimeStamp"]) == asker.clock.now_ms() - 3_723_000
    assert found["brokerVersion"] == "479"
    assert (found["brokerRole"], found["brokerId"], found["masterEpoch"]) == (
        "ASYNC_MASTER",
        "0",
        "0",
    )
    assert found["confirmOffset"] == found["commitLogMaxOffset"]
    assert int(found["flushedOffset"]) <= int(found["confirmOffset"])


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (98 << 30, "98.0 GiB")],
)
def test_sizes_are_two_words(size: int, text: str) -> None:
    assert size_text(size) == text


def test_durations_are_in_rocketmqs_words() -> None:
    assert duration_text(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"


async def test_counters_come_in_three_windows_or_do_not_exist(asker: Asker) -> None:
    answer = await asker.ask(STATS, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")
    asker.put("T")
    asker.broker.stats.sample_windows(asker.clock.now_ms() + 10_000)
    found = await asker.json(STATS, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert found["statsMinute"] == {"avgpt": 1.0, "sum": 1, "tps": 0.1}
    assert found.keys() == {"statsMinute", "statsHour", "statsDay"}


async def test_unused_topics_lose_their_queues(asker: Asker) -> None:
    asker.broker.topics.create_for_send("Known", "TBW102", 1)
    asker.put("Known")
    asker.put("Forgotten")
    assert (await asker.ask(CLEAN_TOPICS)).code == 0
    assert asker.broker.store.topics() == ["Known"]


async def test_the_queues_of_delay_levels_stay_when_all_their_messages_are_gone(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their offsets begin at 0 again, and the level's progress passes over what comes."""
    store, schedule = asker.broker.store, asker.broker.schedule
    park = ("SCHEDULE_TOPIC_XXXX", 0, b"later")
    place = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
    for _ in range(5):
        asker.put(*park, **place)
    asker.clock.advance(2_000)
    schedule.step()
    assert schedule.offsets[1] == 5
    monkeypatch.setattr(ConsumeQueue, "expired", lambda queue, start: True)  # retention took them
    assert (await asker.ask(306)).code == 0
    schedule.step()
    for _ in range(3):
        asker.put(*park, **place)
    schedule.step()
    asker.clock.advance(2_000)
    delivered = store.end
    schedule.step()
    assert schedule.offsets[1] == 8 and store.end > delivered


async def test_maintenance_requests_succeed(asker: Asker) -> None:
    for code in (CLEAN_QUEUES, DELETE_LOG):
        assert (await asker.ask(code)).code == 0


async def test_master_without_slaves_says_so(asker: Asker) -> None:
    asker.put("T")
    found = await asker.json(HA_STATUS)
    assert found["master"] is True
    assert found["haConnectionInfo"] == []
    assert found["masterCommitLogMaxOffset"] == asker.broker.store.end


async def test_delay_offsets_are_as_in_the_file(asker: Asker) -> None:
    assert (await asker.json(DELAY_OFFSETS))["offsetTable"] == {}


async def test_queue_entries_are_shown(asker: Asker) -> None:
    first = asker.put("T", TAGS="TagA")
    asker.put("T")
    found = await asker.json(QUERY_QUEUE, topic="T", queueId=0, index=0, count=1)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 2)
    (entry,) = found["queueData"]
    assert (entry["physicOffset"], entry["tagsCode"]) == (first, 2598919)
    answer = await asker.ask(QUERY_QUEUE, topic="T", queueId=0, index=2, count=1)
    assert (answer.code, answer.body) == (0, None)
    assert (await asker.ask(QUERY_QUEUE, topic="T", queueId=5)).code == SYSTEM_ERROR


# -- settings --------------------------------------------------------------------------


async def test_settings_are_shown_as_properties_with_their_version(asker: Asker) -> None:
    answer = await asker.ask(GET_CONFIG)
    shown = parse_properties(bytes(answer.body or b"").decode())
    assert shown["brokerName"] == "broker-a"
    assert shown["mappedFileSizeCommitLog"] == "1048576"
    assert json.loads((answer.ext or {})["version"])["counter"] == 0


async def test_changed_permission_reaches_topics_and_name_servers(asker: Asker) -> None:
    version = asker.broker.topics.version.counter
    assert (await asker.ask(UPDATE_CONFIG, b"brokerPermission=4\n")).code == 0
    assert asker.broker.config.permission == 4
    assert asker.broker.topics.version.counter == version + 1
    answer = await asker.ask(GET_CONFIG)
    assert json.loads((answer.ext or {})["version"])["counter"] == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"brokerPermission=4\nstorePathRootDir=/etc\n", NO_PERMISSION),
        (b"brokerPermission=4\nrocketmqHome=x;touch /tmp/y\n", NO_PERMISSION),
        (b"brokerPermission=4\nbrokerConfigPath=/etc/passwd\n", NO_PERMISSION),
        (b"brokerPermission=4\nlistenPort=1\n", NO_PERMISSION),
        (b"brokerPermission=4\nnothingOfOurs=1\n", NO_PERMISSION),
        (b"brokerPermission=4\nautoCreateTopicEnable=perhaps\n", NO_PERMISSION),
        (b"brokerPermission=4\\u12\n", SYSTEM_ERROR),
        (b"\xff=\xfe", SYSTEM_ERROR),
    ],
)
async def test_one_bad_line_refuses_the_whole_change(body: bytes, code: int, asker: Asker) -> None:
    assert (await asker.ask(UPDATE_CONFIG, body)).code == code
    assert asker.broker.config.permission == 6


async def test_changes_are_written_to_the_settings_file(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nbrokerPermission=6\n")
    asker = make_broker(file=str(path))
    assert (await asker.ask(UPDATE_CONFIG, b"brokerPermission=4\ntraceOn=true\n")).code == 0
    assert path.read_text() == "# mine\nbrokerPermission=4\n"


async def test_a_file_that_cannot_be_written_is_said_to_keep_nothing(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    asker = make_broker(file=str(folder / "broker.conf"))
    answer = await asker.ask(UPDATE_CONFIG, b"brokerPermission=4\n")
    assert (answer.code, asker.broker.config.permission) == (SYSTEM_ERROR, 4)
    wanted = f"in force now, but not after a restart: {folder}/broker.conf cannot be written"
    assert wanted in (answer.remark or "")
