"""A run is judged by its journal and the stores of its replicas; each planted damage turns the verdict."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import chaos.verdict as verdict_module
from chaos.history import HistoryMissing
from chaos.journal import INFO, OK, Journal, Seen, Send, read_events, read_seen, read_sends
from chaos.load import body_hash
from chaos.replicalogs import differences, read_cuts, read_log
from chaos.traffic import TOPIC
from chaos.verdict import TOPICS, Verdict, judge
from replication.epochs import Epoch, EpochHistory, encode_epochs
from storage import Draft, StorageConfig, encode_properties, open_store, pack_host

SEGMENT_BYTES = 16 * 1024
COUNT = 120
HOST = pack_host("127.0.0.1", 10911)


def send(number: int, **fields: object) -> Send:
    body = number.to_bytes(200, "big")
    unique_id = f"{number:016x}{body_hash(body)}"
    made = Send(
        unique_id, TOPIC, number % 2, 1, number, 1, number * 10, number * 10 + 5, OK, 0, "a:1"
    )
    return made._replace(size=len(body), **fields)  # type: ignore[arg-type]


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
            sends.append(what._replace(queue_offset=at.queue_offset, offset=at.offset, epoch=1))
        store.dispatch(10_000)
    (root / "epochFileCheckpoint").write_bytes(encode_epochs(EpochHistory((Epoch(1, 0),))))
    return root, sends


class Run:
    """A finished run of two replicas, to be damaged before it is judged."""

    def __init__(self, directory: Path, store: Path, sends: list[Send]) -> None:
        self.sends = list(sends)
        self.seen: list[Seen] = []
        self.stores = [directory / "a", directory / "b"]
        for each in self.stores:
            shutil.copytree(store, each)
        self._journal = directory / "journal.jsonl"

    def judge(self, *, synchronous: bool = True) -> Verdict:
        with Journal(self._journal) as journal:
            for each in self.sends:
                journal.send(each)
            for seen in self.seen:
                journal.seen(seen)
        return judge(self._journal, self.stores, synchronous=synchronous)

    def kinds(self, *, synchronous: bool = True) -> set[str]:
        return {text.split()[0] for text in self.judge(synchronous=synchronous).problems}

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
    monkeypatch.setattr(verdict_module, "INSPECTED_BYTES_MAX", log_bytes_max)
    queue = finished.stores[1] / "consumequeue" / TOPIC / "0"
    with min(queue.iterdir()).open("r+b") as file:
        file.seek(20 * 7)
        file.write(bytes(20))
    assert finished.kinds() == {who}


def test_a_large_log_without_a_fault_is_good(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_module, "INSPECTED_BYTES_MAX", 0)
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
    assert "REIGNS" in finished.kinds()


def test_a_damaged_body_is_found(finished: Run) -> None:
    flip(finished.stores[0], finished.sends[5].offset + 150)
    assert {"LOG", "ENDS"} <= finished.kinds()


def test_a_message_nobody_sent_is_found(finished: Run) -> None:
    del finished.sends[40]
    assert finished.kinds() == {"PHANTOM"}


def test_a_message_that_was_read_and_is_gone_is_found(finished: Run) -> None:
    finished.seen = [Seen(TOPIC, 0, COUNT // 2, ("f" * 32,), "b:1", 9)]
    assert finished.kinds() == {"VANISHED"}


def test_an_undeclared_loss_is_a_loss_in_async_mode_too(finished: Run) -> None:
    for store in finished.stores:
        finished.cut(store, 3)
    assert "LOST" in finished.kinds(synchronous=False)


def test_a_declared_loss_is_counted_in_async_mode(finished: Run) -> None:
    finished.set_aside(finished.stores[1], 3)
    for store in finished.stores:
        finished.cut(store, 3)
    verdict = finished.judge(synchronous=False)
    assert not [text for text in verdict.problems if not text.startswith("FILES")]
    assert (verdict.lost, verdict.lost_bytes, verdict.cuts, verdict.cut_records) == (3, 600, 1, 3)


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


def test_logs_are_compared_only_where_asked(finished: Run) -> None:
    finished.cut(finished.stores[1], 1)
    last = finished.sends[-1].offset
    assert not list(differences(finished.stores, 0, last))
    (problem,) = differences(finished.stores, 0, last + 50)
    assert int(problem.split(" at byte ")[1].split()[0]) in range(last, last + 4)


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
