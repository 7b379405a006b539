"""What RocketMQ leaves behind: a store or settings with which something would be missing are refused."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from command_line import run
from raw_wire import lone_broker

from tandemmq.chaos.asking import ask, registered_at
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import REPOSITORY, SMALL_FILES, Broker, NameServer
from tandemmq.cluster.addresses import reached_at
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

GOLDEN = Path(__file__).parents[1] / "golden"
MOVED = GOLDEN / "moved"
ROCKSDB = MOVED / "533-rocksdb.tar.xz"
GET_MAX = 30


def unpacked(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.xz")


def golden(name: str, directory: Path) -> tuple[Path, dict[str, str]]:
    """A golden store and the file sizes that it was made with."""
    with (GOLDEN / "stores" / f"{name}.jsonl").open() as lines:
        settings = json.loads(next(lines))["settings"]
    sizes = {key: str(settings[key]) for key in SIZES if key in settings}
    return unpacked(GOLDEN / "stores" / f"{name}.tar.xz", directory), sizes


SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


def refused(path: Path, *parts: str, code: ExitCode) -> None:
    """check-config and the start both end with this code and one line that holds these words."""
    for command in (["check-config", path], ["broker", "-c", path]):
        done = run(*command)
        assert done.code == code, done.err
        assert all(part in done.err for part in parts), done.err
        assert "Traceback" not in done.err


def test_rocksdb_in_the_settings_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={tmp_path}/store\nstoreType=defaultRocksDB\n")
    refused(path, "storeType", "from-rocketmq.md", code=ExitCode.BAD_CONFIG)


def test_access_control_without_anybody_who_may_come_in_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={tmp_path}/store\nauthenticationEnabled=true\n")
    refused(path, "authenticationEnabled", "initAuthenticationUser", code=ExitCode.BAD_CONFIG)


def test_a_container_of_brokers_is_not_started_as_a_broker_without_them(tmp_path: Path) -> None:
    """RocketMQ's conf/container: the file of a container names those of its brokers, which would be missing."""
    path = tmp_path / "broker-container1.conf"
    path.write_text("listenPort=0\nbrokerConfigPaths=/conf/broker-a.conf:/conf/broker-b.conf\n")
    refused(path, "brokerConfigPaths", "tandem broker -c", code=ExitCode.BAD_CONFIG)


def test_a_name_server_for_acting_masters_is_told_what_to_do_instead(tmp_path: Path) -> None:
    path = tmp_path / "nameserver.conf"  # as RocketMQ's conf/container calls it
    path.write_text("supportActingMaster=true\n")
    for command in ("check-config", path), ("nameserver", "-c", path):
        done = run(*command)
        assert done.code == ExitCode.BAD_CONFIG, done.err
        assert "supportActingMaster" in done.err and "Without the line" in done.err


def test_what_neither_a_name_server_nor_its_controller_knows_is_warned_of_once(
    tmp_path: Path,
) -> None:
    """RocketMQ's conf/controller/cluster-3n-namesrv-plugin begins with a comment that is none in properties."""
    path = tmp_path / "namesrv-n0.conf"
    lines = ["<!--", "  Licensed to somebody", "  -->", "enableControllerInNamesrv = true"]
    lines += ["controllerDLegerPeers = n0-127.0.0.1:9878", "controllerDLegerSelfId = n0"]
    path.write_text("\n".join(lines))
    done = run("check-config", path)
    assert done.code == ExitCode.OK, done.err
    for key in ("<!--", "Licensed", "-->"):
        assert done.err.count(f"unknown setting ignored key={key}") == 1


def test_check_config_takes_what_the_start_will_be_given(tmp_path: Path) -> None:
    """RocketMQ's own slave file (conf/2m-2s-async/broker-a-s.properties) names no name server."""
    path = tmp_path / "broker-a-s.properties"
    lines = [
        "brokerClusterName=DefaultCluster",
        "brokerName=broker-a",
        "brokerId=1",
        "deleteWhen=04",
    ]
    lines += ["fileReservedTime=48", "brokerRole=SLAVE", "flushDiskType=ASYNC_FLUSH"]
    path.write_text("\n".join([*lines, f"storePathRootDir={tmp_path}/store"]))
    alone = run("check-config", path)
    assert alone.code == ExitCode.BAD_CONFIG and "-n" in alone.err
    assert run("check-config", path, "-n", "10.0.0.1:9876").code == ExitCode.OK
    path.write_text(path.read_text() + "\nauthenticationEnabled=true\n")
    with_names = ["check-config", path, "-n", "10.0.0.1:9876"]
    assert run(*with_names).code == ExitCode.BAD_CONFIG


def test_a_store_whose_tables_are_in_rocksdb_is_not_served_without_them(tmp_path: Path) -> None:
    store = unpacked(ROCKSDB, tmp_path)
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={store}\nlistenPort=0\n")
    refused(path, "consumerOffsets", "RocksDB", "from-rocketmq.md", code=ExitCode.STORE_UNUSABLE)
    shown = run("inspect", store)
    assert shown.code == ExitCode.UNSOUND
    assert "PROBLEM left by RocketMQ: topics" in shown.out
    assert "it was deleted" not in shown.out  # the topics are in RocksDB: nobody here knows


def test_queues_with_extended_entries_are_derived_anew_as_the_refusal_says(tmp_path: Path) -> None:
    store = unpacked(MOVED / "533-queue-ext.tar.xz", tmp_path)
    broker = lone_broker(tmp_path, {"storePathRootDir": store, "storePathCommitLog": "", **SMALL_FILES})  # fmt: skip
    path = tmp_path / "broker-a.conf"
    refused(path, "consumequeue_ext", "remove", code=ExitCode.STORE_UNUSABLE)
    assert "13 entries have an address in consumequeue_ext" in run("inspect", store).out
    for name in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(store / name)
    with broker:
        broker.start()
        asked = [{"topic": "Moved", "queueId": str(queue)} for queue in range(4)]

        def ends() -> list[int]:
            answers = [ask(broker.address, GET_MAX, each)[1] for each in asked]
            return [int(each["extFields"]["offset"]) for each in answers]

        wait_until(
            lambda: sum(ends()) == 51, 10, "the 50 messages, and the one whose delay is over"
        )
        assert broker.stop() == 0
    shown = run("inspect", store)
    assert shown.code == ExitCode.OK, shown.out


def test_what_waits_in_a_store_is_named_and_served_only_despite_it(tmp_path: Path) -> None:
    """533-kill9 of RocketMQ: three timers and a half message wait."""
    store, sizes = golden("533-kill9", tmp_path)
    given = {"storePathRootDir": store, "storePathCommitLog": "", "timerWheelEnable": "false"}
    broker = lone_broker(tmp_path, {**given, **sizes})
    path = tmp_path / "broker-a.conf"
    refused(path, "GoldTimer: 3", code=ExitCode.STORE_UNUSABLE)
    path.write_text(path.read_text() + "startDespite=timers\n")
    with broker:
        broker.start()
        assert ask(broker.address, GET_MAX, {"topic": "GoldTimer", "queueId": "0"})[0] == 0
        shown = run("inspect", store).out  # somebody may be at work on it
        assert "note found in the store: half" in shown and "PROBLEM left by" not in shown
        lines = broker.output().splitlines()
        warned = [line for line in lines if "found in the store" in line]
        assert any("GoldTimer: 3" in line for line in warned)
        assert any("GoldTrans: 1" in line for line in warned)
        assert broker.stop() == 0


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_inspect_counts_what_a_refused_start_names_and_neither_writes_anything(
    tmp_path: Path,
) -> None:
    """Whether RocketMQ was killed or stopped in order. inspect knows no setting: the timer wheel is on by default."""
    store, sizes = golden("533-kill9", tmp_path)
    given = {"storePathRootDir": store, "storePathCommitLog": "", "timerWheelEnable": "false"}
    lone_broker(tmp_path, {**given, **sizes})
    for killed in (True, False):
        if not killed:
            (store / "abort").unlink()
        before = files_of(store)
        refused(tmp_path / "broker-a.conf", "GoldTimer: 3", code=ExitCode.STORE_UNUSABLE)
        shown = run("inspect", store)
        assert "PROBLEM left by" not in shown.out
        assert "note found in the store: messages that wait" in shown.out
        assert "GoldTimer: 3" in shown.out
        assert files_of(store) == before


def test_what_waits_is_told_before_the_start_where_queues_were_moved_away(tmp_path: Path) -> None:
    store, sizes = golden("533-kill9", tmp_path)
    (store / "abort").unlink()
    shutil.rmtree(store / "consumequeue")
    given = {"storePathRootDir": store, "storePathCommitLog": "", "timerWheelEnable": "false"}
    lone_broker(tmp_path, {**given, **sizes})
    before = files_of(store)
    path = tmp_path / "broker-a.conf"
    refused(path, "GoldTimer: 3", code=ExitCode.STORE_UNUSABLE)
    assert "GoldTimer: 3" in run("inspect", store).out
    assert files_of(store) == before


def test_what_only_recovery_finds_leaves_a_store_that_is_closed_in_order(tmp_path: Path) -> None:
    """One queue is gone, so nothing is known of its timers before it is derived."""
    store, sizes = golden("533-kill9", tmp_path)
    for path in (store / "abort", store / "config" / "timercheck"):
        path.unlink()
    for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
        shutil.rmtree(store / "consumequeue" / topic)
    given = {"storePathRootDir": store, "storePathCommitLog": "", "timerWheelEnable": "false"}
    lone_broker(tmp_path, {**given, **sizes})
    done = run("broker", "-c", tmp_path / "broker-a.conf")
    assert done.code == ExitCode.STORE_UNUSABLE and "GoldTimer: " in done.err
    left = {path.name for path in store.iterdir()}
    assert "commitlog" in left and not left & {"abort", "bootid", "flushmode"}


def test_a_file_that_names_no_address_is_served_and_registered_as_by_rocketmq(
    tmp_path: Path,
) -> None:
    if not reached_at():
        pytest.skip("this machine has no address but loopback")
    with NameServer(tmp_path) as names, Broker(tmp_path, names.start().address) as broker:
        path = tmp_path / "broker-a.conf"
        lines = [line for line in path.read_text().splitlines() if "brokerIP1" not in line]
        path.write_text("\n".join(lines))
        broker.start()
        address = registered_at(names.address, "broker-a")
        host, _, port = address.rpartition(":")
        assert host in reached_at() and int(port) == broker.port
        for reached in (address, broker.address):
            assert ask(reached, GET_MAX, {"topic": "SELF_TEST_TOPIC", "queueId": "0"})[0] == 0
        warned = [line for line in broker.output().splitlines() if "without credentials" in line]
        assert len(warned) == 1 and host in warned[0]
        assert broker.stop() == 0


def test_a_controller_group_comes_over_by_the_commands_of_the_howto(tmp_path: Path) -> None:
    """The controller's records stay behind: its successor learns from the logs, and nobody is elected unasked."""
    controller = f"{LOOPBACK}:{PORTS.take()}"
    given = {
        "enableControllerInNamesrv": "true", "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0", "controllerStorePath": tmp_path / "controller",
    }  # fmt: skip
    text = (REPOSITORY / "docs" / "howto" / "controller.md").read_text()
    block = re.search(r"## Its records are lost.*?```console\n(.*?)```", text, re.DOTALL)
    assert block is not None
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path, given)).start()
        brokers = []
        for number in (1, 2):
            store, sizes = golden(f"533-ctl-{number}", tmp_path)
            settings = {
                **sizes, "enableControllerMode": "true", "controllerAddr": controller,
                "brokerRole": "SLAVE", "brokerId": -1, "allAckInSyncStateSet": "true",
            }  # fmt: skip
            broker = Broker(
                tmp_path / f"node{number}", names.address, name="ctl-a", cluster="GoldCluster",
                store=store, settings=settings,
            )  # fmt: skip
            stack.enter_context(broker).launch()
            brokers.append(broker)

        def shown() -> str:
            return run("admin", "getSyncStateSet", "-a", controller, "-b", "ctl-a").out

        wait_until(lambda: len(re.findall(r"NotInSync .* true", shown())) == 2, 20, "both replicas")
        assert re.search(r"#MasterBrokerId +none", shown())
        for line in block.group(1).splitlines():
            words = line.removeprefix("$ tandem ").replace("10.0.0.1:9878", controller)
            words = words.replace("DefaultCluster", "GoldCluster").replace("broker-a", "ctl-a")
            assert run(*words.split()).code == ExitCode.OK
        wait_until(lambda: len(re.findall(r"\bInSync ", shown())) == 2, 20, "both in the set")
        assert re.search(r"#MasterEpoch +3\b", shown())
        assert run("send", "-n", names.address, "GoldCtl", "moved").code == ExitCode.OK
        for broker in reversed(brokers):  # the master last
            assert broker.stop() == 0
        for broker in brokers:
            found = run("inspect", broker.store, "--json").json
            assert found["sound"], found["problems"]
            assert found["records"] == 56 and found["epochs"][-1] == [3, 13675]
