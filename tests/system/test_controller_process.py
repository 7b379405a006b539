"""A controller as a process: decisions survive kill -9, dead masters are replaced, and a second one stays out."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from controller_processes import TIMES, Controller, FakeBroker, until
from raw_wire import Wire, json_frame

from tandemmq.chaos.asking import ask
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import NameServer
from tandemmq.cluster.remoting import RequestCode, ResponseCode
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system
WAIT_S = TIMES.election_wait_ms / 1000


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with Controller(tmp_path) as running:
        yield running.start()


@asynccontextmanager
async def pair(address: str) -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Two replicas, 1 is master, both are in the set."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(FakeBroker(address, 1))
        await until(lambda: one.leases, 10, "1 is active")
        two = await stack.enter_async_context(FakeBroker(address, 2))
        await until(lambda: two.view.epoch, 10, "2 registered")
        reply = await one.alter({1, 2}, {2: two})
        assert reply.succeeded, reply
        await until(lambda: two.view.number == one.view.number, 5, "2 knows the set")
        yield one, two


def epochs(controller: Controller) -> int:
    """The group's epoch, by mqadmin's request."""
    with Wire(controller.address) as wire:
        frame = json_frame(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, b'["a"]')
        answer = wire.request(frame)
    assert answer.code == ResponseCode.SUCCESS
    return int(json.loads(answer.body)["replicasInfoTable"]["a"]["masterEpoch"])


async def test_a_killed_master_is_replaced_at_once(controller: Controller) -> None:
    async with pair(controller.address) as (one, two):
        two.streaming = False  # it loses its stream in the same moment
        await one.die()
        took_s = await until(lambda: two.master and two.leases, 5, "2 took over")
        assert took_s < 1.0, "no lease was waited for"
        assert two.view.epoch == 2 and two.view.members == {2}


async def test_a_silent_master_is_replaced_when_its_lease_is_over_and_not_before(
    controller: Controller,
) -> None:
    async with pair(controller.address) as (one, two):
        one.silent, two.streaming = True, False
        assert one.lease_s is not None
        asked_s = one.lease_s
        await until(lambda: two.master, WAIT_S + 3, "2 took over")
        assert asyncio.get_running_loop().time() - asked_s > WAIT_S
        assert two.view.epoch == 2


async def test_who_cleans_a_living_group_leaves_a_line(controller: Controller) -> None:
    async with pair(controller.address):
        ext = {"brokerName": "a", "clusterName": "c", "isCleanLivingBroker": "true"}
        frame = json_frame(RequestCode.CLEAN_BROKER_DATA, ext)
        with Wire(controller.address) as wire:
            answer = await asyncio.to_thread(wire.request, frame)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        (line,) = (each for each in controller.output().splitlines() if "forgotten on" in each)
        assert "WARNING" in line and "alive of them [1, 2], master 1" in line


async def test_one_witness_does_not_depose_a_master(controller: Controller) -> None:
    """Its connection to the controller breaks, again and again, and the slave keeps its stream."""
    async with pair(controller.address) as (one, two):
        for _ in range(5):
            leases = one.leases
            assert one._channel is not None
            one._channel.abort("cut")
            await until(lambda leases=leases: one.leases > leases, 2, "it is back")
        assert two.view.epoch == 1 and epochs(controller) == 1


async def test_a_pause_of_the_controller_changes_no_master(controller: Controller) -> None:
    async with pair(controller.address) as (one, two):
        for pause_s in (1.0, WAIT_S + 1):
            leases = one.leases
            os.kill(controller.pid, signal.SIGSTOP)
            await asyncio.sleep(pause_s)  # the fault itself
            os.kill(controller.pid, signal.SIGCONT)
            await until(lambda leases=leases: one.leases > leases, 5, "leases again")
        assert two.view.epoch == 1 and epochs(controller) == 1
    assert "controller stood still" in controller.output()


async def test_what_was_decided_survives_kill_9(controller: Controller) -> None:
    rng = random.Random(5)
    async with pair(controller.address) as (one, two):
        changed = 0
        for _ in range(5):
            stop = asyncio.get_running_loop().time() + rng.uniform(0.05, 0.3)
            acknowledged = one.view.number
            while asyncio.get_running_loop().time() < stop:
                members = {1} if 2 in one.view.members else {1, 2}
                reply = await one.alter(members, {2: two})
                if reply.succeeded:
                    acknowledged = one.view.number
                    changed += 1
            change = asyncio.ensure_future(one.alter({1, 2}, {2: two}))
            controller.kill()  # perhaps in the middle of a write
            await asyncio.gather(change, return_exceptions=True)
            leases = one.leases
            await asyncio.to_thread(controller.start)
            await until(lambda leases=leases: one.leases > leases, 10, "the master goes on")
            assert one.view.number >= acknowledged, "a set that was granted is not forgotten"
            assert one.view.epoch == 1, "the same master in the same epoch"
        assert changed > 10
        assert two.view.epoch == 1
        # And it still can elect.
        two.streaming = False
        async with asyncio.timeout(10):  # the controller that came back must hear of 2 first
            reply = await one.alter({1, 2}, {2: two})
            while not reply.succeeded:
                await asyncio.sleep(0.05)
                reply = await one.alter({1, 2}, {2: two})
        await one.die()
        await until(lambda: two.master and two.leases, WAIT_S + 3, "2 took over")


async def test_two_processes_under_one_id_are_told_apart(controller: Controller) -> None:
    async with pair(controller.address) as (one, two):
        async with FakeBroker(controller.address, 2) as impostor:
            await until(lambda: impostor.problems, 5, "refused")
            assert "another process is replica 2 of a" in impostor.problems[0]
        assert two.leases == 0 and not one.problems and not two.problems


def test_a_second_controller_on_the_same_directory_refuses_to_start(
    controller: Controller, tmp_path: Path
) -> None:
    with Controller(tmp_path / "second", store=controller.store) as second:
        second.launch()
        wait_until(lambda: not second.alive, 15, "it ends")
        assert second.code == ExitCode.STORE_UNUSABLE
        assert "is in use by another controller" in second.output()
    assert controller.alive


def test_a_damaged_file_stops_the_start_and_says_what_to_do(
    controller: Controller, tmp_path: Path
) -> None:
    with Wire(controller.address) as wire:
        fields = {"clusterName": "c", "brokerName": "a", "appliedBrokerId": "1"}
        assert wire.request(json_frame(RequestCode.CONTROLLER_APPLY_BROKER_ID, fields)).code == 0
    assert controller.terminate() == ExitCode.OK
    path = controller.store / "controller.json"
    path.write_bytes(path.read_bytes()[:-10])
    controller.launch()
    wait_until(lambda: not controller.alive, 15, "it ends")
    assert controller.code == ExitCode.STORE_UNUSABLE
    assert "controller.json cannot be read" in controller.output()
    assert "restore the file" in controller.output()


async def test_a_name_server_embeds_a_controller_when_told_to(tmp_path: Path) -> None:
    address = f"{LOOPBACK}:{PORTS.take((0,))}"
    settings = {
        "enableControllerInNamesrv": "true", "controllerDLegerPeers": f"n0-{address}",
        "controllerDLegerSelfId": "n0", "controllerStorePath": tmp_path / "controller",
        "metricsExporterType": "PROM", "metricsPromExporterPort": (port := PORTS.take((0,))),
    }  # fmt: skip
    with NameServer(tmp_path, settings) as names:
        names.start()
        async with pair(address) as (one, two):
            assert two.view == replace(one.view, registered=None), (
                "only a master learns its replicas"
            )
            assert [each.replica for each in one.view.registered or ()] == [1, 2]
            body = await asyncio.to_thread(fetched, f"http://{LOOPBACK}:{port}/metrics")
            for line in (
                'tandem_controller_epoch{broker="a",',
                'tandem_controller_leading{cluster="tandem",node_id="n0",node_type="controller"} 1.0',
            ):
                assert line in body
            assert names.terminate() == ExitCode.OK, "with brokers connected"
    with NameServer(tmp_path / "plain") as plain:
        plain.start()
        with Wire(plain.address) as wire:
            frame = json_frame(RequestCode.CONTROLLER_GET_METADATA_INFO)
            assert wire.request(frame).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


def test_of_several_controllers_with_files_only_the_first_leads(tmp_path: Path) -> None:
    ports = [PORTS.take((0,)), PORTS.take((0,))]
    peers = ";".join(f"n{number}-{LOOPBACK}:{port}" for number, port in enumerate(ports))
    settings = {"controllerDLegerPeers": peers}
    with (
        Controller(tmp_path / "0", name="n0", port=ports[0], settings=settings) as first,
        Controller(tmp_path / "1", name="n1", port=ports[1], settings=settings) as second,
    ):
        first.start()
        second.start()
        for running in (first, second):
            code, header, _ = ask(running.address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            found = header["extFields"]
            assert code == 0 and found["controllerLeaderAddress"] == first.address
            assert found["isLeader"] == str(running is first).lower()
        fields = {"clusterName": "c", "brokerName": "a"}
        answer = ask(second.address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, fields)
        assert answer[0] == ResponseCode.CONTROLLER_NOT_LEADER
        assert f"n0 at {first.address}" in answer[1]["remark"]
        assert "set controllerStore=etcd" in second.output()


def test_hostile_requests_change_nothing(controller: Controller) -> None:
    rng = random.Random(1)
    codes = [1001, 1002, 1003, 1004, 1006, 1009, 1011, 1012, 1013, 904]
    harmless = {1006, 1009}  # they name no group in their header
    names = ["", "../x", "a b", "x" * 300, "a\n", "a\0", "{}", "a#b"]
    bodies = [b"", b"[" * 5000, b'["a"]', b"{", b"\xff" * 100, b'{"syncStateSet":[0]}']
    with Wire(controller.address) as wire:
        for number in range(600):
            name, code = rng.choice(names), rng.choice(codes)
            fields = {
                "brokerName": name, "clusterName": rng.choice(["c", name]), "brokerAddress": name,
                "brokerId": rng.choice(["1", "-9", "x"]), "brokerAddr": name, "masterBrokerId": "1",
                "appliedBrokerId": str(rng.randrange(-5, 1 << 40)), "masterEpoch": "1",
                "registerCheckCode": "y" * rng.randrange(2000),
            }  # fmt: skip
            frame = json_frame(code, fields, rng.choice(bodies), opaque=number + 1)
            answer = wire.request(frame)
            assert answer.code in {1, 16, 2005} | ({0} if code in harmless else set()), answer
    assert "Traceback" not in controller.output() and controller.alive
    assert not (controller.store / "controller.json").exists(), "nothing was decided"
