"""A name server process: start, serve brokers and clients, forget who left, stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemmq.chaos.ports import PORTS
from tandemmq.cluster.remoting import Channel, Command, client_context, open_channel

pytestmark = pytest.mark.system

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
START = """
import json, sys
from pathlib import Path
from tandemmq.cluster.logs import setup_logging
from tandemmq.cluster.nameserver import NameServerConfig, serve_nameserver
from tandemmq.cluster.process import run
setup_logging()
config = NameServerConfig.from_properties(json.loads(sys.argv[1]), path=Path(sys.argv[2]))
run(lambda: serve_nameserver(config, lambda line: print(line, flush=True)))
"""


@contextmanager
def name_server(directory: Path, **settings: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A running process that has said it is ready; killed if the test does not stop it."""
    port = PORTS.take((0,))
    properties = {
        "listenPort": str(port), "kvConfigPath": str(directory / "kv.json"), **settings,
    }  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (directory / "namesrv.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps(properties), str(directory / "ns.conf")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == (
                "The Name Server boot success. serializeType=JSON, "
                f"address {settings.get('bindAddress', HOST)}:{port}\n"
            ), (directory / "namesrv.log").read_text()
            yield port, process
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def stopped(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(5)


async def register(channel: Channel, name: str = "broker-a", **ext: str) -> Command:
    topics = {topic: {"perm": 6, "topicName": topic} for topic in ("T", name)}
    body = json.dumps(
        {"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1}, "topicConfigTable": topics}}
    ).encode()
    given = {
        "brokerName": name, "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0",
        "haServerAddr": "10.0.0.1:10912", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }  # fmt: skip
    return await channel.request(Command(103, given | ext, body), 5000)


async def route(channel: Channel) -> Command:
    return await channel.request(Command(105, {"topic": "T"}), 5000)


async def test_a_broker_is_routed_while_its_connection_lives(tmp_path: Path) -> None:
    with name_server(tmp_path) as (port, process):
        client = await open_channel(HOST, port)
        assert (await route(client)).code == 17
        broker = await open_channel(HOST, port)
        assert (await register(broker)).code == 0
        assert b"10.0.0.1:10911" in bytes((await route(client)).body or b"")
        broker.close()
        async with asyncio.timeout(5):
            while (await route(client)).code != 17:
                pass  # each turn is a round trip
        unknown = await client.request(Command(9999, binary=True), 5000)
        assert (unknown.code, unknown.binary) == (3, True)
        client.close()
        assert stopped(process) == 0
    log = (tmp_path / "namesrv.log").read_text()
    assert "broker registered broker=broker-a" in log
    assert "broker unregistered address=10.0.0.1:10911 why=connection closed by the peer" in log
    assert "Traceback" not in log


async def test_a_silent_broker_is_forgotten_by_the_scan_and_its_connection_closed(
    tmp_path: Path,
) -> None:
    with name_server(tmp_path, scanNotActiveBrokerInterval="100") as (port, _):
        client = await open_channel(HOST, port)
        broker = await open_channel(HOST, port)
        await register(broker, heartbeatTimeoutMillis="300")
        gone = asyncio.get_running_loop().create_future()
        broker.on_close(lambda lost: gone.set_result(None))
        async with asyncio.timeout(10):
            await gone
        assert (await route(client)).code == 17
        client.close()


async def test_kv_entries_and_settings_survive_a_restart(tmp_path: Path) -> None:
    with name_server(tmp_path) as (port, process):
        channel = await open_channel(HOST, port)
        entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        assert (await channel.request(Command(100, entry), 5000)).code == 0
        update = Command(318, None, b"orderMessageEnable=true")
        assert (await channel.request(update, 5000)).code == 0
        process.send_signal(signal.SIGKILL)
        process.wait(5)
        channel.close()
    stored = dict(line.split("=") for line in (tmp_path / "ns.conf").read_text().splitlines())
    assert stored == {"orderMessageEnable": "true"}
    with name_server(tmp_path, **stored) as (port, process):
        channel = await open_channel(HOST, port)
        assert json.loads(bytes((await register(channel)).body or b"")) == {
            "table": {"T": "broker-a:4"}
        }
        assert b'"orderTopicConf":"broker-a:4"' in bytes((await route(channel)).body or b"")
        channel.close()
        assert stopped(process, signal.SIGINT) == 0


async def test_it_serves_tls_only_when_told_to(tmp_path: Path) -> None:
    with name_server(tmp_path, **{"tls.server.mode": "required", "bindAddress": "0.0.0.0"}) as (
        port,
        process,
    ):
        channel = await open_channel(HOST, port, tls=client_context(verify=False))
        assert (await route(channel)).code == 17
        channel.close()
        assert stopped(process) == 0


async def test_stopping_is_quick_with_connections_open_and_the_port_is_free_again(
    tmp_path: Path,
) -> None:
    with name_server(tmp_path) as (port, process):
        channels = [await open_channel(HOST, port) for _ in range(50)]
        assert stopped(process) == 0
        async with asyncio.timeout(5):
            for channel in channels:
                gone = asyncio.get_running_loop().create_future()
                channel.on_close(lambda _, gone=gone: gone.set_result(None))
                await gone
    with socket.create_server((HOST, port)):
        pass


def test_a_reachable_address_without_tls_is_refused_at_the_start(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", START, json.dumps({"bindAddress": "0.0.0.0"}), str(tmp_path / "x")],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode != 0
    assert "--insecure" in done.stderr
    assert "boot success" not in done.stdout
