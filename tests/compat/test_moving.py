"""A store of RocketMQ with tables in RocksDB comes over as docs/howto/from-rocketmq.md says, by RocketMQ's own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from tandemmq.chaos.asking import ask, registered_at, routed
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import REPOSITORY, Broker, NameServer
from tandemmq.java import NEWEST, Driver
from tandemmq.storage import fastjson

STORE = Path(__file__).parents[1] / "golden" / "moved" / "533-rocksdb.tar.xz"
HOWTO = REPOSITORY / "docs" / "howto" / "from-rocketmq.md"
GET_ALL_OFFSETS, GET_ALL_TOPICS, GET_MAX = 43, 21, 30


def test_a_store_in_rocksdb_comes_over_as_the_howto_says(
    tmp_path: Path, newest_driver: Driver
) -> None:
    with tarfile.open(STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    store = tmp_path / "533-rocksdb"
    block = re.search(r"## RocksDB.*?```console\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    assert block is not None
    for line in block.group(1).splitlines():
        words = (
            line.removeprefix("$ ")
            .replace("/data/rocketmq", str(tmp_path))
            .replace(f"{tmp_path}/store", str(store))
        )
        if words.startswith("mqadmin "):
            newest_driver.mqadmin(*words.split()[1:])
        else:
            subprocess.run(["sh", "-c", words], check=True, cwd=tmp_path)
    given = {
        "startDespite": "timers,staticTopics,compaction",
        "timerWheelEnable": "false",
    }  # it has some of each
    with Broker(tmp_path / "ours", "", store=store, settings=given) as broker:
        broker.start()
        offsets = fastjson.loads(ask(broker.address, GET_ALL_OFFSETS)[2])["offsetTable"]
        assert offsets["Plain@CommitGroup"] == {"0": 10, "1": 11, "2": 12, "3": 13}
        topics = fastjson.loads(ask(broker.address, GET_ALL_TOPICS)[2])["topicConfigTable"]
        assert topics["Plain"]["writeQueueNums"] == 4
        asked = [{"topic": "Plain", "queueId": str(queue)} for queue in range(4)]
        ends = [ask(broker.address, GET_MAX, each)[1]["extFields"]["offset"] for each in asked]
        assert sum(map(int, ends)) == 102  # 100 sent, and two that the timer wheel delivered
        assert broker.stop() == 0
    shutil.rmtree(store / "consumequeue")  # a topic of it is of queue.type=BatchCQ
    with JavaBroker(NEWEST, tmp_path / "back", "", store=store) as theirs:  # storeType=default
        theirs.start()
        back = fastjson.loads(ask(theirs.address, GET_ALL_OFFSETS)[2])["offsetTable"]
        assert back["Plain@CommitGroup"] == offsets["Plain@CommitGroup"]
        again = [ask(theirs.address, GET_MAX, each)[1]["extFields"]["offset"] for each in asked]
        assert again == ends
    shutil.rmtree(store)


def consumed(table: str) -> bool:
    """Whether the saved progress of the readers is behind the one message."""
    return re.search(r'"Moved@Readers":\s*\{\s*"?0"?:\s*1\b', table) is not None


def unsaid(path: Path) -> None:
    """Take the address out of a broker's file."""
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "brokerIP1" not in line))


def test_a_file_without_addresses_comes_over_with_the_address_that_messages_were_stored_under(
    tmp_path: Path, newest_driver: Driver
) -> None:
    """mqadmin takes a message for consumed only where its master is registered under the host in the message."""
    driver, store = newest_driver, tmp_path / "store"
    with NameServer(tmp_path) as names:
        names.start()
        every = {"namesrv": names.address, "topic": "Moved"}
        given = {"flushConsumerOffsetInterval": 500}
        theirs = JavaBroker(NEWEST, tmp_path, names.address, store=store, settings=given)
        unsaid(tmp_path / "broker-a.conf")
        with theirs:
            theirs.start()
            told = registered_at(names.address, "broker-a")
            driver.call("pull.start", name="moving", group="Makers", namesrv=names.address)
            driver.call(
                "pull.create_topic", name="moving", topic="Moved", queues=1, address=theirs.address
            )
            wait_until(lambda: routed(names.address, "Moved"), 10, "route")
            driver.call("producer.start", name="moved", group="PG", namesrv=names.address)
            (sent,) = driver.call(
                "send.sync", name="moved", topic="Moved", messages=[{"body": "b"}]
            )
            driver.call("push.start", name="reader-1", group="Readers", **every)
            driver.wait_messages("reader-1", 1)
            time.sleep(
                1
            )  # its listener is through when a message is seen, its position is not moved yet
            driver.call("push.stop", name="reader-1")
            saved = store / "config" / "consumerOffset.json"
            wait_until(
                lambda: saved.exists() and consumed(saved.read_text()),
                30,
                "progress saved",
            )
        ours = Broker(tmp_path, names.address, store=store, port=theirs.port)
        unsaid(tmp_path / "broker-a.conf")
        with ours:
            ours.start()
            assert registered_at(names.address, "broker-a") == told
            driver.call("push.start", name="reader-2", group="Readers", **every)
            shown = driver.mqadmin(
                "queryMsgById", "-n", names.address, "-t", "Moved", "-i", sent["msgId"]
            )
            print(shown)
            assert "CONSUMED" in shown and "NOT_CONSUME_YET" not in shown
            driver.call("push.stop", name="reader-2")
