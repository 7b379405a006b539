"""What a run serves of itself: a page that Prometheus reads, and the exporters of its brokers."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandemmq.chaos.faults.fault import FaultStory
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.scenarios import command
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.playing import Player
from tandemmq.chaos.scenarios.served import METRICS, PortTaken, Progress, page, serving


def values(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(each.labels.values()): each.value for each in family.samples}
        for family in text_string_to_metric_families(text)
    }


def progress_with(journal: Journal) -> Progress:
    made = Progress(SCENARIOS["kill"].schedule(7), "local", 2)
    made.player = Player(None, journal, lambda _: None)  # type: ignore[arg-type]
    made.player.stories = [
        FaultStory(1, "kill", victim="replica 0", began_ns=5, healed_ns=9),
        FaultStory(2, "pause", victim='a "replica"\n1', began_ns=5),
        FaultStory(3, "pause", victim="replica 0"),
    ]
    made.journal = journal
    made.exporters = {"replica 0": "127.0.0.1:4000"}
    return made


def test_a_page_says_what_is_broken_now_and_what_was_acknowledged(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.counts["ok"] = 17
        found = values(page(progress_with(journal), 0))
    assert found["tandem_chaos_fault_active"] == {
        ("kill", "replica 0"): 0, ("pause", 'a "replica"\n1'): 1, ("pause", "replica 0"): 0,
    }  # fmt: skip
    assert found["tandem_chaos_faults"] == {("kill",): 1, ("pause",): 2}
    assert found["tandem_chaos_sends"][("ok",)] == 17
    assert found["tandem_chaos_steps_done"] == {(): 2}
    assert found["tandem_chaos_run_info"] == {("kill", "7", "S0", "local"): 1}


def test_a_run_that_has_not_begun_has_a_page_too() -> None:
    found = values(page(Progress(SCENARIOS["calm"].schedule(1), "local"), 0))
    assert found.keys() == {
        "tandem_chaos_run_info",
        "tandem_chaos_steps",
        "tandem_chaos_steps_done",
    }
    assert all(text.endswith(".") for _, text in METRICS.values())


async def test_both_pages_are_served_and_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        progress = progress_with(journal)
        async with serving(progress, 0) as address, aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert "tandem_chaos_steps_done" in values(await answer.text())
            async with session.get(f"http://{address}/targets") as answer:
                (group,) = json.loads(await answer.text())
            assert group == {
                "targets": ["127.0.0.1:4000"],
                "labels": {"job": "tandem", "replica": "replica 0"},
            }
            port = address.rpartition(":")[2]
            with pytest.raises(PortTaken, match=port):
                async with serving(progress, int(port)):
                    pytest.fail("it is taken")


def test_the_port_is_an_option_of_a_run() -> None:
    assert command.parser().parse_args(["run", "kill", "--metrics-port", "0"]).metrics_port == 0
