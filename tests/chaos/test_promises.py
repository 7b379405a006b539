"""What a power cut may take by the promises of a mode, and how figures and stalls of a run are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tandemmq.chaos.checking.lines import FAIL, OK, Delivered, Send
from tandemmq.chaos.gauges import metric_values
from tandemmq.chaos.promises import PowerCut, percentile, within_window, within_window_again
from tandemmq.chaos.survival import WINDOW_MS
from tandemmq.chaos.traffic import Probe, Stall, stalls_between, writable_after
from tandemmq.replication.config import Mode


def test_metric_values_are_found_by_their_whole_name() -> None:
    text = '# HELP lag x\nlag{slave="1 a"} 5.0\nlag{slave="2"} 7\nlag_total 9\nlonely 3\n'
    assert list(metric_values(text, "lag")) == [5.0, 7.0]
    assert list(metric_values(text, "lonely")) == [3.0]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5.0), (0.99, 10.0), (0.0, 1.0), (1.0, 10.0)])
def test_percentiles_are_by_nearest_rank(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(10, 0, -1)], share) == expected
    assert percentile([], share) == 0.0


def test_stalls_are_those_that_touch_the_stretch_longest_first() -> None:
    stalls = [Stall(0, 10), Stall(20, 50), Stall(55, 60), Stall(90, 99)]
    assert stalls_between(stalls, 9, 60) == [Stall(20, 50), Stall(0, 10), Stall(55, 60)]


def probes(*looks: tuple[int, bool]) -> list[Probe]:
    """(begin, whether it succeeded); each takes 3 ns."""
    made = []
    for began_ns, ok in looks:
        probe = Probe(began_ns)
        probe.ended_ns, probe.ok = began_ns + 3, ok
        made.append(probe)
    return made


def test_writable_again_is_the_end_of_the_first_success_after_the_fault() -> None:
    looks = probes((90, True), (110, False), (120, True), (130, True))
    assert writable_after(looks, 100, 50) == 123


def test_a_success_with_a_failure_soon_behind_it_does_not_count() -> None:
    looks = probes((110, True), (120, False), (130, True), (140, True))
    assert writable_after(looks, 100, 50) == 133


def test_a_failure_long_after_the_success_is_another_fault() -> None:
    looks = probes((110, True), (140, True), (200, False), (210, True))
    assert writable_after(looks, 100, 50) == 113


def test_without_any_success_it_is_not_writable() -> None:
    assert writable_after(probes((90, True), (110, False)), 100, 50) is None


# --- power cuts

SECOND_NS = 1_000_000_000
BEFORE_NS = WINDOW_MS * 1_000_000


def acked(at_ns: int, copies: int = 2) -> Send:
    return Send("a" * 32, "T", 0, 1, 1, 1, at_ns - 5, at_ns, OK, 0, "a:1", copies=copies)


@pytest.mark.parametrize(
    ("mode", "cut", "copies", "excused"),
    [
        (Mode.A0, PowerCut(10 * SECOND_NS, 1, False), 1, True),
        (Mode.A0, PowerCut(10 * SECOND_NS, 2, True), 1, True),
        (Mode.A1, PowerCut(10 * SECOND_NS, 1, False), 1, False),
        (Mode.A1, PowerCut(10 * SECOND_NS, 2, True), 1, False),
        (Mode.S0, PowerCut(10 * SECOND_NS, 1, False), 2, False),
        (Mode.S0, PowerCut(10 * SECOND_NS, 1, False), 1, True),  # it said that it was the only copy
        (Mode.S0, PowerCut(10 * SECOND_NS, 2, True), 2, True),
        (Mode.S1, PowerCut(10 * SECOND_NS, 2, True), 1, False),
        (Mode.S1, PowerCut(10 * SECOND_NS, 1, False), 1, False),
    ],
)
def test_a_power_cut_excuses_what_the_mode_says(
    mode: Mode, cut: PowerCut, copies: int, excused: bool
) -> None:
    late = acked(10 * SECOND_NS - BEFORE_NS, copies)
    assert bool(within_window([late], [cut], mode)) == excused
    assert not within_window([late], [], mode)


def test_a_power_cut_excuses_nothing_older_than_the_window_nothing_later_and_nothing_refused() -> (
    None
):
    cut = PowerCut(10 * SECOND_NS, 2, True)
    assert not within_window([acked(8 * SECOND_NS)], [cut], Mode.S0)
    later = acked(10 * SECOND_NS + 6)
    assert not within_window([later], [cut], Mode.S0)
    assert within_window([later], [cut._replace(done_ns=later.began_ns)], Mode.S0)
    refused = replace(acked(10 * SECOND_NS), outcome=FAIL)
    assert not within_window([refused], [cut], Mode.S0)


@pytest.mark.parametrize(("mode", "excused"), [(Mode.S0, True), (Mode.A0, True), (Mode.S1, False)])
def test_a_power_cut_may_take_a_copy_of_a_delayed_message_that_was_just_delivered(
    mode: Mode, excused: bool
) -> None:
    cut = PowerCut(10 * SECOND_NS, 2, True)
    copy = Delivered("T", 0, 0, "a" * 32, 0, 10 * SECOND_NS - BEFORE_NS)
    assert bool(within_window_again([copy], [cut], mode)) == excused
    assert not within_window_again([replace(copy, at_ns=8 * SECOND_NS)], [cut], mode)
    assert not within_window_again([replace(copy, at_ns=11 * SECOND_NS)], [cut], mode)
