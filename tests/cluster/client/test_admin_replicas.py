"""What Admin asks controllers and brokers of a replicated group; the answers are those of RocketMQ 5.3.3."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path
from typing import Any, cast

import pytest
from adminkit import FIRST, MASTER, SLAVE, Servers

from tandemmq.cluster.client import (
    Admin,
    BrokerRefused,
    EpochRange,
    NoController,
    NoSuccessor,
    Replica,
    ReplicaSet,
)
from tandemmq.cluster.remoting import Command, RequestCode

GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "controller-remoting.jsonl.xz"
LEADER, FOLLOWER = "10.9.9.1:29878", "10.9.9.1:29879"
ONE, TWO, THREE = (Replica(number, f"10.9.9.1:299{number}1", True) for number in (1, 2, 3))


def golden(code: RequestCode) -> Command:
    """The last successful answer to this request in the recording of a stock controller pair."""
    asked: dict[tuple[int, int], int] = {}
    found: Command | None = None
    for line in lzma.decompress(GOLDEN.read_bytes()).splitlines():
        frame = json.loads(line)
        if frame["k"] != "frame":
            continue
        place = (frame["c"], frame["opaque"])
        if not frame["flag"] & 1:
            asked[place] = frame["code"]
        elif asked.get(place) == code and frame["code"] == 0:
            found = Command.decode(base64.b64decode(frame["b"]))
    assert found is not None
    return found


def metadata(leader: str = LEADER) -> Command:
    ext = {
        "group": "ctl", "controllerLeaderId": "n0" if leader else "",
        "controllerLeaderAddress": leader, "isLeader": "false",
        "peers": f"n0:{LEADER};n1:{FOLLOWER};",
    }  # fmt: skip
    return Command(0).reply(ext=ext)


def state(group: ReplicaSet) -> Command:
    """A 1006 answer."""

    def entries(replicas: tuple[Replica, ...]) -> list[dict[str, object]]:
        return [
            {"brokerName": "a", "brokerId": r.broker_id, "brokerAddress": r.address,
             "alive": r.alive}
            for r in replicas
        ]  # fmt: skip

    entry: dict[str, object] = {
        "masterEpoch": group.epoch, "syncStateSetEpoch": group.set_epoch,
        "inSyncReplicas": entries(group.in_sync), "notInSyncReplicas": entries(group.out_of_sync),
    }  # fmt: skip
    if group.master_id is not None:
        entry |= {"masterBrokerId": group.master_id, "masterAddress": group.master_address}
    body = {"replicasInfoTable": {"a": entry}}
    return Command(0).reply(body=json.dumps(body).encode())


def elected(replica: Replica, code: int = 0) -> Command:
    ext = {
        "masterBrokerId": str(replica.broker_id), "masterAddress": replica.address,
        "masterEpoch": "4", "syncStateSetEpoch": "9",
    }  # fmt: skip
    body = {
        "brokerMemberGroup": {
            "brokerAddrs": {"1": ONE.address, "2": TWO.address}, "brokerName": "a", "cluster": "C1"
        },
        "syncStateSet": [replica.broker_id],
    }  # fmt: skip
    return Command(0).reply(code, ext=ext, body=json.dumps(body).encode())


@pytest.fixture
def servers() -> Servers:
    made = Servers()
    made.answers[RequestCode.CONTROLLER_GET_METADATA_INFO] = metadata()
    made.answers[RequestCode.GET_BROKER_CONFIG] = (
        0, f"enableControllerMode=true\ncontrollerAddr={FOLLOWER};{LEADER}\n".encode(),
    )  # fmt: skip
    return made


@pytest.fixture
def admin(servers: Servers) -> Admin:
    made = Admin(FIRST)
    made._instance = cast(Any, servers)
    return made


async def test_stock_controller_is_understood(admin: Admin, servers: Servers) -> None:
    for code in (
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.CONTROLLER_ELECT_MASTER,
    ):
        servers.answers[code] = golden(code)
    found = await admin.controller_state(FOLLOWER)
    assert (found.group, found.leader_id, found.is_leader) == ("ctl", "n0", True)
    assert (found.leader_address, found.peers) == (LEADER, {"n0": LEADER})
    group = (await admin.replica_sets("ctl-a", controllers=LEADER))["ctl-a"]
    assert (group.master_id, group.epoch, group.set_epoch) == (2, 2, 4)
    assert group.master_address == "10.9.9.1:29921"
    assert [each.broker_id for each in group.in_sync] == [1, 2]
    assert group.replicas[1] == Replica(1, "10.9.9.1:29911", True)
    history = await admin.epoch_history(MASTER)
    assert (history.broker_name, history.max_offset) == ("ctl-a", 13675)
    assert history.epochs == (EpochRange(1, 0, 7555), EpochRange(2, 7555, None))
    election = await admin.elect_master("ctl-a", 1, cluster="GoldCluster", controllers=LEADER)
    assert (election.master_id, election.epoch, election.set_epoch) == (1, 1, 1)
    assert (election.addresses, election.in_sync) == ({1: "10.9.9.1:29911"}, (1,))


async def test_controllers_come_from_the_settings_of_any_broker_that_answers(
    admin: Admin, servers: Servers
) -> None:
    settings = b"enableControllerMode=true\ncontrollerAddr=10.9.9.1:1;10.9.9.1:2\n"

    def config(address: str, command: Command) -> tuple[int, Any]:
        return (0, settings) if address == SLAVE else (1, "no")

    servers.answers[RequestCode.GET_BROKER_CONFIG] = config
    assert await admin.controllers() == ("10.9.9.1:1", "10.9.9.1:2")
    servers.answers[RequestCode.GET_BROKER_CONFIG] = (0, b"enableControllerMode=false\n")
    with pytest.raises(NoController, match="enableControllerMode"):
        await admin.controllers()


async def test_questions_go_to_the_controller_that_leads(admin: Admin, servers: Servers) -> None:
    servers.answers[RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = state(
        ReplicaSet("a", 1, ONE.address, 3, 7, (ONE,), (TWO,))
    )
    found = await admin.replica_sets(controllers=FOLLOWER)
    assert found["a"] == ReplicaSet("a", 1, ONE.address, 3, 7, (ONE,), (TWO,))
    assert servers.to(RequestCode.CONTROLLER_GET_METADATA_INFO) == [FOLLOWER]
    assert servers.to(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA) == [LEADER]
    assert servers.bodies == [["a", "b"]]  # every broker name that is registered
    servers.answers[RequestCode.CONTROLLER_GET_METADATA_INFO] = metadata("")
    with pytest.raises(NoController, match="knows who leads"):
        await admin.replica_sets("a", controllers=f"{FOLLOWER};{LEADER}")


async def test_election_is_designated_and_says_when_it_is_refused(
    admin: Admin, servers: Servers
) -> None:
    servers.answers[RequestCode.CONTROLLER_ELECT_MASTER] = elected(TWO)
    assert (await admin.elect_master("a", 2, controllers=LEADER)).master_id == 2
    (fields,) = servers.fields(RequestCode.CONTROLLER_ELECT_MASTER)
    assert fields.pop("invokeTime").isdigit()
    assert fields == {
        "clusterName": "C1", "brokerName": "a", "brokerId": "2", "designateElect": "true"
    }  # fmt: skip
    await admin.elect_master("a", 2, controllers=LEADER, unclean=True)
    assert servers.fields(RequestCode.CONTROLLER_ELECT_MASTER)[1]["unclean"] == "true"
    servers.answers[RequestCode.CONTROLLER_ELECT_MASTER] = (2012, "replica 2 is not alive")
    with pytest.raises(BrokerRefused, match=r"replica 2 is not alive.*getSyncStateSet"):
        await admin.elect_master("a", 2, controllers=LEADER)
    with pytest.raises(ValueError, match="broker_id"):
        await admin.elect_master("a", 0, controllers=LEADER)


async def test_switchover_picks_a_living_member_in_sync_and_waits_for_name_servers(
    admin: Admin, servers: Servers
) -> None:
    dead = Replica(3, THREE.address, False)
    group = ReplicaSet("a", 1, ONE.address, 3, 7, (ONE, TWO, dead), ())
    servers.answers[RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = state(group)
    servers.answers[RequestCode.CONTROLLER_ELECT_MASTER] = elected(TWO)
    looks: list[int] = []

    def registered(address: str, command: Command) -> tuple[int, Any]:
        looks.append(1)
        master = TWO.address if len(looks) > 3 else ONE.address
        entry = {"brokerAddrs": {"0": master}, "brokerName": "a", "cluster": "C1"}
        return 0, {"brokerAddrTable": {"a": entry}}

    servers.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = registered
    found = await admin.switchover("a", controllers=LEADER)
    assert (found.before, found.after.master_id) == (group, 2)
    assert found.announced_ms is not None
    assert found.announced_ms >= found.elected_ms >= 0
    assert len(looks) > 3


@pytest.mark.parametrize(
    ("group", "to", "why"),
    [
        (ReplicaSet("a", None, "", 3, 7, (ONE, TWO), ()), None, "has no master"),
        (ReplicaSet("a", 1, ONE.address, 3, 7, (ONE,), (TWO,)), None, "nobody can follow"),
        (ReplicaSet("a", 1, ONE.address, 3, 7, (ONE,), (TWO,)), 2, "not in the sync-state-set"),
        (ReplicaSet("a", 1, ONE.address, 3, 7, (ONE, TWO), ()), 9, "no member of a; 2 could"),
        (ReplicaSet("a", 1, ONE.address, 3, 7, (ONE, TWO), ()), 1, "leads a already"),
    ],
)
async def test_switchover_without_a_successor_changes_nothing(
    admin: Admin, servers: Servers, group: ReplicaSet, to: int | None, why: str
) -> None:
    servers.answers[RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = state(group)
    with pytest.raises(NoSuccessor, match=why):
        await admin.switchover("a", to, controllers=LEADER)
    assert servers.to(RequestCode.CONTROLLER_ELECT_MASTER) == []


async def test_forgetting_names_the_members_and_whether_they_may_live(
    admin: Admin, servers: Servers
) -> None:
    await admin.clean_broker_metadata("a", [1, 3], controllers=LEADER, living_too=True)
    await admin.clean_broker_metadata("a", cluster="C1", controllers=LEADER)
    first, second = servers.fields(RequestCode.CLEAN_BROKER_DATA)
    assert first.pop("invokeTime").isdigit()
    assert first == {
        "brokerName": "a", "brokerControllerIdsToClean": "1;3", "isCleanLivingBroker": "true"
    }  # fmt: skip
    assert "brokerControllerIdsToClean" not in second
    assert (second["clusterName"], second["isCleanLivingBroker"]) == ("C1", "false")


async def test_controller_settings_are_read_and_changed_where_asked(
    admin: Admin, servers: Servers
) -> None:
    servers.answers[RequestCode.GET_CONTROLLER_CONFIG] = (0, b"electMasterMaxRetryCount=3\n")
    assert await admin.controller_config(LEADER) == {"electMasterMaxRetryCount": "3"}
    await admin.update_controller_config(LEADER, {"enableElectUncleanMaster": "false"})
    assert servers.to(RequestCode.UPDATE_CONTROLLER_CONFIG) == [LEADER]
    assert servers.bodies == [b"enableElectUncleanMaster=false\n"]
