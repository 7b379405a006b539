"""What the how-tos about tests, traces and scripts print is run as it is printed.

With TANDEM_PICTURES=docs/pictures the picture of a trace is drawn anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracepicture import Bar, drawn

from tandemmq.chaos.servers import REPOSITORY, python_env
from tandemmq.testing import TandemCluster

pytestmark = pytest.mark.system

HOWTOS = REPOSITORY / "docs" / "howto"
PICTURES = REPOSITORY / "docs" / "pictures"
USUAL = "127.0.0.1:9876"
#: behind the program of traces.md: what its exporter was given
EXPORTED = """
import json
with open("spans.json", "w") as file:
    json.dump([
        (span.context.span_id, span.parent.span_id if span.parent else None, span.name, span.kind.name,
         span.attributes.get("messaging.consumer.group.name", ""), span.start_time, span.end_time)
        for span in spans.get_finished_spans()
    ], file)
"""


def program(document: str, name: str) -> str:
    """The block of a how-to whose first line is `# name`."""
    text = (HOWTOS / document).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```python\n(# {re.escape(name)}\n.*?)^```$", text, re.M | re.S)
    return str(block)


def printed(document: str) -> str:
    """The block that shows what the program prints."""
    (block,) = re.findall(
        r"^```text\n(.*?)^```$", (HOWTOS / document).read_text(encoding="utf-8"), re.M | re.S
    )
    return str(block)


def python(*words: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=100, cwd=cwd,
        env={**os.environ, **python_env(), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[TandemCluster]:
    with TandemCluster() as running:
        yield running


def test_the_picture_of_a_trace_is_what_the_program_draws(
    cluster: TandemCluster, tmp_path: Path
) -> None:
    pytest.importorskip(
        "opentelemetry.sdk", reason="pip install 'tandemmq[otel]' opentelemetry-sdk"
    )
    cluster.create_topic("Orders")
    text = program("traces.md", "traced.py").replace(USUAL, cluster.namesrv)
    assert python("-c", text + EXPORTED, cwd=tmp_path) == printed("traces.md")
    bars = [Bar(*each) for each in json.loads((tmp_path / "spans.json").read_text())]
    now = drawn(bars)
    if pictures := os.environ.get("TANDEM_PICTURES"):
        (REPOSITORY / pictures / "trace.svg").write_text(now, encoding="utf-8")
    kept = (PICTURES / "trace.svg").read_text(encoding="utf-8")
    spans = re.compile(r'<text class="span".*?</text>')
    assert spans.findall(kept) == spans.findall(now), "times differ, what belongs to what does not"
    assert len(spans.findall(kept)) == len(printed("traces.md").splitlines())


def test_the_metrics_of_the_page_are_those_of_the_table() -> None:
    pytest.importorskip("opentelemetry", reason="pip install 'tandemmq[otel]'")
    from tandemmq.otel import names

    page = (HOWTOS / "traces.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(messaging\.[\w.]+)`", page, re.M)) == {
        each.name for each in names.METRICS
    }


def test_the_script_counts_what_it_sent(cluster: TandemCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("ScriptOrders")
    text = (
        program("scripts.md", "report.py").replace(USUAL, cluster.namesrv).replace("Orders", topic)
    )
    assert python("-c", text, cwd=tmp_path) == "983 orders\n"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for name in ("test_unit.py", "test_integration.py"):
        (tmp_path / name).write_text(program("test.md", name))
    said = python(
        "-m", "pytest", "-q", "-p", "tandemmq.testing.plugin", "--rootdir", str(tmp_path),
        cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )  # fmt: skip
    assert "4 passed" in said


def test_every_fixture_is_in_the_page_and_the_other_way_round() -> None:
    from tandemmq.testing import plugin

    page = (HOWTOS / "test.md").read_text(encoding="utf-8")
    there = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    fixtures = {
        name for name, value in vars(plugin).items()
        if type(value).__name__ == "FixtureFunctionDefinition" and not name.startswith("_")
    }  # fmt: skip
    assert fixtures - {"tandem_failover_cluster"} == there


def test_the_faststream_service_bills_its_order(cluster: TandemCluster, tmp_path: Path) -> None:
    pytest.importorskip("faststream", reason="pip install 'tandemmq[faststream]'")
    for topic in ("Orders", "Bills"):
        cluster.create_topic(topic)
    text = program("faststream.md", "service.py").replace(USUAL, cluster.namesrv)
    (tmp_path / "service.py").write_text(text)
    said = python("service.py", cwd=tmp_path)
    assert said.splitlines()[-1] == "order 17: 119.00"
