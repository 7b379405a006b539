"""A broker opened on stores that RocketMQ wrote: tables, progress and messages are all there."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from brokerkit import MakeBroker

from tandemmq.storage import fastjson

STORES = Path(__file__).parents[2] / "golden" / "stores"
CONSUME_STATS, TOPIC_STATS, QUERY_OFFSET = 208, 202, 14


@pytest.mark.parametrize("name", ["497-clean", "533-clean", "497-kill9", "533-kill9"])
async def test_a_store_of_either_release_is_served(
    name: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / name).rename(tmp_path / "store")
    lines = (STORES / f"{name}.jsonl").read_text().splitlines()
    described = [fastjson.loads(line) for line in lines]
    asker = make_broker(
        brokerName="gold-a",
        brokerClusterName="GoldCluster",
        mappedFileSizeCommitLog="1048576",
        mappedFileSizeConsumeQueue="800",
        fileReservedTime="1000000",
    )
    ends = {
        (entry["topic"], entry["qid"]): entry["max"]
        for entry in described
        if entry.get("k") == "queue"
    }
    recovered = next((entry for entry in described if entry.get("k") == "afterRecovery"), None)
    assert ends
    for (topic, queue_id), end in ends.items():
        found = asker.broker.store.max_offset(topic, queue_id)
        assert found == end if recovered is None else found >= end, (topic, queue_id)
    stats = await asker.json(TOPIC_STATS, topic="GoldNormal")
    assert len(stats["offsetTable"]) == 4
    progress = await asker.json(CONSUME_STATS, consumerGroup="GoldCG")
    shown = {
        (queue["topic"], queue["queueId"]): entry["consumerOffset"]
        for queue, entry in (
            (fastjson.loads(key), entry) for key, entry in progress["offsetTable"].items()
        )
    }
    for (topic, queue_id), offset in shown.items():
        committed = asker.broker.offsets.queues("GoldCG", topic).get(queue_id, 0)
        assert offset == committed
    assert any(shown.values())
