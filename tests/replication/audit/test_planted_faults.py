"""Twenty-two faults planted in one pair of stores: each is found, named, and nothing else is reported."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest
import storekit
from storekit import LogFiles, Place

from tandemmq.replication.audit.plan import Outcome

SEGMENT_BYTES = 1 << 20
MESSAGES = 14_000
FORK_FROM = 12_500


class Pair:
    """A master, and a slave with faults; `expected` holds (class, start, end) of each."""

    def __init__(self, directory: Path) -> None:
        self.master = storekit.write_store(
            directory / "master", 11, MESSAGES, segment_bytes=SEGMENT_BYTES, body_bytes_max=4000
        )
        self.slave = storekit.write_store(
            directory / "slave", 11, MESSAGES - 80, segment_bytes=SEGMENT_BYTES,
            body_bytes_max=4000, fork_at=FORK_FROM, fork_seed=5,
        )  # fmt: skip
        self.places = storekit.places(self.master)
        self.slave_end = storekit.places(self.slave)[-1].end
        self.log = LogFiles(self.slave)
        self.expected: list[tuple[str, int, int]] = []
        self.rng = random.Random(3)
        self._next = 150
        self._plant()

    def take(self, body_bytes_min: int = 300) -> Place:
        """A record some way behind the last one, in the middle of its segment."""
        while True:
            self._next += 37
            place = self.places[self._next]
            room = SEGMENT_BYTES - place.end % SEGMENT_BYTES
            if place.body[1] - place.body[0] >= body_bytes_min and room > 20_000:
                return place

    def expect(self, kind: str, first: Place, last: Place | None = None) -> None:
        self.expected.append((kind, first.offset, (last or first).end))

    def neighbour(self, place: Place) -> Place:
        return self.places[self.places.index(place) + 1]

    def _plant(self) -> None:
        log, rng = self.log, self.rng
        for flips in (1, 3):  # F01, F02
            place = self.take()
            for at in range(flips):
                log.flip(place.body[0] + 20 * at, 1 << at)
            self.expect("CRC_SLAVE", place)
        place = self.take()  # F03
        log.write(place.offset + 20, struct.pack(">q", place.head.queue_offset + 1))
        self.expect("HEADER_DIFF", place)
        place = self.take()  # F04
        log.flip(place.end - 2)
        self.expect("PROPS_DIFF", place)
        for at in (2, 5):  # F05 size, F06 magic
            place = self.take()
            log.flip(place.offset + at)
            self.expect("FRAMING", place)
        place = self.take()  # F07
        self._zero(place.offset + 40, 4096)
        place = self.take()  # F08: more than a segment
        self._zero(place.offset + 40, 1_572_864)
        first = self.take()  # F09
        second = self.neighbour(first)
        self._exchange(first, second)
        self.expect("ORDER", first, second)
        place = self.take()  # F10
        store_at = place.offset + (68 if place.head.sys_flag & 0x10 else 56)
        log.write(store_at, struct.pack(">q", place.head.store_ms + 1))
        self.expect("HEADER_DIFF", place)
        place = self.take()  # F14
        topic_at = place.end - len(place.head.properties) - 2 - len(place.head.topic)
        log.flip(topic_at + 1)
        self.expect("TOPIC_DIFF", place)
        place = self.take()  # F15
        body = rng.randbytes(place.body[1] - place.body[0])
        log.write(place.body[0], body)
        log.write(place.offset + 8, struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF))
        self.expect("CONTENT_DIFF", place)
        self._garbage(self.take(), 65_536)  # F17
        master = LogFiles(self.master)
        place = self.take()  # F12
        master.flip(place.body[0] + 7)
        self.expect("CRC_MASTER", place)
        self.both = self.take()  # F13
        master.flip(self.both.body[0] + 7)
        log.flip(self.both.body[0] + 7)
        self._queues()
        # F11, F16: whole segments, before the fork
        fork = self.places[FORK_FROM].offset
        gone = (self.places[self._next].offset // SEGMENT_BYTES + 1) * SEGMENT_BYTES
        log.path(gone).unlink()
        self.expected.append(("MISSING_SEGMENT", gone, gone + SEGMENT_BYTES))
        short = gone + 2 * SEGMENT_BYTES
        assert short + SEGMENT_BYTES < fork, "the store is too small for its faults"
        with log.path(short).open("r+b") as file:
            file.truncate(SEGMENT_BYTES // 2)
        cut = next(p for p in self.places if p.end > short + SEGMENT_BYTES // 2)
        self.expected.append(("SHORT_FILE", cut.offset, short + SEGMENT_BYTES - 1))
        self.expected.append(("FORK", fork, self.slave_end))  # F18, F19
        self.expected.append(("LAG", self.slave_end, self.places[-1].end))

    def _zero(self, start: int, size: int) -> None:
        self._over(start, bytes(size))
        touched = [p for p in self.places if p.end > start and p.offset < start + size]
        self.expect("HOLE", touched[0], touched[-1])
        self._next = self.places.index(touched[-1])

    def _garbage(self, place: Place, size: int) -> None:
        room = SEGMENT_BYTES - place.offset % SEGMENT_BYTES
        size = min(size, room - 20_000)
        self._over(place.offset + 30, self.rng.randbytes(size))
        touched = [
            p for p in self.places if p.end > place.offset and p.offset < place.offset + 30 + size
        ]
        self.expect("GARBAGE", touched[0], touched[-1])
        self._next = self.places.index(touched[-1])

    def _over(self, start: int, data: bytes) -> None:
        while data:
            room = SEGMENT_BYTES - start % SEGMENT_BYTES
            self.log.write(start, data[:room])
            start, data = start + room, data[room:]

    def _exchange(self, first: Place, second: Place) -> None:
        a = bytearray(self.log.read(first.offset, first.end))
        b = bytearray(self.log.read(second.offset, second.end))
        b[28:36] = struct.pack(">q", first.offset)
        a[28:36] = struct.pack(">q", first.offset + len(b))
        self.log.write(first.offset, bytes(b + a))

    def _queues(self) -> None:
        """F20 an entry that names another record, F21 one that is zero, F22 a wrong tags code."""
        self.queue_faults = []
        for check, data, at in (
            ("cq_wrong_record", None, 0),
            ("cq_missing", bytes(20), 0),
            ("cq_tags_code", struct.pack(">q", 4711), 12),
        ):
            place = self.take()
            entry = place.head.queue_offset * 20
            queue = (
                self.slave / "consumequeue" / place.head.topic.decode() / str(place.head.queue_id)
            )
            file = queue / f"{entry - entry % 2000:020d}"
            with file.open("r+b") as writing:
                if data is None:
                    other = self.places[10]
                    data = struct.pack(">qi", other.offset, other.size)
                writing.seek(entry % 2000 + at)
                writing.write(data)
            self.queue_faults.append((check, place.offset))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def outcome(pair: Pair) -> Outcome:
    return storekit.run(pair.master, pair.slave)


def test_every_planted_fault_of_the_log_is_found_under_its_name(
    pair: Pair, outcome: Outcome
) -> None:
    found = sorted((row.kind, row.start) for row in outcome.divergences)
    assert found == sorted((kind, start) for kind, start, _ in pair.expected)
    assert len(found) == 18  # 22 without F13 and F20 to F22, which no two logs differ in
    assert outcome.exit_code == 1


def test_islands_end_where_the_damage_does(pair: Pair, outcome: Outcome) -> None:
    ends = {row.start: row.end for row in outcome.divergences}
    for kind, start, end in pair.expected:
        if kind not in ("SHORT_FILE", "MISSING_SEGMENT"):
            assert ends[start] == end, kind


def test_faults_that_both_replicas_share_or_that_lie_in_queues_are_found(
    pair: Pair, outcome: Outcome
) -> None:
    serious = {
        (row.check, row.replica, row.physical_offset)
        for row in outcome.findings
        if row.severity == "critical"
    }
    expected = {(check, "slave", offset) for check, offset in pair.queue_faults}
    expected |= {("crc", name, pair.both.offset) for name in ("master", "slave")}
    assert serious == expected


def test_consequences_of_a_fault_are_no_findings_of_their_own(outcome: Outcome) -> None:
    noise = [row for row in outcome.findings if row.check.startswith("index")]
    assert [row for row in noise if row.severity != "info"] == []
    followed = [row for row in outcome.findings if row.caused_by]
    assert followed and {row.severity for row in followed} == {"info"}


def test_changed_fields_are_named(outcome: Outcome) -> None:
    fields = {row.kind: row.fields for row in outcome.divergences}
    assert fields["CONTENT_DIFF"] == "body_crc,body"
    assert fields["TOPIC_DIFF"] == "topic"
    assert fields["PROPS_DIFF"] == "properties"
    assert {row.fields for row in outcome.divergences if row.kind == "HEADER_DIFF"} == {
        "queue_offset",
        "store_ms",
    }


def test_damaged_sides_are_told_by_checksums(outcome: Outcome) -> None:
    sides = {row.kind: row.side for row in outcome.divergences}
    assert sides["CRC_MASTER"] == "reference"
    assert {sides[kind] for kind in ("CRC_SLAVE", "HOLE", "GARBAGE", "FRAMING")} == {"replica"}
    assert sides["FORK"] == sides["CONTENT_DIFF"] == "unknown"


def test_roles_exchanged_the_other_side_is_to_blame(pair: Pair) -> None:
    turned = storekit.run(pair.slave, pair.master)
    kinds = {row.kind for row in turned.divergences}
    assert {"AHEAD", "CRC_MASTER", "CRC_SLAVE", "HOLE", "MISSING_SEGMENT"} <= kinds
    assert len(turned.divergences) == 18
    assert {row.side for row in turned.divergences if row.kind == "HOLE"} == {"reference"}


@pytest.mark.parametrize("benign", ["identical", "padding", "retention", "dirty tail", "lag"])
def test_benign_differences_raise_no_alarm(tmp_path: Path, benign: str) -> None:
    master = storekit.write_store(tmp_path / "master", 21, 600)
    slave = tmp_path / "slave"
    if benign == "lag":
        storekit.write_store(slave, 21, 520)
    else:
        storekit.copy(master, slave)
    log = LogFiles(slave)
    places = storekit.places(master)
    rng = random.Random(1)
    if benign == "padding":
        for start in log.starts[:-1]:
            last = max(p.end for p in places if p.offset < start + log.segment_bytes)
            if last + 8 < start + log.segment_bytes:
                log.write(last + 8, rng.randbytes(start + log.segment_bytes - last - 8))
    elif benign == "retention":
        for start in log.starts[:2]:
            log.path(start).unlink()
    elif benign == "dirty tail":
        end = places[-1].end
        log.write(end, rng.randbytes(min(9000, log.segment_bytes - end % log.segment_bytes)))
    outcome = storekit.run(master, slave)
    assert [row.kind for row in outcome.divergences] == (["LAG"] if benign == "lag" else [])
    assert [row for row in outcome.findings if row.severity != "info"] == []
    assert outcome.exit_code == 0
    if benign == "padding":
        assert outcome.run.padding_bytes > 0 and outcome.run.blocks_differing > 0
    if benign == "retention":
        assert outcome.run.retained_bytes == 2 * log.segment_bytes


def test_leftover_records_of_a_cut_log_are_not_its_end(tmp_path: Path) -> None:
    """RocketMQ's truncation leaves the bytes; here whole records of another history follow the end."""
    master = storekit.write_store(tmp_path / "master", 33, 300, segment_bytes=1 << 20)
    other = storekit.write_store(
        tmp_path / "other", 33, 300, segment_bytes=1 << 20, fork_at=280, fork_seed=9
    )
    slave = storekit.write_store(tmp_path / "slave", 33, 270, segment_bytes=1 << 20)
    stale = storekit.places(other)[280:]
    leftovers = LogFiles(other).read(stale[0].offset, stale[-1].end)
    LogFiles(slave).write(stale[0].offset, leftovers)
    outcome = storekit.run(master, slave)
    assert [row.kind for row in outcome.divergences] == ["LAG"]
    assert outcome.exit_code == 0


def test_three_replicas_are_each_compared_with_the_master(tmp_path: Path) -> None:
    master = storekit.write_store(tmp_path / "master", 41, 200)
    good = storekit.copy(master, tmp_path / "good")
    bad = storekit.copy(master, tmp_path / "bad")
    LogFiles(bad).flip(storekit.places(master)[50].body[0])
    outcome = storekit.run(master, good, bad)
    assert [(row.replica, row.kind) for row in outcome.divergences] == [("slave1", "CRC_SLAVE")]
    shutil.rmtree(bad)
