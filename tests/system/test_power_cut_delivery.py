"""At least once, across a power cut of a lone asynchronous broker: whatever survives is delivered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from inbox import Inbox
from power_cut import NEVER_FLUSHED, flushed, power_cut
from raw_wire import PULL, SEND, Wire, bodies, json_frame, lone_broker, pull_ext, send_ext, send_one

from tandemmq import PushConsumer, StartFrom
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

pytestmark = pytest.mark.system


def test_a_delayed_message_that_was_on_the_disk_is_delivered_after_a_power_cut(
    tmp_path: Path,
) -> None:
    """INV-41: its delivered copy is lost with the page cache, so its progress must not be kept."""
    settings = {**NEVER_FLUSHED, "flushConsumerOffsetInterval": 100}
    saved = tmp_path / "store" / "config" / "delayOffset.json"

    def delivered() -> bool:
        return saved.exists() and json.loads(saved.read_text())["offsetTable"].get("1") == 1

    with lone_broker(tmp_path, settings) as broker:
        broker.start()
        with Wire(broker.address) as wire:
            delayed = send_ext("T", properties="DELAY\x011\x02")
            assert wire.request(json_frame(SEND, delayed, b"parked")).code == 0
        assert broker.stop() == 0, "and it is on the disk"
        broker.start()
        on_disk = flushed(broker)
        wait_until(lambda: bodies(broker.address, "T") == {0: b"parked"}, 10, "it is delivered")
        wait_until(delivered, 10, "its progress is saved")
        end = power_cut(broker)
        assert end >= on_disk
        broker.start()
        wait_until(
            lambda: b"parked" in bodies(broker.address, "T").values(), 10, "it is delivered again"
        )
        assert broker.stop() == 0


MOVED = 21


def send(address: str, *texts: bytes) -> None:
    """Acknowledged, each of them."""
    for text in texts:
        assert send_one(address, "T", text).code == 0


def test_a_reader_beyond_what_a_power_cut_left_is_given_what_came_after_it(tmp_path: Path) -> None:
    """INV-42, by the wire alone: its position lies within the new messages when it asks again."""
    with lone_broker(tmp_path, NEVER_FLUSHED) as broker:
        broker.start()
        send(broker.address, *(b"kept %d" % number for number in range(10)))
        assert broker.stop() == 0
        broker.start()
        send(broker.address, *(b"lost %d" % number for number in range(5)))
        assert len(bodies(broker.address, "T")) == 15, "a consumer has seen them"
        power_cut(broker)
        broker.start()
        send(broker.address, *(b"new %d" % number for number in range(8)))
        with Wire(broker.address) as wire:
            answer = wire.request(json_frame(PULL, pull_ext("T", 15)))
            assert (answer.code, answer.ext["nextBeginOffset"]) == (MOVED, "10")
            answer = wire.request(json_frame(PULL, pull_ext("T", 10)))
            assert answer.code == 0
        assert bodies(broker.address, "T")[10] == b"new 0"
        assert "readers beyond" in broker.output()
        assert broker.stop() == 0


async def test_a_running_consumer_gets_all_that_is_acknowledged_after_a_power_cut(
    tmp_path: Path,
) -> None:
    """INV-42: it carries its own position, five messages further than the log that came back."""
    with NameServer(tmp_path / "ns") as names:
        names.start()
        with Broker(tmp_path, names.address, settings=NEVER_FLUSHED) as broker:
            broker.start()
            send(broker.address, *(b"kept %d" % number for number in range(10)))
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.to_thread(broker.start)
            send(broker.address, *(b"lost %d" % number for number in range(5)))
            inbox = Inbox()
            async with PushConsumer(
                "CG", inbox, namesrv=names.address, subscribe={"T": "*"}, start=StartFrom.FIRST
            ):
                await inbox.count(15)
                power_cut(broker)
                broker.launch()
                while not broker.ready():
                    pass  # and nothing of ours pulls before the sends
                new = [b"new %d" % number for number in range(8)]
                send(broker.address, *new)
                await inbox.until(lambda: set(new) <= set(inbox.bodies))
            assert await asyncio.to_thread(broker.stop) == 0
