"""Files of a stopped or killed broker damaged one by one: what can be made again is, and nothing wrong is delivered."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from raw_wire import Wire, bodies, json_frame, lone_broker, send_ext, send_one

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker

pytestmark = pytest.mark.system

STORE_UNUSABLE = 9
SUCCESS = 0
COUNT = 700  # three queue files of 300 entries, several log files, two index files


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store that was stopped, and the same one killed: to be copied, never opened."""
    directory = tmp_path_factory.mktemp("written")
    stores: dict[str, Path] = {}
    with lone_broker(directory, {"mappedFileSizeConsumeQueue": 6_000}) as broker:
        broker.start()
        fill(broker)
        wait_until((broker.store / "index").exists, 5, "an index")
        with Wire(broker.address) as wire:
            place = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
            wire.request(json_frame(11, {**place, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
                                         "commitOffset": "0", "suspendTimeoutMillis": "0",
                                         "subscription": "*", "subVersion": "0"}))  # fmt: skip
            wire.request(json_frame(15, {**place, "commitOffset": "123"}))
        wait_until((broker.store / "config" / "consumerOffset.json").exists, 10, "offsets saved")
        broker.kill()
        stores["killed"] = directory / "killed"
        shutil.copytree(broker.store, stores["killed"])
        broker.start()
        assert broker.stop() == 0
        stores["stopped"] = directory / "stopped"
        shutil.copytree(broker.store, stores["stopped"])
    return stores


def text(number: int) -> bytes:
    return b"%06d " % number * 200


def fill(broker: Broker) -> None:
    with Wire(broker.address) as wire:
        for number in range(COUNT):
            ext = send_ext("T", properties=f"KEYS\x01k{number}\x02")
            assert wire.request(json_frame(10, ext, text(number))).code == SUCCESS


def copied(store: Path, directory: Path) -> Path:
    return Path(shutil.copytree(store, directory / "store"))


def broker_over(store: Path, directory: Path) -> Broker:
    return lone_broker(directory, {"mappedFileSizeConsumeQueue": 6_000}, store=store)


def garbled(path: Path, seed: int = 5) -> None:
    """The same length, other bytes."""
    path.write_bytes(random.Random(seed).randbytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def missing(path: Path) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path], None]] = [garbled, cut, emptied, flipped, missing]


def check_whole(broker: Broker) -> None:
    """All messages are served, in order; one more goes behind them; a key is found."""
    found = bodies(broker.address, "T")
    assert found == {number: text(number) for number in range(COUNT)}
    assert send_one(broker.address, "T").ext["queueOffset"] == str(COUNT)


@pytest.mark.parametrize("ending", ["stopped", "killed"])
@pytest.mark.parametrize("file", ["checkpoint", "queuestate", "abort.bak", "queue", "index"])
def test_derived_files_are_made_again(
    written: dict[str, Path], tmp_path: Path, ending: str, file: str
) -> None:
    store = copied(written[ending], tmp_path)
    rng = random.Random(file + ending)
    if file == "queue":
        path = sorted((store / "consumequeue" / "T" / "0").iterdir())[rng.randrange(2)]
        damage = rng.choice([garbled, flipped, missing])  # other lengths: below
    elif file == "index":
        path = sorted((store / "index").iterdir())[0]
        damage = rng.choice([garbled, flipped, missing])
    else:
        path = store / file
        damage = rng.choice(DAMAGES)
    if path.exists():
        damage(path)
    with broker_over(store, tmp_path) as broker:
        broker.start()
        check_whole(broker)
        with Wire(broker.address) as wire:
            ext = {"topic": "T", "key": "k33", "maxNum": "10", "beginTimestamp": "0",
                   "endTimestamp": str(2**62)}  # fmt: skip
            answer = wire.request(json_frame(12, ext))
            assert answer.code == SUCCESS and text(33) in answer.body
        assert broker.stop() == 0


@pytest.mark.parametrize("name", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset"])
def test_tables_fall_back_to_their_former_generation_and_never_to_nothing(
    written: dict[str, Path], tmp_path: Path, name: str
) -> None:
    store = copied(written["killed"], tmp_path)
    path = store / "config" / f"{name}.json"
    if not path.exists():
        path.write_text(
            '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"offsetTable":{}}'
        )
    former = path.with_name(path.name + ".bak")
    former.write_bytes(path.read_bytes())
    path.write_bytes(b'{"broken":')
    with broker_over(store, tmp_path) as broker:
        broker.start()
        assert len(bodies(broker.address, "T")) == COUNT
        with Wire(broker.address) as wire:
            place = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
            assert wire.request(json_frame(14, place)).ext["offset"] == "123"
        broker.kill()
        path.write_bytes(b"\xff\xfe nonsense")
        former.write_bytes(b"[]")
        broker.launch()
        wait_until(lambda: not broker.alive, 10, "a table that nobody can read stops the start")
        assert broker.code == STORE_UNUSABLE
        last = broker.output().splitlines()[-1]
        assert f"{name}.json" in last and "Traceback" not in last
        assert path.read_bytes() == b"\xff\xfe nonsense", "left as it is, for the operator"


@pytest.mark.parametrize("what", ["abort", "lock", "bootid"])
def test_marks_with_nonsense_in_them_are_no_obstacle(
    written: dict[str, Path], tmp_path: Path, what: str
) -> None:
    store = copied(written["killed"], tmp_path)
    (store / what).write_bytes(b"\xff\0nonsense" * 100)
    with broker_over(store, tmp_path) as broker:
        broker.start()
        check_whole(broker)
        assert broker.stop() == 0


def test_a_flipped_bit_in_the_log_is_never_delivered(
    written: dict[str, Path], tmp_path: Path
) -> None:
    """After a kill: the log ends in front of it, aloud, and what follows is counted."""
    store = copied(written["killed"], tmp_path)
    (store / "checkpoint").unlink()
    (store / "queuestate").unlink(missing_ok=True)
    path = sorted((store / "commitlog").iterdir())[0]
    data = bytearray(path.read_bytes())
    at = data.index(text(300)) + 50
    data[at] ^= 1
    path.write_bytes(data)
    with broker_over(store, tmp_path) as broker:
        broker.start()
        found = bodies(broker.address, "T")
        assert found == {number: text(number) for number in range(300)}
        assert "log cut in front of later records" in broker.output()
        assert send_one(broker.address, "T").ext["queueOffset"] == "300"
        assert broker.stop() == 0


def test_a_log_file_of_another_length_is_refused_and_left_alone(
    written: dict[str, Path], tmp_path: Path
) -> None:
    for damage in (cut, emptied):
        directory = tmp_path / damage.__name__
        directory.mkdir()
        store = copied(written["stopped"], directory)
        path = sorted((store / "commitlog").iterdir())[0]
        damage(path)
        before = path.read_bytes()
        with broker_over(store, directory) as broker:
            broker.launch()
            wait_until(lambda b=broker: not b.alive, 10, "refused")
            assert broker.code == STORE_UNUSABLE, broker.tail()
            assert path.name in broker.output().splitlines()[-1]
            assert "Traceback" not in broker.output()
        assert path.read_bytes() == before


def test_a_foreign_file_in_the_log_directory_is_named(
    written: dict[str, Path], tmp_path: Path
) -> None:
    store = copied(written["stopped"], tmp_path)
    (store / "commitlog" / "README.txt").write_text("not a log file")
    with broker_over(store, tmp_path) as broker:
        broker.launch()
        wait_until(lambda: not broker.alive or broker.ready(), 10, "refused or served")
        if broker.alive:
            check_whole(broker)
        else:
            assert broker.code == STORE_UNUSABLE
            assert "README.txt" in broker.output().splitlines()[-1]
    assert (store / "commitlog" / "README.txt").exists()
