"""The functions marked [thread], beside a thread that appends and dispatches: what they promise stays true."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from tandemmq.storage import Draft, StorageConfig, encode_properties, inspect_store, open_store
from tandemmq.storage.checkpoint import load_queue_state

MESSAGES = 3_000


def test_flushing_beside_appends_promises_only_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = StorageConfig(
        root=str(root),
        segment_bytes=1 << 17,
        queue_segment_bytes=20 * 50,
        index_slots=1000,
        index_entries=2000,
    )
    done = threading.Event()
    failures: list[BaseException] = []
    copies: list[Path] = []

    def again_and_again(act: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while not done.is_set():
                    act()
            except BaseException as error:
                failures.append(error)
                done.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with open_store(config) as store:
        threads = [
            again_and_again(store.flush_log),
            again_and_again(lambda: store.flush_queues(0)),
            again_and_again(lambda: store.flush_checkpoint(store.confirmed)),
            again_and_again(store.prepare_next_segment),
        ]
        flushed_before = 0
        for number in range(MESSAGES):
            properties = encode_properties({"KEYS": f"k{number}", "TAGS": f"t{number % 5}"})
            store.put(Draft(f"T{number % 20}", number % 3, b"x" * (number % 200), properties))
            if number % 7 == 0:
                store.dispatch()
            flushed = store.flushed
            assert flushed_before <= flushed <= store.end
            flushed_before = flushed
            if number % 1_000 == 999:  # killed here, in the middle of whatever the threads do
                copies.append(tmp_path / f"copy{number}")
                shutil.copytree(root, copies[-1], ignore=shutil.ignore_patterns("*.new"))
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        while store.dispatch():
            pass
        store.flush_queues(0)
        state = load_queue_state(root / "queuestate")
        assert state is not None
        assert state.dispatched == store.end
    for copy in copies:
        sizes = StorageConfig(
            root=str(copy),
            segment_bytes=config.segment_bytes,
            queue_segment_bytes=config.queue_segment_bytes,
            index_slots=config.index_slots,
            index_entries=config.index_entries,
        )
        with open_store(sizes) as store:
            assert store.recovered.same_boot
            assert store.recovered.rebuilt == [], "the state was true: no queue was found wanting"
            put = sum(queue.max_offset for queue in store.queues)
            assert put == int(copy.name[4:]) + 1
        assert inspect_store(copy, sizes).problems == []
