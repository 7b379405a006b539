"""docs/howto/spark.md, run as it is printed: one program, in the order of its blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from topickit import Topics

from tandemmq.chaos.servers import REPOSITORY
from tandemmq.spark.options import READ_OPTIONS, WRITE_OPTIONS
from tandemmq.spark.shapes import COLUMNS, SENT

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

DOCUMENT = (REPOSITORY / "docs" / "howto" / "spark.md").read_text("utf-8")


def test_how_to_is_a_program_that_runs(topics: Topics, spark: Any, tmp_path: Path) -> None:
    places = {
        "127.0.0.1:9876": topics.address,
        "/data/lake": str(tmp_path / "lake"),
        "/data/store/broker-a": str(topics.broker.store),
    }
    names: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.M | re.S)
    assert len(blocks) == 11
    for block in blocks:
        for printed, here in places.items():
            block = block.replace(printed, here)
        run_block(block, names)


def run_block(block: str, names: dict[str, Any]) -> None:
    """Blocks with streams may be run again: Spark gives their Python 10 s to start, and a busy machine needs longer."""
    for chance in range(9):
        try:
            exec(compile(block, "docs/howto/spark.md", "exec"), names)  # noqa: S102 - our own document
            return
        except Exception as problem:
            if chance == 8 or "failed to connect back" not in str(problem):
                raise


@pytest.mark.parametrize("options", [READ_OPTIONS, WRITE_OPTIONS])
def test_how_to_lists_every_option_in_its_own_words(options: dict[str, str]) -> None:
    for name, meaning in options.items():
        assert f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" in DOCUMENT


def test_how_to_explains_every_column() -> None:
    for name in (*COLUMNS, *SENT):
        assert re.search(rf"^\| .*`{name}`", DOCUMENT, re.M), name
