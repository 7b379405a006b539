"""The few requests that bench needs beside the load: blocking, with JSON headers."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from typing import Any, Self

SEND_MESSAGE_V2 = 310
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_BROKER_HA_STATUS = 907


class RequestRefused(Exception):
    """The broker answered with another code than 0."""

    def __init__(self, request: int, code: int, remark: str) -> None:
        super().__init__(f"request {request} was answered with code {code}: {remark}")
        self.code = code


class Line:
    """One connection; one request at a time."""

    def __init__(self, port: int, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts += part
        return bytes(parts)

    def request(self, code: int, fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
        """The answer's extFields. Raises RequestRefused for any code but 0."""
        return self._ask(code, fields, body)[0]

    def _ask(self, code: int, fields: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
        opaque = next(self._opaque)
        header = {
            "code": code,
            "extFields": fields,
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        self._socket.sendall(struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body)
        length, word = struct.unpack(">ii", self._read(8))
        answer: dict[str, Any] = json.loads(self._read(word & 0xFFFFFF))
        answer_body = self._read(length - 4 - (word & 0xFFFFFF))
        if answer["opaque"] != opaque:
            raise ConnectionError(f"asked with opaque {opaque}, answered {answer['opaque']}")
        if answer["code"] != 0:
            raise RequestRefused(code, answer["code"], answer.get("remark") or "")
        return answer.get("extFields") or {}, answer_body

    def ha_status(self) -> dict[str, Any]:
        """How the broker's slaves, or its stream, are doing."""
        status: dict[str, Any] = json.loads(self._ask(GET_BROKER_HA_STATUS, {}, b"")[1])
        return status

    def create_topic(self, topic: str, queues: int) -> None:
        """Create or update a readable and writable topic on this broker."""
        self.request(
            UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )

    def send(self, topic: str, queue_id: int, body: bytes) -> None:
        """Send one message; an unknown topic is created from TBW102."""
        self.request(
            SEND_MESSAGE_V2,
            {
                "a": "bench-group",
                "b": topic,
                "c": "TBW102",
                "d": "8",
                "e": str(queue_id),
                "f": "0",
                "g": "1700000000000",
                "h": "0",
                "i": "UNIQ_KEY\x01C0A801057A6918B4AAC20000000000A1\x02",
                "j": "0",
                "k": "false",
                "m": "false",
            },
            body,
        )

    def queue_ranges(self, topic: str, queues: int) -> list[tuple[int, int]]:
        """(min, max) queue offsets of each queue, max exclusive."""
        ranges = []
        for queue_id in range(queues):
            fields = {"topic": topic, "queueId": str(queue_id)}
            low = self.request(GET_MIN_OFFSET, fields)["offset"]
            ranges.append((int(low), int(self.request(GET_MAX_OFFSET, fields)["offset"])))
        return ranges
