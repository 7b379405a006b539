"""Log lines: where they go, their two forms, and limits on how often."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.cluster.logs import KEY_SILENT_MS, KEYS_MAX, OnceEach, OncePer, setup_logging


@pytest.fixture(autouse=True)
def root_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_text_line_names_level_and_logger_and_replaces_former_handlers() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(stream=first)
    setup_logging("warning", stream=second)
    logging.getLogger("cluster.x").info("quiet")
    logging.getLogger("cluster.x").warning("role changed from=%s to=%s", "a", "b")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("WARNING cluster.x role changed from=a to=b\n")
    assert second.getvalue().count("\n") == 1


def test_json_lines_are_one_object_each_even_with_exceptions_and_newlines() -> None:
    stream = io.StringIO()
    setup_logging(json=True, stream=stream)
    try:
        raise OSError("disk\ngone")
    except OSError:
        logging.getLogger("cluster.x").exception("flush failed path=%s", "a\nb")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"]) == ("ERROR", "cluster.x")
    assert record["message"] == "flush failed path=a\nb"
    assert "OSError: disk\ngone" in record["exception"]


def test_a_client_is_named_once_a_minute_and_what_was_held_back_is_counted_once() -> None:
    now_ms = [0]
    first = OnceEach(lambda: now_ms[0])
    assert first("a") and not first("a") and not first("a")
    assert first("b") and first.suppressed == 2
    assert first("c") and first.suppressed == 0
    assert sum(first(number) for number in range(KEYS_MAX)) == KEYS_MAX - 3
    now_ms[0] = KEY_SILENT_MS - 1
    assert not first("a")
    now_ms[0] = KEY_SILENT_MS
    assert first("a") and first.suppressed == 4


def test_a_limited_line_comes_once_per_interval_and_counts_what_it_held_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    limited = OncePer(10, monotonic=lambda: now[0])
    log = logging.getLogger("cluster.x")
    for _ in range(5):
        limited.warning(log, "peer broke protocol peer=%s", "a")
    now[0] += 9.9
    limited.warning(log, "peer broke protocol peer=%s", "b")
    now[0] += 0.2
    limited.warning(log, "peer broke protocol peer=%s", "c")
    assert [record.getMessage() for record in caplog.records] == [
        "peer broke protocol peer=a suppressed=0",
        "peer broke protocol peer=c suppressed=5",
    ]


def test_text_of_a_peer_cannot_begin_a_line_of_its_own_nor_fill_the_log() -> None:
    stream = io.StringIO()
    setup_logging(stream=stream)
    log = logging.getLogger("cluster.x")
    log.info("topic deleted topic=%s", "a\n2026-01-01 ERROR forged\x1b[2J\u2028b")
    log.info("topic deleted topic=%s", "x" * 100_000)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("topic=a\\x0a2026-01-01 ERROR forged\\x1b[2J\\u2028b")
    assert len(second) < 5_000 and second.endswith("characters)")


def test_json_lines_have_their_phrase_and_their_values_apart() -> None:
    stream = io.StringIO()
    setup_logging(json=True, stream=stream)
    log = logging.getLogger("cluster.x")
    log.info(
        "role changed from=%s to=%s epoch=%d share=%.1f%% ok=%s", "slave", "a b", 7, 12.5, True
    )
    log.info("store recovered %s took_ms=%d", "Recovered()", 3)
    log.info("nothing to say")
    log.info("counted otherwise a=%(a)s", {"a": 1})
    first, second, third, fourth = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "role changed"
    assert first["fields"] == {"from": "slave", "to": "a b", "epoch": 7, "share": 12.5, "ok": True}
    assert first["message"].endswith("share=12.5% ok=True")
    assert (second["event"], second["fields"]) == ("store recovered", {"took_ms": 3})
    assert (third["event"], third["fields"]) == ("nothing to say", {})
    assert (fourth["message"], fourth["fields"]) == ("counted otherwise a=1", {})


def test_a_file_is_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "broker.log"
    stream = io.StringIO()
    setup_logging(stream=stream, file=file, file_bytes=1_000, files=2)
    for number in range(60):
        logging.getLogger("cluster.x").info("role changed number=%d", number)
    assert sorted(each.name for each in file.parent.iterdir()) == [
        "broker.log", "broker.log.1", "broker.log.2",
    ]  # fmt: skip
    assert file.read_text().endswith("number=59\n")
    assert all(each.stat().st_size <= 1_000 for each in file.parent.iterdir())
    assert stream.getvalue() == "", "and only there"
    setup_logging(stream=stream)  # closes the file


def test_the_journal_gets_priorities_and_no_times_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        about = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{about.st_dev}:{about.st_ino}")
        setup_logging("DEBUG", stream=stream)
        log = logging.getLogger("cluster.x")
        log.debug("a")
        log.warning("b peer=%s", "x\ny")
        try:
            raise OSError("disk gone")
        except OSError:
            log.exception("c")
        stream.flush()
        first, second, *traceback = (tmp_path / "journal").read_text().splitlines()
        monkeypatch.setenv("JOURNAL_STREAM", "0:0")  # another stream than ours
        setup_logging(stream=stream)
        log.info("d")
        stream.flush()
        last = (tmp_path / "journal").read_text().splitlines()[-1]
    assert first == "<7>DEBUG   cluster.x a"
    assert second == "<4>WARNING cluster.x b peer=x\\x0ay"
    assert len(traceback) > 3 and all(line.startswith("<3>") for line in traceback)
    assert last[0].isdigit() and last.endswith("d")
