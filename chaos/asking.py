"""Questions to a server, each on a connection of its own: whether it answers, and what it knows.

Deliberately not built on our own remoting code: what is found here is evidence about it.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from typing import Any, Final

GET_ROUTE: Final = 105
GET_CLUSTER: Final = 106
TOPIC_NOT_EXIST: Final = 17


def ask(
    address: str, code: int, ext: Mapping[str, str] | None = None, timeout_s: float = 3
) -> tuple[int, dict[str, Any], bytes]:
    """One request with a JSON header: (response code, header, body). Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    header = {
        "code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0,
        "extFields": dict(ext or {}), "serializeTypeCurrentRPC": "JSON",
    }  # fmt: skip
    text = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), timeout=timeout_s) as sock:
        sock.sendall((len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)
        total = int.from_bytes(_receive(sock, 4), "big")
        frame = _receive(sock, total)
    length = int.from_bytes(frame[1:4], "big")
    answer = json.loads(frame[4 : 4 + length])
    return answer["code"], answer, frame[4 + length :]


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += chunk
    return data


def answers(address: str) -> bool:
    """Whether a remoting server speaks at `address`: any answer will do."""
    try:
        ask(address, GET_CLUSTER, timeout_s=1)
    except (OSError, ValueError):
        return False
    return True


def registered(name_server: str, broker_name: str, broker_id: int = 0) -> bool:
    """Whether the name server shows this member of the broker group."""
    try:
        code, _, body = ask(name_server, GET_CLUSTER, timeout_s=1)
    except (OSError, ValueError):
        return False
    return code == 0 and str(broker_id) in _members(body, broker_name)


def registered_at(name_server: str, broker_name: str, broker_id: int = 0) -> str:
    """host:port that this member of the broker group told the name server. KeyError when it told none."""
    return _members(ask(name_server, GET_CLUSTER)[2], broker_name)[str(broker_id)]


def _members(body: bytes, broker_name: str) -> dict[str, str]:
    """id -> address. Stock name servers do not quote numbers that are keys."""
    found = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
    members: dict[str, str] = found["brokerAddrTable"].get(broker_name, {}).get("brokerAddrs", {})
    return members


def routed(name_server: str, topic: str) -> bool:
    """Whether the name server has a route for `topic`."""
    return ask(name_server, GET_ROUTE, {"topic": topic})[0] == 0
