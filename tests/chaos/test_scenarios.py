"""Scenarios without processes: schedules, shapes of partitions, what counts as evidence, reports, campaigns."""

from __future__ import annotations

import argparse
import json
import random
import signal
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tandemmq.chaos.checking.findings import INVALID, VALID, Finding, Judgement
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.checking.lines import Event, Send, encode_line
from tandemmq.chaos.checking.made import MS, TOPIC, MadeUp, lines, write
from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, Unsupported
from tandemmq.chaos.faults.flows import FlowMeter, parse_sockets
from tandemmq.chaos.faults.grudges import (
    SHAPES,
    alone,
    between,
    bridge,
    drawn,
    halves,
    one_way,
    ring,
)
from tandemmq.chaos.faults.toxiproxy import VARIABLE, find_server
from tandemmq.chaos.scenarios import campaigning, command
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.containers import addresses_of
from tandemmq.chaos.scenarios.handles import parse_handle
from tandemmq.chaos.scenarios.reports.report import HTML, JSON, write_report
from tandemmq.chaos.scenarios.reports.timeline import timeline
from tandemmq.chaos.scenarios.run import WORDS, Played
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.scenarios.stages import STAGES, stages_here
from tandemmq.chaos.verdict import HISTORY

NODES = ["names", "replica 0", "replica 1", "replica 2"]


class Told(Fault):
    """A fault of a test. fails: where it raises."""

    kind = "told"

    def __init__(self, fails: str = "") -> None:
        super().__init__("somebody")
        self.fails = fails
        self.done: list[str] = []

    def describe(self) -> str:
        return "something happens to somebody"

    async def inject(self) -> str:
        self.done.append("inject")
        if self.fails == "inject":
            raise NoEffect("nothing shows it")
        return "seen"

    async def heal(self) -> str:
        self.done.append("heal")
        if self.fails == "heal":
            raise NotHealed("it goes on")
        return "over"


class Log:
    def __init__(self) -> None:
        self.phases: list[str] = []

    def event(self, what: str, **fields: object) -> None:
        assert what == "fault"
        self.phases.append(str(fields["phase"]))


async def test_a_fault_says_what_it_does_shows_it_and_its_end_and_nests() -> None:
    log = Log()
    outer, inner = Told(), Told()
    outer.log = inner.log = log
    async with outer, inner:
        assert outer.story.evidence == inner.story.evidence == "seen"
        assert not outer.story.effective
    assert outer.story.effective and inner.story.effective
    assert log.phases == ["start", "effect", "start", "effect", "heal", "healed", "heal", "healed"]
    assert outer.story.says == "something happens to somebody"


async def test_a_fault_without_effect_is_taken_back_all_the_same() -> None:
    fault, fault.log = Told("inject"), Log()  # type: ignore[misc]
    with pytest.raises(NoEffect):
        async with fault:
            pytest.fail("it had no effect")
    assert fault.done == ["inject", "heal"]
    assert not fault.story.effective
    assert "nothing shows it" in fault.story.problem


async def test_a_fault_that_does_not_end_says_so() -> None:
    fault = Told("heal")
    with pytest.raises(NotHealed):
        async with fault:
            pass
    assert not fault.story.effective


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_schedule_is_drawn_from_its_seed_and_can_be_read_again(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    schedule = scenario.schedule(7)
    assert schedule == scenario.schedule(7)
    assert len(schedule.steps) == scenario.steps
    assert schedule.stage in STAGES
    schedule.write(tmp_path / "schedule.json")
    assert Schedule.read(tmp_path / "schedule.json") == schedule
    assert "{" not in str(schedule.steps[0])


def test_what_every_stage_needs_is_known_and_looked_for() -> None:
    assert stages_here().keys() == STAGES.keys()
    assert {each.stage for each in SCENARIOS.values()} == set(STAGES)


def test_another_seed_draws_another_schedule() -> None:
    assert len({str(SCENARIOS["kill"].schedule(seed)) for seed in range(20)}) > 10


def test_a_slow_network_slows_clients_as_well_as_replicas() -> None:
    def slowed(steps: int | None) -> list[tuple[str, object]]:
        planned = SCENARIOS["slow-network"].schedule(7, steps).steps
        return [(fault.kind, fault.with_["links"]) for step in planned for fault in step.faults]

    assert {links for _, links in slowed(2)} == {"clients", "stream"}, "however short it is"
    assert set(slowed(None)) == {
        (kind, links)
        for kind in ("latency", "bandwidth", "slicing")
        for links in ("clients", "stream")
    }


def heard(pairs: frozenset[tuple[str, str]], one: str) -> set[str]:
    return {each for each in NODES if each != one and (each, one) not in pairs}


def test_partitions_have_the_shape_that_they_are_named_after() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        assert heard(alone("names", NODES), "names") == set()
        for pairs, wanted in (
            (halves(rng, NODES), [0, 2, 2, 2]),
            (bridge(rng, NODES), [1, 2, 2, 3]),
            (ring(rng, NODES), [2, 2, 2, 2]),
        ):
            assert sorted(len(heard(pairs, each)) for each in NODES) == wanted
    deaf = one_way("names", NODES)
    assert heard(deaf, "names") == set(NODES) - {"names"}
    assert "names" not in heard(deaf, "replica 0")
    assert between({"a"}, {"a", "b"}) == {("a", "b"), ("b", "a")}
    for shape in SHAPES:
        assert drawn(shape, random.Random(1), NODES, "replica 0")


SS = """\
0 0 127.0.0.2:100 127.0.0.1:4000 users:(("server",pid=7,fd=3)) bytes_sent:10 bytes_received:500 data_segs_out:2
0 0 127.0.0.1:5000 127.0.0.1:100 users:(("server",pid=7,fd=4)) bytes_sent:500 bytes_received:10 data_segs_out:3
0 0 127.0.0.1:5001 127.0.0.1:100 users:(("other",pid=8,fd=4)) bytes_sent:900 bytes_received:10 data_segs_out:3
"""


async def test_what_passes_a_proxy_is_counted_by_its_own_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = SS
    assert len(parse_sockets(text, 7)) == 2

    async def found(pid: int) -> object:
        return parse_sockets(text, pid)

    monkeypatch.setattr("tandemmq.chaos.faults.flows.sockets", found)
    meter = FlowMeter(7, "127.0.0.2:100", "127.0.0.1:100")
    first = await meter.look()
    assert (first.up_in, first.up_out) == (0, 0)
    text = text.replace("bytes_received:500", "bytes_received:800")
    now = await meter.look()
    assert now.side(True) == (300, 0, 0)
    text = ""  # a connection that ended keeps its counts
    assert (await meter.look()).up_in == 300


def test_a_proxy_server_that_is_not_there_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/server")
    with pytest.raises(Unsupported, match="no program"):
        find_server()


def played(directory: Path, judgement: Judgement | None = None) -> Played:
    made = MadeUp(queues=2, messages=1200)
    write(directory / HISTORY, made)
    return Played(
        SCENARIOS["kill"].schedule(3),
        "local",
        directory,
        judgement or judge_history(directory / HISTORY),
    )


def test_a_report_is_one_file_that_shows_the_fault_and_the_verdict(tmp_path: Path) -> None:
    told = write_report(played(tmp_path))
    assert told["verdict"] == VALID
    assert told == json.loads((tmp_path / JSON).read_text())
    assert told["faults"][0]["says"] == "kill -9 of replica 0"
    assert told["faults"][0]["lasted_ms"] == pytest.approx(499)
    text = (tmp_path / HTML).read_text()
    assert "http" not in text.replace("http-equiv", ""), "it loads nothing"
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    assert len(ET.fromstring(svg)) > 20
    assert "None was lost" in text


def test_a_report_of_a_broken_promise_shows_the_operations_around_it(tmp_path: Path) -> None:
    made = MadeUp(queues=2, messages=400)
    text = [encode_line(each) + b"\n" for each in lines(made)]
    lost = next(at for at, each in enumerate(text) if each.startswith(b'["final"'))
    path = tmp_path / HISTORY
    path.write_bytes(b"".join(text[:lost] + text[lost + 1 :]))
    judgement = judge_history(path)
    assert judgement.word == INVALID
    run = Played(SCENARIOS["kill"].schedule(3), "local", tmp_path, judgement)
    write_report(run)
    page = (tmp_path / HTML).read_text()
    assert "INVALID" in page
    assert "C-5" in page
    assert "nothing there" in page
    assert "None was lost" not in page


def test_what_is_shown_is_escaped(tmp_path: Path) -> None:
    run = played(
        tmp_path,
        Judgement(INVALID, [Finding("C-1", "<script>x</script>")], ["<b>"], {"C-1": 1}, {}, 1, 1),
    )
    write_report(run)
    page = (tmp_path / HTML).read_text()
    assert "<script>" not in page
    assert "<li><b>" not in page


def test_an_outage_is_measured_from_the_acknowledgements(tmp_path: Path) -> None:
    made = MadeUp(queues=1, messages=1000)
    silent = range(made.kill_ns, made.kill_ns + 700 * MS)
    kept = [
        each
        for each in lines(made)
        if not (isinstance(each, Send) and each.topic == TOPIC and each.began_ns in silent)
    ]
    (tmp_path / HISTORY).write_bytes(b"".join(encode_line(each) + b"\n" for each in kept))
    found = timeline(tmp_path / HISTORY)
    assert found.longest_outage_ms == pytest.approx(710, abs=15)
    assert found.faults[0].silent_ms == pytest.approx(710, abs=15)


def test_silence_that_a_later_fault_made_is_not_the_earlier_ones(tmp_path: Path) -> None:
    second = 1000 * MS
    acknowledged = [at for at in range(0, 20 * second, 10 * MS) if not 5 * second < at < 8 * second]
    lines_of = [
        encode_line(Send("x", TOPIC, 0, 0, at, 0, at, at + MS, "ok", 0, "b")) for at in acknowledged
    ]
    for number, (began, over) in enumerate(((3 * second, 4 * second), (5 * second, 7 * second)), 1):
        for phase, at_ns in (("start", began), ("effect", began), ("heal", over), ("healed", over)):
            event = {
                "what": "fault",
                "number": number,
                "kind": "kill",
                "phase": phase,
                "at_ns": at_ns,
            }
            lines_of.append(encode_line(Event(event)))
    (tmp_path / HISTORY).write_bytes(b"".join(each + b"\n" for each in lines_of))
    first, later = timeline(tmp_path / HISTORY).faults
    assert first.silent_ms == pytest.approx(10)
    assert later.silent_ms == pytest.approx(3000, abs=20)


def test_a_report_without_any_history_is_written_too(tmp_path: Path) -> None:
    run = Played(SCENARIOS["kill"].schedule(3), "local", tmp_path, judge_history(tmp_path / "none"))
    assert write_report(run)["verdict"] == "unknown"
    assert "proves nothing" in (tmp_path / HTML).read_text()


def test_every_word_of_a_campaign_has_an_id_of_the_checkers() -> None:
    from tandemmq.chaos.checking.findings import CHECKS

    assert set(WORDS.values()) <= set(CHECKS)


def campaign_arguments(directory: Path, runs: int) -> argparse.Namespace:
    return argparse.Namespace(
        state=directory / "state.jsonl", only=["calm", "kill", "pause"], hours=1.0, runs=runs, seed=5, rate=100.0,
        table=directory / "table", keep=directory / "kept",
    )  # fmt: skip


def test_a_campaign_draws_by_weight_goes_on_where_it_was_and_keeps_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played_runs: list[tuple[int, str, int]] = []

    def one(number: int, name: str, seed: int, *_: object) -> campaigning.Result:
        played_runs.append((number, name, seed))
        return campaigning.Result(
            number,
            name,
            seed,
            "S0",
            "valid",
            3,
            1000,
            0,
            5000,
            10.0,
            (100.0, 200.0),
            {},
            "abc",
            "2026-11-27",
        )

    monkeypatch.setattr(campaigning, "one", one)
    said: list[str] = []
    assert campaigning.run_campaign(campaign_arguments(tmp_path, 6), said.append) == 0
    state = tmp_path / "state.jsonl"
    state.write_bytes(
        state.read_bytes() + b'{"number": 7, "sc'
    )  # it was ended in the middle of a line
    assert campaigning.run_campaign(campaign_arguments(tmp_path, 4), said.append) == 0
    drawn_runs = campaigning.drawn(5, ["calm", "kill", "pause"])
    assert played_runs == [(number, *next(drawn_runs)) for number in range(1, 11)]
    rows = (tmp_path / "table").read_text()
    assert "| **all** | S0 | 10 | 30 | 10,000 | 0 | 0 | 0 |" in rows
    assert "abc (2026-11-27)" in rows


def test_the_command_lists_what_is_possible_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in rows} == set(SCENARIOS)
    assert command.main(["list"]) == 0
    assert "kill -9 of masters" in capsys.readouterr().out


def test_wrong_usage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run"]) == 2
    (tmp_path / "x").touch()
    assert command.main(["run", "kill", "--report", str(tmp_path)]) == 2
    assert command.main(["run", "--replay", str(tmp_path / "x")]) == 2
    assert (
        command.main(
            ["run", "partition", "--target", "127.0.0.1:1", "--report", str(tmp_path / "new")]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert "tandem chaos list" in said
    assert "is not empty" in said
    assert "is no schedule" in said
    assert "needs more than a handle" in said
    assert command.main(["judge", str(tmp_path / "none")]) == 1


@pytest.mark.parametrize(
    "text", ["x", "127.0.0.1:1=pid:x", "127.0.0.1:1=host:3", "127.0.0.1:1=pid:999999999"]
)
def test_a_handle_that_means_nothing_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--handle"):
        parse_handle(text, tmp_path)


def test_sigterm_ends_a_run_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), command.ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_container_is_known_by_every_address_that_it_has() -> None:
    tree = {
        "NetworkSettings": {
            "Ports": {"10911/tcp": [{"HostPort": "10911"}], "10909/tcp": None},
            "Networks": {"tandem": {"IPAddress": "172.29.88.10"}, "down": {"IPAddress": ""}},
        }
    }
    assert addresses_of(tree) == ["172.29.88.10:10909", "172.29.88.10:10911"]
    with pytest.raises(Unsupported):
        parse_handle("127.0.0.1:1=container:tandem-no-such-container", Path("/nowhere"))


def test_an_event_of_a_fault_is_what_the_checkers_read() -> None:
    event = Event({"what": "fault", "number": 1, "kind": "kill", "phase": "start", "at_ns": 5})
    assert encode_line(event).startswith(b'["event",{"what":"fault"')
