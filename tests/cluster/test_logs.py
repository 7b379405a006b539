"""Log lines: where they go, their two forms, and limits on how often."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tandemmq.cluster.logs import OncePer, setup_logging


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
