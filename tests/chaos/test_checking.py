"""The checkers are tested first: every kind of wrong history gets the id of what it breaks, a correct one passes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from wronghistories import (
    LAST,
    MADE,
    MIDDLE,
    STRANGER,
    Change,
    Lines,
    again,
    calm,
    change,
    changed_without_cause,
    cut,
    drop,
    each,
    held,
    history,
    hole,
    judge,
    late_master,
    long_after,
    outage,
    swap,
)

from tandemmq.chaos.checking.__main__ import main
from tandemmq.chaos.checking.findings import CHECKS, INVALID, UNKNOWN, VALID
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.checking.linear import linearizable
from tandemmq.chaos.checking.lines import (
    FAIL,
    GIVEN_UP,
    INFO,
    Admin,
    Audit,
    Block,
    Commit,
    Declared,
    Delivered,
    Derived,
    EpochFile,
    Event,
    Extent,
    Holding,
    Line,
    Lookup,
    Route,
    Seen,
    Send,
    Taken,
    encode_line,
)
from tandemmq.chaos.checking.made import GROUP, MASTERS, MS, TIMED, TOPIC, MadeUp, lines, unique_id
from tandemmq.chaos.checking.windows import Windows

W, R = "write", "read"


def acknowledged_again(found: Lines) -> None:
    """A message was sent twice, and the second answer names the place of the next one."""
    at, send = each(found, Send, unique_id=unique_id(0, MIDDLE))[0]
    more = {
        "queue_offset": MIDDLE + 1,
        "began_ns": send.ended_ns + 1,
        "ended_ns": send.ended_ns + 2,
    }
    found.insert(at + 1, msgspec.structs.replace(send, **more))


def late_answer(found: Lines) -> None:
    """The old master's answer comes long after the new one had acknowledged something."""
    change(found, Send, {"unique_id": unique_id(0, 190)}, ended_ns=3900 * MS)


def hidden_loss(found: Lines) -> None:
    """A declared loss of what the master had said that its slave has."""
    cut(found, LAST)
    ends = {"what": "lag", "at_ns": 1 << 40, "epoch": 2, "end": 800 * 256, "lag": 0}
    found += [Event(ends), Declared((unique_id(0, LAST),), "set aside")]


#: name -> (the id it must get, what is done to a correct history)
WRONG: dict[str, tuple[str, Change]] = {
    "the last message is lost": ("C-1", lambda h: cut(h, LAST)),
    "the last hundred are lost on both replicas": ("C-1", lambda h: cut(h, LAST - 99)),
    "a message in the middle is lost": ("C-1", lambda h: hole(h, MIDDLE)),
    "another message lies in its place": ("C-1", lambda h: held(h, MIDDLE, unique_ids=STRANGER, hashes=STRANGER[16:])),
    "an acknowledged message of the other queue lies there": ("C-1", lambda h: held(h, 7, unique_ids=unique_id(1, 7))),
    "what lies there was never sent": ("C-2", lambda h: drop(h, Send, unique_id=unique_id(0, MIDDLE))),
    "a reader sees what was never sent": ("C-2", lambda h: h.append(Seen(TOPIC, 0, 400, (STRANGER,), "a:1", 0))),
    "a group is given what was never sent": (
        "C-2", lambda h: h.append(Delivered(TOPIC, 0, 400, STRANGER, 0, 5000 * MS, "", GROUP))),
    "a message was sent to the other queue": (
        "C-2", lambda h: change(h, Send, {"unique_id": unique_id(0, MIDDLE)}, queue_id=1)),
    "a refused send lies in the log": (
        "C-3", lambda h: change(h, Send, {"unique_id": unique_id(0, MIDDLE)}, outcome=FAIL, queue_offset=-1)),
    "a refused send was delivered": (
        "C-3", lambda h: change(h, Send, {"unique_id": unique_id(1, 9)}, outcome=FAIL, code=14)),
    "two replicas hold different messages at an offset": (
        "C-4", lambda h: held(h, MIDDLE, replica="replica 1", unique_ids=unique_id(0, MIDDLE + 1))),
    "a queue offset is acknowledged twice": (
        "C-4", lambda h: change(h, Send, {"unique_id": unique_id(0, 61)}, queue_offset=60)),
    "a reader once saw another message at an offset": (
        "C-4", lambda h: h.append(Seen(TOPIC, 0, MIDDLE, (unique_id(0, 51),), "b:1", 0, (), 7))),
    "a group was given another message at an offset": (
        "C-4", lambda h: change(h, Delivered, {"unique_id": unique_id(0, 61)}, queue_offset=62)),
    "two messages lie at one log offset": ("C-4", lambda h: held(h, 81, offsets=80 * 2 * 256)),
    "a replica has a hole": ("C-5", lambda h: hole(h, MIDDLE, replica="replica 1")),
    "a replica says it ends later than it does": (
        "C-5", lambda h: change(h, Extent, {"topic": TOPIC, "queue_id": 1}, end=LAST + 2)),
    "a replica holds more than it says": (
        "C-5", lambda h: change(h, Extent, {"topic": TOPIC, "queue_id": 1}, end=LAST)),
    "queue order is not log order": ("C-5", lambda h: held(h, 90, offsets=3)),
    "an acknowledgement names the wrong queue offset": (
        "C-6", lambda h: change(h, Send, {"unique_id": unique_id(0, MIDDLE)}, queue_offset=MIDDLE + 1)),
    "an acknowledgement names the wrong log offset": (
        "C-6", lambda h: change(h, Send, {"unique_id": unique_id(0, MIDDLE)}, offset=17)),
    "a second try was acknowledged where another message lies": ("C-6", acknowledged_again),
    "two neighbours are swapped": ("C-7", lambda h: swap(h, MIDDLE, MIDDLE + 1)),
    "two messages far apart are swapped": ("C-7", lambda h: swap(h, 10, 300)),
    "a reader goes back": (
        "C-8", lambda h: change(h, Seen, {"queue_id": 0, "first": 64}, first=63)),
    "a reader misses a stretch": ("C-8", lambda h: drop(h, Seen, queue_id=0, first=64)),
    "a member is given what another one reads": (
        "C-8", lambda h: change(h, Delivered, {"unique_id": unique_id(0, MIDDLE)}, member=1)),
    "a member is given one before its last": ("C-8", lambda h: again(h, 1, queue_offset=397, attempt=0)),
    "a member misses one": ("C-8", lambda h: drop(h, Delivered, unique_id=unique_id(0, MIDDLE))),
    "a message lies twice in the log": (
        "C-9", lambda h: held(h, 51, unique_ids=unique_id(0, 50), hashes=unique_id(0, 50)[16:])),
    "a message is given again without a cause": ("C-9", long_after),
    "progress goes back": (
        "C-10", lambda h: (calm(h), h.append(Commit(GROUP, TOPIC, 0, 1, MASTERS[1], 60_000 * MS)))[1]),
    "progress is beyond the end": (
        "C-10", lambda h: h.append(Commit(GROUP, TOPIC, 0, 4000, MASTERS[1], 60_000 * MS))),
    "progress went past a message that nobody was given": (
        "C-11", lambda h: drop(h, Delivered, unique_id=unique_id(0, 399))),
    "a queue was consumed by commits alone": (
        "C-11", lambda h: h.extend(
            [Commit("Idle", TOPIC, 0, 400, "a:1", 1), Delivered(TOPIC, 0, 399, unique_id(0, 399), 0, 1, "", "Idle")])),
    "a group was never given what it made no progress over": ("C-11", lambda h: (
        drop(h, Commit), drop(h, Delivered, unique_id=unique_id(1, MIDDLE)))[1]),
    "what a reader saw is gone": ("C-12", lambda h: (cut(h, 300), change(
        h, Send, {"unique_id": unique_id(0, 310)}, outcome=INFO))[1]),
    "what a group was given is gone": ("C-12", lambda h: (
        hole(h, MIDDLE), change(h, Send, {"unique_id": unique_id(0, MIDDLE)}, outcome=INFO),
        drop(h, Seen, first=32))[1]),
    "a body rotted in a store": ("C-13", lambda h: held(h, MIDDLE, replica="replica 1", hashes="00" * 8)),
    "a body was damaged on its way to a group": (
        "C-13", lambda h: change(h, Delivered, {"unique_id": unique_id(1, 3)}, body_hash="ff" * 8)),
    "a body was damaged on its way to a reader": (
        "C-13", lambda h: change(h, Seen, {"queue_id": 1, "first": 0}, hashes=("ab" * 8,))),
    "two masters in one epoch": (
        "C-14", lambda h: change(h, Send, {"unique_id": unique_id(0, MIDDLE)}, broker="c:1")),
    "an old master acknowledges after the new one": ("C-14", late_master),
    "an old master's answer comes long after the new one's": ("C-14", late_answer),
    "the epoch file names another writer": (
        "C-14", lambda h: change(h, EpochFile, {}, reigns=((1, 0), (2, 500 * 256)))),
    "replicas disagree on who wrote what": (
        "C-15", lambda h: change(h, EpochFile, {"replica": "replica 1"}, reigns=((1, 0), (3, 401 * 256)))),
    "a declared loss is larger than the lag": ("C-1", hidden_loss),
    "replicas differ in a block": (
        "C-15", lambda h: change(h, Block, {"replica": "replica 1", "start": 1 << 20}, digest="x")),
    "a replica lacks a block": ("C-15", lambda h: drop(h, Block, replica="replica 1", start=2 << 20)),
    "a queue file says something else than its log": (
        "C-15", lambda h: h.append(Derived("replica 0", "queue Orders/0 points to another queue's record"))),
    "a replica ends a queue earlier": ("C-15", lambda h: cut(h, LAST, replica="replica 1")),
    "a setting is read as it was before": (
        "C-16", lambda h: h.append(Admin("Orders.queues", R, "2", 9000 * MS, 9001 * MS, "ok"))),
    "a setting nobody made is read": (
        "C-16", lambda h: h.append(Admin("Orders.queues", R, "77", 9000 * MS, 9001 * MS, "ok"))),
    "two readers see two changes the other way round": (
        "C-16", lambda h: h.extend([
            Admin("k", W, "1", 0, 1, "ok"), Admin("k", W, "2", 10, 90, "ok"), Admin("k", W, "3", 10, 90, "ok"),
            Admin("k", R, "2", 100, 110, "ok"), Admin("k", R, "3", 120, 130, "ok")])),
    "a name server goes back to an old master": (
        "C-16", lambda h: h.append(Route("names:1", "broker-a", 1, 9000 * MS))),
    "a queue takes nothing for seconds without a fault": ("C-17", lambda h: outage(h, 20, 160, FAIL)),
    "nobody answers for seconds before the fault": ("C-17", lambda h: outage(h, 20, 190, INFO)),
    "the master changes without a cause": ("C-17", changed_without_cause),
    "a delayed message comes early": (
        "C-18", lambda h: change(h, Delivered, {"topic": TIMED, "queue_offset": 1}, at_ns=300 * MS)),
    "a delayed message never comes": ("C-18", lambda h: drop(h, Delivered, topic=TIMED, queue_offset=3)),
    "a delayed message is gone from where it was given": ("C-18", lambda h: cut(h, 3, topic=TIMED)),
    "a delayed message comes much later": ("C-18", lambda h: (
        calm(h), change(h, Delivered, {"topic": TIMED, "queue_offset": 3}, at_ns=90_000 * MS))[1]),
    "a rolled back message is given out": (
        "C-18", lambda h: h.append(Delivered(TIMED, 0, 4, unique_id(500, 90), 0, 9000 * MS, "", GROUP))),
    "a committed message never comes": ("C-18", lambda h: drop(h, Delivered, topic=TIMED, queue_offset=0)),
    "a message is not found by its key": (
        "C-19", lambda h: change(h, Lookup, {"unique_id": unique_id(0, 0)}, found=False)),
    "the audit sees a difference that is none": ("C-20", lambda h: change(h, Audit, {}, differ=True)),
    "the audit misses a difference": (
        "C-20", lambda h: change(h, Block, {"replica": "replica 1", "start": 0}, digest="x")),
}  # fmt: skip


#: of kinds that docs/howto/break-a-group.md has a word for: the word
SAYS: dict[str, str] = {
    "a message in the middle is lost": "LOST", "a queue offset is acknowledged twice": "REUSED",
    "an acknowledgement names the wrong log offset": "MOVED", "what lies there was never sent": "PHANTOM",
    "a refused send lies in the log": "ABORTED", "a message lies twice in the log": "REPEATED",
    "a replica has a hole": "GAP", "a body rotted in a store": "DAMAGED", "two messages far apart are swapped": "ORDER",
    "what a reader saw is gone": "VANISHED", "a replica lacks a block": "ENDS",
    "a group was never given what it made no progress over": "SKIPPED", "a delayed message never comes": "UNDELIVERED",
    "a delayed message comes early": "EARLY",
    "two masters in one epoch": "TWO", "an old master acknowledges after the new one": "OLD",
    "an old master's answer comes long after the new one's": "OLD", "the epoch file names another writer": "EPOCH",
    "replicas disagree on who wrote what": "HISTORIES", "a declared loss is larger than the lag": "HIDDEN",
    "replicas differ in a block": "DIFFER",
}  # fmt: skip


def test_there_are_at_least_forty_kinds_and_every_check_has_one() -> None:
    assert len(WRONG) >= 40
    assert {check for check, _ in WRONG.values()} == set(CHECKS)


def test_a_correct_history_is_valid_and_every_checker_saw_something(tmp_path: Path) -> None:
    judgement = judge(history(), tmp_path)
    assert (judgement.word, judgement.findings, judgement.doubts) == (VALID, [], [])
    assert all(judgement.observed[check] for check in CHECKS)
    assert judgement.acknowledged > 2 * MADE.messages


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_gets_the_id_of_what_it_breaks(name: str, tmp_path: Path) -> None:
    check, planted = WRONG[name]
    found = history()
    planted(found)
    judgement = judge(found, tmp_path)
    assert judgement.word == INVALID
    assert check in judgement.counts, judgement.counts
    (first, *_) = [each for each in judgement.findings if each.check == check]
    assert first.text
    if name in SAYS:
        assert SAYS[name] in {each.text.split()[0] for each in judgement.findings}


def phase_lost(found: Lines, phase: str) -> None:
    found[:] = [
        line
        for line in found
        if not (isinstance(line, Event) and line.fields.get("phase") == phase)
    ]


def thinned(found: Lines) -> None:
    """The interval was so long that few sends fell into the fault."""
    made = MadeUp(queues=2, messages=400, interval_ns=500 * MS)
    found[:] = list(lines(made))


#: name -> (a word of the doubt, what is done to a correct history)
DOUBTFUL: dict[str, tuple[str, Change]] = {
    "consumers were not waited for": ("drained", lambda h: drop(
        h, Event, fields={"what": "drained", "at_ns": MADE.end_ns})),
    "a queue was not read in the end": ("final read", lambda h: (
        drop(h, Extent, topic=TOPIC, queue_id=1), drop(h, Holding, topic=TOPIC, queue_id=1))[1]),
    "a fault had no effect": ("no effect", lambda h: phase_lost(h, "effect")),
    "a fault was not healed": ("not seen to be over", lambda h: phase_lost(h, "healed")),
    "a fault says that it had none": ("no effect", lambda h: (phase_lost(h, "effect"), h.append(Event(
        {"what": "fault", "number": 1, "phase": "no effect", "at_ns": 9, "problem": "still runs"})))[1]),
    "too little went on beside a fault": ("are the least", thinned),
    "a checker had nothing to judge": ("C-19", lambda h: drop(h, Lookup)),
    "no settings were changed": ("C-16", lambda h: (drop(h, Admin), drop(h, Route))[1]),
    "nothing was acknowledged": ("nothing was acknowledged", lambda h: h.clear()),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_run_that_proves_nothing_is_unknown_and_not_good(name: str, tmp_path: Path) -> None:
    word, planted = DOUBTFUL[name]
    found = history()
    planted(found)
    judgement = judge(found, tmp_path)
    assert judgement.word == UNKNOWN, (judgement.word, judgement.findings[:2])
    assert any(word in doubt for doubt in judgement.doubts), judgement.doubts
    assert not judgement.good


def test_a_missing_and_an_unreadable_history_are_unknown(tmp_path: Path) -> None:
    assert judge_history(tmp_path / "nothing").word == UNKNOWN
    found = history()
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"".join(encode_line(each) + b"\n" for each in found) + b'["send",1\n')
    judgement = judge_history(path)
    assert judgement.word == UNKNOWN
    assert "cannot be read" in judgement.doubts[0]


def test_what_the_mode_lets_a_fault_take_is_declared_and_no_loss(tmp_path: Path) -> None:
    found = history()
    for queue in range(MADE.queues):
        cut(found, LAST, queue)
    lost = tuple(unique_id(queue, LAST) for queue in range(MADE.queues))
    found.append(Declared(lost, "the last moment before all hosts lost their power"))
    for queue in range(MADE.queues):
        change(found, Commit, {"queue_id": queue, "topic": TOPIC, "offset": 400}, offset=LAST)
    judgement = judge(found, tmp_path)
    assert judgement.counts == {}


@pytest.mark.parametrize(
    ("line", "good"),
    [
        pytest.param(Event({"what": "froze", "address": MASTERS[0], "at_ns": 1901 * MS}), True, id="frozen"),
        pytest.param(Event({"what": "froze", "address": MASTERS[1], "at_ns": 1901 * MS}), False, id="another frozen"),
        pytest.param(Event({"what": "froze", "address": MASTERS[0], "at_ns": 1899 * MS}), False, id="frozen before"),
        pytest.param(Declared((unique_id(0, 190),), "set aside", GIVEN_UP), True, id="given up"),
        pytest.param(Declared((unique_id(0, 191),), "set aside", GIVEN_UP), False, id="another given up"),
        pytest.param(Declared((unique_id(0, 190),), "set aside"), False, id="declared and there"),
    ],
)  # fmt: skip
def test_a_late_answer_of_an_old_master_is_excused_where_it_was_frozen_or_gave_it_up(
    tmp_path: Path, line: Line, good: bool
) -> None:
    found = history()
    late_answer(found)
    found.append(line)
    assert ("C-14" not in judge(found, tmp_path).counts) == good


def test_a_run_that_wrote_no_faults_down_is_not_asked_what_they_excuse(tmp_path: Path) -> None:
    found = history()
    calm(found)
    long_after(found)
    outage(found, 20, 160, INFO)
    assert {"C-9", "C-17"} <= judge(found, tmp_path).counts.keys()
    fields = each(found, Event)[0][1].fields
    found[0] = Event(fields | {"unwatched": True, "checks": []})
    assert judge(found, tmp_path).counts.keys() <= {"C-8"}  # which chaos/verdict.py leaves out


def test_clocks_that_drifted_may_be_apart_by_what_they_gained() -> None:
    windows = Windows()
    for at_ns, phase, more in ((0, "start", {"ppm": -20_000}), (5000 * MS, "healed", {})):
        event = {"what": "fault", "number": 1, "kind": "drift", "phase": phase, "at_ns": at_ns}
        windows.take(event | more)
    assert [windows.clocks_apart_ns(at_ms * MS) for at_ms in (0, 2500, 5000, 90_000)] == [
        0, 50 * MS, 100 * MS, 100 * MS
    ]  # fmt: skip


def test_a_late_answer_is_a_second_word_on_the_same_send(tmp_path: Path) -> None:
    found = history()
    at, send = each(found, Send, unique_id=unique_id(0, MIDDLE))[0]
    found.insert(
        at, msgspec.structs.replace(send, outcome=INFO, queue_offset=-1, offset=-1, epoch=-1)
    )
    assert judge(found, tmp_path).word == VALID


def test_fewer_checkers_may_be_asked_for(tmp_path: Path) -> None:
    found = history()
    drop(found, Lookup)
    assert judge(found, tmp_path, ["C-1", "C-7"]).word == VALID


def brute(operations: Sequence[Admin]) -> bool:
    """Whether any order explains them: all orders are tried."""

    def orders(left: tuple[Admin, ...], value: str | None) -> bool:
        if all(each.outcome == INFO for each in left):
            return True
        for at, one in enumerate(left):
            rest = left[:at] + left[at + 1 :]
            if any(other.outcome == "ok" and other.ended_ns < one.began_ns for other in rest):
                continue
            if (one.action == W or value in (None, one.value)) and orders(rest, one.value):
                return True
        return False

    return orders(tuple(operations), None)


def test_the_search_for_an_order_agrees_with_trying_all_orders() -> None:
    rng = random.Random(18)
    words = set()
    for _ in range(600):
        operations = []
        for client in range(3):
            now = rng.randrange(10)
            for _ in range(2):
                ended = now + rng.randrange(1, 12)
                action = rng.choice((W, R))
                outcome = INFO if action == W and rng.random() < 0.2 else "ok"
                operations.append(
                    Admin("k", action, str(rng.randrange(2)), now, ended, outcome, client)
                )
                now = ended + rng.randrange(4)
        expected = brute(operations)
        words.add(expected)
        assert linearizable(operations) == expected, operations
    assert words == {True, False}


def test_the_command_judges_a_file_and_its_exit_code_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"".join(encode_line(each) + b"\n" for each in history()))
    assert main([str(path)]) == 0
    assert "valid" in capsys.readouterr().out
    assert main([str(tmp_path / "none"), "--json"]) == 1
    assert main(["--made", "9000", "--queues", "2"]) == 0


def test_made_up_histories_of_one_size_are_equal() -> None:
    assert history() == history()
    assert dataclasses.replace(MADE, messages=10) != MADE
    assert {type(each) for each in history()} >= {Taken, Commit, Seen, Delivered}
