"""The stock Go client sends, pushes and pulls unchanged."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients import Cluster

from tandemmq.chaos.asking import routed
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import REPOSITORY

SOURCES = Path(__file__).parent / "go"
CACHE = REPOSITORY / ".cache" / "go"
RUN_S = 120
COUNT = 6
KINDS = ("sync", "async", "oneway", "batch")
EVERYTHING = COUNT * len(KINDS) + 1  # and a large one

Go = Callable[..., list[dict[str, Any]]]
_serial = itertools.count(1)


def go_missing() -> str | None:
    if shutil.which("go") is None:
        return "go not on the PATH: install Go 1.21 or later (https://go.dev/dl/)"
    return None


@pytest.fixture(scope="session")
def go_program() -> Path:
    """Our Go program, built once per content of its sources."""
    if reason := go_missing():
        pytest.skip(reason)
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    program = CACHE / f"compat-{digest.hexdigest()[:12]}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-o", str(program), "."]
        run = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    return program


@pytest.fixture
def go(go_program: Path, cluster: Cluster) -> Go:
    """Runs one action of the program and returns its lines."""

    def act(do: str, topic: str, **options: object) -> list[dict[str, Any]]:
        command = [str(go_program), "-do", do, "-namesrv", cluster.name_server, "-topic", topic]
        for name, value in options.items():
            command += [f"-{name}", str(value)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
        assert run.returncode == 0, run.stderr[-4000:]
        return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]

    return act


@pytest.fixture
def filled(go: Go, cluster: Cluster) -> tuple[str, list[dict[str, Any]]]:
    """A topic that the Go producer made and filled, and the answers it got."""
    topic = f"GoTopic_{next(_serial)}"
    answers = go("send", topic, count=COUNT)
    wait_until(lambda: routed(cluster.name_server, topic), 10, f"route of {topic}")
    return topic, answers


def bodies(kinds: tuple[str, ...] = KINDS) -> list[str]:
    return [f"{kind} {number}" for kind in kinds for number in range(COUNT)]


def test_every_way_of_sending_is_answered_and_a_push_consumer_gets_all(
    go: Go, filled: tuple[str, list[dict[str, Any]]], cluster: Cluster
) -> None:
    topic, answers = filled
    assert Counter(a["kind"] for a in answers) == {
        "sync": COUNT,
        "async": COUNT,
        "batch": 1,
        "large": 1,
    }
    assert all(answer["ok"] for answer in answers)
    got = go("push", topic, group=f"Push{topic}", count=EVERYTHING)
    assert sorted(m["body"] for m in got if m["tags"] != "large") == sorted(bodies())
    (large,) = [m for m in got if m["tags"] == "large"]
    assert large["body"] == "large 0" + " deflate me" * 1000
    assert {m["from"] for m in got} == {"gö"}
    assert {m["storeHost"] for m in got} == {cluster.broker.address}
    places = {(m["queueId"], m["queueOffset"]): m for m in got}
    for answer in answers:
        if answer["kind"] in ("sync", "async", "large"):
            assert places[answer["queueId"], answer["queueOffset"]]["msgId"] == answer["msgId"]


def test_tags_choose_and_failed_messages_come_again(
    go: Go, filled: tuple[str, list[dict[str, Any]]]
) -> None:
    topic, _ = filled
    got = go("push", topic, group=f"Tags{topic}", tags="sync || async", count=2 * COUNT)
    assert sorted(m["body"] for m in got) == sorted(bodies(("sync", "async")))
    # The group's retry topic must be there before: the Go client looks for it every 30 s.
    go("send", f"{topic}_known", count=1)
    go("push", f"{topic}_known", group=f"Fail{topic}", count=1)
    again = go("push", topic, group=f"Fail{topic}", tags="batch", fail=1, count=2 * COUNT)
    tries = Counter((m["body"], m["reconsumeTimes"]) for m in again)
    assert tries == {(body, times): 1 for body in bodies(("batch",)) for times in (0, 1)}


def test_properties_choose(go: Go, filled: tuple[str, list[dict[str, Any]]]) -> None:
    topic, _ = filled
    sql = "TAGS IN ('sync', 'async') AND from = 'gö' AND NOT (KEYS ENDSWITH '-0')"
    got = go("push", topic, group=f"Sql{topic}", sql=sql, count=2 * COUNT - 2)
    assert sorted(m["body"] for m in got) == sorted(
        body for body in bodies(("sync", "async")) if not body.endswith(" 0")
    )


def test_an_orderly_consumer_sees_each_queue_in_order(
    go: Go, filled: tuple[str, list[dict[str, Any]]]
) -> None:
    topic, _ = filled
    got = go("orderly", topic, group=f"Order{topic}", count=EVERYTHING)
    for queue_id in {m["queueId"] for m in got}:
        offsets = [m["queueOffset"] for m in got if m["queueId"] == queue_id]
        assert offsets == list(range(len(offsets)))


def test_pull_consumers_poll_and_read_from_an_offset(
    go: Go, filled: tuple[str, list[dict[str, Any]]], cluster: Cluster
) -> None:
    topic, answers = filled
    got = go("poll", topic, group=f"Poll{topic}", count=EVERYTHING)
    assert sorted(m["body"] for m in got if m["tags"] != "large") == sorted(bodies())
    queue_id = answers[0]["queueId"]
    wanted = sorted(m["queueOffset"] for m in got if m["queueId"] == queue_id)
    pulled = go(
        "pullfrom", topic, group=f"From{topic}", count=len(wanted), queue=queue_id,
        broker=cluster.broker.broker_name,
    )  # fmt: skip
    assert [m["queueOffset"] for m in pulled] == wanted


def test_transactions_are_ended_and_asked_for(go: Go, cluster: Cluster) -> None:
    topic = f"GoTopic_{next(_serial)}"
    said = go("tx", topic, count=COUNT, group="GoTransactions")
    assert all(line["ok"] for line in said if line["kind"] != "asked")
    asked = {(line["topic"], line["body"]) for line in said if line["kind"] == "asked"}
    assert asked == {(topic, f"later {n}") for n in range(COUNT)}
    got = go("push", topic, count=2 * COUNT, group="GoReaders")
    bodies_got = sorted(line["body"] for line in got if "body" in line)
    assert bodies_got == sorted(f"{kind} {n}" for kind in ("commit", "later") for n in range(COUNT))
