"""Audits of running brokers without brokers: what they say over HTTP is scripted, moment by moment."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import storekit
from hypothesis import given
from hypothesis import strategies as st
from storekit import LogFiles

from tandemmq.replication.audit import stores
from tandemmq.replication.audit.errors import AuditIncomplete
from tandemmq.replication.audit.files import LocalFiles
from tandemmq.replication.audit.live import Access, BrokerPort, LiveLog, Standing
from tandemmq.replication.audit.local import LocalEngine
from tandemmq.replication.audit.plan import Options, Outcome, audit
from tandemmq.replication.audit.shelves import Queues, read_index
from tandemmq.replication.audit.source import SegmentFile
from tandemmq.replication.epochs import Epoch

SEGMENT_BYTES = 65_536
MASTER, SLAVE = "http://master:1", "http://slave:1"


@dataclass
class Scripted:
    """A running broker's port over a store directory. `on_read` is told every read of the log."""

    root: Path
    end: int
    confirmed: int
    start: int = 0
    role: str = "ASYNC_MASTER"
    epoch: int = 1
    epochs: list[Epoch] = field(default_factory=lambda: [Epoch(1, 0)])
    on_read: Callable[[str], None] = lambda path: None
    url: str = ""

    def standing(self) -> Standing:
        return Standing(
            "c", "broker-a", 0, self.role, self.epoch, self.start, self.end, self.confirmed
        )

    def json(self, path: str) -> dict[str, Any]:
        if path == "/commitlog":
            files = [(int(p.name), p.stat().st_size) for p in (self.root / "commitlog").iterdir()]
            shown = [file for file in files if self.start <= file[0] < self.end]
            return {"segmentBytes": SEGMENT_BYTES, "files": shown, "delayLevels": "1s"}
        if path == "/epochs":
            return {"epochs": [{"epoch": each.number, "start": each.start} for each in self.epochs]}
        local = LocalFiles(self.root)
        if path == "/index":
            return {"slots": storekit.INDEX_SLOTS, "files": local.indexes()}
        assert path == "/consumequeue"
        queues = [
            {
                "topic": q.topic.decode(),
                "queueId": q.queue_id,
                "files": q.files,
                "max": q.max_offset,
            }
            for q in Queues(local)
        ]
        return {"queues": queues, "strays": []}

    def content(self, path: str) -> bytes | None:
        file = self.root / path.lstrip("/")
        return file.read_bytes() if file.exists() else None

    def read_into(self, path: str, at: int, buffer: memoryview) -> int:
        from urllib.parse import unquote

        name = unquote(path).lstrip("/")
        if name.startswith("commitlog/"):
            self.on_read(name)
            segment = int(name.rpartition("/")[2])
            if segment < self.start:
                return 0  # 404: retention took it
            most = min(SEGMENT_BYTES, self.confirmed - segment) - at
            buffer = buffer[: max(0, most)]
        file = self.root / name
        if not file.exists():
            return 0
        with file.open("rb") as open_file:
            open_file.seek(at)
            return open_file.readinto(buffer)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Scripted]:
    """Two equal brokers, by URL."""
    master = storekit.write_store(tmp_path / "master", 71, 400)
    slave = storekit.copy(master, tmp_path / "slave")
    end = storekit.places(master)[-1].end
    made = {
        MASTER: Scripted(master, end, end, url=MASTER),
        SLAVE: Scripted(slave, end, end, role="SLAVE", url=SLAVE),
    }
    monkeypatch.setattr(stores, "BrokerPort", lambda url, access: made[url])
    return made


def run(**options: Any) -> Outcome:
    places = {"broker-a-0": MASTER, "broker-a-1": SLAVE}
    return audit(places, LocalEngine(1), Options(workers=1, **options))


def alarms(outcome: Outcome) -> list[str]:
    rows = [row.kind for row in outcome.divergences if row.severity != "info"]
    return rows + [row.check for row in outcome.findings if row.severity != "info"]


def test_equal_brokers_are_equal(pair: dict[str, Scripted]) -> None:
    outcome = run()
    assert (outcome.run.verdict, alarms(outcome)) == ("equal", [])
    assert outcome.run.records_checked == 400


def test_only_what_all_have_confirmed_is_compared(pair: dict[str, Scripted]) -> None:
    """The slave holds other bytes behind its confirmed offset: they may still be cut."""
    places = storekit.places(pair[SLAVE].root)
    pair[SLAVE].confirmed = places[300].offset
    LogFiles(pair[SLAVE].root).flip(places[310].body[0])
    outcome = run()
    assert alarms(outcome) == []
    (lag,) = outcome.divergences
    assert (lag.kind, lag.start) == ("LAG", places[300].offset)


def test_slave_that_holds_what_its_master_has_not_confirmed_is_not_ahead(
    pair: dict[str, Scripted],
) -> None:
    pair[MASTER].confirmed = storekit.places(pair[MASTER].root)[350].offset
    assert run().divergences == []


def test_slave_that_holds_what_its_master_never_had_is_ahead(pair: dict[str, Scripted]) -> None:
    pair[MASTER].confirmed = pair[MASTER].end = storekit.places(pair[MASTER].root)[350].offset
    assert alarms(run()) == ["AHEAD"]


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda b: setattr(b, "epoch", 2), "broker-a-1 went from epoch 1 to 2 meanwhile"),
        (lambda b: b.epochs.append(Epoch(2, 9)), "broker-a-1 changed its epochs meanwhile"),
        (lambda b: setattr(b, "role", "SYNC_MASTER"), "broker-a-1 became SYNC_MASTER meanwhile"),
        (lambda b: setattr(b, "end", 1000), "broker-a-1 cut its log to 1000 meanwhile"),
    ],
)
def test_run_during_which_roles_change_is_void(
    pair: dict[str, Scripted], happens: Callable[[Scripted], None], why: str
) -> None:
    slave = pair[SLAVE]
    fired: list[str] = []

    def once(path: str) -> None:
        if not fired:
            fired.append(path)
            happens(slave)

    pair[MASTER].on_read = once
    run_ = run().run
    assert (run_.exit_code, run_.verdict, run_.detail) == (3, "void", why)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("reads", [1, 3, 5])
def test_segments_that_go_by_retention_meanwhile_are_forgotten(
    pair: dict[str, Scripted], segments: int, reads: int
) -> None:
    seen = 0

    def retention(path: str) -> None:
        nonlocal seen
        seen += 1
        if seen == reads:
            for broker in pair.values():
                broker.start = segments * SEGMENT_BYTES

    for broker in pair.values():
        broker.on_read = retention
    outcome = run()
    assert alarms(outcome) == []
    assert outcome.run.start_offset == segments * SEGMENT_BYTES


def test_damage_behind_what_retention_took_is_still_found(pair: dict[str, Scripted]) -> None:
    place = storekit.places(pair[SLAVE].root)[200]
    LogFiles(pair[SLAVE].root).flip(place.body[0])

    def retention(path: str) -> None:
        pair[MASTER].start = SEGMENT_BYTES

    pair[MASTER].on_read = retention
    outcome = run()
    assert [(row.kind, row.start) for row in outcome.divergences] == [("CRC_SLAVE", place.offset)]


def test_file_that_vanishes_without_retention_is_missed(pair: dict[str, Scripted]) -> None:
    def lost(path: str) -> None:
        (pair[SLAVE].root / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink(missing_ok=True)

    pair[SLAVE].on_read = lost
    assert run().exit_code == 1


def test_what_was_appended_since_is_nobodys_fault(pair: dict[str, Scripted]) -> None:
    """Queues, index and checkpoint know more than the log that was confirmed when the audit began."""
    places = storekit.places(pair[MASTER].root)
    for broker in pair.values():
        broker.confirmed = broker.end = places[250].offset
    outcome = run()
    assert alarms(outcome) == []
    assert outcome.run.records_checked == 250


def test_broker_without_messages_is_equal_to_one_without(
    pair: dict[str, Scripted], tmp_path: Path
) -> None:
    for name, broker in pair.items():
        empty = tmp_path / f"empty-{name[7:10]}"
        (empty / "commitlog").mkdir(parents=True)
        broker.root, broker.end, broker.confirmed, broker.epochs = empty, 0, 0, []
    outcome = run()
    assert (outcome.exit_code, alarms(outcome)) == (0, [])


# -- reading -----------------------------------------------------------------------------------------


class Pages:
    """A port that has one segment of bytes, and counts requests."""

    url = "http://pages:1"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.requests = 0

    def read_into(self, path: str, at: int, buffer: memoryview) -> int:
        self.requests += 1
        piece = self.data[at : at + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)


@given(
    seed=st.integers(0, 1000),
    reads=st.lists(st.tuples(st.integers(0, 3_200_000), st.integers(0, 900_000)), max_size=12),
)
def test_reads_in_any_order_see_the_bytes(seed: int, reads: list[tuple[int, int]]) -> None:
    data = random.Random(seed).randbytes(3_000_000)
    base = 1 << 30
    log = LiveLog(Pages(data), [SegmentFile(base, len(data))])  # type: ignore[arg-type]
    for at, size in reads:
        buffer = bytearray(size)
        count = log.read_into(base, base + at, memoryview(buffer))
        assert bytes(buffer[:count]) == data[at : at + size]


def test_reading_in_order_asks_seldom() -> None:
    """A request costs the broker's loop about as much as a MiB of answer."""
    pages = Pages(bytes(64 << 20))
    log = LiveLog(pages, [SegmentFile(0, 64 << 20)])  # type: ignore[arg-type]
    buffer = memoryview(bytearray(1 << 20))
    for number in range(64):
        assert log.read_into(0, number << 20, buffer) == 1 << 20
    assert pages.requests <= 64 // 8 + 6


def test_index_that_grows_while_it_is_read_is_no_broken_one(tmp_path: Path) -> None:
    """The header is read first; slots may then name entries that it does not count yet."""
    root = storekit.write_store(tmp_path / "store", 5, 300)
    files = LocalFiles(root)
    name, _ = files.indexes()[-1]
    with (root / "index" / name).open("r+b") as file:
        file.seek(36)
        count = int.from_bytes(file.read(4), "big")
        file.seek(36)
        file.write((count - 40).to_bytes(4, "big"))
    slots = storekit.INDEX_SLOTS
    assert read_index(files, slots, growing=True).problems == []
    (problem,) = read_index(files, slots).problems
    assert "cannot be reached through their slots" in problem[1]


def test_an_answer_that_breaks_off_is_no_short_file() -> None:
    """http.client's readinto() says 0 for both; a file that seems to end here would be a finding."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(
                    b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\n\r\n" + bytes(10)
                )

        thread = threading.Thread(target=answer)
        thread.start()
        port = BrokerPort(f"http://127.0.0.1:{server.getsockname()[1]}", Access(token="t"))
        with pytest.raises(AuditIncomplete, match="broke off"):
            port.read_into("/commitlog/00000000000000000000", 0, memoryview(bytearray(100)))
        thread.join()
