"""cluster/broker/tables/queuestarts.py: a slave's queues begin where its master's stand, seen or not."""

from __future__ import annotations

import base64
import errno
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, MakeBroker, TwoClocks

from tandemmq.cluster.broker.tables.mastertables import TableRefused, read_queue_ends
from tandemmq.cluster.broker.tables.metasync import STARTS_MS
from tandemmq.cluster.broker.tables.queuestarts import PASS_MS, TOPICS_MAX
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectFailed
from tandemmq.storage import Owner

from .test_metasync import QUEUES, Pair

WIRE = Path(__file__).parents[2] / "golden" / "wire"
SEGMENT_BYTES = 8192
HOUR_MS = 3_600_000


@pytest.fixture
def pair(make_broker: MakeBroker, tmp_path: Path, clock: TwoClocks) -> Pair:
    small = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
    master = make_broker(**small)
    slave = make_broker(storePathRootDir=str(tmp_path / "slave"), listenPort="10921", **small)
    return Pair(master, slave, clock)


def expire_all_but_the_last_file(asker: Asker) -> None:
    """Retention as it is at four in the morning, three days later."""
    store = asker.broker.store
    start = store.log.start
    for segment in store.log.run.segments[:-1]:
        os.utime(segment.path, (1, 1))
    asker.clock.advance(73 * HOUR_MS)
    store.flush_queues(0)
    store.retention.request()
    store.clean()
    store.free_retired()
    assert store.log.start > start


def seed(pair: Pair) -> None:
    """What the log stream does: the slave gets the master's log from where that begins."""
    source, target = pair.master.broker.store.log, pair.slave.broker.store
    at = max(target.end, source.start)
    while at < source.end:
        size = min(SEGMENT_BYTES - at % SEGMENT_BYTES, source.end - at)
        view = source.read(at, size)
        assert view is not None
        with view:
            at = target.append_raw(view, at)
    dispatch(pair.slave)


def dispatch(asker: Asker) -> None:
    while asker.broker.store.dispatch():
        pass


def ends(asker: Asker, topic: str) -> list[tuple[int, int]]:
    store = asker.broker.store
    return [(store.min_offset(topic, each), store.max_offset(topic, each)) for each in range(4)]


async def grown(pair: Pair) -> None:
    """A master with three messages in queue 1 of Orders that retention took, and a slave seeded since."""
    await pair.make_topic("Orders")
    for _ in range(3):
        pair.master.put("Orders", 1)
    while len(pair.master.broker.store.log.run.segments) < 3:
        pair.master.put("Filler", 0, bytes(1000))
    expire_all_but_the_last_file(pair.master)
    seed(pair)


async def test_queue_whose_messages_are_all_gone_begins_where_the_masters_stands(
    pair: Pair,
) -> None:
    # INV-5
    await grown(pair)
    assert ends(pair.master, "Orders")[1] == (3, 3)
    assert ends(pair.slave, "Orders")[1] == (0, 0)
    assert await pair.round()
    assert ends(pair.slave, "Orders") == ends(pair.master, "Orders")
    pair.master.put("Orders", 1)
    pair.master.put("Orders", 2)
    seed(pair)
    assert (
        ends(pair.slave, "Orders")
        == ends(pair.master, "Orders")
        == [(0, 0), (3, 4), (0, 1), (0, 0)]
    )


async def test_what_is_settled_is_not_asked_again_but_of_another_master(pair: Pair) -> None:
    await grown(pair)
    await pair.round()
    assert "Orders" in pair.link.asked_queues
    pair.link.asked_queues.clear()
    await pair.round()
    assert pair.link.asked_queues == []
    pair.sync._source = "10.0.0.9:10911"
    await pair.round()
    assert "Orders" in pair.link.asked_queues


async def test_queue_whose_messages_are_on_their_way_is_left_to_them(pair: Pair) -> None:
    await pair.make_topic("Orders")
    pair.master.put("Orders", 1)
    for asked in (1, 1, 2):
        await pair.round(PASS_MS // 2)
        assert ends(pair.slave, "Orders")[1] == (0, 0)
        assert pair.link.asked_queues.count("Orders") == asked, (
            "not in each round, until they are here"
        )
    seed(pair)
    await pair.round()
    assert ends(pair.slave, "Orders")[1] == (0, 1)


async def test_nothing_begins_while_records_wait_for_their_queues(pair: Pair) -> None:
    await grown(pair)
    store = pair.slave.broker.store
    store.belong_to(
        Owner(confirmed=lambda: store.end)
    )  # and none of what follows is dispatched yet
    pair.master.put("Orders", 2)
    log = pair.master.broker.store.log
    view = log.read(store.end, log.end - store.end)
    assert view is not None
    with view:
        store.append_raw(view, store.end)
    await pair.round()
    assert pair.link.asked_queues == []
    dispatch(pair.slave)
    await pair.round()
    assert ends(pair.slave, "Orders") == ends(pair.master, "Orders")


async def test_a_refusal_costs_one_topic_and_a_lost_master_the_rest_of_the_round(
    pair: Pair,
) -> None:
    await grown(pair)
    pair.link.replaced[QUEUES] = Command(QUEUES).reply(1, "not for you")
    assert await pair.round(), "the tables were copied"
    assert "Orders" in pair.link.asked_queues and len(set(pair.link.asked_queues)) > 1
    assert ends(pair.slave, "Orders")[1] == (0, 0)
    assert pair.sync.failures > 0

    del pair.link.replaced[QUEUES]
    pair.clock.advance(PASS_MS)
    pair.link.asked_queues.clear()
    pair.link.fails_on = {QUEUES: ConnectFailed("gone")}
    await pair.round()
    assert len(pair.link.asked_queues) == 1
    pair.link.fails_on = {}
    await pair.round()
    assert ends(pair.slave, "Orders")[1] == (3, 3)
    assert pair.link.asked_queues.count(pair.link.asked_queues[0]) == 1, "others come first"


async def test_rounds_are_bounded_and_nobody_is_asked_twice_before_all_were_once(
    pair: Pair,
) -> None:
    for number in range(TOPICS_MAX + 5):
        await pair.make_topic(f"T{number}", 1)
        pair.master.put(f"T{number}")  # on its way here for good: never settled
    await pair.round()
    asked = pair.link.asked_queues
    assert len(asked) == TOPICS_MAX
    await pair.round()
    assert len(asked) == len(set(asked)) > TOPICS_MAX
    await pair.round()
    assert len(asked) == len(set(asked))
    await pair.round(PASS_MS)
    assert len(asked) > len(set(asked))


async def test_round_gives_up_asking_in_time(pair: Pair) -> None:
    pair.link.before_answer = lambda: pair.clock.advance(STARTS_MS // 2)
    await pair.round()
    assert len(pair.link.asked_queues) == 2


async def test_disk_without_room_costs_one_topic_and_not_the_broker(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grown(pair)

    def refuse(*arguments: Any) -> bool:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(pair.slave.broker.store.queues, "begin", refuse)
        assert await pair.round()
    assert len(pair.link.asked_queues) > 1 and pair.sync.failures == 1
    await pair.round(PASS_MS)
    assert ends(pair.slave, "Orders")[1] == (3, 3)


@pytest.mark.parametrize("capture", ["b49-c49-admin", "b53-c53-admin"])
def test_recorded_answers_of_stock_masters_are_read(capture: str) -> None:
    wanted = None
    with lzma.open(WIRE / f"{capture}.jsonl.xz", "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["k"] != "frame":
                continue
            if entry["d"] == ">" and entry["code"] == QUEUES and wanted is None:
                wanted = (entry["opaque"], entry["c"])
            elif (
                entry["d"] == "<" and (entry["opaque"], entry["c"]) == wanted and entry["code"] == 0
            ):
                answer = Command.decode(memoryview(base64.b64decode(entry["b"])))
                found = read_queue_ends(answer.body or b"")
                assert found and all(lowest <= highest for lowest, highest in found.values())
                assert any(highest for _, highest in found.values())
                return
    raise AssertionError("no answer was recorded")


def table(queue: Any = None, **ends: Any) -> bytes:
    key = json.dumps(
        queue if queue is not None else {"topic": "T", "brokerName": "b", "queueId": 1}
    )
    return json.dumps({"offsetTable": {key: ends}}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"offsetTable":3}', b'{"offsetTable":{"x":{}}}', table(),
        table(minOffset=0), table(minOffset=-1, maxOffset=4), table(minOffset=0, maxOffset=1 << 63),
        table(minOffset=0, maxOffset="many"), table(queue={"queueId": -1}, minOffset=0, maxOffset=1),
        table(queue={"queueId": 1 << 20}, minOffset=0, maxOffset=1), table(queue=[1], minOffset=0, maxOffset=1),
    ],
)  # fmt: skip
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(TableRefused):
        read_queue_ends(body)
