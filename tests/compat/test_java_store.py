"""A store written by either side is served whole by the other, after a stop and after kill -9.

"Served" is what stock clients get: the same messages at the same queue and log offsets, with the
same bodies, ids and properties; "whole" includes every message whose send was acknowledged before a kill.
"""

from __future__ import annotations

import json
import random
import shutil
import tarfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clients import make_broker, make_name_server

from tandemmq.chaos.asking import ask, registered, routed
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.java import VERSIONS, Driver, DriverError, encoded

GOLDEN = Path(__file__).parents[1] / "golden" / "stores"
GOLDEN_STORES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
PULL_MESSAGE = 11
SUBSCRIPTION_IN_PULL = 4  # sysFlag
ENDINGS = ("clean", "killed")

# What a client adds to a message that it received.
NOT_STORED = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
NOT_COMPARED = {"broker", "properties"}
QUEUES = 4
DELAYS = "1s 1s 1s " + "1h " * 15

Place = tuple[str, int, int]  # topic, queue id, queue offset


class Written(NamedTuple):
    """A store directory and what its broker served from it, or acknowledged, before it ended."""

    store: Path
    served: dict[Place, dict[str, Any]]
    acknowledged: dict[Place, str]  # unique id of each message acknowledged after `served` was read
    committed: dict[int, int]  # queue id -> offset of group CommitGroup in topic Plain


BrokerMaker = Callable[[Path, Path, str], Broker]  # (directory, store, name servers), not started


def ours(directory: Path, store: Path, name_servers: str) -> Broker:
    settings = {"messageDelayLevel": DELAYS}
    return make_broker(directory, name_servers, store=store, settings=settings)


def stock(version: str) -> BrokerMaker:
    def make(directory: Path, store: Path, name_servers: str) -> Broker:
        settings = {"messageDelayLevel": DELAYS}
        return JavaBroker(version, directory, name_servers, store=store, settings=settings)

    return make


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    with make_name_server(tmp_path_factory.mktemp("namesrv")) as running:
        yield running.start()


class Reader:
    """Reads one broker name through stock clients; another broker may take the name over."""

    def __init__(self, driver: Driver, name_server: str) -> None:
        self.driver = driver
        self.name_server = name_server
        self.serial = 0

    def renew(self) -> None:
        """New clients, which know no route and have no connection."""
        self.serial += 1
        for op, group in (("producer.start", "StoreProducers"), ("pull.start", "CommitGroup")):
            self.call(op, group=group, timeoutMs=3000)

    def call(self, op: str, **fields: Any) -> Any:
        name = f"store-{self.serial}"
        return self.driver.call(op, name=name, namesrv=self.name_server, **fields)

    def queue(self, op: str, topic: str, queue_id: int, **fields: Any) -> Any:
        return self.call(op, topic=topic, broker="broker-a", queueId=queue_id, **fields)

    def everything(self, topics: list[str]) -> dict[Place, dict[str, Any]]:
        """Every message of the topics by its place."""
        found = {}
        for topic in topics:
            for queue in self.call("pull.queues", topic=topic):
                for message in self.queue("pull.drain", topic, queue["queueId"]):
                    place = topic, message["queueId"], message["queueOffset"]
                    assert place not in found
                    found[place] = comparable(message)
        return found


def comparable(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if key not in NOT_COMPARED}
    stored = {k: v for k, v in message["properties"].items() if k not in NOT_STORED}
    return {**kept, "properties": stored}


TOPICS = ["Plain", "Large", "Batch", "Delayed"]


def fill(reader: Reader, broker: Broker) -> None:
    """Messages of many kinds, more than two segments of the log, several files of each queue."""
    rng = random.Random(7)
    for topic in TOPICS:
        reader.call("pull.create_topic", topic=topic, queues=QUEUES, address=broker.address)
        wait_until(lambda topic=topic: routed(reader.name_server, topic), 10, f"route of {topic}")
    plain = [
        {"body": f"body {i} ✓", "tags": f"T{i % 3}", "keys": f"k{i} all", "flag": i - 100,
         "properties": {"p": "värde", "n": str(i)}}
        for i in range(240)
    ]  # fmt: skip
    reader.call("send.async", topic="Plain", messages=plain)
    noise = [encoded(rng.randbytes(rng.randrange(20_000, 90_000))) for _ in range(30)]
    text = [encoded(b"deflate me " * 3000) for _ in range(10)]
    for chunk in (noise[:15], text, noise[15:]):
        reader.call("send.sync", topic="Large", messages=chunk)
    for size in (2, 7, 30):
        batch = [{"body": f"b{i}", "keys": f"batch{i}", "tags": "B"} for i in range(size)]
        reader.call("send.batch", topic="Batch", messages=batch)
    delayed = [{"body": f"d{level}", "delay": level} for level in (1, 2, 9)]
    reader.call("send.sync", topic="Delayed", messages=delayed)
    wait_until(lambda: len(reader.everything(["Delayed"])) == 2, 20, "two delayed ones delivered")
    wait_until(lambda: len(reader.everything(["Plain"])) == 240, 10, "the plain ones readable")
    for queue_id in range(QUEUES):  # a stock broker refuses commits of a group that never pulled
        reader.queue("pull.commit", "Plain", queue_id, offset=10 + queue_id)


def load_until_killed(reader: Reader, broker: Broker, after: int) -> dict[Place, str]:
    """Sends from one thread, kill -9 once `after` were acknowledged. Returns what was."""
    acknowledged: dict[Place, str] = {}
    failed: list[DriverError] = []

    def send() -> None:
        rng = random.Random(11)
        while not failed:
            message = {**encoded(rng.randbytes(rng.randrange(1, 3000))), "keys": "tail"}
            try:
                answers = reader.call("send.sync", topic="Plain", messages=[message])
            except DriverError as error:
                failed.append(error)
                return
            for answer in answers:
                place = "Plain", answer["queueId"], answer["queueOffset"]
                acknowledged[place] = answer["msgId"]

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_until(lambda: failed or len(acknowledged) >= after, 60, "acknowledged sends")
    finally:
        broker.kill()
        sender.join()
    assert len(acknowledged) >= after, failed
    return acknowledged


def write(make: BrokerMaker, ending: str, directory: Path, reader: Reader) -> Written:
    """Lets a broker write a store and end in the given way."""
    store = directory / "store"
    with make(directory, store, reader.name_server) as broker:
        broker.start()
        reader.renew()
        fill(reader, broker)
        served = reader.everything(TOPICS)
        committed = {q: reader.queue("pull.committed", "Plain", q) for q in range(QUEUES)}
        assert committed == {0: 10, 1: 11, 2: 12, 3: 13}
        acknowledged: dict[Place, str] = {}
        if ending == "killed":
            # A stock broker writes consumer offsets every 5 s, the first time 10 s after its start.
            path = store / "config" / "consumerOffset.json"
            wait_until(
                lambda: path.exists() and "Plain@" in path.read_text(), 20, "offsets on disk"
            )
            acknowledged = load_until_killed(reader, broker, 300)
        else:
            broker.stop()
    wait_until(lambda: not registered(reader.name_server, "broker-a"), 10, "broker forgotten")
    return Written(store, served, acknowledged, committed)


@pytest.fixture(scope="module")
def reader(newest_driver: Driver, name_server: NameServer) -> Reader:
    return Reader(newest_driver, name_server.address)


@pytest.fixture(scope="module", params=ENDINGS)
def written_by_us(
    request: pytest.FixtureRequest, reader: Reader, tmp_path_factory: pytest.TempPathFactory
) -> Written:
    return write(ours, request.param, tmp_path_factory.mktemp(f"ours-{request.param}"), reader)


@pytest.fixture(
    scope="module",
    params=[(v, e) for v in VERSIONS for e in ENDINGS],
    ids="-".join,
)
def written_by_java(
    request: pytest.FixtureRequest, reader: Reader, tmp_path_factory: pytest.TempPathFactory
) -> Written:
    version, ending = request.param
    return write(stock(version), ending, tmp_path_factory.mktemp(f"{version}-{ending}"), reader)


def check_serves(make: BrokerMaker, written: Written, directory: Path, reader: Reader) -> None:
    """Opens a copy of the store and compares all that clients see of it."""
    store = directory / "copied"
    copy_store(written.store, store)
    with make(directory, store, reader.name_server) as broker:
        broker.start()
        reader.renew()
        wait_until(lambda: routed(reader.name_server, "Plain"), 10, "routes")
        expected = len(written.served) + len(written.acknowledged)
        wait_until(
            lambda: len(reader.everything(TOPICS)) >= expected, 20, "every message readable",
        )  # fmt: skip
        found = reader.everything(TOPICS)
        for place, message in written.served.items():
            assert found[place] == message, place
        for place, unique_id in written.acknowledged.items():
            assert found[place]["msgId"] == unique_id, place
        check_no_gaps(found)
        for queue_id, offset in written.committed.items():
            assert reader.queue("pull.committed", "Plain", queue_id) == offset
        by_key = reader.call("pull.query", topic="Plain", key="k17", beginMs=0)
        assert [m["properties"]["n"] for m in by_key] == ["17"]
        check_continues(reader, found)
        if not isinstance(
            broker, JavaBroker
        ):  # a stock one takes 5 to 10 s, and nobody looks at its store
            assert broker.stop() == 0
    wait_until(lambda: not registered(reader.name_server, "broker-a"), 10, "broker forgotten")


def check_no_gaps(found: Mapping[Place, Mapping[str, Any]]) -> None:
    """Queue offsets run from 0 without a gap, and so do physical offsets within a queue upwards."""
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for (topic, queue_id, offset), _ in sorted(found.items()):
        queues[topic, queue_id].append(offset)
    for queue, offsets in queues.items():
        assert offsets == list(range(len(offsets))), queue
        physical = [found[(*queue, offset)]["physicalOffset"] for offset in offsets]
        assert physical == sorted(set(physical)), queue


def check_continues(reader: Reader, found: Mapping[Place, object]) -> None:
    """New messages go behind the old ones."""
    for queue_id in range(QUEUES):
        count = sum((topic, q) == ("Plain", queue_id) for topic, q, _ in found)
        (sent,) = reader.queue("send.queue", "Plain", queue_id, messages=[{"body": "next"}])
        assert sent["queueOffset"] == count
        wait_until(
            lambda q=queue_id, n=count: len(reader.queue("pull.drain", "Plain", q, offset=n)) == 1,
            10, "the next message",
        )  # fmt: skip


def copy_store(source: Path, target: Path) -> None:
    """Copies without losing holes or times."""
    shutil.copytree(source, target, copy_function=shutil.copy2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_broker_serves_all_that_we_wrote(
    written_by_us: Written, version: str, reader: Reader, tmp_path: Path
) -> None:
    check_serves(stock(version), written_by_us, tmp_path, reader)


def test_we_serve_all_that_a_stock_broker_wrote(
    written_by_java: Written, reader: Reader, tmp_path: Path
) -> None:
    check_serves(ours, written_by_java, tmp_path, reader)


@pytest.mark.parametrize(
    "written_by_java", [("4.9.7", "clean"), ("5.3.3", "clean")], indirect=True, ids="-".join
)
def test_queues_and_index_that_we_rebuild_are_the_stock_ones(
    written_by_java: Written, reader: Reader, tmp_path: Path
) -> None:
    check_rebuild(ours, written_by_java, reader, tmp_path)


@pytest.mark.parametrize("written_by_us", ["clean"], indirect=True)
def test_queues_and_index_that_a_stock_broker_rebuilds_are_ours(
    written_by_us: Written, reader: Reader, tmp_path: Path
) -> None:
    check_rebuild(stock("5.3.3"), written_by_us, reader, tmp_path)


def check_rebuild(make: BrokerMaker, written: Written, reader: Reader, directory: Path) -> None:
    """Takes queues and index away; what is made from the log alone is the same in every byte."""
    store = directory / "copied"
    copy_store(written.store, store)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    with make(directory, store, reader.name_server) as broker:
        broker.start()
        reader.renew()
        wait_until(lambda: routed(reader.name_server, "Plain"), 10, "routes")
        wait_until(
            lambda: len(reader.everything(TOPICS)) == len(written.served),
            20,
            "every message readable",
        )
        broker.stop()
    assert queue_entries(store) == queue_entries(written.store)
    assert index_entries(store) == index_entries(written.store)


def queue_entries(store: Path) -> dict[str, bytes]:
    """Bytes of each queue up to its last entry."""
    queues: dict[str, bytes] = defaultdict(bytes)
    for path in sorted((store / "consumequeue").glob("*/*/*")):
        queues[str(path.parent.relative_to(store))] += path.read_bytes()
    return {queue: data.rstrip(b"\0") for queue, data in queues.items() if data.strip(b"\0")}


def index_entries(store: Path) -> list[tuple[int, int, bytes]]:
    """Per index file, in order: first and last log offset, and all its slots and entries."""
    files = [path.read_bytes() for path in sorted((store / "index").iterdir())]
    return [
        (int.from_bytes(f[16:24], "big"), int.from_bytes(f[24:32], "big"), f[32:].rstrip(b"\0"))
        for f in files
    ]


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_we_serve_every_message_of_a_recorded_store(
    name: str, name_server: NameServer, tmp_path: Path
) -> None:
    lines = list(map(json.loads, (GOLDEN / f"{name}.jsonl").read_text().splitlines()))
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = tmp_path / name
    topics = {t for line in lines if line["k"] == "config" and line["file"] == "topics.json"
              for t in line["value"]["topicConfigTable"]}  # fmt: skip
    expected: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    records = sorted(
        (line for line in lines if line["k"] == "record"),
        key=lambda r: (r["topic"], r["qid"], r["qoff"]),
    )
    log_bytes = read_log(store / "commitlog")
    for record in records:
        if record["topic"] in topics:
            queue = expected[record["topic"], record["qid"]]
            assert record["qoff"] == len(queue), record
            queue.append(log_bytes(record["phy"], record["size"]))
    assert sum(map(len, expected.values())) >= 7

    sizes = {k: v for k, v in lines[0]["settings"].items() if k.startswith(("mapped", "max"))}
    if name == "533-default-sizes":
        sizes = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000,
                 "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}  # fmt: skip
    broker_name = f"gold-{name}"
    with Broker(
        tmp_path, name_server.address, name=broker_name, cluster="GoldCluster", store=store,
        # Delayed messages of the recording are due; deliveries would come behind what is compared.
        settings={**sizes, "fileReservedTime": 876_000, "messageDelayLevel": "9h " * 18,
                  "startDespite": "timers"},
    ) as broker:  # fmt: skip
        broker.start()
        for (topic, queue_id), messages in expected.items():
            wait_until(
                partial(_readable, broker.address, topic, queue_id, len(messages)), 20,
                f"{len(messages)} in {topic} {queue_id}",
            )  # fmt: skip
            served = pull_raw(broker.address, topic, queue_id, len(messages))
            assert served == b"".join(messages), (topic, queue_id)
        assert broker.stop() == 0


def read_log(directory: Path) -> Callable[[int, int], bytes]:
    """A function that returns bytes of the log by physical offset."""
    files = {int(path.name): path for path in directory.iterdir()}

    def read(offset: int, size: int) -> bytes:
        start = max(first for first in files if first <= offset)
        with files[start].open("rb") as file:
            file.seek(offset - start)
            return file.read(size)

    return read


def _readable(address: str, topic: str, queue_id: int, count: int) -> bool:
    code, answer, _ = ask(address, 30, {"topic": topic, "queueId": str(queue_id)})
    return code == 0 and int(answer["extFields"]["offset"]) >= count


def pull_raw(address: str, topic: str, queue_id: int, count: int) -> bytes:
    """The first `count` records of a queue as the broker sends them."""
    offset, data = 0, b""
    while offset < count:
        ext = {
            "consumerGroup": "GoldReader", "topic": topic, "queueId": str(queue_id),
            "queueOffset": str(offset), "maxMsgNums": str(min(32, count - offset)),
            "sysFlag": str(SUBSCRIPTION_IN_PULL), "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        code, answer, body = ask(address, PULL_MESSAGE, ext)
        assert code == 0, (topic, queue_id, offset, answer)
        data += body
        offset = int(answer["extFields"]["nextBeginOffset"])
    return data


def test_the_recorded_stores_are_there() -> None:
    assert len(GOLDEN_STORES) >= 12
