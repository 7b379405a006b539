"""The main loads against a broker of this process, without sockets: what `python -m bench.gate` runs under valgrind.

    python -m bench.gate.loads MARKS

MARKS is the library made of marks.c. Chunks arrive as a server's loop hands them over, one per connection and turn, so
that each run does exactly the same.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import random
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec

from bench.wire import SEND_MESSAGE_V2
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.server import RemotingServer, _Accepted
from tandemmq.storage import BatchItem, SystemClock, join_batch, open_store

SEND_BATCH: Final = 320
PULL: Final = 11
QUEUES: Final = 8
BODY: Final = bytes(range(256)) * 4  # 1 KiB
BATCH_MESSAGES: Final = 64
BATCH_BODY: Final = bytes(100)
PULLED: Final = 32
WARM_ROUNDS: Final = 3
UNIQUE: Final = "C0A801057A6918B4AAC20000000000A1"
PULL_SYS_FLAG: Final = 6  # may be held, has a subscription
SPIN_TURNS: Final = 200


class Load(NamedTuple):
    """chunks   one per connection, sent in each round
    messages    of one round
    rounds      that are counted
    """

    name: str
    chunks: list[bytes]
    messages: int
    rounds: int


class Peer:
    """The transport of a connection whose peer takes everything at once."""

    def __init__(self, number: int) -> None:
        self._peer = ("127.0.0.1", 40_000 + number)
        self.written = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.written += sum(map(len, parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        raise AssertionError("a load is not so large")

    def close(self) -> None:
        raise AssertionError("the broker closed a connection of the load")

    abort = close


def frame(
    code: int, fields: dict[str, str], body: bytes, opaque: int, *, binary: bool = False
) -> bytes:
    """A request as stock clients write it."""
    if not binary:
        header = msgspec.json.encode(
            {
                "code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
                "serializeTypeCurrentRPC": "JSON", "version": 479,
            }
        )  # fmt: skip
        head = struct.pack(">ii", 4 + len(header) + len(body), len(header))
        return head + header + body
    command = Command(code, fields, None, opaque=opaque)
    command.binary = True
    return bytes(command.encode_head(len(body))) + body


def send(opaque: int, topic: str, *, binary: bool = False) -> bytes:
    return frame(
        SEND_MESSAGE_V2, _send_fields(topic, opaque % QUEUES, "false"), BODY, opaque, binary=binary
    )


def batch(opaque: int, topic: str) -> bytes:
    body = join_batch([BatchItem(0, memoryview(BATCH_BODY), b"TAGS\x01a\x02")] * BATCH_MESSAGES)
    return frame(SEND_BATCH, _send_fields(topic, opaque % QUEUES, "true"), body, opaque)


def _send_fields(topic: str, queue_id: int, batched: str) -> dict[str, str]:
    return {
        "a": "bench-group", "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "0", "i": f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA", "j": "0", "k": "false", "m": batched,
        "n": "broker-a",
    }  # fmt: skip


def pull(opaque: int, topic: str, queue_id: int) -> bytes:
    fields = {
        "consumerGroup": "bench-group", "topic": topic, "queueId": str(queue_id), "queueOffset": "0",
        "maxMsgNums": str(PULLED), "sysFlag": str(PULL_SYS_FLAG), "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip
    return frame(PULL, fields, b"", opaque)


def main_loads(topic: str) -> list[Load]:
    """Those that bench measures with a clock, by the names they have there where they have one."""
    sends = [b"".join(send(at, topic) for at in range(64)) for _ in range(8)]
    binary = [b"".join(send(at, topic, binary=True) for at in range(64)) for _ in range(8)]
    pulls = [b"".join(pull(at, topic, (at + n) % QUEUES) for at in range(4)) for n in range(8)]
    return [
        Load("send-8x64-1k-json", sends, 8 * 64, 6),
        Load("send-8x64-1k-binary", binary, 8 * 64, 6),
        Load("send-64x1-1k-json", [send(at, topic) for at in range(64)], 64, 20),
        Load("batch-8x1-64x100", [batch(at, topic) for at in range(8)], 8 * BATCH_MESSAGES, 8),
        Load("pull-8x4-1k-json", pulls, 8 * 4 * PULLED, 4),
        Load("pull-64x1-1k-json", [pull(at, topic, at % QUEUES) for at in range(64)], 64 * PULLED, 2),
    ]  # fmt: skip


class Bench:
    """A broker, and connections to it that arrive from nowhere."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._server: RemotingServer = broker.servers()[0]
        self._connections: list[Connection] = []
        self._peers: list[Peer] = []

    def connect(self, count: int) -> None:
        while len(self._connections) < count:
            connection, peer = _Accepted(self._server), Peer(len(self._peers))
            connection.connection_made(cast(asyncio.Transport, peer))
            self._connections.append(connection)
            self._peers.append(peer)

    async def round(self, load: Load) -> None:
        """Every chunk arrives in one turn of the loop; then until everything is answered and derived."""
        self.connect(len(load.chunks))
        before = self.written
        for connection, chunk in zip(self._connections, load.chunks, strict=False):
            connection.get_buffer(-1)[: len(chunk)] = chunk
            connection.buffer_updated(len(chunk))
        for _ in range(SPIN_TURNS):
            await asyncio.sleep(0)
            if self.written > before and not self.broker.store.waiting_records:
                return
        raise AssertionError(f"{load.name}: not answered within {SPIN_TURNS} turns of the loop")

    @property
    def written(self) -> int:
        return sum(peer.written for peer in self._peers)


@contextmanager
def started(root: str) -> Iterator[Broker]:
    config = BrokerConfig.from_properties(
        {
            "brokerName": "broker-a", "storePathRootDir": root, "listenPort": "10911", "brokerIP1": "127.0.0.1",
            "mappedFileSizeCommitLog": str(256 << 20), "autoCreateTopicEnable": "true",
        }
    )  # fmt: skip
    clock = SystemClock()
    with open_store(config.storage, clock) as store:
        broker = Broker(config, store, clock, random.Random(7), None, None, Encryption(config.tls))
        broker.load()
        yield broker


async def run(broker: Broker, begin: Callable[[], None], end: Callable[[bytes], None]) -> None:
    """Only what each message needs runs beside the loads: what happens by the clock would be counted with them."""
    dispatch = asyncio.ensure_future(broker.jobs()["dispatch"]())
    try:
        bench = Bench(broker)
        for load in main_loads("Gate"):
            for _ in range(WARM_ROUNDS):
                await bench.round(load)
            before = bench.written
            begin()
            for _ in range(load.rounds):
                await bench.round(load)
            end(load.name.encode())
            count = load.rounds * load.messages
            print(f"{load.name} {count} {(bench.written - before) // load.rounds}", flush=True)
    finally:
        dispatch.cancel()
        await asyncio.gather(dispatch, return_exceptions=True)


def main(marks: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    library = ctypes.CDLL(marks)
    with tempfile.TemporaryDirectory(prefix="tandem-gate-") as root, started(root) as broker:
        asyncio.run(run(broker, library.gate_begin, library.gate_end))


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
