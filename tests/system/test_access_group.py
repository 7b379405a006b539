"""Access control in a controlled group of real processes: all of them sign, and users outlive their master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import run
from controller_processes import Controller

from tandemmq import BrokerRefused, ClientConfig, Credentials, Message, Producer
from tandemmq.chaos.asking import ask
from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.errors import ClientError
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

ROOT = Credentials("root0001", "rootpw12")
SHOP = Credentials("shop0001", "shopsecret1")
SECRETS = ("rootpw12", "innersecret", "shopsecret1")


class Processes(NamedTuple):
    """A name server, a controller and two replicas that all ask for signatures."""

    names: NameServer
    controller: Controller
    brokers: list[Broker]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Processes]:
    inner = tmp_path / "inner.json"
    inner.write_text('{"accessKey":"inner001","secretKey":"innersecret"}')
    user = tmp_path / "root.json"
    user.write_text('{"username":"root0001","password":"rootpw12"}')
    access = {
        "authenticationEnabled": "true",
        "initAuthenticationUserFile": user,
        "innerClientAuthenticationCredentialsFile": inner,
    }
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path / "names", access))
        names.start()
        controller = stack.enter_context(Controller(tmp_path / "controller", settings=access))
        controller.start()
        brokers = []
        for number in (1, 2):
            settings = {
                "enableControllerMode": "true", "controllerAddr": controller.address, "brokerRole": "SYNC_MASTER",
                "authorizationEnabled": "true", **access,
            }  # fmt: skip
            port = PORTS.take()
            directory = tmp_path / f"broker{number}"
            broker = Broker(directory, names.address, port=port, settings=settings)
            brokers.append(stack.enter_context(broker))
            broker.launch()
        yield Processes(names, controller, brokers)


async def master_of(admin: Admin, guarded: Processes, *, in_sync: int, instead_of: str = "") -> str:
    """The address of the group's master by its controller and the name server, when so many are in its set."""
    async with asyncio.timeout(40):
        while True:
            try:
                seen = await admin.replica_sets("broker-a", controllers=guarded.controller.address)
                routed = (await admin.cluster())["broker-a"].master
                found = seen["broker-a"].master_address
                if found == routed != instead_of and len(seen["broker-a"].in_sync) >= in_sync:
                    return found
            except (ClientError, KeyError):
                pass
            await asyncio.sleep(0.1)


async def until_users(admin: Admin, address: str, *names: str) -> list[dict[str, str]]:
    async with asyncio.timeout(30):
        while True:
            try:
                found = await admin.users(address)
                if set(names) <= {each["username"] for each in found}:
                    return found
            except ClientError:
                pass
            await asyncio.sleep(0.1)


async def test_users_survive_a_failover_and_every_process_signs(
    guarded: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ClientConfig(guarded.names.address, credentials=ROOT)
    async with Admin(config=config) as admin:
        master = await master_of(admin, guarded, in_sync=2)
        [slave] = [each.address for each in guarded.brokers if each.address != master]
        await _topic(admin, master)
        await admin.create_user(master, SHOP.access_key, "shopsecret1")
        entry = {"resource": "Topic:Orders", "actions": ["Pub"], "decision": "Allow"}
        await admin.put_rules(master, "User:shop0001", [{"entries": [entry]}])
        on_slave = await until_users(admin, slave, "shop0001", "root0001", "inner001")
        assert on_slave == await admin.users(master)
        assert await _same_rules(admin, master, slave)
        shop = ClientConfig(guarded.names.address, credentials=SHOP)
        async with Producer("PG", config=shop, timeout_ms=20_000) as producer:
            await producer.send(Message("Orders", b"before"))
            [leading] = [each for each in guarded.brokers if each.address == master]
            leading.kill()
            await master_of(admin, guarded, in_sync=1, instead_of=master)
            await producer.send(Message("Orders", b"after"))
        assert {"shop0001", "root0001"} <= {each["username"] for each in await admin.users(slave)}
        leading.launch()
        await until_users(admin, master, "shop0001")
    # who does not sign, or is told no, changes nothing anywhere
    for address, code in (
        (slave, 17),
        (guarded.names.address, 205),
        (guarded.controller.address, 1002),
    ):
        assert ask(address, code)[0] == 16
    with pytest.raises(BrokerRefused, match="no permission"):
        async with Admin(config=ClientConfig(guarded.names.address, credentials=SHOP)) as admin:
            await admin.users(slave)
    # the command line signs with keys of a file
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: root0001\nsecretKey: rootpw12\n")
    monkeypatch.setenv("TANDEM_CREDENTIALS", str(keys))
    at = ("-b", slave, "-n", guarded.names.address)
    done = await asyncio.to_thread(run, "admin", "listUser", *at, "--json")
    assert done.code == ExitCode.OK, done.err
    assert {each["password"] for each in json.loads(done.out)} == {"******"}
    monkeypatch.delenv("TANDEM_CREDENTIALS")
    done = await asyncio.to_thread(run, "admin", "listUser", *at)
    assert done.code == ExitCode.FAILED and "username cannot be null" in done.err
    for process in (guarded.names, guarded.controller, *guarded.brokers):
        said = process.output()
        assert not any(secret in said for secret in SECRETS)


async def _topic(admin: Admin, master: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await admin.create_topic("Orders", queue_count=2)
            except ClientError:  # no route yet
                await asyncio.sleep(0.2)
            else:
                return


async def _same_rules(admin: Admin, master: str, slave: str) -> bool:
    """A change is answered when the members of the set have it."""
    wanted: Any = await admin.rules(master, "User:shop0001")
    return bool(wanted) and await admin.rules(slave, "User:shop0001") == wanted


async def test_a_classic_slave_signs_what_it_asks_its_master(tmp_path: Path) -> None:
    """Topics, progress and users come over; without inner credentials such a slave does not start."""
    access = {
        "authenticationEnabled": "true", "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root0001","password":"rootpw12"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner001","secretKey":"innersecret"}',
    }  # fmt: skip
    slave_only = {"brokerRole": "SLAVE", "brokerId": 1}
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(tmp_path / "names"))
        names.start()
        master = stack.enter_context(Broker(tmp_path / "m", names.address, settings=access))
        master.start()
        settings = {**access, **slave_only}
        slave = stack.enter_context(Broker(tmp_path / "s", names.address, settings=settings))
        slave.start()
        config = ClientConfig(names.address, credentials=ROOT)
        async with Admin(config=config) as admin:
            await _topic(admin, master.address)
            await admin.create_user(master.address, SHOP.access_key, "shopsecret1")
            await until_users(admin, slave.address, "shop0001")
            async with asyncio.timeout(20):
                while "Orders" not in await admin.all_topic_settings(slave.address):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        del access["innerClientAuthenticationCredentials"]
        alone = Broker(tmp_path / "x", "", settings={**access, **slave_only})
        done = await asyncio.to_thread(run, "check-config", alone.arguments[1])
        assert done.code == ExitCode.BAD_CONFIG and "innerClient" in done.err
