"""Fakes for the client's tests: brokers as dictionaries, wires as calls, time that jumps."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from framekit import FrameSplitter

from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.remoting import (
    Channel,
    Command,
    ConnectFailed,
    ConnectionLost,
    RequestCode,
    RequestTimedOut,
    ResponseCode,
)
from tandemmq.cluster.remoting.codes import VERSION
from tandemmq.storage import (
    Draft,
    decode_properties,
    encode,
    encode_properties,
    pack_host,
    split_batch,
)

NAME_SERVER = "127.0.0.1:9876"
Result = TypeVar("Result")
HOST = pack_host("127.0.0.1", 10911)
CHUNK = 4096  # what a channel receives at a time: frames arrive in pieces


async def settle() -> None:
    """Let every task run until it waits for time or for somebody."""
    for _ in range(200):
        await asyncio.sleep(0)


def received(queue_offset: int, body: bytes = b"x", queue_id: int = 0) -> ReceivedMessage:
    """A message as a pull brings it."""
    return ReceivedMessage(
        topic="T",
        body=body,
        queue=MessageQueue("T", "a", queue_id),
        queue_offset=queue_offset,
        message_id=f"ID{queue_offset}",
        offset_message_id=f"OFF{queue_offset}",
        properties={},
        reconsume_times=0,
        born_ms=1,
        store_ms=2,
        born_host="127.0.0.1:1",
        store_host="127.0.0.1:2",
        physical_offset=queue_offset * 100,
        flag=0,
        sys_flag=0,
    )


class FakeBroker:
    """A master with queues in memory.

    `trouble` may answer, fail or delay a request before it is served.
    """

    def __init__(self, cluster: FakeCluster, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.log_end = 0
        self.locks: dict[tuple[str, str, int], str] = {}
        self.members: dict[str, dict[FakeWire, str]] = defaultdict(dict)
        self.forgets: set[str] = set()  # client ids whose heartbeats it answers and does not keep
        self.heartbeats: list[dict[str, Any]] = []
        self.producers: dict[str, FakeWire] = {}  # by client id
        self.requests: list[Command] = []
        self.sent_back: list[dict[str, str]] = []
        self.trouble: Callable[[Command], Command | Exception | None] = lambda command: None
        self.down = False
        self.version = VERSION
        self.young_topic_rule = (
            False  # answer 0 instead of "not found", as brokers do for young topics
        )
        self._cluster = cluster
        self._arrived = asyncio.Condition()

    def codes(self) -> list[int]:
        return [command.code for command in self.requests]

    async def answer(self, command: Command, wire: FakeWire) -> Command:
        self.requests.append(command)
        problem = self.trouble(command)
        if isinstance(problem, Exception):
            raise problem
        if problem is not None:
            return problem
        handler = getattr(self, f"handle_{RequestCode(command.code).name.lower()}")
        reply: Command = await handler(command, wire)
        reply.version = self.version
        return reply

    async def handle_heart_beat(self, command: Command, wire: FakeWire) -> Command:
        body = json.loads(bytes(command.body or b""))
        self.heartbeats.append(body)
        if body["producerDataSet"]:
            self.producers[body["clientID"]] = wire
        for entry in body["consumerDataSet"]:
            group = self.members[entry["groupName"]]
            if body["clientID"] in self.forgets:
                continue
            if group.get(wire) != body["clientID"]:
                group[wire] = body["clientID"]
                self._cluster.topics.setdefault(f"%RETRY%{entry['groupName']}", {self.name: 1})
                self.notify(entry["groupName"])
        return command.reply()

    def notify(self, group: str) -> None:
        for wire in self.members[group]:
            wire.push(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}))

    async def handle_unregister_client(self, command: Command, wire: FakeWire) -> Command:
        group = (command.ext or {}).get("consumerGroup")
        if group and self.members[group].pop(wire, None):
            self.notify(group)
        return command.reply()

    async def handle_get_consumer_list_by_group(self, command: Command, wire: FakeWire) -> Command:
        members = self.members[ext(command)["consumerGroup"]].values()
        if not members:
            return command.reply(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return command.reply(body=json.dumps({"consumerIdList": list(members)}).encode())

    async def handle_send_message_v2(self, command: Command, wire: FakeWire) -> Command:
        fields = ext(command)
        queue_id, topic = int(fields["e"]), fields["b"]
        group = topic.removeprefix("%RETRY%")
        if group != topic and any(holder == group for holder, _, _ in self.locks):
            topic = f"%DLQ%{group}"  # an ordered group buries its dead at once
        offset = await self.store(
            topic,
            queue_id,
            bytes(command.body or b""),
            fields["i"].encode(),
            int(fields["f"]),
        )
        return command.reply(
            ext={"msgId": f"OFF{offset}", "queueId": str(queue_id), "queueOffset": str(offset)}
        )

    async def handle_send_reply_message_v2(self, command: Command, wire: FakeWire) -> Command:
        """As the broker does: to the client that told it of producers."""
        fields = ext(command)
        properties = decode_properties(fields["i"].encode())
        requester = self.producers.get(properties["REPLY_TO_CLIENT"])
        if requester is None or requester.closed:
            return command.reply(ResponseCode.SYSTEM_ERROR, "channel not found")
        push = {
            "topic": fields["b"],
            "properties": fields["i"],
            "sysFlag": fields["f"],
            "bornTimestamp": fields["g"],
            "flag": fields["h"],
            "storeTimestamp": "9",
            "bornHost": "10.0.0.1:1",
            "storeHost": self.address,
        }
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        requester.push(Command(code, push, bytes(command.body or b"")))
        return command.reply(ext={"msgId": "0", "queueId": fields["e"], "queueOffset": "0"})

    async def handle_send_batch_message(self, command: Command, wire: FakeWire) -> Command:
        fields = ext(command)
        queue_id = int(fields["e"])
        first = len(self.queues[fields["b"], queue_id])
        items = split_batch(bytes(command.body or b""))
        for item in items:
            await self.store(fields["b"], queue_id, bytes(item.body), bytes(item.properties), 0)
        ids = ",".join(f"OFF{first + place}" for place in range(len(items)))
        return command.reply(
            ext={"msgId": ids, "queueId": str(queue_id), "queueOffset": str(first)}
        )

    async def store(
        self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag: int = 0
    ) -> int:
        queue = self.queues[topic, queue_id]
        draft = Draft(topic, queue_id, body, properties, 0, sys_flag, 1, HOST, HOST)
        queue.append(encode(draft, len(queue), self.log_end, 1_000 + len(queue)))
        self.log_end += 100
        async with self._arrived:
            self._arrived.notify_all()
        return len(queue) - 1

    async def fill(self, topic: str, queue_id: int, bodies: list[bytes], **properties: str) -> None:
        for body in bodies:
            await self.store(topic, queue_id, body, encode_properties(properties))

    async def handle_lock_batch_mq(self, command: Command, wire: FakeWire) -> Command:
        body = json.loads(bytes(command.body or b""))
        granted = []
        for each in body["mqSet"]:
            key = (body["consumerGroup"], each["topic"], each["queueId"])
            if self.locks.setdefault(key, body["clientId"]) == body["clientId"]:
                granted.append(each)
        return command.reply(body=json.dumps({"lockOKMQSet": granted}).encode())

    async def handle_unlock_batch_mq(self, command: Command, wire: FakeWire) -> Command:
        body = json.loads(bytes(command.body or b""))
        for each in body["mqSet"]:
            key = (body["consumerGroup"], each["topic"], each["queueId"])
            if self.locks.get(key) == body["clientId"]:
                del self.locks[key]
        return command.reply()

    async def handle_pull_message(self, command: Command, wire: FakeWire) -> Command:
        fields = ext(command)
        if int(fields["sysFlag"]) & 1:
            self.offsets[offset_key(command)] = int(fields["commitOffset"])
        queue = self.queues[fields["topic"], int(fields["queueId"])]
        offset, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        if offset > len(queue):
            return self._pulled(command, ResponseCode.PULL_OFFSET_MOVED, len(queue), queue)
        async with self._arrived:
            try:
                async with asyncio.timeout(int(fields["suspendTimeoutMillis"]) / 1000):
                    await self._arrived.wait_for(lambda: len(queue) > offset)
            except TimeoutError:
                return self._pulled(command, ResponseCode.PULL_NOT_FOUND, offset, queue)
        found = queue[offset : offset + count]
        return self._pulled(command, 0, offset + len(found), queue, b"".join(found))

    handle_lite_pull_message = handle_pull_message

    def _pulled(
        self, command: Command, code: int, following: int, queue: list[bytes], body: bytes = b""
    ) -> Command:
        fields = {
            "nextBeginOffset": str(following),
            "minOffset": "0",
            "maxOffset": str(len(queue)),
            "suggestWhichBrokerId": "0",
        }
        return command.reply(code, ext=fields, body=body or None)

    async def handle_view_message_by_id(self, command: Command, wire: FakeWire) -> Command:
        wanted = int(ext(command)["offset"])
        for records in self.queues.values():
            for record in records:
                if int.from_bytes(record[28:36], "big") == wanted:
                    return command.reply(body=bytes(record))
        return command.reply(ResponseCode.SYSTEM_ERROR, "no message there")

    async def handle_query_consumer_offset(self, command: Command, wire: FakeWire) -> Command:
        offset = self.offsets.get(offset_key(command), 0 if self.young_topic_rule else None)
        if offset is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return command.reply(ext={"offset": str(offset)})

    async def handle_update_consumer_offset(self, command: Command, wire: FakeWire) -> Command:
        self.offsets[offset_key(command)] = int(ext(command)["commitOffset"])
        return command.reply()

    async def handle_get_max_offset(self, command: Command, wire: FakeWire) -> Command:
        fields = ext(command)
        queue = self.queues[fields["topic"], int(fields["queueId"])]
        return command.reply(ext={"offset": str(len(queue))})

    async def handle_get_min_offset(self, command: Command, wire: FakeWire) -> Command:
        return command.reply(ext={"offset": "0"})

    async def handle_search_offset_by_timestamp(self, command: Command, wire: FakeWire) -> Command:
        """Messages are stored at 1000, 1001, ...: see store()."""
        return command.reply(ext={"offset": str(max(0, int(ext(command)["timestamp"]) - 1_000))})

    async def handle_consumer_send_msg_back(self, command: Command, wire: FakeWire) -> Command:
        self.sent_back.append(ext(command))
        return command.reply()


def ext(command: Command) -> dict[str, str]:
    assert command.ext is not None
    return command.ext


def offset_key(command: Command) -> tuple[str, str, int]:
    fields = ext(command)
    return fields["consumerGroup"], fields["topic"], int(fields["queueId"])


class FakeWire:
    """One client's connection to one server."""

    def __init__(self, cluster: FakeCluster, address: str, table: Any) -> None:
        self.closed = False
        self._cluster = cluster
        self._address = address
        self._table = table
        self._tasks: set[asyncio.Task[Command]] = set()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        if self.closed or self._cluster.is_down(self._address):
            self.closed = True
            raise ConnectionLost(self._address)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._cluster.answer(self._address, command, self)
        except TimeoutError:
            raise RequestTimedOut(self._address, command.code, timeout_ms) from None

    def oneway(self, command: Command) -> None:
        task = asyncio.get_running_loop().create_task(
            self._cluster.answer(self._address, command, self)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def push(self, command: Command) -> None:
        """The server asks the client."""
        self._table[command.code](command, None)


class MemoryTransport(asyncio.Transport):
    """Carries a channel's bytes to a fake server and back; the server's side of it is a `wire`."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        super().__init__()
        self.closed = False
        self.written = 0
        self.answers: list[Command] = []  # the client's, to requests of the server
        self._cluster = cluster
        self._address = address
        self._splitter = FrameSplitter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.channel: Channel | None = None

    def write(self, data: Any) -> None:
        if self.closed:
            return
        self.written += len(data)
        if self._cluster.is_down(self._address):
            self.lose()
            return
        for frame in self._splitter.feed(bytes(data)):
            command = Command.decode(frame)
            if command.is_response:
                self.answers.append(command)
                continue
            task = self._loop.create_task(self._serve(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, command: Command) -> None:
        try:
            answer = await self._cluster.answer(self._address, command, self)  # type: ignore[arg-type]
        except ConnectionLost:
            self.lose()
            return
        except RequestTimedOut:
            return  # silence: the client's own time-out
        if not command.oneway:
            self.feed(answer.encode())

    def feed(self, data: bytes) -> None:
        """Bytes from the server."""
        if self.channel is None or self.closed:
            return
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            self.channel.get_buffer(-1)[: len(part)] = part
            self.channel.buffer_updated(len(part))

    def push(self, command: Command) -> None:
        command.flag |= 2
        self._loop.call_soon(self.feed, command.encode())

    def lose(self, problem: Exception | None = None) -> None:
        """The connection breaks."""
        if not self.closed:
            self.closed = True
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()  # held pulls, as brokers drop them
            assert self.channel is not None
            self._loop.call_soon(self.channel.connection_lost, problem)

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class FakeCluster:
    """A name server and brokers. topics: name -> broker name -> queue count.

    channels: clients get real channels whose bytes are carried in memory, else calls of Python.
    """

    def __init__(self, channels: bool = False) -> None:
        self.channels = channels
        self.topics: dict[str, dict[str, int]] = {}
        self.brokers: dict[str, FakeBroker] = {}
        self.wires: list[FakeWire] = []
        self.route_requests: list[str] = []
        self.name_server_down = False

    def add(self, name: str, topic: str | None = None, queue_count: int = 4) -> FakeBroker:
        """A broker, with queues of a topic."""
        broker = FakeBroker(self, name, f"127.0.0.1:{10_911 + 10 * len(self.brokers)}")
        self.brokers[broker.address] = broker
        if topic is not None:
            self.topics.setdefault(topic, {})[name] = queue_count
        return broker

    def is_down(self, address: str) -> bool:
        if address == NAME_SERVER:
            return self.name_server_down
        return address not in self.brokers or self.brokers[address].down

    async def open_channel(self, host: str, port: int, **options: Any) -> FakeWire:
        address = f"{host}:{port}"
        if self.is_down(address):
            raise ConnectFailed(address, "refused")
        if self.channels:
            transport = MemoryTransport(self, address)
            channel = Channel(options["endpoint"], address, None)
            transport.channel = channel
            self.wires.append(transport)  # type: ignore[arg-type]
            channel.connection_made(transport)
            return channel  # type: ignore[return-value]
        wire = FakeWire(self, address, options["endpoint"].table)
        self.wires.append(wire)
        return wire

    async def answer(self, address: str, command: Command, wire: FakeWire) -> Command:
        await asyncio.sleep(0)  # as on a network, other tasks run meanwhile
        if address != NAME_SERVER:
            return await self.brokers[address].answer(command, wire)
        topic = ext(command)["topic"]
        self.route_requests.append(topic)
        counts = self.topics.get(topic)
        if not counts:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return command.reply(body=self.route_body(counts))

    def route_body(self, counts: dict[str, int]) -> bytes:
        addresses = {broker.name: broker.address for broker in self.brokers.values()}
        return json.dumps(
            {
                "queueDatas": [
                    {
                        "brokerName": name,
                        "readQueueNums": count,
                        "writeQueueNums": count,
                        "perm": 6,
                        "topicSysFlag": 0,
                    }
                    for name, count in counts.items()
                ],
                "brokerDatas": [
                    {"cluster": "C", "brokerName": name, "brokerAddrs": {"0": addresses[name]}}
                    for name in counts
                ],
                "filterServerTable": {},
            }
        ).encode()
