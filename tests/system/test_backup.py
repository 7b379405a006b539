"""A cluster that is backed up under load with a failover in between, and goes on elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from audited_group import HttpBroker
from command_line import Done, run
from inbox import Inbox
from numbered_load import Load
from raw_wire import SEND, Wire, json_frame, send_ext

from tandemmq import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionState,
)
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.storage import fastjson

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

GROUPS = ("broker-a", "broker-b")
TOPIC, LATE, TIMED, DECIDED = "Load", "Late", "Timed", "Decided"
TRANSACTIONS = {"transactionTimeOut": 500, "transactionCheckInterval": 500}


async def unknown(message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


async def commit(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT


async def send_what_waits(name_server: str) -> None:
    """Delayed, timed and undecided messages, each of both groups' brokers."""
    async with Producer("undecided", namesrv=name_server, check_transaction=unknown) as producer:
        for number in range(8):
            await producer.send(Message(LATE, b"late %d" % number, delay_level=3))  # 10 s
            await producer.send(Message(TIMED, b"timed %d" % number, delay_s=10.0))
            async with producer.transaction(Message(DECIDED, b"half %d" % number)) as transaction:
                transaction.unknown()


class Story:
    """What happened, and what was taken of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster, self.backup = root / "cluster", root / "backup"
        self.name_server = ""
        self.before: set[bytes] = set()  # acknowledged before the last increment
        self.increments: list[list[dict[str, Any]]] = []  # by run
        self.audits: dict[str, Done] = {}
        self.restored: dict[str, dict[str, Any]] = {}

    def tandem(self, *words: object) -> Done:
        done = run(*words)
        assert done.code == 0, (words, done)
        return done

    def take(self, *words: object) -> None:
        done = self.tandem(
            "backup", "run", "-n", self.name_server, "--to", self.backup, "--token-file",
            self.cluster / "http.token", "--json", *words,
        )  # fmt: skip
        self.increments.append([json.loads(line) for line in done.out.splitlines()])

    def tell(self) -> None:
        up = self.tandem("local", "up", "--mode", "sync", "--dir", self.cluster, "--json")
        self.name_server = up.json["name_server"]
        for topic in (TOPIC, LATE, TIMED, DECIDED):
            self.tandem(
                "admin", "updateTopic", "-n", self.name_server, "-c", "TandemCluster", "-t", topic,
                "-r", 4, "-w", 4,
            )  # fmt: skip
        load = Load(self.name_server, TOPIC, GROUPS, "billing")
        with load.running():
            self.take()
            load.more()
            self.take()
            self.tandem("local", "kill", "broker-a-0", "--dir", self.cluster)
            load.more()
            self.take()
            self.tandem("local", "start", "broker-a-0", "--dir", self.cluster)
            asyncio.run(send_what_waits(self.name_server))
            load.more()
            self.before = set(load.acknowledged)
            self.take()
            load.more(20)
            for group in GROUPS:
                into = self.root / f"restored-{group}"
                done = self.tandem(
                    "restore", self.backup, "--group", group, "--into", into, "--json"
                )
                self.restored[group] = done.json
                self.audits[group] = run(
                    "audit", "run", self.increments[-1][GROUPS.index(group)]["source"], into,
                    "--token-file", self.cluster / "http.token", "--json",
                )  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp("backup"))
    try:
        told.tell()
        yield told
    finally:
        run("local", "down", "--kill", "--dir", told.cluster)


def test_increments_over_a_failover_are_one_chain_that_is_whole(story: Story) -> None:
    for of_group in zip(*story.increments, strict=True):
        assert [each["number"] for each in of_group] == [1, 2, 3, 4]
        assert len({each["chain"] for each in of_group}) == 1
        assert [bool(each["why"]) for each in of_group] == [True, False, False, False]
        assert [each["start"] for each in of_group[1:]] == [each["end"] for each in of_group[:-1]]
        assert all(each["end"] > each["start"] for each in of_group)
    first, *_, last = (each[0] for each in story.increments)
    assert last["source"] != first["source"], "broker-a was led by another replica"
    assert len(last["epochs"]) > len(first["epochs"])
    done = run("backup", "verify", story.backup, "--records", "--json")
    assert done.code == 0, done
    assert [each["problems"] for each in done.json] == [[], []]
    assert sum(each["records"] for each in done.json) >= len(story.before)


def test_what_is_restored_elsewhere_equals_by_audit_while_the_cluster_goes_on(
    story: Story,
) -> None:
    for group, done in story.audits.items():
        assert done.code == 0, (group, done)
        assert done.json["verdict"] == "equal"
        assert {row["class"] for row in done.json["divergence_rows"]} <= {"LAG"}
        assert [row for row in done.json["finding_rows"] if row["severity"] != "info"] == []
        assert done.json["records_checked"] > 300


def settings_of(into: Path) -> dict[str, object]:
    """What restore wrote for a broker on the store."""
    lines = (into / "restored.conf").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def controlled(directory: Path, controller: str) -> dict[str, object]:
    return {
        "brokerId": -1, "brokerRole": "SYNC_MASTER", "enableControllerMode": "true",
        "controllerAddr": controller, "storePathEpochFile": directory / "epochFileCheckpoint",
    }  # fmt: skip


async def read(name_server: str, due: dict[str, int]) -> dict[str, Counter[bytes]]:
    """Everything that a new group is served, until so many different bodies of each topic are there."""
    inboxes = {topic: Inbox() for topic in due}
    found: dict[str, Counter[bytes]] = {}
    consumers = [
        PushConsumer(f"new-{topic}", inbox, namesrv=name_server, subscribe={topic: "*"}, start=StartFrom.FIRST)
        for topic, inbox in inboxes.items()
    ]  # fmt: skip
    async with Producer("undecided", namesrv=name_server, check_transaction=commit) as producer:
        await producer.send(Message(DECIDED, b"hello"))  # who does not send is not asked
        try:
            for consumer in consumers:
                await consumer.start()
            for _ in range(600):
                found = {topic: Counter(inbox.bodies) for topic, inbox in inboxes.items()}
                if all(len(found[topic]) >= count for topic, count in due.items()):
                    break
                await asyncio.sleep(0.1)
        finally:
            for consumer in consumers:
                await consumer.stop()
    return found


def test_a_new_cluster_serves_every_message_that_was_acknowledged_before(
    story: Story, tmp_path: Path
) -> None:
    """One group alone, the other under a new controller, where an empty replica joins it."""
    controller = PORTS.take((0,))
    names = NameServer(
        tmp_path,
        {
            "enableControllerInNamesrv": "true", "controllerDLegerPeers": f"n0-{LOOPBACK}:{controller}",
            "controllerDLegerSelfId": "n0", "controllerStorePath": tmp_path / "controller",
        },
    )  # fmt: skip
    stores = {group: story.root / f"restored-{group}" for group in GROUPS}
    progress = fastjson.loads((stores["broker-a"] / "config/consumerOffset.json").read_bytes())
    assert sum(progress["offsetTable"][f"{TOPIC}@billing"].values()) > 50

    def broker(place: str, group: str, **more: object) -> Broker:
        store = stores[group] if place == "restored" else None
        directory = tmp_path / f"{place}-{group}"
        settings = {**settings_of(stores[group]), **TRANSACTIONS, "brokerIP1": LOOPBACK, **more}
        for name in ("storePathRootDir", "storePathCommitLog", "brokerName", "brokerClusterName"):
            del settings[name]
        return Broker(directory, names.address, name=group, store=store, settings=settings)

    with ExitStack() as stack:
        stack.enter_context(names).start()
        stack.enter_context(broker("restored", "broker-a")).start()
        under = controlled(stores["broker-b"], f"{LOOPBACK}:{controller}")
        stack.enter_context(broker("restored", "broker-b", **under)).start()
        under = controlled(tmp_path / "joins-broker-b" / "store", f"{LOOPBACK}:{controller}")
        stack.enter_context(broker("joins", "broker-b", **under)).launch()

        found = asyncio.run(
            read(
                names.address,
                {TOPIC: len(story.before) + 1, LATE: 8, TIMED: 8, DECIDED: 9},
            )
        )
        assert story.before <= found[TOPIC].keys()
        assert found[LATE].keys() == {b"late %d" % number for number in range(8)}
        assert found[TIMED] == Counter({b"timed %d" % number: 1 for number in range(8)})
        assert found[DECIDED].keys() == {b"hello", *(b"half %d" % number for number in range(8))}

        wait_until(
            lambda: "set [1] -> [1, 2]" in names.output(), 30, "the empty replica is in the set"
        )


def test_a_restored_group_of_a_point_ends_with_that_point(story: Story, tmp_path: Path) -> None:
    """The end of the second increment, from before the failover."""
    second = story.increments[1][0]
    done = run(
        "restore", story.backup, "--group", "broker-a", "--into", tmp_path / "store", "--until",
        f"@{second['end']}", "--as-broker", "broker-z", "--json",
    )  # fmt: skip
    assert done.code == 0, done
    assert (done.json["end"], done.json["increment"]) == (second["end"], 2)
    assert settings_of(tmp_path / "store")["brokerName"] == "broker-z"
    audited = run(
        "audit", "run", tmp_path / "store", story.root / "restored-broker-a", "--levels", "1"
    )
    assert audited.code in (0, 1), audited  # ahead by what came later, and equal below
    assert "AHEAD" in audited.out and "FORK" not in audited.out


def test_wrong_tokens_brokers_that_are_gone_and_unknown_groups_are_told_in_a_line(
    story: Story, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("not-the-token-at-all")
    to = ("--to", tmp_path / "backup")
    names = ("backup", "run", "-n", story.name_server)
    for words, code, said in (
        ((*names, *to, "--token-file", tmp_path / "wrong"), 1, "refuses this token"),
        ((*names, *to), 1, "wants a token"),
        ((*names, *to, "--group", "broker-q"), 1, "there is broker-a, broker-b"),
        (("backup", "run", *to), 2, "give a SOURCE or --namesrv"),
        (("backup", "run", "http://127.0.0.1:1", *to), 4, "nobody listens there"),
        (("backup", "list", tmp_path / "nothing"), 12, "no directory"),
        (("backup", "verify", story.backup, "--group", "x"), 12, "there is broker-a, broker-b"),
        (("restore", story.backup, "--into", tmp_path / "s"), 12, "choose with --group"),
        (("restore", story.backup, "--group", "broker-a", "--into", tmp_path), 1, "not empty"),
    ):
        done = run(*words)
        assert done.code == code, done
        assert said in done.err and "Traceback" not in done.err, done.err
    assert not list(tmp_path.rglob("*.log")) and not (tmp_path / "s").exists()


def test_a_broker_that_dies_while_it_is_copied_adds_nothing_and_the_next_run_does(
    tmp_path: Path,
) -> None:
    slow = {"httpBytesPerSecondMax": 300_000, "mappedFileSizeCommitLog": 4 << 20}
    broker = HttpBroker(tmp_path / "broker", "", settings=slow)
    to = ("--to", tmp_path / "backup", "--token-file", broker.token_file)
    with broker:
        broker.start()
        with Wire(broker.address) as wire:
            for number in range(20):
                sent = wire.request(
                    json_frame(SEND, send_ext("Slow"), bytes(50_000), opaque=number)
                )
                assert sent.code == 0
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(run, "backup", "run", broker.url, *to)
            wait_until(lambda: list((tmp_path / "backup").rglob("*.log")), 20, "it copies")
            broker.kill()
            done = copying.result(60)
        assert done.code == 4 and "Nothing was added" in done.err, done
        assert run("backup", "list", tmp_path / "backup").code == 12
        broker.start()
        assert run("backup", "run", broker.url, *to).code == 0
        assert run("backup", "verify", tmp_path / "backup", "--records").code == 0
