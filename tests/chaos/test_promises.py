"""The checkers of replicated groups find each planted violation, and nothing in a history that is right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Delivered, Seen, Send
from tandemmq.chaos.gauges import metric_values
from tandemmq.chaos.promises import (
    Cut,
    FinalLog,
    Freeze,
    LagSample,
    PowerCut,
    Queue,
    Stored,
    check_cuts,
    check_delayed,
    check_deliveries,
    check_epochs,
    check_exported_lag,
    check_log,
    check_order,
    check_seen,
    check_sends,
    limited,
    lost,
    percentile,
    within_window,
    within_window_again,
)
from tandemmq.chaos.survival import WINDOW_MS
from tandemmq.chaos.traffic import Probe, Stall, stalls_between, writable_after
from tandemmq.replication.config import Mode

HASH = "00112233aabbccdd"
QUEUE: Queue = ("T", 0)
SIZE = 100


def unique(number: int) -> str:
    return f"{number:016x}{HASH}"


def final(*numbers: int) -> FinalLog:
    """One queue with these messages, one after the other from offset 0 of the log."""
    stored = [Stored(at, unique(n), at * SIZE, SIZE, HASH) for at, n in enumerate(numbers)]
    return FinalLog({QUEUE: stored})


def send(number: int, at: int = -1, outcome: str = OK, **more: int | str) -> Send:
    """An attempt that took 5 ns from 10 * number on; acknowledged at queue offset `at`."""
    began = 10 * number
    made = Send(unique(number), "T", 0, 1, number, 1, began, began + 5, outcome, 0, "a:1")
    if outcome == OK:
        made = replace(made, queue_offset=at, offset=at * SIZE, epoch=1, copies=2, durable=0)
    return replace(made, **more)


def kinds(problems: Sequence[str]) -> list[str]:
    return [problem.split()[0] for problem in problems]


RIGHT = [send(1, 0), send(2, outcome=INFO), send(3, 1), send(4, 2), send(5, outcome=FAIL, code=14)]


def test_a_right_history_has_no_problems() -> None:
    log = final(1, 3, 4)
    seen = [Seen("T", 0, 0, (unique(1), unique(3)), "a:1", 50)]
    assert not [
        *check_log(log),
        *check_sends(RIGHT, log),
        *check_order(RIGHT, log),
        *check_seen(seen, log),
        *check_epochs(RIGHT, [(1, 0)]),
    ]


def test_an_indefinite_send_may_be_there_or_not() -> None:
    sends = [send(1, 0), send(2, outcome=INFO)]
    assert not [*check_sends(sends, final(1)), *check_sends(sends, final(1, 2))]


def test_an_acknowledged_message_that_is_missing_is_lost() -> None:
    (problem,) = check_sends([send(1, 0), send(2, 1)], final(1))
    assert problem.startswith("LOST queue ends at 1")


def test_an_acknowledged_offset_that_holds_another_message_is_reused() -> None:
    (problem,) = check_sends([send(1, 0), send(2, 0)], final(2))
    assert problem.startswith(f"LOST and its queue offset REUSED by {unique(2)}")


def test_two_acknowledgements_of_one_offset_are_reported_even_if_one_message_moved() -> None:
    problems = list(check_sends([send(1, 0), send(2, 0)], final(1, 2)))
    assert kinds(problems) == ["MOVED", "REUSED"]


def test_an_acknowledged_message_elsewhere_in_the_log_is_reported() -> None:
    (problem,) = check_sends([send(1, 0, offset=77)], final(1))
    assert problem.startswith("MOVED in the log to 0")


def test_an_acknowledged_message_in_another_queue_is_reported() -> None:
    (problem,) = check_sends([send(1, 0, queue_id=3)], final(1))
    assert problem.startswith("MOVED to ('T', 0) 0")


def test_a_refused_message_that_is_there_is_reported() -> None:
    (problem,) = check_sends([send(1, outcome=FAIL, code=14)], final(1))
    assert problem.startswith("ABORTED refused with 14 and yet stored")


def test_a_message_that_nobody_sent_is_a_phantom() -> None:
    (problem,) = check_sends([send(1, 0)], final(1, 9))
    assert problem.startswith(f"PHANTOM {unique(9)}")


def test_an_acknowledgement_that_came_late_is_a_promise_too() -> None:
    sends = [send(1, outcome=INFO), send(1, 0)]
    assert kinds(list(check_sends(sends, final()))) == ["LOST"]


def test_a_loss_that_was_declared_is_no_problem_but_counted() -> None:
    sends = [send(1, 0), send(2, 1), send(3, 1)]
    log = final(1, 3)
    assert not list(check_sends(sends, log, frozenset({unique(2)})))
    assert [each.unique_id for each in lost(sends, log)] == [unique(2)]


def test_a_cut_whose_count_is_not_that_of_its_file_is_reported() -> None:
    right = Cut(0, 200, 2, 2, frozenset({unique(1), unique(2)}))
    wrong = Cut(200, 300, 2, 1, frozenset({unique(3)}))
    assert kinds(list(check_cuts([right, wrong]))) == ["MISCOUNTED"]


def test_a_loss_beyond_the_exported_lag_is_reported() -> None:
    gone = [send(1, 5), send(2, 6), send(3, 9)]
    sample = LagSample(at_ns=30, epoch=1, end=7 * SIZE, lag=SIZE)
    (problem,) = check_exported_lag(gone, [LagSample(5, 1, 0, 0), sample, LagSample(90, 2, 0, 0)])
    assert problem.startswith("HIDDEN")
    assert unique(1) in problem  # 2 lies in the lag, 3 was acknowledged after the sample


def test_metric_values_are_found_by_their_whole_name() -> None:
    text = '# HELP lag x\nlag{slave="1 a"} 5.0\nlag{slave="2"} 7\nlag_total 9\nlonely 3\n'
    assert list(metric_values(text, "lag")) == [5.0, 7.0]
    assert list(metric_values(text, "lonely")) == [3.0]


def test_a_queue_with_a_gap_is_reported() -> None:
    stored = [Stored(0, unique(1), 0, SIZE, HASH), Stored(2, unique(2), SIZE, SIZE, HASH)]
    assert kinds(list(check_log(FinalLog({QUEUE: stored})))) == ["GAP"]


def test_a_message_twice_in_the_log_is_reported() -> None:
    assert kinds(list(check_log(final(1, 2, 1)))) == ["REPEATED"]


def test_a_queue_against_the_order_of_the_log_is_reported() -> None:
    stored = [Stored(0, unique(1), 500, SIZE, HASH), Stored(1, unique(2), 0, SIZE, HASH)]
    assert kinds(list(check_log(FinalLog({QUEUE: stored})))) == ["ORDER"]


def test_a_damaged_body_is_reported() -> None:
    stored = [Stored(0, unique(1), 0, SIZE, "ff" * 8)]
    assert kinds(list(check_log(FinalLog({QUEUE: stored})))) == ["DAMAGED"]


def test_a_message_in_front_of_one_acknowledged_before_it_was_sent_is_out_of_order() -> None:
    sends = [send(1, 1), send(2, 0)]
    (problem,) = check_order(sends, final(2, 1))
    assert problem.startswith("ORDER")


def test_sends_that_overlap_may_lie_in_any_order() -> None:
    overlapping = [send(1, 1, ended_ns=25), send(2, 0)]
    assert not list(check_order(overlapping, final(2, 1)))


def test_an_indefinite_send_may_be_stored_later() -> None:
    sends = [send(1, outcome=INFO), send(2, 0)]
    assert not list(check_order(sends, final(2, 1)))


def test_a_message_that_was_read_and_is_gone_has_vanished() -> None:
    seen = [Seen("T", 0, 0, (unique(1), unique(2)), "b:1", 50)]
    (problem,) = check_seen(seen, final(1))
    assert problem.startswith(
        f"VANISHED {unique(2)} was read at ('T', 0) 1 from b:1, there is nothing"
    )


def test_a_message_that_was_read_at_an_offset_with_another_one_now_has_vanished() -> None:
    (problem,) = check_seen([Seen("T", 0, 0, (unique(2),), "b:1", 50)], final(1))
    assert problem.endswith(f"there is {unique(1)} now")


def test_what_was_read_and_declared_lost_is_no_problem() -> None:
    seen = [Seen("T", 0, 0, (unique(2),), "b:1", 50)]
    assert not list(check_seen(seen, final(1), frozenset({unique(2)})))


def test_two_brokers_in_one_epoch_are_two_masters() -> None:
    sends = [send(1, 0), send(2, 1, broker="b:1")]
    assert kinds(list(check_epochs(sends, [(1, 0)]))) == ["TWO"]


def test_an_old_epoch_after_a_newer_one_is_reported() -> None:
    sends = [send(1, 0, epoch=2, broker="b:1"), send(2, 1, epoch=1)]
    assert kinds(list(check_epochs(sends, []))) == ["OLD"]


def test_an_old_epoch_whose_send_had_begun_before_is_right() -> None:
    sends = [send(1, 0, ended_ns=60), send(2, 1, epoch=2, broker="b:1")]
    assert not list(check_epochs(sends, []))


def test_an_old_epoch_that_acknowledges_much_later_is_reported_though_its_send_had_begun_before() -> (
    None
):
    newer = send(2, 1, epoch=2, broker="b:1")
    sends = [send(1, 0, ended_ns=newer.ended_ns + 1_100_000_000), newer]
    (problem,) = check_epochs(sends, [])
    assert problem.startswith("OLD EPOCH acknowledged 1100 ms after")


def test_an_answer_of_a_broker_that_was_frozen_before_it_could_write_it_is_no_problem() -> None:
    newer = send(20, 1, epoch=2, broker="b:1")
    early = send(1, 0, ended_ns=newer.ended_ns + 1_100_000_000)
    within = send(5, 2, ended_ns=newer.ended_ns + 1_100_000_000)
    (problem,) = check_epochs([early, within, newer], [], freezes=[Freeze("a:1", 30)])
    assert unique(5) in problem  # it was sent to a frozen broker, which decided when it woke up
    assert len(list(check_epochs([early, newer], [], freezes=[Freeze("b:1", 30)]))) == 1


def test_an_old_epoch_is_excused_for_what_was_set_aside_and_for_nothing_else() -> None:
    """An asynchronous master without a controller goes on: what it acknowledged then is cut and declared."""
    newer = send(1, 0, epoch=2, broker="b:1")
    given_up, kept = send(2, 1), send(3, 2)
    problems = list(check_epochs([newer, given_up, kept], [], given_up=frozenset({unique(2)})))
    assert kinds(problems) == ["OLD"]
    assert unique(3) in problems[0]


def test_an_acknowledgement_with_another_epoch_than_the_file_is_reported() -> None:
    reigns = [(1, 0), (2, SIZE)]
    assert kinds(list(check_epochs([send(1, 0), send(2, 1)], reigns))) == ["EPOCH"]


def test_only_the_first_problems_of_a_kind_are_kept() -> None:
    kept = limited([*(f"LOST {n}" for n in range(15)), "GAP 1"], 10)
    assert len(kept) == 12
    assert kept[-1] == "LOST and 5 more of this kind"


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


# --- deliveries


def given(number: int, at: int) -> Delivered:
    return Delivered("T", 0, at, unique(number), 0, 99)


def test_what_was_delivered_once_or_more_often_is_no_problem() -> None:
    assert not [*check_deliveries([given(1, 0), given(3, 1), given(1, 0)], final(1, 3))]


def test_a_message_that_is_there_and_was_never_delivered_is_skipped() -> None:
    assert kinds([*check_deliveries([given(1, 0), given(4, 2)], final(1, 3, 4))]) == ["SKIPPED"]


def test_a_delivered_message_that_is_gone_has_vanished_unless_its_loss_was_declared() -> None:
    delivered = [given(1, 0), given(2, 1)]
    assert kinds([*check_deliveries(delivered, final(1))]) == ["VANISHED"]
    assert not [*check_deliveries(delivered, final(1), frozenset({unique(2)}))]


def test_a_message_delivered_at_another_place_than_it_lies_has_vanished_from_there() -> None:
    assert kinds([*check_deliveries([given(1, 0), given(2, 0)], final(1, 2))]) == ["VANISHED"]


def test_delayed_messages_come_to_their_topic_once_or_twice() -> None:
    sends = [send(1, 0), send(2, outcome=INFO), send(3, 1)]
    assert not [*check_delayed(sends, final(1, 3, 1))]
    assert kinds([*check_delayed(sends, final(3))]) == ["UNDELIVERED"]
    assert not [*check_delayed(sends, final(3), frozenset({unique(1)}))]


def test_a_delayed_message_that_was_refused_or_never_sent_is_found() -> None:
    sends = [send(1, 0), send(5, outcome=FAIL)]
    assert kinds([*check_delayed(sends, final(1, 5, 6))]) == ["ABORTED", "PHANTOM"]


def test_a_late_acknowledgement_of_a_delayed_message_counts() -> None:
    sends = [send(1, outcome=INFO), send(1, 0), send(1, outcome=INFO)]
    assert kinds([*check_delayed(sends, final())]) == ["UNDELIVERED"]


# --- power cuts

SECOND_NS = 1_000_000_000
BEFORE_NS = WINDOW_MS * 1_000_000


def acked(at_ns: int, copies: int = 2) -> Send:
    return send(1, 0, began_ns=at_ns - 5, ended_ns=at_ns, copies=copies)


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
    copy = replace(given(1, 0), at_ns=10 * SECOND_NS - BEFORE_NS)
    assert bool(within_window_again([copy], [cut], mode)) == excused
    assert not within_window_again([replace(copy, at_ns=8 * SECOND_NS)], [cut], mode)
    assert not within_window_again([replace(copy, at_ns=11 * SECOND_NS)], [cut], mode)
