"""Classic replication by real processes: one master, one slave, and what producers and consumers see of it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from raw_wire import (
    SEND,
    Answer,
    Wire,
    binary_frame,
    bodies,
    count_lines,
    json_frame,
    producing,
    send_ext,
    topic_names,
)

from tandemmq.chaos.asking import GET_CLUSTER, ask, registered
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

GET_BROKER_RUNTIME_INFO = 28
GET_BROKER_HA_STATUS = 907
SLAVE_TIMEOUT_MS = 800
TOPIC = "T"


class Group:
    """A master, its slave and their name server; each may be killed and started again."""

    def __init__(self, root: Path, role: str, **settings: object) -> None:
        self.names = NameServer(root)
        common = {"slaveTimeout": SLAVE_TIMEOUT_MS, **settings}
        self.master = Broker(
            root / "master", self.names.address, settings={"brokerRole": role, **common}
        )
        self.slave = Broker(
            root / "slave",
            self.names.address,
            settings={"brokerRole": "SLAVE", "brokerId": 1, **common},
        )

    def start(self, stack: ExitStack) -> None:
        for process in (self.names, self.master, self.slave):
            stack.enter_context(process)
            process.start()
        self.wait_streaming()

    def wait_streaming(self) -> None:
        wait_until(self.caught_up, 20, "the slave follows and has everything")

    def caught_up(self) -> bool:
        slaves = status(self.master)["haConnectionInfo"]
        return len(slaves) == 1 and slaves[0]["diff"] == 0 and slaves[0]["slaveAckOffset"] >= 0

    def identical(self) -> None:
        """Stop both; every byte of log and queues must be the same."""
        wait_until(self.caught_up, 20, "the slave has everything")
        assert self.slave.stop() == 0
        assert self.master.stop() == 0
        for kind in ("commitlog", "consumequeue"):
            ours, theirs = files_of(self.master, kind), files_of(self.slave, kind)
            assert ours.keys() == theirs.keys() and ours
            assert [name for name in ours if ours[name] != theirs[name]] == []


def files_of(broker: Broker, kind: str) -> dict[str, bytes]:
    root = broker.store / kind
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def status(broker: Broker) -> dict[str, Any]:
    code, _, body = ask(broker.address, GET_BROKER_HA_STATUS)
    assert code == 0
    found: dict[str, Any] = json.loads(body)
    return found


def runtime(broker: Broker) -> dict[str, str]:
    code, _, body = ask(broker.address, GET_BROKER_RUNTIME_INFO)
    assert code == 0
    table: dict[str, str] = json.loads(body)["table"]
    return table


@contextmanager
def group_of(root: Path, role: str, **settings: object) -> Iterator[Group]:
    with ExitStack() as stack:
        group = Group(root, role, **settings)
        group.start(stack)
        yield group


def send(broker: Broker, body: bytes = b"one", *, binary: bool = False) -> Answer:
    frame = binary_frame if binary else json_frame
    with Wire(broker.address) as wire:
        return wire.request(frame(SEND, send_ext(TOPIC), body))


def send_short(wire: Wire, number: int, *, binary: bool = False) -> Answer:
    """A send that takes the short path: it has an id."""
    properties = f"UNIQ_KEY\x01{number:032X}\x02"
    frame = binary_frame if binary else json_frame
    return wire.request(
        frame(SEND, send_ext(TOPIC, properties=properties), b"%d" % number, opaque=number)
    )


def safety(answer: Answer) -> tuple[int, int, int, int]:
    """Code, epoch, copies, durable."""
    ext = answer.ext
    return answer.code, int(ext["epoch"]), int(ext["copies"]), int(ext["durable"])


# -- what answers say ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "flush", "said"),
    [
        ("ASYNC_MASTER", "ASYNC_FLUSH", (0, 0, 1, 0)),
        ("ASYNC_MASTER", "SYNC_FLUSH", None),
        ("SYNC_MASTER", "ASYNC_FLUSH", (0, 0, 2, 0)),
        ("SYNC_MASTER", "SYNC_FLUSH", (0, 0, 2, 1)),
    ],
    ids=["A0", "A1", "S0", "S1"],
)
def test_each_mode_says_what_it_promises_and_both_logs_are_one(
    tmp_path: Path, role: str, flush: str, said: tuple[int, int, int, int] | None
) -> None:
    with group_of(tmp_path, role, flushDiskType=flush) as group:
        assert send(group.master).code == 0  # makes the topic
        with Wire(group.master.address) as wire:
            for number in range(200):
                answers = [
                    send_short(wire, number),
                    send_short(wire, number, binary=True),
                    wire.request(json_frame(SEND, send_ext(TOPIC), b"long way")),
                ]
                for answer in answers:
                    code, epoch, copies, durable = safety(answer)
                    if said is not None and flush == "ASYNC_FLUSH":
                        # what else is on disk by chance is said too
                        assert (code, epoch, copies) == said[:3] and durable >= said[3], answer
                    else:
                        assert (code, epoch) == (0, 0) and durable >= 1, answer
                        assert copies >= (2 if role == "SYNC_MASTER" else 1), answer
        wait_until(group.caught_up, 20, "the slave has everything")
        expected = bodies(group.master.address, TOPIC)
        wait_until(
            lambda: bodies(group.slave.address, TOPIC) == expected, 20, "the slave shows it all"
        )
        group.identical()


def test_slave_is_registered_refuses_sends_and_says_how_it_follows(tmp_path: Path) -> None:
    with group_of(tmp_path, "ASYNC_MASTER") as group:
        assert registered(group.names.address, "broker-a", 1)
        for code in (10, 310, 320, 36):
            with Wire(group.slave.address) as wire:
                answer = wire.request(json_frame(code, send_ext(TOPIC), b"x"))
                assert answer.code in (1, 2)
        refused = send(group.slave)
        assert refused.code == 2
        assert refused.remark.startswith("[REJECTREQUEST]")
        send(group.master)
        wait_until(group.caught_up, 20, "the slave has it")
        followed = status(group.slave)
        assert followed["master"] is False
        client = followed["haClientRuntimeInfo"]
        assert client["masterAddr"] == f"127.0.0.1:{group.master.port + 1}"
        assert client["maxOffset"] == status(group.master)["masterCommitLogMaxOffset"] > 0
        assert client["lastReadTimestamp"] > 0 and client["lastWriteTimestamp"] > 0
        shown = run("admin", "haStatus", "-b", group.slave.address, "-n", group.names.address)
        assert f"#MasterAddr\t{client['masterAddr']}" in shown.out
        shown = run("admin", "haStatus", "-b", group.master.address, "-n", group.names.address)
        assert "#SlaveNum\t1\n#InSyncSlaveNum\t1" in shown.out
        assert runtime(group.slave)["brokerActive"] == "false"
        assert runtime(group.slave)["brokerRole"] == "SLAVE"
        assert runtime(group.master)["brokerActive"] == "true"


# -- slaves that die, freeze and come back --------------------------------------------------------


def test_killed_slave_costs_one_moment_and_is_waited_for_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "SYNC_MASTER") as group:
        assert safety(send(group.master))[:3] == (0, 0, 2)
        group.slave.kill()
        wait_until(lambda: not status(group.master)["haConnectionInfo"], 5, "the stream is gone")
        for _ in range(3):
            began = time.monotonic()
            assert safety(send(group.master))[:3] == (11, 0, 1)
            assert time.monotonic() - began < 0.5
        assert len(bodies(group.master.address, TOPIC)) == 4  # stored, and shown
        group.slave.start()
        group.wait_streaming()
        assert safety(send(group.master))[:3] == (0, 0, 2)
        group.identical()


def test_slave_killed_under_load_loses_nothing_and_ends_up_identical(tmp_path: Path) -> None:
    with group_of(tmp_path, "SYNC_MASTER", slaveTimeout=2000) as group:
        send(group.master)
        with producing(group.master.address, TOPIC, pause_s=0) as load:
            for _ in range(3):
                time.sleep(random.uniform(0.2, 0.5))
                group.slave.kill()
                group.slave.start()
                group.wait_streaming()
        assert load.problem is None
        assert {code for code, _ in load.refused} <= {11, 12}
        assert len(load.acknowledged) > 100
        found = bodies(group.master.address, TOPIC)
        assert {q: found[q] for q in load.acknowledged} == load.acknowledged
        group.identical()


def test_frozen_slave_holds_up_a_sender_once_and_no_longer_than_slave_timeout(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "SYNC_MASTER") as group:
        assert send(group.master).code == 0
        os.kill(group.slave.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert safety(send(group.master))[:3] == (12, 0, 1)
            took = time.monotonic() - began
            assert SLAVE_TIMEOUT_MS / 1000 <= took < SLAVE_TIMEOUT_MS / 1000 + 0.5
            for _ in range(5):
                began = time.monotonic()
                assert safety(send(group.master))[:3] == (11, 0, 1)
                assert time.monotonic() - began < 0.5
            assert len(bodies(group.master.address, TOPIC)) == 7
        finally:
            os.kill(group.slave.pid, signal.SIGCONT)
        group.wait_streaming()
        wait_until(lambda: send(group.master).code == 0, 5, "the slave is waited for again")
        group.identical()


def test_consumers_see_nothing_that_only_the_master_has_while_the_slave_may_get_it(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "SYNC_MASTER", slaveTimeout=3000) as group:
        send(group.master)
        assert len(bodies(group.master.address, TOPIC)) == 1
        os.kill(group.slave.pid, signal.SIGSTOP)
        try:
            with Wire(group.master.address) as wire:
                wire.send(json_frame(SEND, send_ext(TOPIC), b"two"))
                until = time.monotonic() + 1
                while time.monotonic() < until:
                    assert len(bodies(group.master.address, TOPIC)) == 1
                os.kill(group.slave.pid, signal.SIGCONT)
                assert safety(wire.read())[:3] == (0, 0, 2)
        finally:
            os.kill(group.slave.pid, signal.SIGCONT)
        wait_until(lambda: len(bodies(group.master.address, TOPIC)) == 2, 5, "it is shown now")


# -- the master dies -------------------------------------------------------------------------------


def test_slave_of_a_killed_master_keeps_every_acknowledged_byte_and_serves_it(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "SYNC_MASTER", slaveTimeout=2000) as group:
        send(group.master)
        with producing(group.master.address, TOPIC, pause_s=0) as load:
            time.sleep(0.5)
            group.master.kill()
            wait_until(lambda: load.problem, 5, "its producer noticed")
        assert isinstance(load.problem, OSError)
        wait_until(
            lambda: status(group.slave)["haClientRuntimeInfo"]["lastProblem"] != "",
            10, "the slave noticed",
        )  # fmt: skip
        assert len(load.acknowledged) > 50
        found = bodies(group.slave.address, TOPIC)
        assert {q: found.get(q) for q in load.acknowledged} == load.acknowledged
        group.master.start()
        group.wait_streaming()
        assert send(group.master).code == 0
        group.identical()


def test_slave_that_is_made_the_master_by_hand_goes_on_where_the_old_one_was(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "SYNC_MASTER", slaveTimeout=2000) as group, ExitStack() as stack:
        send(group.master)
        with producing(group.master.address, TOPIC, pause_s=0) as load:
            time.sleep(0.3)
            group.master.kill()
        assert load.acknowledged
        # a slave's tables follow its log within seconds
        wait_until(lambda: TOPIC in topic_names(group.slave.address), 20, "the topic is copied")
        assert group.slave.stop() == 0
        new = stack.enter_context(
            Broker(
                tmp_path / "new",
                group.names.address,
                store=group.slave.store,
                settings={"brokerRole": "ASYNC_MASTER"},
            )
        ).start()
        found = bodies(new.address, TOPIC)
        assert {q: found.get(q) for q in load.acknowledged} == load.acknowledged
        answer = send(new, b"after")
        assert answer.code == 0
        assert int(answer.ext["queueOffset"]) == len(found)

        # the old one has its place no more, and what only it has is not taken from it
        group.master.launch()
        wait_until(lambda: not group.master.alive, 20, "the old master gives up")
        assert "has a broker with this id already" in group.master.output()


def test_delayed_messages_are_delivered_by_the_master_alone(tmp_path: Path) -> None:
    with group_of(tmp_path, "SYNC_MASTER") as group:
        ext = send_ext(TOPIC, properties="DELAY\x011\x02")
        for count in (
            1,
            2,
        ):  # a slave that delivered the first would have by the time of the second
            with Wire(group.master.address) as wire:
                assert wire.request(json_frame(SEND, ext, b"later")).code == 0
            assert len(bodies(group.master.address, TOPIC)) == count - 1
            wait_until(
                lambda count=count: len(bodies(group.master.address, TOPIC)) == count,
                10, "the message is due",
            )  # fmt: skip
        expected = bodies(group.master.address, TOPIC)
        wait_until(
            lambda: bodies(group.slave.address, TOPIC) == expected, 10, "the slave shows both"
        )
        group.identical()


def test_slave_started_first_finds_its_master_when_it_comes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, "SYNC_MASTER")
        for process in (group.names, group.slave, group.master):
            stack.enter_context(process)
            process.start()
        began = time.monotonic()
        group.wait_streaming()
        assert time.monotonic() - began < 10
        assert send(group.master).code == 0


# -- strangers ---------------------------------------------------------------------------------------


def test_strangers_on_the_ha_port_are_dropped_with_a_reason_and_count_for_nothing(
    tmp_path: Path,
) -> None:
    with group_of(tmp_path, "SYNC_MASTER") as group:
        assert send(group.master).code == 0
        group.slave.kill()
        wait_until(lambda: not status(group.master)["haConnectionInfo"], 5, "the stream is gone")
        rng = random.Random(7)
        ha = ("127.0.0.1", group.master.port + 1)
        for data in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            rng.randbytes(4096),
            struct.pack(">q", 1 << 62),
            struct.pack(">q", -5),
        ):
            with socket.create_connection(ha, timeout=5) as stranger:
                stranger.settimeout(5)
                stranger.sendall(data)
                with pytest.raises((ConnectionError, AssertionError)):
                    while True:
                        assert stranger.recv(1 << 16), "closed"
        assert safety(send(group.master))[:3] == (11, 0, 1)
        assert count_lines(group.master, "slave dropped") >= 5
        group.slave.start()
        group.wait_streaming()
        assert safety(send(group.master))[:3] == (0, 0, 2)
        group.identical()


def test_ha_port_that_is_taken_is_one_clear_error(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path)).start()
        broker = stack.enter_context(Broker(tmp_path / "master", names.address))
        with socket.create_server(("127.0.0.1", broker.port + 1)):
            broker.launch()
            wait_until(lambda: not broker.alive, 20, "it gives up")
        assert broker.code != 0
        assert f"haListenPort={broker.port + 1}" in broker.output()
        assert "Traceback" not in broker.output()


def test_second_broker_of_one_identity_or_one_directory_does_not_start(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path)).start()
        first = stack.enter_context(Broker(tmp_path / "first", names.address)).start()
        same_name = stack.enter_context(Broker(tmp_path / "second", names.address))
        same_name.launch()
        wait_until(lambda: not same_name.alive, 20, "it gives up")
        assert same_name.code != 0
        assert f"brokerId=0: broker-a has a broker with this id already, at {first.address}" in (
            same_name.output()
        )
        same_place = stack.enter_context(
            Broker(tmp_path / "third", names.address, name="broker-c", store=first.store)
        )
        same_place.launch()
        wait_until(lambda: not same_place.alive, 20, "it gives up")
        assert same_place.code != 0 and "in use by another broker" in same_place.output()
        for refused in (same_name, same_place):
            assert "Traceback" not in refused.output()
        assert send(first).code == 0

        first.kill()  # its place is free
        same_name.start()
        assert send(same_name).code == 0


@pytest.mark.parametrize("tls", ["disabled", "enforcing"])
def test_of_two_brokers_of_one_identity_started_at_once_exactly_one_serves(
    tmp_path: Path, tls: str
) -> None:
    """Both ask before either is registered; whoever has to leave has not taken a message yet."""
    settings = {"tls.server.mode": tls}
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path, {"tls.server.mode": "permissive"})).start()
        for number in range(5):
            name = f"broker-{number}"
            both = [
                stack.enter_context(
                    Broker(tmp_path / f"{name}-{each}", names.address, name=name, settings=settings)
                )
                for each in "xy"
            ]
            for broker in both:
                broker.launch()
            wait_until(lambda both=both: not all(each.alive for each in both), 10, "one gives up")
            (left,) = [broker for broker in both if not broker.alive]
            (stayed,) = [broker for broker in both if broker.alive]
            stayed.wait_ready(lambda stayed=stayed: "boot success" in stayed.output(), 10)
            assert left.code == ExitCode.BAD_CONFIG
            refusal = f"brokerId=0: {name} has a broker with this id already, at {stayed.address}"
            assert refusal in left.output()
            assert "boot success" not in left.output() and "Traceback" not in left.output()
            assert not (left.store / "abort").exists(), "its store was closed in good order"
            wait_until(
                lambda stayed=stayed: addresses(names, stayed.broker_name) == {stayed.address},
                5, "routes show the one that stayed",
            )  # fmt: skip
            if tls == "disabled":
                assert send(stayed).code == 0
                assert list(bodies(stayed.address, TOPIC).values()) == [b"one"]
            assert stayed.stop() == 0


def test_sends_that_come_before_a_name_is_sure_wait_a_moment(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path)).start()
        broker = stack.enter_context(Broker(tmp_path / "b", names.address))
        broker.launch()
        wait_until(lambda: can_connect(broker.address), 10, "it listens")
        assert send(broker).code == 0
        assert "boot success" in broker.output()


def addresses(names: NameServer, broker_name: str) -> set[str]:
    """Where a name server says that brokers of this name are."""
    _, _, body = ask(names.address, GET_CLUSTER)
    group = json.loads(body)["brokerAddrTable"].get(broker_name, {"brokerAddrs": {}})
    return set(group["brokerAddrs"].values())


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
