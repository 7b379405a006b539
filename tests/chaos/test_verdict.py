"""A run is judged by its journal and the stores of its replicas; each planted damage turns the verdict."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import tandemmq.chaos.gathering as gathering_module
from tandemmq.chaos.checking.lines import INFO, OK, Delivered, Seen, Send
from tandemmq.chaos.churn import DELETED_EVENT
from tandemmq.chaos.gathering import PERSON_EVENT, TOPICS
from tandemmq.chaos.history import HistoryMissing
from tandemmq.chaos.journal import Journal, read_events, read_seen, read_sends
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.replicalogs import read_cuts, read_log
from tandemmq.chaos.traffic import CHURN_TOPIC, DELAYED_TOPIC, TOPIC
from tandemmq.chaos.verdict import Verdict, judge
from tandemmq.replication.config import Mode
from tandemmq.replication.epochs import Epoch, EpochHistory, encode_epochs
from tandemmq.storage import Draft, StorageConfig, encode_properties, open_store, pack_host

SEGMENT_BYTES = 16 * 1024
COUNT = 120
HOST = pack_host("127.0.0.1", 10911)


def send(number: int, **fields: object) -> Send:
    body = number.to_bytes(200, "big")
    unique_id = f"{number:016x}{body_hash(body)}"
    made = Send(
        unique_id, TOPIC, number % 2, 1, number, 1, number * 10, number * 10 + 5, OK, 0, "a:1"
    )
    return replace(made, size=len(body), **fields)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Send]]:
    """A closed store with COUNT messages in two queues and several segments, and the sends of it."""
    root = tmp_path_factory.mktemp("written") / "store"
    root.mkdir()
    config = StorageConfig(
        root=str(root), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=2000, index_enabled=False
    )
    sends = []
    with open_store(config) as store:
        for number in range(COUNT):
            what = send(number)
            draft = Draft(
                topic=TOPIC,
                queue_id=what.queue_id,
                body=number.to_bytes(200, "big"),
                properties=encode_properties({"UNIQ_KEY": what.unique_id}),
                born_host=HOST,
                store_host=HOST,
            )
            at = store.put(draft)
            sends.append(replace(what, queue_offset=at.queue_offset, offset=at.offset, epoch=1))
        store.dispatch(10_000)
    (root / "epochFileCheckpoint").write_bytes(encode_epochs(EpochHistory((Epoch(1, 0),))))
    return root, sends


class Run:
    """A finished run of two replicas, to be damaged before it is judged."""

    def __init__(self, directory: Path, store: Path, sends: list[Send]) -> None:
        self.sends = list(sends)
        self.seen: list[Seen] = []
        self.delivered: list[Delivered] | None = None  # None: nobody read along
        self.events: list[dict[str, object]] = []  # what a person did
        self.elected = True
        self.stores = [directory / "a", directory / "b"]
        for each in self.stores:
            shutil.copytree(store, each)
        self.journal = directory / "journal.jsonl"

    def judge(self, *, mode: Mode = Mode.S0) -> Verdict:
        with Journal(self.journal) as journal:
            for event in self.events:
                journal.event(PERSON_EVENT, **event)
            for each in self.sends:
                journal.send(each)
            for seen in self.seen:
                journal.seen(seen)
            for delivered in self.delivered or ():
                journal.delivered(delivered)
        return judge(
            self.journal, self.stores, mode=mode, consumed=self.delivered is not None,
            elected=self.elected,
        ).verdict  # fmt: skip

    def kinds(self, *, mode: Mode = Mode.S0) -> set[str]:
        return {text.split()[0] for text in self.judge(mode=mode).problems}

    def cut(self, store: Path, count: int) -> None:
        """Zero the last messages of a log, as if they had never been written."""
        first = self.sends[-count].offset
        for path in (store / "commitlog").iterdir():
            start = int(path.name)
            if start + path.stat().st_size > first:
                with path.open("r+b") as file:
                    file.seek(max(0, first - start))
                    file.write(bytes(start + path.stat().st_size - max(first, start)))

    def set_aside(self, store: Path, count: int, counted: int | None = None) -> None:
        """Keep the last messages of a log in a file, as a replica does before it cuts them."""
        start = self.sends[-count].offset
        end = read_log(store, TOPICS).end
        content = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))[
            start:end
        ]
        directory = store / "setaside"
        directory.mkdir()
        name = f"epoch-1-from-{start}-to-{end}-{count if counted is None else counted}-records.log"
        (directory / name).write_bytes(content)


def flip(store: Path, offset: int) -> None:
    """Change one byte in the first file of a log."""
    path = min((store / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(1)
        file.seek(offset)
        file.write(bytes([before[0] ^ 0xFF]))


@pytest.fixture
def finished(written: tuple[Path, list[Send]], tmp_path: Path) -> Run:
    return Run(tmp_path, *written)


def test_a_run_in_which_all_held_is_good(finished: Run) -> None:
    finished.seen = [
        Seen(TOPIC, 1, 0, tuple(each.unique_id for each in finished.sends[1::2]), "b:1", 9)
    ]
    verdict = finished.judge()
    assert verdict.problems == []
    assert (verdict.acknowledged, verdict.messages, verdict.lost) == (COUNT, COUNT, 0)
    assert verdict.log_bytes > 2 * SEGMENT_BYTES


@pytest.mark.parametrize(("log_bytes_max", "who"), [(1 << 30, "FILES"), (0, "AUDIT")])
def test_a_queue_that_says_something_else_is_found_in_small_logs_and_large(
    finished: Run, monkeypatch: pytest.MonkeyPatch, log_bytes_max: int, who: str
) -> None:
    monkeypatch.setattr(gathering_module, "INSPECTED_BYTES_MAX", log_bytes_max)
    queue = finished.stores[1] / "consumequeue" / TOPIC / "0"
    with min(queue.iterdir()).open("r+b") as file:
        file.seek(20 * 7)
        file.write(bytes(20))
    assert finished.kinds() == {who}


def test_a_large_log_without_a_fault_is_good(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering_module, "INSPECTED_BYTES_MAX", 0)
    assert finished.judge().problems == []


def test_a_message_lost_on_every_replica_is_found(finished: Run) -> None:
    for store in finished.stores:
        finished.cut(store, 3)
    verdict = finished.judge()
    assert sum(text.startswith("LOST") for text in verdict.problems) == 3
    assert verdict.lost == 3


def test_a_replica_that_ends_earlier_is_found(finished: Run) -> None:
    finished.cut(finished.stores[1], 3)
    assert "ENDS" in finished.kinds()


def test_a_replica_with_other_bytes_is_found(finished: Run) -> None:
    flip(finished.stores[1], finished.sends[5].offset + 60)  # store time: no checksum covers it
    assert "DIFFER" in finished.kinds()


def test_a_replica_with_other_reigns_is_found(finished: Run) -> None:
    other = EpochHistory((Epoch(1, 0), Epoch(2, finished.sends[50].offset)))
    (finished.stores[1] / "epochFileCheckpoint").write_bytes(encode_epochs(other))
    assert "HISTORIES" in finished.kinds()


def test_a_damaged_body_is_found(finished: Run) -> None:
    flip(finished.stores[0], finished.sends[5].offset + 150)
    assert {"LOG", "ENDS"} <= finished.kinds()


def test_a_message_nobody_sent_is_found(finished: Run) -> None:
    del finished.sends[40]
    assert finished.kinds() == {"PHANTOM"}


def test_a_message_that_was_read_and_is_gone_is_found(finished: Run) -> None:
    finished.seen = [Seen(TOPIC, 0, COUNT // 2, ("f" * 32,), "b:1", 9)]
    assert finished.kinds() == {"VANISHED", "PHANTOM"}


def test_an_undeclared_loss_is_a_loss_in_async_mode_too(finished: Run) -> None:
    for store in finished.stores:
        finished.cut(store, 3)
    assert "LOST" in finished.kinds(mode=Mode.A0)


def test_a_declared_loss_is_counted_in_async_mode(finished: Run) -> None:
    finished.set_aside(finished.stores[1], 3)
    for store in finished.stores:
        finished.cut(store, 3)
    verdict = finished.judge(mode=Mode.A0)
    assert not [text for text in verdict.problems if not text.startswith("FILES")]
    assert (verdict.lost, verdict.lost_bytes, verdict.cuts, verdict.cut_records) == (3, 600, 1, 3)


def overlap(run: Run, count: int) -> None:
    """The last messages of the log were acknowledged by an old master, beside what a newer one acknowledged."""
    first = run.sends[0]
    newer = replace(first, epoch=2, broker="b:1", ended_ns=first.ended_ns)
    run.sends = [*run.sends, newer]
    for at in range(len(run.sends) - 1 - count):
        run.sends[at] = replace(run.sends[at], epoch=-1)


@pytest.mark.parametrize(
    ("mode", "gone", "kinds"),
    [
        pytest.param(Mode.A0, True, set(), id="A0, declared and gone"),
        pytest.param(Mode.A0, False, {"OLD"}, id="A0, still there"),
        pytest.param(Mode.S0, True, {"OLD", "LOST"}, id="S0"),
    ],
)
def test_what_an_old_master_acknowledged_is_excused_in_async_mode_when_it_was_given_up(
    finished: Run, mode: Mode, gone: bool, kinds: set[str]
) -> None:
    finished.set_aside(finished.stores[1], 5)
    if gone:
        for store in finished.stores:
            finished.cut(store, 5)
    overlap(finished, 5)
    assert finished.kinds(mode=mode) & {"OLD", "LOST", "HIDDEN"} == kinds


def test_an_old_master_that_gave_nothing_up_is_found_in_async_mode_too(finished: Run) -> None:
    overlap(finished, 5)
    assert "OLD" in finished.kinds(mode=Mode.A0)


def test_what_was_set_aside_is_lost_all_the_same_in_sync_mode(finished: Run) -> None:
    finished.set_aside(finished.stores[1], 3)
    for store in finished.stores:
        finished.cut(store, 3)
    assert "LOST" in finished.kinds()


def test_a_cut_that_says_another_count_is_found(finished: Run) -> None:
    finished.set_aside(finished.stores[1], 3, counted=2)
    assert "MISCOUNTED" in finished.kinds()


def test_a_cut_over_the_end_of_a_file_is_read_whole(finished: Run) -> None:
    finished.set_aside(finished.stores[1], 100)
    (cut,) = read_cuts(finished.stores[1], TOPICS)
    assert cut.unique_ids == {each.unique_id for each in finished.sends[-100:]}
    assert cut.end - cut.start > SEGMENT_BYTES


def test_a_file_of_unknown_name_among_those_set_aside_is_an_error(finished: Run) -> None:
    directory = finished.stores[0] / "setaside"
    directory.mkdir()
    (directory / "strange.log").touch()
    with pytest.raises(ValueError, match=r"strange\.log"):
        read_cuts(finished.stores[0], TOPICS)


@pytest.mark.parametrize("change", [lambda _: [], lambda sends: [send(1, outcome=INFO)]])
def test_a_run_without_acknowledgements_has_shown_nothing(
    finished: Run, change: Callable[[list[Send]], list[Send]]
) -> None:
    finished.sends = change(finished.sends)
    with pytest.raises(HistoryMissing, match="nothing was acknowledged"):
        finished.judge()


def test_a_journal_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    seen = Seen(TOPIC, 3, 17, ("ab", "cd"), "b:1", 5)
    with Journal(path) as journal:
        journal.send(send(1))
        journal.seen(seen)
        journal.event("killed", process="replica 0")
        journal.send(send(2, outcome=INFO))
        assert journal.counts == {"ok": 1, "fail": 0, "info": 1}
        assert journal.seen_count == 2
    assert list(read_sends(path)) == [send(1), send(2, outcome=INFO)]
    assert list(read_seen(path)) == [seen]
    (event,) = read_events(path)
    assert (event["what"], event["process"]) == ("killed", "replica 0")


def test_a_missing_journal_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(HistoryMissing, match="no history"):
        list(read_sends(tmp_path / "none"))


def given(send: Send) -> Delivered:
    return Delivered(send.topic, send.queue_id, send.queue_offset, send.unique_id, 0, send.ended_ns)


def test_a_group_that_was_given_everything_is_told_so(finished: Run) -> None:
    finished.delivered = [given(each) for each in finished.sends]
    finished.delivered += finished.delivered[:7]  # at least once
    verdict = finished.judge()
    assert verdict.problems == []
    assert (verdict.delivered, verdict.undelivered) == (COUNT, 0)


@pytest.mark.parametrize("skipped", [0, 57, COUNT - 1])
def test_a_message_that_the_group_was_never_given_is_found(finished: Run, skipped: int) -> None:
    finished.delivered = [given(each) for each in finished.sends if each != finished.sends[skipped]]
    verdict = finished.judge()
    (problem,) = verdict.problems
    assert problem.startswith(f"SKIPPED {finished.sends[skipped].unique_id} ")
    assert (verdict.delivered, verdict.undelivered) == (COUNT - 1, 1)


def test_a_message_whose_outcome_is_unknown_must_be_delivered_when_it_is_there(
    finished: Run,
) -> None:
    finished.delivered = [given(each) for each in finished.sends[1:]]
    finished.sends[0] = replace(finished.sends[0], outcome=INFO)
    assert finished.kinds() == {"SKIPPED"}


def test_a_group_that_read_nothing_is_no_success(finished: Run) -> None:
    finished.delivered = []
    assert finished.judge().undelivered == COUNT


@pytest.mark.parametrize(("mode", "kinds"), [(Mode.S0, {"LOST", "VANISHED"}), (Mode.A0, set())])
def test_what_was_delivered_and_then_cut_is_excused_where_the_loss_was_declared(
    finished: Run, mode: Mode, kinds: set[str]
) -> None:
    finished.delivered = [given(each) for each in finished.sends]
    finished.set_aside(finished.stores[1], 5)
    for store in finished.stores:
        finished.cut(store, 5)
    assert finished.kinds(mode=mode) - {"FILES"} == kinds


def test_a_delayed_message_that_never_came_to_its_topic_is_found(finished: Run) -> None:
    finished.delivered = [given(each) for each in finished.sends]
    parked = send(COUNT + 1, topic=DELAYED_TOPIC, queue_offset=0, offset=17)
    finished.sends.append(parked)
    (problem,) = finished.judge().problems
    assert problem.startswith("UNDELIVERED ")
    assert parked.unique_id in problem


@pytest.mark.parametrize("outcome", [OK, INFO])
def test_a_journal_knows_what_is_still_to_be_delivered(tmp_path: Path, outcome: str) -> None:
    one, two = send(1, outcome=outcome), send(2)
    with Journal(tmp_path / "journal") as journal:
        journal.expected = frozenset({TOPIC})
        journal.send(send(3, topic="Unread"))
        journal.send(one)
        journal.delivered(given(two))  # before its acknowledgement is heard
        journal.send(two)
        assert journal.undelivered == ({one.unique_id} if outcome == OK else set())
        journal.delivered(given(one))
        assert journal.undelivered == set()


@pytest.fixture
def given_up(finished: Run) -> Run:
    """A classic pair: its last five messages were the old master's alone, and a person had them cut."""
    finished.elected = False
    finished.delivered = [given(each) for each in finished.sends]
    finished.sends[-5:] = [
        replace(each, outcome=INFO, code=11, epoch=-1) for each in finished.sends[-5:]
    ]
    finished.set_aside(finished.stores[1], 5)
    for store in finished.stores:
        finished.cut(store, 5)
    return finished


@pytest.mark.parametrize("mode", list(Mode))
def test_what_a_person_gave_up_may_be_missing_where_nobody_had_acknowledged_it(
    given_up: Run, mode: Mode
) -> None:
    assert given_up.kinds(mode=mode) <= {"FILES"}


@pytest.mark.parametrize("mode", list(Mode))
def test_what_a_person_gave_up_and_was_acknowledged_is_lost_in_every_mode(
    given_up: Run, mode: Mode
) -> None:
    given_up.sends[-1] = replace(given_up.sends[-1], outcome=OK, code=0)
    assert given_up.kinds(mode=mode) - {"FILES"} == {"LOST", "VANISHED"}


def test_a_store_that_a_person_moved_away_is_what_he_gave_up(
    finished: Run, written: tuple[Path, list[Send]]
) -> None:
    finished.elected = False
    finished.seen = [Seen(TOPIC, 0, COUNT // 2 - 1, (finished.sends[-2].unique_id,), "a:1", 9)]
    for at in (-1, -2):
        finished.sends[at] = replace(finished.sends[at], outcome=INFO, code=11, epoch=-1)
    for store in finished.stores:
        finished.cut(store, 2)
    finished.events = [{"how": "seeded", "since_ns": 1, "away": str(written[0])}]
    assert finished.kinds() <= {"FILES"}


def test_what_vanished_and_no_person_gave_up_is_found_in_a_classic_pair(finished: Run) -> None:
    finished.elected = False
    finished.delivered = [given(each) for each in finished.sends]
    for at in (-1, -2):
        finished.sends[at] = replace(finished.sends[at], outcome=INFO, code=11, epoch=-1)
    for store in finished.stores:
        finished.cut(store, 2)
    assert finished.kinds() - {"FILES"} == {"VANISHED"}


@pytest.mark.parametrize(
    ("mode", "everywhere", "kinds"),
    [
        pytest.param(Mode.S0, True, {"GHOST"}, id="S0"),
        pytest.param(Mode.S0, False, set(), id="S0, told that a slave may not have it"),
        pytest.param(Mode.A0, True, set(), id="A0"),
    ],
)
def test_a_deleted_topic_that_a_new_master_still_has_is_found_where_the_deletion_was_waited_for(
    finished: Run, mode: Mode, everywhere: bool, kinds: set[str]
) -> None:
    lives = [
        send(COUNT + at, topic=CHURN_TOPIC, queue_id=0, lane=1 + at // 2, queue_offset=at)
        for at in range(4)
    ]
    elected_ns = lives[2].ended_ns
    finished.sends += [replace(each, epoch=1 + at // 2) for at, each in enumerate(lives)]
    with Journal(finished.journal) as journal:
        journal.event(DELETED_EVENT, life=1, everywhere=everywhere, at_ns=elected_ns - 3)
        for each in finished.sends:
            journal.send(each)
    problems = judge(finished.journal, finished.stores, mode=mode, consumed=False).verdict.problems
    assert {each.split()[0] for each in problems} - {"EPOCH"} == kinds
