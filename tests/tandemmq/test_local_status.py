"""The table, the JSON and the verdict of `tandem local status`, from what processes and servers said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tandemmq.cluster.client import BrokerUnreachable, NoNameServer, Replica, ReplicaSet
from tandemmq.local import layout as local_layout
from tandemmq.local import processes as local_processes
from tandemmq.local.layout import Layout, LocalProcess, open_or_create
from tandemmq.local.status import Status, look, to_text, to_tree

A0, A1, B0, B1 = (f"127.0.0.1:{port}" for port in (10_911, 10_921, 10_931, 10_941))


class Servers:
    """Stands for an Admin: what name server, controller and brokers say."""

    def __init__(self) -> None:
        self.registered = {"broker-a": {0: A0, 2: A1}, "broker-b": {0: B0, 2: B1}}
        self.groups = {
            "broker-a": group("broker-a", A0, A1, {1, 2}),
            "broker-b": group("broker-b", B0, B1, {1}),
        }
        self.runtime = {
            A0: runtime("SYNC_MASTER", 3, 5_000, 4_900),
            A1: runtime("SLAVE", 3, 4_900, 4_900),
            B0: runtime("SYNC_MASTER", 1, 70, 70),
            B1: runtime("SLAVE", 1, 0, 0),
        }
        self.name_server = self.controller = True

    async def brokers(self) -> dict[str, dict[int, str]]:
        if not self.name_server:
            raise NoNameServer("none answers")
        return self.registered

    async def replica_sets(self, names: Any, *, controllers: str) -> dict[str, ReplicaSet]:
        assert controllers == "127.0.0.1:9878"
        if not self.controller:
            raise BrokerUnreachable(controllers, "refused")
        return self.groups

    async def broker_status(self, address: str) -> dict[str, str]:
        if address not in self.runtime:
            raise BrokerUnreachable(address, "refused")
        return self.runtime[address]


def runtime(role: str, epoch: int, end: int, confirmed: int) -> dict[str, str]:
    return {
        "brokerRole": role, "masterEpoch": str(epoch), "commitLogMaxOffset": str(end),
        "confirmOffset": str(confirmed),
    }  # fmt: skip


def group(name: str, first: str, second: str, in_sync: set[int]) -> ReplicaSet:
    members = (Replica(1, first, True), Replica(2, second, True))
    inside = tuple(each for each in members if each.broker_id in in_sync)
    outside = tuple(each for each in members if each.broker_id not in in_sync)
    return ReplicaSet(name, 1, first, 3, 7, inside, outside)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setattr(local_layout, "port_problem", lambda port: None)
    return open_or_create(tmp_path, "sync", None, None)


@pytest.fixture
def states(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, int | None]]:
    """What became of each process; tests change it."""
    found: dict[str, tuple[str, int | None]] = {
        each.name: ("running", 100 + place) for place, each in enumerate(layout.members)
    }
    monkeypatch.setattr(local_processes, "state", lambda _, member: found[member.name])
    return found


@pytest.fixture
def servers() -> Servers:
    return Servers()


async def seen(layout: Layout, servers: Servers) -> Status:
    return await look(layout, servers)  # type: ignore[arg-type]


async def test_roles_epochs_offsets_lag_and_set_are_in_one_table(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    status = await seen(layout, servers)
    lines = [line.split() for line in to_text(status).splitlines()]
    assert lines[0] == [
        "NAME", "ROLE", "EPOCH", "LOG", "END", "CONFIRMED", "LAG", "IN", "SYNC", "ADDRESS", "PID",
        "STATE",
    ]  # fmt: skip
    assert lines[1] == ["namesrv", "controller", *"-----", "127.0.0.1:9876", "100", "running"]
    assert lines[2] == [
        "broker-a-0",
        "master",
        "3",
        "5000",
        "4900",
        "-",
        "yes",
        A0,
        "101",
        "running",
    ]
    assert lines[3] == [
        "broker-a-1",
        "slave",
        "3",
        "4900",
        "4900",
        "100",
        "yes",
        A1,
        "102",
        "running",
    ]
    assert lines[5] == ["broker-b-1", "slave", "1", "0", "0", "70", "no", B1, "104", "running"]
    text = to_text(status)
    assert "broker-a: broker-a-0 leads epoch 3; in sync: broker-a-0, broker-a-1" in text
    assert "broker-b: broker-b-0 leads epoch 3; in sync: broker-b-0" in text


async def test_json_has_what_the_table_has(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    tree = json.loads(json.dumps(to_tree(await seen(layout, servers))))
    assert (tree["mode"], tree["controller"]) == ("sync", "127.0.0.1:9878")
    assert tree["name_server"] == "127.0.0.1:9876"
    slave = next(each for each in tree["members"] if each["name"] == "broker-a-1")
    assert slave == {
        "name": "broker-a-1", "address": A1, "state": "running", "pid": 102, "registered": True,
        "log": str(layout.directory / "logs" / "broker-a-1.log"), "broker_id": 2, "role": "slave",
        "epoch": 3, "end_offset": 4_900, "confirmed_offset": 4_900, "lag_bytes": 100,
        "in_sync": True, "http": "http://127.0.0.1:10923",
    }  # fmt: skip
    assert tree["groups"]["broker-b"]["out_of_sync"] == [
        {"broker_id": 2, "address": B1, "alive": True}
    ]


async def test_all_is_well_only_when_everybody_runs_and_is_in_sync_under_a_master(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    assert not (await seen(layout, servers)).well
    servers.groups["broker-b"] = group("broker-b", B0, B1, {1, 2})
    assert (await seen(layout, servers)).well
    del servers.registered["broker-a"][2]
    status = await seen(layout, servers)
    assert not status.well
    assert "running, not registered" in to_text(status)


async def test_killed_master_shows_as_died_and_its_heir_leads(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    states["broker-a-0"] = ("died", None)
    servers.groups["broker-a"] = replace(
        group("broker-a", A0, A1, {2}), master_id=2, master_address=A1, epoch=4
    )
    servers.runtime[A1] = runtime("SYNC_MASTER", 4, 4_900, 4_900)
    status = await seen(layout, servers)
    dead, heir = status.of("broker-a-0"), status.of("broker-a-1")
    assert (dead.state, dead.role, dead.end_offset, dead.in_sync) == ("died", None, None, False)
    assert (heir.role, heir.epoch, heir.lag_bytes) == ("master", 4, None)
    assert "broker-a-1 leads epoch 4" in to_text(status)


async def test_frozen_process_is_not_asked(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    states["broker-b-0"] = ("frozen", 103)
    status = await seen(layout, servers)
    assert (status.of("broker-b-0").state, status.of("broker-b-0").role) == ("frozen", None)
    assert not status.well


async def test_slave_without_a_master_waits(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    servers.groups["broker-a"] = replace(
        group("broker-a", A0, A1, {1, 2}), master_id=None, master_address=""
    )
    servers.runtime[A0] = runtime("SLAVE", 3, 5_000, 4_900)
    status = await seen(layout, servers)
    assert {status.of(name).role for name in ("broker-a-0", "broker-a-1")} == {"waiting"}
    assert "broker-a: no master leads epoch 3" in to_text(status)
    assert not status.led


async def test_without_name_server_and_controller_processes_are_still_shown(
    layout: Layout, servers: Servers, states: dict[str, tuple[str, int | None]]
) -> None:
    servers.name_server = servers.controller = False
    status = await seen(layout, servers)
    assert status.of("broker-a-0").registered is False
    assert (status.of("broker-a-0").role, status.of("broker-a-1").role) == ("master", "slave")
    assert "broker-a: the controller does not say" in to_text(status)
    assert not status.is_well(status.of("namesrv"))
    states["namesrv"] = ("died", None)
    assert (await seen(layout, servers)).of("namesrv").state == "died"


async def test_masters_alone_have_the_short_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_layout, "port_problem", lambda port: None)
    alone = open_or_create(tmp_path / "alone", None, None, None)

    def state(_: Layout, member: LocalProcess) -> tuple[str, int | None]:
        return ("stopped", None) if member.name == "broker-b" else ("running", 5)

    monkeypatch.setattr(local_processes, "state", state)
    servers = Servers()
    status = await seen(alone, servers)
    assert to_text(status).splitlines()[0].split() == [
        "NAME", "ADDRESS", "STATE", "PID", "REGISTERED", "LOG"
    ]  # fmt: skip
    assert [status.is_well(each) for each in status.conditions] == [True, True, False]
    assert "groups" not in to_tree(status)
