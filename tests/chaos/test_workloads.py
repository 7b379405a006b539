"""Workloads without a cluster: what is chosen, what of an answer is written down, and what they find themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Send, decode_line
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.scenarios import command
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.run import WORDS, ScenarioRun
from tandemmq.chaos.scenarios.workloads.changing import AdminChanges
from tandemmq.chaos.scenarios.workloads.chosen import (
    WORKLOADS,
    Ground,
    Unfit,
    chosen,
    settings_of,
    topics_of,
)
from tandemmq.chaos.scenarios.workloads.consuming import Orderly
from tandemmq.chaos.scenarios.workloads.sending import Batches, Transactions
from tandemmq.chaos.scenarios.workloads.workload import Outbox, judged_outcome, new_body
from tandemmq.chaos.traffic import NO_ANSWER, NOT_SENT
from tandemmq.cluster.client import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    MessageQueue,
    NoRoute,
    Producer,
    SendResult,
    SendStatus,
)
from tandemmq.cluster.remoting import ResponseCode
from tandemmq.storage import offset_message_id, pack_host

NAMES = "127.0.0.1:1"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Journal(tmp_path / "journal.jsonl") as journal:
        yield Ground(NAMES, "broker-x", journal, random.Random(1), tmp_path)


def sent(ground: Ground) -> list[Send]:
    ground.journal.flush()
    lines = [decode_line(each) for each in ground.journal.path.read_bytes().splitlines()]
    return [each for each in lines if isinstance(each, Send)]


def result(status: SendStatus, *offsets: int) -> SendResult:
    host = pack_host("127.0.0.1", 10911)
    ids = ",".join(offset_message_id(host, each) for each in offsets)
    return SendResult(
        status, "", ids, MessageQueue("T", "broker-x", 1), 7, epoch=3, copies=2, durable=1
    )


def test_workloads_are_chosen_once_each_and_what_they_need_is_known() -> None:
    kinds = chosen(["timed", "batch", "timed"], "S0")
    assert [each.name for each in kinds] == ["batch", "timed"]
    assert topics_of(kinds) == {"ChaosBatches": 2, "ChaosTimed": 2}
    assert settings_of(chosen(["transactions"], ""))["transactionTimeOut"] == 1_500
    with pytest.raises(Unfit, match="no workload is called x"):
        chosen(["x"], "S0")
    with pytest.raises(Unfit, match="orderly promises nothing in mode A0"):
        chosen(["orderly"], "A0")
    assert set(SCENARIOS["everything"].workloads) == set(WORKLOADS)


def test_a_run_says_what_it_cannot_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run",
        "kill",
        "--mode",
        "A0",
        "--workload",
        "orderly",
        "--report",
        str(tmp_path / "r"),
    ]
    assert command.main(arguments) == command.USAGE
    assert "orderly promises nothing" in capsys.readouterr().err
    schedule = SCENARIOS["kill"].schedule(1, workloads=["transactions"])
    plan = ScenarioRun(schedule, tmp_path, lambda _: None).plan
    assert plan.settings["transactionCheckMax"] == 100


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        (result(SendStatus.SEND_OK, 5), OK, 0),
        (result(SendStatus.FLUSH_SLAVE_TIMEOUT, 5), INFO, 12),
        (NoRoute("T", "nobody has it"), FAIL, NOT_SENT),
        (BrokerRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "no", NAMES), FAIL, 14),
        (BrokerRefused(999, "what", NAMES), INFO, 999),
        (BrokerUnreachable(NAMES, "lost"), INFO, NO_ANSWER),
    ],
)
def test_only_send_ok_is_a_promise_and_only_a_refusal_a_no(
    answer: SendResult | ClientError, outcome: str, code: int
) -> None:
    assert judged_outcome(answer) == (outcome, code)


def test_each_message_of_a_batch_has_a_line_with_its_own_place(ground: Ground) -> None:
    outbox = Outbox(ground, Producer("G", namesrv=NAMES))
    outbox.write("T", 1, ["a", "b"], [10, 20], 1, result(SendStatus.SEND_OK, 100, 250))
    outbox.write("T", 1, ["c", "d"], [1, 1], 2, BrokerUnreachable(NAMES, "lost"))
    one, two, three, _ = sent(ground)
    assert [(each.queue_offset, each.offset, each.size) for each in (one, two)] == [
        (7, 100, 10),
        (8, 250, 20),
    ]
    assert (one.broker, one.epoch, one.copies, one.durable) == ("127.0.0.1:10911", 3, 2, 1)
    assert (three.outcome, three.queue_offset, three.epoch) == (INFO, -1, -1)
    assert outbox.acknowledged == {"a", "b"}


def test_a_body_says_its_own_hash() -> None:
    body, unique_id = new_body(random.Random(1))
    assert len(unique_id) == 32 and unique_id.endswith(body_hash(body))
    assert new_body(random.Random(1))[1] != unique_id


def test_a_torn_batch_is_found_and_a_workload_that_did_nothing_shows_nothing(
    ground: Ground,
) -> None:
    workload = Batches(ground)
    workload._sent = [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [each.split()[0] for each in workload.judged({"a", "b", "c"})] == ["TORN"]
    idle = Batches(ground)
    assert [each.split()[0] for each in idle.judged(())] == ["IDLE"]
    assert "IDLE" not in WORDS, "a doubt, not a finding"
    assert len(AdminChanges(ground).judged(())) == 2
    assert len(Orderly(ground).judged(())) == 1


def test_how_transactions_ended_is_written_down_and_what_nobody_committed_is_found(
    ground: Ground,
) -> None:
    workload = Transactions(ground)
    workload._transactor.began = {each: (0, 5, 10) for each in ("kept", "back", "lost", "ghost")}
    workload._book.decide("kept", committed=True, own=True)
    workload._book.decide("back", committed=False, own=True)
    workload._inbox.given |= {"kept", "ghost"}
    workload._write_down()
    fates = {each.unique_id: (each.fate, each.outcome) for each in sent(ground)}
    assert fates == {
        "kept": ("commit", OK),
        "back": ("rollback", OK),
        "lost": ("", INFO),
        "ghost": ("", INFO),
    }
    (found,) = workload.judged(())
    assert found.startswith("SEEN ghost") and WORDS["SEEN"] == "C-18"
    workload._book.close()
