"""A broker with ten thousand topics: a change of one of them costs what one encoding of the table does, not many."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from raw_wire import Wire, json_frame, lone_broker

from tandemmq.chaos.servers import Broker

pytestmark = pytest.mark.system

TOPICS = 10_000
CHANGES = 20
UPDATE_TOPIC = 17


def topic(name: str) -> dict[str, object]:
    """One entry of RocketMQ's topics.json."""
    return {
        "attributes": {}, "order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": 4,
    }  # fmt: skip


def cpu_s(broker: Broker) -> float:
    """Processor time that it has used."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def readable_encoding_s(table: dict[str, object]) -> float:
    """What it takes, here and now, to make readable JSON of the table: the best of some."""
    best = float("inf")
    for _ in range(10):
        began = time.process_time()
        msgspec.json.format(msgspec.json.encode(table), indent=1)
        best = min(best, time.process_time() - began)
    return best


def test_a_change_among_ten_thousand_topics_is_cheap(tmp_path: Path) -> None:
    table = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
        "topicConfigTable": {f"T{n:05d}": topic(f"T{n:05d}") for n in range(TOPICS)},
    }
    with lone_broker(tmp_path) as broker:
        path = broker.store / "config" / "topics.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(table))
        broker.start()
        with Wire(broker.address) as wire:
            before = cpu_s(broker)
            for number in range(CHANGES):
                ext = {
                    "topic": f"T{number:05d}", "defaultTopic": "TBW102", "readQueueNums": "8",
                    "writeQueueNums": "8", "perm": "6", "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0", "order": "false",
                }  # fmt: skip
                assert wire.request(json_frame(UPDATE_TOPIC, ext)).code == 0
            each_s = (cpu_s(broker) - before) / CHANGES
        readable_s = readable_encoding_s(table)
        print(f"{each_s * 1000:.1f} ms each, {readable_s * 1000:.1f} ms for readable JSON")
        assert each_s < 2 * readable_s, "it was four times that"
        saved = json.loads(path.read_text())["topicConfigTable"]
        assert len([each for each in saved.values() if each["readQueueNums"] == 8]) >= CHANGES
        assert saved.keys() >= table["topicConfigTable"].keys()
