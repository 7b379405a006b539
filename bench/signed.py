"""How much a signature costs a broker: one process takes sends of 1 KiB, unsigned and signed, without a network.

python -m bench.signed
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from typing import Any, Final

from tandemmq.cluster.access.signature import sign
from tandemmq.cluster.access.users import PolicyBody, RuleBody, RulesBody, UserBody
from tandemmq.cluster.broker.access.guarding import Guarding
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.storage import SystemClock, open_store

BODY_BYTES: Final = 1024
ROOT: Final = ("root", "rootpw12")
SHOP: Final = ("shop", "shoppw12")


class _Sink(asyncio.Transport):
    """Takes answers and drops them."""

    answers = 0

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000)})

    def write(self, data: Any) -> None:
        self.answers += bytes(data).count(b'"code":0')

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def is_closing(self) -> bool:
        return False


def frame(number: int, who: tuple[str, str] | None) -> bytes:
    """A send as a Java client writes it."""
    ext = {
        "a": "PG", "b": "Bench", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "1795370377548",
        "h": "0", "i": f"UNIQ_KEY\x01FD00000000000000000000000000{number:010d}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
        "j": "0", "k": "false", "m": "false", "n": "b",
    }  # fmt: skip
    command = Command(310, ext, b"x" * BODY_BYTES, opaque=number)
    if who is not None:
        sign(command, *who)
    return command.encode()


async def measured(guarded: bool, who: tuple[str, str] | None, count: int, pipelined: int) -> float:
    """Messages per second of the processor: what else runs on this machine does not count."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"storePathRootDir": directory, "brokerName": "b", "brokerIP1": "127.0.0.1"}
        if guarded:
            settings |= {
                "authenticationEnabled": "true", "authorizationEnabled": "true",
                "initAuthenticationUser": '{"username":"root","password":"rootpw12"}',
            }  # fmt: skip
        config = BrokerConfig.from_properties(settings, file="", environment={})
        clock = SystemClock()
        with open_store(config.storage, clock) as store:
            broker = Broker(config, store, clock, random.Random(1))
            broker.load()
            sink = _Sink()
            connection = Connection(broker.listening[0].endpoint, mirrors=True)
            connection.connection_made(sink)
            if guarded:
                _allow(broker)
            await _send(connection, [frame(0, ROOT if guarded else None)])  # makes the topic
            chunks = [
                b"".join(frame(first + at, who) for at in range(pipelined))
                for first in range(0, count, pipelined)
            ]
            sink.answers = 0
            began_s = time.process_time()
            for chunk in chunks:
                await _send(connection, [chunk])
            took_s = time.process_time() - began_s
            assert sink.answers == len(chunks) * pipelined, (sink.answers, count)
            return len(chunks) * pipelined / took_s


def _allow(broker: Broker) -> None:
    assert isinstance(broker.guarding, Guarding)
    users = broker.guarding.users
    users.create_user(SHOP[0], UserBody(password=SHOP[1]), users.find(ROOT[0]))
    rule = RuleBody("Topic:Bench", ["Pub"], None, "Allow")
    users.put_rules(f"User:{SHOP[0]}", RulesBody(None, [PolicyBody(None, [rule])]))


async def _send(connection: Connection, chunks: list[bytes]) -> None:
    for chunk in chunks:
        buffer = connection.get_buffer(-1)
        buffer[: len(chunk)] = chunk
        connection.buffer_updated(len(chunk))
    await asyncio.sleep(0)


def main() -> None:
    """Print one line for each way."""
    parser = argparse.ArgumentParser(prog="python -m bench.signed", description=__doc__)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--pipelined", type=int, default=64, help="sends in one chunk")
    options = parser.parse_args()
    for text, guarded, who in (
        ("unsigned, access control off", False, None),
        ("signed, access control off", False, SHOP),
        ("signed, access control on", True, SHOP),
    ):
        rates = sorted(
            asyncio.run(measured(guarded, who, options.count, options.pipelined)) for _ in range(3)
        )
        print(
            f"{text:32} {rates[1]:>10,.0f} messages per CPU second {1e6 / rates[1]:>8.2f} us each"
        )


if __name__ == "__main__":
    main()
