"""The checkpoint's bytes, our queue state, and the marks of a running broker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from newinputs import new_inputs

from tandemmq.storage.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    QueueMark,
    QueueState,
    RunningMark,
    load_checkpoint,
    load_queue_state,
    save_checkpoint,
    save_queue_state,
)

STATE = QueueState(
    dispatched=4711,
    last_record=4600,
    index_end=4600,
    queues={"T": {0: QueueMark(0, 17, 4711), 3: QueueMark(300, 600, 99)}, "%RETRY%g": {}},
)


def test_checkpoint_has_rocketmqs_bytes() -> None:
    encoded = Checkpoint(0x01A1F8840F54, 0x01A1F8840F54).encode()
    assert encoded[:24].hex() == "000001a1f8840f54" * 2 + "00" * 8
    assert len(encoded) == CHECKPOINT_BYTES
    assert not any(encoded[24:])


def test_safe_time_leaves_a_margin_below_both_watermarks() -> None:
    assert Checkpoint(physic_ms=10_000, logics_ms=9_000, index_ms=1).safe_ms == 6_000
    assert Checkpoint(physic_ms=10_000).safe_ms == 0


def test_checkpoint_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert load_checkpoint(path) == Checkpoint()
    save_checkpoint(path, Checkpoint(1, 2, 3, 4, 5))
    assert load_checkpoint(path) == Checkpoint(1, 2, 3, 4, 5)
    assert path.stat().st_size == CHECKPOINT_BYTES


@given(st.binary(max_size=60))
def test_any_bytes_read_as_a_checkpoint_without_negative_times(data: bytes) -> None:
    found = Checkpoint.decode(data)
    assert min(found.physic_ms, found.logics_ms, found.index_ms) >= 0


def test_queue_state_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "queuestate"
    assert load_queue_state(path) is None
    save_queue_state(path, STATE)
    assert load_queue_state(path) == STATE


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory: 20,000 files are written to it."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.mark.fuzz
def test_20_000_damaged_queue_states_are_never_believed(memory_path: Path) -> None:
    rng = new_inputs()
    path = memory_path / "queuestate"
    save_queue_state(path, STATE)
    good = path.read_bytes()
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.choice([len(data), rng.randrange(len(data) + 1)])]
        path.write_bytes(data)
        found = load_queue_state(path)
        assert found is None or bytes(data).upper() == good.upper()


def test_queue_state_of_a_later_version_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "queuestate"
    save_queue_state(path, QueueState(version=2, dispatched=1, last_record=0))
    assert load_queue_state(path) is None


def test_running_mark_tells_a_kill_from_a_power_cut(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    first = RunningMark(tmp_path, boot)
    assert not first.unclean
    first.set()
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    killed = RunningMark(tmp_path, boot)
    assert (killed.unclean, killed.same_boot) == (True, True)
    boot.write_text("two\n")
    cut = RunningMark(tmp_path, boot)
    assert (cut.unclean, cut.same_boot) == (True, False)
    first.clear()
    assert not RunningMark(tmp_path, boot).unclean
    assert not (tmp_path / "bootid").exists()


def test_unknown_boot_counts_as_another(tmp_path: Path) -> None:
    mark = RunningMark(tmp_path, tmp_path / "no such file")
    mark.set()
    assert not RunningMark(tmp_path, tmp_path / "no such file").same_boot


def test_empty_abort_of_an_old_release_is_an_unclean_stop(tmp_path: Path) -> None:
    (tmp_path / "abort").touch()
    mark = RunningMark(tmp_path, tmp_path / "boot_id")
    assert (mark.unclean, mark.same_boot) == (True, False)
