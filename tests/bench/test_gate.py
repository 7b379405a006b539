"""What a message costs in instructions, held against the committed figures; and that growth is seen, by its stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gate.__main__ import count, grown, interpreter, main, missing, recorded_figures
from bench.gate.stages import OTHER, read

DUMP = """\
version: 1
desc: Trigger: Client Request: send-8x64
positions: line
events: Ir

ob=(1) /here/cluster/broker/sending/_sendpath.cpython-311-x86_64-linux-gnu.so
fl=(1) ???
fn=(1) walk
0 70
+3 30
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=4 0
+1 1000
* 5

ob=(2)
fn=(2)
0 1000

ob=(3) /usr/lib/libpython3.11.so.1.0
fn=(3) eval
12 7
"""


def test_instructions_are_counted_where_they_were_spent_and_once() -> None:
    name, stages = read(DUMP.splitlines(keepends=True))
    assert name == "send-8x64"
    assert stages == {"parse and answer": 105, OTHER: 1000, "interpreter": 7}


def test_growth_beyond_a_tenth_names_load_and_stage() -> None:
    recorded = {"send": {"parse and answer": 6_000, "interpreter": 1_000}, "pull": {"read": 500}}
    assert (
        grown(
            {"send": {"parse and answer": 6_600, "interpreter": 1_100}, "pull": {"read": 1}},
            recorded,
        )
        == []
    )
    (sentence,) = grown(
        {"send": {"parse and answer": 6_100, "interpreter": 2_000}, "pull": {"read": 500}}, recorded
    )
    assert sentence == "send: 8,100 instructions a message, +16% over 7,000: interpreter by 1,000"
    assert grown({"send": recorded["send"]}, recorded) == ["pull: not counted any more"]


@pytest.mark.timeout(600)
def test_no_load_costs_a_tenth_more_than_recorded() -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    counted_with, recorded = recorded_figures()
    if counted_with != interpreter():
        pytest.skip(f"the figures were counted with {counted_with}, this is {interpreter()}")
    worse = grown(count(), recorded)
    assert not worse, "\n".join([*worse, "if it is worth it: python -m bench.gate --record"])


def test_who_cannot_count_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 2
    assert "apt-get install valgrind" in capsys.readouterr().err
