"""Stock brokers in controller mode under our controller, and what the stock mqadmin prints about it.

TANDEM_COMPAT_AGAINST=5.3.3 puts RocketMQ's own name server and controller in the place of ours.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clients import AGAINST
from raw_wire import Wire, json_frame

from tandemmq.chaos.asking import answers, ask, routed
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import NameServer
from tandemmq.java import NEWEST, Driver, DriverError, text_of

CLUSTER = "TestCluster"
GROUP = "broker-a"
TOPIC = "Kept"
GET_ROUTE = 105
GET_SYNC_STATE_DATA = 1006
NOT_LEADER = 2007
STARTED_S = 120  # two JVMs on a busy machine
# RocketMQ's own pace: a slave that was master looks for its new master's address every 5 s and gives an old
# connection up after 20 s; its master looks at the set every 5 s.
JOINED_S = 90
TAKEOVER_S = 20

Admin = Callable[..., str]


class Group:
    """A name server with a controller in it, and two stock brokers of one group."""

    def __init__(self, directory: Path) -> None:
        self.controller = f"{LOOPBACK}:{PORTS.take((0,))}"
        settings = {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": directory / "controller",
        }
        self.names: NameServer
        if AGAINST == "ours":
            self.names = NameServer(directory, settings)
        else:
            self.names = JavaNameServer(AGAINST, directory, settings)
        self.brokers = [self._broker(directory / f"node0{number}") for number in (0, 1)]

    def _broker(self, directory: Path) -> JavaBroker:
        settings = {
            "brokerId": -1, "brokerRole": "SLAVE", "enableControllerMode": "true",
            "controllerAddr": self.controller, "allAckInSyncStateSet": "true",
            "mappedFileSizeCommitLog": 16 << 20,
        }  # fmt: skip
        return JavaBroker(
            NEWEST, directory, self.names.address, name=GROUP, cluster=CLUSTER, settings=settings
        )

    def state(self) -> dict[str, Any]:
        """What the controller says of the group; nothing before it serves and knows it."""
        if not answers(self.controller):
            return {}
        with Wire(self.controller) as wire:
            answer = wire.request(json_frame(GET_SYNC_STATE_DATA, {}, json.dumps([GROUP]).encode()))
        if answer.code == NOT_LEADER:  # RocketMQ's, before it has elected itself
            return {}
        assert answer.code == 0, answer
        found: dict[str, Any] = json.loads(answer.body)["replicasInfoTable"].get(GROUP, {})
        return found

    def shows(self, master: int, in_sync: list[int]) -> bool:
        """Whether the controller names this master and set, and clients are sent to it."""
        state = self.state()
        members = [each["brokerId"] for each in state.get("inSyncReplicas", [])]
        if state.get("masterBrokerId") != master or sorted(members) != in_sync:
            return False
        route = ask(self.names.address, GET_ROUTE, {"topic": GROUP})[2].decode()
        return re.search(rf'["{{,]0"?:"{self.brokers[master - 1].address}"', route) is not None

    def wait(self, master: int, in_sync: list[int], timeout_s: float = JOINED_S) -> None:
        what = f"master {master} with the set {in_sync}"
        wait_until(lambda: self.shows(master, in_sync), timeout_s, what, every_s=0.2)

    def close(self) -> None:
        for broker in self.brokers:
            broker.abandon()
        self.names.abandon()


@pytest.fixture
def group(java: None, tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    try:
        made.names.start()
        yield made
    finally:
        made.close()


def admin_of(driver: Driver) -> Admin:
    """mqadmin, and what it prints with all runs of blanks made one."""

    def admin(*arguments: str) -> str:
        return re.sub(r"[ \t]+", " ", driver.mqadmin(*arguments))

    return admin


def send(driver: Driver, group: Group, bodies: list[str]) -> None:
    """Send until each is acknowledged; a client notices a new master by its next look at the route."""
    deadline = time.monotonic() + JOINED_S
    for body in bodies:
        while True:
            try:
                driver.call(
                    "send.sync",
                    name="ctl",
                    namesrv=group.names.address,
                    topic=TOPIC,
                    messages=[{"body": body}],
                )
                break
            except DriverError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def test_two_stock_brokers_fail_over_and_mqadmin_shows_it(
    group: Group, newest_driver: Driver
) -> None:
    one, two = group.brokers
    admin = admin_of(newest_driver)
    call = partial(newest_driver.call, name="ctl", namesrv=group.names.address)

    # The first replica becomes the first master, the second one joins its set.
    one.launch()
    group.wait(1, [1], STARTED_S)
    assert (group.state()["masterEpoch"], group.state()["syncStateSetEpoch"]) == (1, 1)
    two.launch()
    group.wait(1, [1, 2], STARTED_S)

    printed = admin("getControllerMetaData", "-a", group.controller)
    assert "#ControllerGroup group1" in printed.replace("\t", " ")
    assert f"#ControllerLeaderAddress {group.controller}" in printed
    printed = admin("getSyncStateSet", "-a", group.controller, "-b", GROUP)
    for line in (
        "#MasterBrokerId 1",
        f"#MasterAddr {one.address}",
        "#MasterEpoch 1",
        "#SyncStateSetNums 2",
        f"InSyncReplica: ReplicaIdentity{{brokerName='{GROUP}', brokerId=2, "
        f"brokerAddress='{two.address}', alive=true}}",
    ):
        assert line in printed

    call("producer.start", group="Producers", timeoutMs=3000)
    call("pull.start", group="Readers", timeoutMs=3000)
    call("pull.create_topic", topic=TOPIC, queues=4, address=one.address)
    wait_until(lambda: routed(group.names.address, TOPIC), JOINED_S, "a route")
    send(newest_driver, group, [f"first {number}" for number in range(10)])

    # An operator moves the master.
    printed = admin("electMaster", "-a", group.controller, "-b", "2", "-bn", GROUP, "-c", CLUSTER)
    assert f"#BrokerMasterAddr {two.address}" in printed and "#MasterEpoch 2" in printed
    group.wait(2, [1, 2])
    send(newest_driver, group, [f"second {number}" for number in range(10)])
    printed = admin("getBrokerEpoch", "-n", group.names.address, "-b", GROUP)
    ends = re.findall(r"EpochEntry\{epoch=2, startOffset=(\d+), endOffset=(\d+)\}", printed)
    assert len(ends) == 2 and len(set(ends)) == 1, "both know the second reign alike"

    # kill -9 of the master: the other one takes over at once, and loses nothing.
    began = time.monotonic()
    two.kill()
    wait_until(lambda: group.state()["masterBrokerId"] == 1, TAKEOVER_S, "another master")
    print(f"a new master {time.monotonic() - began:.3f} s after kill -9")
    group.wait(1, [1])
    send(newest_driver, group, [f"third {number}" for number in range(10)])
    assert group.state()["masterEpoch"] == 3
    printed = admin("getSyncStateSet", "-a", group.controller, "-b", GROUP)
    assert f"NotInSyncReplica: ReplicaIdentity{{brokerName='{GROUP}', brokerId=2" in printed

    # It rejoins as a slave, under the id that its store remembers.
    two.launch()
    group.wait(1, [1, 2], STARTED_S)
    assert sorted(bodies(call)) == sorted(
        f"{part} {number}" for part in ("first", "second", "third") for number in range(10)
    )

    # The operator cannot clean what is alive, and can what is gone.
    clean = ("cleanBrokerMetadata", "-a", group.controller, "-b", "2", "-bn", GROUP, "-c", CLUSTER)
    assert "CODE: 2009" in admin(*clean)
    two.stop()
    group.wait(1, [1])
    assert "success" in admin(*clean)
    state = group.state()
    assert (state["masterBrokerId"], state["notInSyncReplicas"]) == (1, [])
    assert state["masterEpoch"] == 3, "no election without a cause"


def bodies(call: Callable[..., Any]) -> list[str]:
    """Every message of the topic, as a stock client reads it."""
    found: list[str] = []
    for queue in call("pull.queues", topic=TOPIC):
        drained = call("pull.drain", topic=TOPIC, broker=GROUP, queueId=queue["queueId"])
        found += [text_of(message) for message in drained]
    return found


def test_a_stock_group_without_a_message_changes_masters_and_stays_there(
    group: Group, newest_driver: Driver
) -> None:
    """An empty reign leaves no trace in a stock broker's log, so its heartbeats name an older epoch."""
    for number, broker in enumerate(group.brokers, 1):
        broker.launch()
        group.wait(1, list(range(1, number + 1)), STARTED_S)
    admin = admin_of(newest_driver)
    asked = ("-a", group.controller, "-b", "2", "-bn", GROUP, "-c", CLUSTER)
    assert "#MasterEpoch 2" in admin("electMaster", *asked)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        state = group.state()
        assert (state["masterBrokerId"], state["masterEpoch"]) == (2, 2)
        time.sleep(0.5)
    assert "CODE: 2011" in admin("electMaster", *asked), "it is the master already"
