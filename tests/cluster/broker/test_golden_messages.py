"""Recorded sessions of stock clients, replayed: our answers carry the recorded codes and fields.

The whole broker is fed in the order of the recording, requests of other families included, because
they make the topics, groups and subscriptions that sends and pulls rely on. Only answers of the
message family are compared.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import lzma
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokerkit import MakeBroker, TwoClocks
from messagekit import FakeConnection

from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.sending.acks import UNSETTLED
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import parse_offset_message_id

WIRE = Path(__file__).parents[2] / "golden" / "wire"
MESSAGE_FAMILY = frozenset({10, 310, 320, 11, 361, 36, 12, 33})
STATE_FAMILY = frozenset({17, 34, 35, 14, 15, 41, 42, 200, 222})
END_TRANSACTION = 37
MARKS_OF_5 = frozenset({"topicSysFlag", "groupSysFlag", "transactionId"})
#: what our answers to sends say besides
OURS = frozenset(UNSETTLED)

#: recorded answer -> ours, where we differ on purpose
DIFFERENT = {
    # RocketMQ lets every message through where a pull's own filter does not compile
    "no filter": (23,),
    # RocketMQ makes a pull wait for the heartbeat with its subscription; we serve it unfiltered
    "early": (0, 19),
    # RocketMQ goes on with null where a required field is missing, until something breaks
    "incomplete": (1,),
}


class Replay:
    """One session's frames, in order, against our broker."""

    def __init__(self, broker: Broker, clock: TwoClocks, start_ms: int) -> None:
        self.broker = broker
        self.clock = clock
        self.start_ms = start_ms
        self.connections: dict[int, FakeConnection] = {}
        self.answers: dict[tuple[int, int], Command] = {}
        self.compared: Counter[tuple[int, int]] = Counter()
        self.ended = 0

    def connection(self, number: int) -> FakeConnection:
        found = self.connections.get(number)
        if found is None:
            found = self.connections[number] = FakeConnection("10.9.9.3", 40_000 + number)
            found.oneway = lambda command: None  # type: ignore[attr-defined]
        return found

    def pass_to(self, line: dict[str, Any]) -> None:
        """Let it be the time of a line, and what is due happen: delayed messages, waiting pulls."""
        self.clock.advance(max(0, self.start_ms + int(line["t"]) - self.clock.wall_ms))
        self.dispatch()
        self.broker.schedule.step()
        self.dispatch()
        self.collect()

    def dispatch(self) -> None:
        while self.broker.store.dispatch():
            pass

    async def request(self, line: dict[str, Any], frame: bytes) -> None:
        connection = self.connection(line["c"])
        connection.active_ms = self.clock.monotonic_ms()
        view = memoryview(bytearray(frame))
        taken = self.broker.send_path.process(view, 0, len(view), connection)
        await asyncio.sleep(0)  # what came in during one iteration of the loop is answered after it
        if taken == 0:
            command = Command.decode(view)
            handler = self.broker.table.get(command.code)
            answer = handler(command, connection) if handler else None  # type: ignore[arg-type]
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not None:
                connection.send(answer)
        self.dispatch()
        self.collect()

    async def end_transaction(self, line: dict[str, Any], frame: bytes) -> None:
        """As recorded, but for where its half message lies."""
        command = Command.decode(frame)
        assert command.ext is not None
        sent = [
            answer.ext
            for answer in self.answers.values()
            if answer.ext and answer.ext.get("transactionId") == command.ext["msgId"]
        ]
        if sent:
            _, offset = parse_offset_message_id(sent[-1]["msgId"])
            command.ext["commitLogOffset"] = str(offset)
            command.ext["tranStateTableOffset"] = sent[-1]["queueOffset"]
            self.ended += 1
        await self.request(line, command.encode())

    def collect(self) -> None:
        for number, connection in self.connections.items():
            for answer in connection.take():
                self.answers[number, answer.opaque] = answer

    def release(self, number: int, opaque: int) -> None:
        """Answer one held pull."""
        held = self.broker.pulls.held
        for pull in list(held._by_connection.get(self.connections[number], ())):  # type: ignore[call-overload]
            if pull.request.opaque == opaque:
                held._leave(pull)
        self.collect()

    def compare(self, line: dict[str, Any], request: dict[str, Any]) -> None:
        key = (line["c"], line["opaque"])
        ours = self.answers.get(key)
        if ours is None:  # held here, answered there by time or by another event
            self.release(line["c"], line["opaque"])
            ours = self.answers.get(key)
        assert ours is not None, request
        kind = "early" if line["code"] == 25 else different(request)
        if kind is not None:
            assert ours.code in DIFFERENT[kind], (request, ours.code)
            return
        assert ours.code == line["code"], (request, line, ours.remark)
        self.compared[line["req"], line["code"]] += 1
        recorded = set(line.get("ext") or {})
        if line["ver"] < 413:
            recorded |= MARKS_OF_5 & set(ours.ext or {})
        assert set(ours.ext or {}) - OURS == recorded, (request, line)
        assert (ours.body is None) == (line["bodyLen"] == 0)
        assert ours.binary == (request["ser"] == "ROCKETMQ")


def different(request: dict[str, Any]) -> str | None:
    ext = request.get("ext") or {}
    if ext.get("subscription") == "a >< b":
        return "no filter"
    if request["code"] in (11, 361) and "queueId" not in ext:
        return "incomplete"
    return None


def lines(session: str) -> Iterator[dict[str, Any]]:
    with lzma.open(WIRE / f"{session}.jsonl.xz", "rt") as file:
        yield from map(json.loads, file)


async def replay(session: str, make_broker: MakeBroker, clock: TwoClocks) -> Replay:
    asker = make_broker(
        brokerIP1="10.9.9.1",
        listenPort="29911",
        brokerName="wire-a",
        brokerClusterName="WireCluster",
        enablePropertyFilter="true",
        useServerSideResetOffset=str(session != "b53-c53-admin").lower(),
    )
    await asker.broker.transactions.replay()
    found: Replay | None = None
    requests: dict[tuple[int, int], dict[str, Any]] = {}
    labels: dict[int, str] = {}
    for line in lines(session):
        if line["k"] == "session":
            clock.wall_ms = line["epochMs"]
            found = Replay(asker.broker, clock, line["epochMs"])
        elif line["k"] == "open":
            labels[line["c"]] = line["l"]
        elif line["k"] == "frame" and "broker" in labels.get(line["c"], "") and found is not None:
            found.pass_to(line)
            if line.get("undecodable") or labels[line["c"]] != "client-broker":
                continue
            key = (line["c"], line["opaque"])
            code = int(line["code"])
            if line["d"] == ">" and code == END_TRANSACTION:
                await found.end_transaction(line, base64.b64decode(line["b"]))
            elif line["d"] == ">" and not line["flag"] & 1:
                if code in MESSAGE_FAMILY:
                    requests[key] = line
                if code in MESSAGE_FAMILY | STATE_FAMILY:
                    await found.request(line, base64.b64decode(line["b"]))
            elif line["d"] == "<" and line["flag"] & 1 and key in requests:
                found.compare(line, requests[key])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("session", "least"),
    [
        ("b53-c53-json", 40),
        ("b53-c53-binary", 40),
        ("b53-c49-json", 40),
        ("b53-c53-admin", 5),
        ("b53-raw-edge", 15),
    ],
)
async def test_recorded_requests_get_the_recorded_codes_and_fields(
    session: str, least: int, make_broker: MakeBroker, clock: TwoClocks
) -> None:
    found = await replay(session, make_broker, clock)
    print(session, sorted(found.compared.items()))
    assert sum(found.compared.values()) >= least
    assert not found.ended or found.broker.transactions.ended
