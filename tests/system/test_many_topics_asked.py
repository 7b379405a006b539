"""`tandem admin statsAll` about a thousand topics of a real broker, from a machine that is not the next one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import run
from test_many_topics import topic

from tandemmq.chaos.asking import routed
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

TOPICS = 1_000
LATENCY_S = 0.02  # of an answer of the name server
WITHIN_S = 8.0  # one topic after the other it would be twenty seconds of latency alone


@contextmanager
def further_away(address: str) -> Iterator[str]:
    """Where the same server answers later."""
    host, _, port = address.rpartition(":")
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, by_s: float) -> None:
        while data := await reader.read(1 << 16):
            loop.call_later(by_s, writer.write, data)
        loop.call_later(by_s, writer.close)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, back, 0), pump(there, writer, LATENCY_S))

    server = loop.run_until_complete(asyncio.start_server(accepted, LOOPBACK, 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.call_later, 5 * LATENCY_S, loop.stop)
        thread.join()
        loop.close()


def test_a_thousand_topics_are_told_of_within_seconds(tmp_path: Path) -> None:
    names = [f"T{number:04d}" for number in range(TOPICS)]
    table = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
        "topicConfigTable": {name: topic(name) for name in names},
    }
    with NameServer(tmp_path) as name_server:
        name_server.start()
        with Broker(tmp_path, name_server.address) as broker:
            path = broker.store / "config" / "topics.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(table))
            broker.start()
            wait_until(lambda: routed(name_server.address, names[-1]), 10, "routes")
            sent = run("send", names[7], "hello", "-n", name_server.address)
            assert sent.code == ExitCode.OK, sent.err
            with further_away(name_server.address) as address:
                began = time.monotonic()
                done = run("admin", "statsAll", "--json", "-n", address)
                took_s = time.monotonic() - began
            assert done.code == ExitCode.OK, done.err
            rows = {row["topic"]: row for row in done.json}
            assert rows.keys() >= set(names)
            assert [row["topic"] for row in done.json] == sorted(rows)
            print(f"{took_s:.1f} s")
            assert took_s < WITHIN_S
