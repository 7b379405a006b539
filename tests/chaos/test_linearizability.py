"""Porcupine judges what our own checkers judge: both call the same histories right, and the same ones wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tandemmq.chaos.checking import orders, porcupine
from tandemmq.chaos.checking.__main__ import main
from tandemmq.chaos.checking.findings import LINEARIZABILITY, UNKNOWN, Findings
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.checking.linear import linearizable
from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Admin, Extent, Holding, Line, Seen, Send
from tandemmq.chaos.checking.made import MadeUp, unique_id, write
from tandemmq.chaos.checking.onequeue import QueueHistory
from tandemmq.chaos.checking.orders import Orders, setting_question
from tandemmq.chaos.checking.porcupine import ILLEGAL, LEGAL, Porcupine, find_program
from tandemmq.chaos.checking.queues import judge_queue
from tandemmq.chaos.faults.fault import Unsupported

COUNT = 60
NOBODY: frozenset[str] = frozenset()
Change = Callable[[list[Line]], None]


@pytest.fixture(scope="module")
def judge() -> Iterator[Porcupine]:
    try:
        program = find_program()
    except Unsupported as problem:
        pytest.skip(str(problem))
    with Porcupine(program) as running:
        yield running


def queue(seed: int = 0) -> list[Line]:
    """A queue that four producers wrote and one reader read; every seventh answer never came."""
    rng = random.Random(seed)
    lines: list[Line] = []
    now = 0
    for number in range(COUNT):
        now += rng.randrange(
            1, 9
        )  # when it is put; so long before and after it was sent and answered
        send = Send(
            unique_id(0, number), "T", 0, number % 4, number, 1, now - rng.randrange(20), now + rng.randrange(20), OK,
            0, "a:1", number, number * 100, 1,
        )  # fmt: skip
        if number % 7 == 3:
            send = replace(send, outcome=INFO, code=-2, queue_offset=-1, offset=-1, epoch=-1)
        lines.append(send)
        if number % 10 == 9:
            read = tuple(unique_id(0, each) for each in range(number - 9, number + 1))
            lines.append(Seen("T", 0, number - 9, read, "a:1", now + rng.randrange(9)))
    kept = tuple(unique_id(0, each) for each in range(COUNT))
    lines.append(Holding("T", 0, "replica 0", 0, kept))
    lines.append(Extent("T", 0, "replica 0", 0, COUNT))
    return lines


def history(lines: Sequence[Line]) -> QueueHistory:
    made = QueueHistory(("T", 0))
    for line in lines:
        made.take(line)
    return made


def judged(judge: Porcupine, lines: Sequence[Line], declared: frozenset[str] = NOBODY) -> Findings:
    asked = Orders(judge, Findings())
    asked.queue(history(lines), declared)
    assert not asked.doubts
    assert asked.findings.observed[LINEARIZABILITY]
    return asked.findings


def sent(lines: list[Line], number: int, **fields: object) -> None:
    """Change the send of a number."""
    at = place(lines, number)
    lines[at] = replace(lines[at], **fields)


def place(lines: list[Line], number: int) -> int:
    (at,) = [
        at for at, line in enumerate(lines)
        if isinstance(line, Send) and line.unique_id == unique_id(0, number)
    ]  # fmt: skip
    return at


def kept(lines: list[Line], change: Callable[[list[str]], None]) -> None:
    """Change what lies in the queue in the end; all else says what it said."""
    holding = lines[-2]
    assert isinstance(holding, Holding)
    ids = list(holding.unique_ids)
    change(ids)
    lines[-2] = replace(holding, unique_ids=tuple(ids))
    lines[-1] = Extent("T", 0, "replica 0", 0, len(ids))


def later(lines: list[Line], number: int, by: int) -> None:
    """A send that began and ended later than it did."""
    send = lines[place(lines, number)]
    assert isinstance(send, Send)
    sent(lines, number, began_ns=send.began_ns + by, ended_ns=send.ended_ns + by)


def swap(ids: list[str]) -> None:
    ids[20], ids[21] = ids[21], ids[20]


#: what was done to a right history, which nobody may call right afterwards
WRONG: dict[str, Change] = {
    "the last message is lost": lambda h: kept(h, lambda ids: ids.pop() and None),
    "a message in the middle is lost, and the rest moved up": lambda h: kept(h, lambda ids: ids.pop(30) and None),
    "two messages are swapped": lambda h: kept(h, swap),
    "an offset was acknowledged twice": lambda h: sent(h, 41, queue_offset=40),
    "nobody sent what lies there": lambda h: h.pop(place(h, 12)) and None,
    "nobody sent the last one": lambda h: kept(h, lambda ids: ids.append("f" * 32)),
    "what was refused lies there": lambda h: sent(h, 12, outcome=FAIL, code=14, queue_offset=-1),
    "it was sent when later ones had been answered": lambda h: later(h, 20, 500),
    "a reader saw it before it was sent": lambda h: h.insert(0, Seen("T", 0, 30, (unique_id(0, 30),), "b:1", 0)),
    "a reader saw another one there": lambda h: h.insert(0, Seen("T", 0, 30, (unique_id(0, 31),), "b:1", 900)),
    "a reader saw what is gone": lambda h: h.insert(0, Seen("T", 0, 60, ("f" * 32,), "b:1", 900)),
}  # fmt: skip


def test_right_queues_are_right(judge: Porcupine) -> None:
    for seed in range(20):
        findings = judged(judge, queue(seed))
        assert not findings.kept
    lost = queue()
    kept(lost, lambda ids: ids.pop() and None)
    assert not judged(judge, lost, frozenset({unique_id(0, COUNT - 1)})).kept


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_queue_is_wrong(
    judge: Porcupine, name: str, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cut:
        monkeypatch.setattr(orders, "STRETCH", 4)
    lines = queue()
    WRONG[name](lines)
    (finding,) = judged(judge, lines).kept[:1]
    assert finding.check == LINEARIZABILITY
    assert "no order explains queue ('T', 0)" in finding.text


def test_it_agrees_with_our_own_checks_of_order_and_place(
    judge: Porcupine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends are moved in time at random, a little: by C-7 and by Porcupine the same histories are wrong, cut or not."""
    words = set()
    for seed in range(120):
        rng = random.Random(seed)
        lines = [each for each in queue(seed) if not isinstance(each, Seen)]
        for _ in range(rng.randrange(3)):
            later(lines, rng.randrange(COUNT), rng.choice((-1, 1)) * rng.randrange(40))
        ours = Findings()
        judge_queue(history(lines), NOBODY, ours)
        monkeypatch.setattr(orders, "STRETCH", 2000)
        whole = bool(judged(judge, lines).kept)
        monkeypatch.setattr(orders, "STRETCH", 3)
        assert bool(judged(judge, lines).kept) == whole == bool(ours.kept), seed
        words.add(whole)
    assert words == {True, False}


def test_settings_are_right_and_wrong_by_both_searches(judge: Porcupine) -> None:
    rng = random.Random(21)
    words = set()
    for _ in range(300):
        operations = []
        for client in range(4):
            now = rng.randrange(10)
            for _ in range(3):
                ended = now + rng.randrange(1, 12)
                action = rng.choice(("write", "read"))
                outcome = rng.choice((OK, OK, OK, INFO, FAIL))
                value = str(rng.randrange(3))
                operations.append(Admin("k", action, value, now, ended, outcome, client))
                now = ended + rng.randrange(4)
        answer = judge.ask(setting_question(operations)[0]).result
        assert answer == (LEGAL if linearizable(operations) else ILLEGAL), operations
        words.add(answer)
    assert words == {LEGAL, ILLEGAL}


def test_the_command_asks_porcupine_and_names_what_does_not_fit(
    judge: Porcupine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    write(path, MadeUp(messages=150))
    assert judge_history(path, linearizability=True).observed[LINEARIZABILITY]
    with path.open("ab") as file:
        file.write(b'["seen","Orders",0,7,["%s"],"b:1",1000000000]\n' % unique_id(0, 8).encode())
        file.write(b'["admin","Orders.queues","read","77",90000000000,90000000001,"ok"]\n')
    assert main([str(path), "--check", "C-21"]) == 1
    printed = capsys.readouterr().out
    assert "C-21 no order explains queue ('Orders', 0)" in printed
    assert "read of 1 from 7 on from b:1" in printed
    assert "C-21 no order explains setting Orders.queues" in printed


def test_without_go_what_was_asked_for_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porcupine, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(porcupine.VARIABLE, raising=False)
    path = tmp_path / "history.jsonl"
    write(path, MadeUp(messages=150))
    judgement = judge_history(path, linearizability=True)
    assert judgement.word == UNKNOWN
    assert any("install Go" in doubt for doubt in judgement.doubts)
    assert any("C-21" in doubt and "nothing to judge" in doubt for doubt in judgement.doubts)


def test_a_judge_that_dies_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dies"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setenv(porcupine.VARIABLE, str(program))
    path = tmp_path / "history.jsonl"
    write(path, MadeUp(messages=150))
    judgement = judge_history(path, linearizability=True)
    assert judgement.word == UNKNOWN
    assert any("ended with 3" in doubt for doubt in judgement.doubts)
