"""Recorded stock replicas in controller mode: we follow their master, and serve their slave, byte for byte."""

from __future__ import annotations

import base64
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pairkit import Connection, Net, Replica
from timekit import HandClock

from tandemmq.replication.config import Mode
from tandemmq.replication.frames import Dialect, MasterFrameReader, Transfer
from tandemmq.replication.keeping import EpochFile
from tandemmq.replication.replica import ReplicaRole
from tandemmq.replication.slave import SlaveState

GOLDEN = Path(__file__).parents[1] / "golden"
SWITCHED = 7555  # where epoch 2 begins
END = 13675


def recorded() -> list[dict[str, Any]]:
    with lzma.open(GOLDEN / "wire" / "ha-autoswitch.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


def chunks(connection: int, direction: str) -> list[bytes]:
    return [
        base64.b64decode(line["b"])
        for line in recorded()
        if line["k"] == "bytes" and line["c"] == connection and line["d"] == direction
    ]


def frames(connection: int, direction: str) -> list[dict[str, Any]]:
    return [
        line
        for line in recorded()
        if line["k"] == "frame" and line["c"] == connection and line["d"] == direction
    ]


def stock_store(tmp_path: Path, name: str) -> Path:
    with tarfile.open(GOLDEN / "stores" / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / name


def stock_log(tmp_path: Path, name: str) -> bytes:
    return (stock_store(tmp_path, name) / "commitlog" / f"{0:020d}").read_bytes()[:END]


class StockMaster:
    """The master's end of a connection: says what was recorded. Stands where a Replica does."""

    up = True

    def __init__(self) -> None:
        self.sender = self

    def attach(self, wire: Any, peer: str) -> int:
        return 1

    def readable(self, number: int) -> None:
        """What it hears changes nothing of what it says."""

    def writable(self, number: int) -> None:
        raise AssertionError("it has no log")


@pytest.mark.parametrize("chunk", [1 << 20, 100, 3])
async def test_we_follow_a_stock_master_and_again_after_it_changed(
    tmp_path: Path, chunk: int
) -> None:
    net, clock = Net(), HandClock()
    net.chunk = chunk
    ours = Replica(net, tmp_path / "2", 2, clock, extended=False).start()
    stock = StockMaster()
    stock.name = "stock"  # type: ignore[attr-defined]
    stock.number = 1  # type: ignore[attr-defined]
    net.replicas["stock"] = stock  # type: ignore[assignment]
    stock.feed = ours.feed  # type: ignore[attr-defined]
    for connection, epoch, end in ((1, 1, SWITCHED), (2, 2, END)):
        ours.follow(stock, epoch)  # type: ignore[arg-type]
        await net.settle()
        made = net.connections[0]
        for each in chunks(connection, "<"):
            made.down += each
            await net.settle()
        ours.check()
        assert ours.core.slave.state is SlaveState.STREAMING
        assert ours.store.end == end == ours.core.confirmed
        handshake, *reports = _split_slave_bytes(bytes(made.said_up))
        theirs = _split_slave_bytes(b"".join(chunks(connection, ">")))
        assert handshake[:8] == theirs[0][:8] and handshake[8:] == (2).to_bytes(8, "big")
        if connection == 1 and chunk > 3:
            assert _distinct(reports) == _distinct(theirs[1:])
        assert reports[-1] == theirs[-1]
    assert ours.log_bytes() == stock_log(tmp_path, "533-ctl-2")
    stock_epochs = EpochFile(stock_store(tmp_path / "e", "533-ctl-1") / "epochFileCheckpoint")
    assert ours.core.slave.history == stock_epochs.load(END)
    written = (tmp_path / "2" / "epochFileCheckpoint").read_bytes()
    assert written == (tmp_path / "e" / "533-ctl-1" / "epochFileCheckpoint").read_bytes()
    await ours.stop()


def _split_slave_bytes(data: bytes) -> list[bytes]:
    """A handshake of 16 bytes and reports of 12."""
    return [data[:16], *(data[at : at + 12] for at in range(16, len(data), 12))]


def _distinct(reports: list[bytes]) -> list[bytes]:
    return [each for at, each in enumerate(reports) if at == 0 or each != reports[at - 1]]


async def test_a_stock_slave_is_served_as_its_stock_master_did(tmp_path: Path) -> None:
    log = stock_log(tmp_path, "533-ctl-2")
    net, clock = Net(), HandClock()
    ours = Replica(net, tmp_path / "1", 1, clock, mode=Mode.S0).start()
    ours.lead(1, 2)  # the recorded set had both when the first message came
    await net.settle()
    assert ours.core.role is ReplicaRole.MASTER
    wire = Connection(net, ours)
    number = ours.sender.attach(wire, "stock:1")
    says = chunks(1, ">")
    at, took = 0, 0
    for line in sorted(frames(1, "<") + frames(1, ">"), key=lambda line: line["t"]):
        clock.ms = max(clock.ms, round(line["t"]))
        ours.feed.tick()  # the lease is renewed
        if line["d"] == ">":
            wire._incoming.append(says[took])
            took += 1
            ours.sender.readable(number)
            await net.settle()
        elif line.get("size"):
            ours.store.append_raw(log[at : at + line["size"]], at)
            at += line["size"]
            ours.sender.pump()
        elif line["state"] == "TRANSFER":
            clock.ms += 5000
            ours.sender.tick()
    ours.check()
    assert at == SWITCHED and took == len(says)
    expected = b"".join(chunks(1, "<"))
    assert _comparable(bytes(wire.down)) == _comparable(expected)
    assert ours.sender.status()[0].dialect is Dialect.AUTO_SWITCH
    await ours.stop()


def _comparable(stream: bytes) -> list[Any]:
    """Frames; heartbeats only while there is a log: with an empty one a stock master says -1, we say 0."""
    view = memoryview(stream)
    found, end = MasterFrameReader(Dialect.AUTO_SWITCH).read(view, 0, len(view))
    assert end == len(stream)
    return [
        (each.offset, bytes(each.body), each.epoch, each.epoch_start, each.confirmed)
        if isinstance(each, Transfer)
        else each
        for each in found
        if not isinstance(each, Transfer) or each.body
    ]


async def test_a_stock_slave_that_asks_again_is_answered_again(tmp_path: Path) -> None:
    net = Net()
    ours = Replica(net, tmp_path / "1", 1, HandClock()).start()
    ours.lead(1)
    await net.settle()
    wire = Connection(net, ours)
    number = ours.sender.attach(wire, "stock:1")
    handshake = chunks(1, ">")[0]
    assert len(handshake) == 16
    for _ in range(2):
        wire._incoming.append(handshake)
        ours.sender.readable(number)
    assert len(wire.down) == 64 and wire.down[:32] == wire.down[32:]
    wire._incoming.append(handshake[:8] + (3).to_bytes(8, "big"))
    ours.sender.readable(number)
    assert wire.ended == "master", "another replica on the same connection"
    await ours.stop()


@pytest.mark.parametrize("mode", [Mode.S0, Mode.S1])
async def test_a_stock_slave_whose_disk_counts_unseen_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: Mode
) -> None:
    net = Net()
    ours = Replica(net, tmp_path / "1", 1, HandClock(), mode=mode).start()
    ours.lead(1)
    await net.settle()
    wire = Connection(net, ours)
    number = ours.sender.attach(wire, "stock:1")
    wire._incoming.append(chunks(1, ">")[0])
    ours.sender.readable(number)
    assert ("what replica=2 receives counts as on its disk" in caplog.text) is mode.waits_for_disk
    await ours.stop()
