"""Small files across crashes: one generation or the other, never a mixture, never silently nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from newinputs import new_inputs

from tandemmq.storage import CorruptFile, jsonfile


def test_saved_object_is_loaded_and_the_former_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    jsonfile.save(path, {"a": {1: 2}})
    assert jsonfile.load(path) == {"a": {"1": 2}}
    assert not path.with_name("topics.json.bak").exists()
    jsonfile.save(path, {"b": 3})
    assert jsonfile.load(path) == {"b": 3}
    assert jsonfile.load(path.with_name("topics.json.bak")) == {"a": {"1": 2}}
    assert sorted(file.name for file in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("content", [None, b"", b"  \n", b"\0\0\0", b'{"half":', b"[1]"])
def test_previous_generation_stands_in(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.json"
    path.with_name("x.json.bak").write_text('{"old":{0:1}}')
    if content is not None:
        path.write_bytes(content)
    assert jsonfile.load(path) == {"old": {"0": 1}}


@pytest.mark.parametrize(("main", "bak"), [(None, None), (b"", None), (b"", b""), (None, b"")])
def test_nothing_written_yet_is_none(tmp_path: Path, main: bytes | None, bak: bytes | None) -> None:
    for name, content in (("x.json", main), ("x.json.bak", bak)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    assert jsonfile.load(tmp_path / "x.json") is None


@pytest.mark.parametrize(
    ("main", "bak"), [(b"{oops", None), (b"{oops", b""), (b"", b"{oops"), (b"7", b"[]")]
)
def test_unreadable_file_never_counts_as_an_empty_one(
    tmp_path: Path, main: bytes, bak: bytes | None
) -> None:
    (tmp_path / "x.json").write_bytes(main)
    if bak is not None:
        (tmp_path / "x.json.bak").write_bytes(bak)
    with pytest.raises(CorruptFile, match=r"x\.json"):
        jsonfile.load(tmp_path / "x.json")


def test_crash_at_any_step_of_a_save_leaves_the_old_or_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    steps = ["fsync", "link", "replace"]
    seen = set()
    for crash_at in range(12):
        path = tmp_path / str(crash_at) / "x.json"
        jsonfile.save(path, {"n": 1})
        jsonfile.save(path, {"n": 2})
        left = [crash_at]  # steps before the crash

        def counted(real: Any, left: list[int] = left) -> Any:
            def call(*arguments: Any, **keywords: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash
                return real(*arguments, **keywords)

            return call

        with monkeypatch.context() as patched, contextlib.suppress(Crash):
            for name in steps:
                patched.setattr(os, name, counted(getattr(os, name)))
            jsonfile.save(path, {"n": 3})
        found = jsonfile.load(path)
        assert found in ({"n": 2}, {"n": 3})
        seen.add(found["n"])
        jsonfile.save(path, {"n": 4})
        assert jsonfile.load(path) == {"n": 4}
    assert seen == {2, 3}


def test_full_disk_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    jsonfile.save(path, {"n": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            jsonfile.save(path, {"n": 2})
        with pytest.raises(OSError, match="No space"):
            jsonfile.write_atomically(tmp_path / "y", b"y")
    assert jsonfile.load(path) == {"n": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory: 20,000 files are written to it."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.mark.fuzz
def test_20_000_damaged_config_files_are_loaded_or_refused(memory_path: Path) -> None:
    rng = new_inputs()
    path = memory_path / "x.json"
    good = b'{\n\t"offsetTable":{\n\t\t"T2@g1":{0:12,1:5\n\t\t}\n\t}\n}'
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data) + 20)])
        try:
            found = jsonfile.load(path)
        except CorruptFile:
            outcomes["refused"] += 1
        else:
            assert found is None or isinstance(found, dict)
            outcomes["loaded"] += 1
    assert min(outcomes.values()) > 500
