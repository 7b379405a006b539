"""INV-44 with real processes: where TLS is enforced the HA port speaks no plain text and knows who may connect."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from raw_wire import SEND, Answer, Wire, json_frame, send_ext
from test_classic_group import GET_BROKER_HA_STATUS, TOPIC, files_of

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

pytestmark = pytest.mark.system

NOTHING_YET = struct.pack(">q", 0)
ENFORCING = {"tls.server.mode": "enforcing"}
WIDE = {**ENFORCING, "bindAddress": "0.0.0.0", "slaveTimeout": 800}
NOT_AVAILABLE = 11


def unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def secure_request(broker: Broker, frame: bytes) -> Answer:
    with Wire(broker.address) as wire:
        wire.socket = unchecked().wrap_socket(wire.socket)
        return wire.request(frame)


def send(broker: Broker, body: bytes = b"one") -> Answer:
    return secure_request(broker, json_frame(SEND, send_ext(TOPIC), body))


def caught_up(broker: Broker) -> bool:
    answer = secure_request(broker, json_frame(GET_BROKER_HA_STATUS, {}))
    slaves = json.loads(answer.body)["haConnectionInfo"]
    return len(slaves) == 1 and slaves[0]["diff"] == 0 and slaves[0]["slaveAckOffset"] >= 0


@contextmanager
def brokers(root: Path, **settings: dict[str, object]) -> Iterator[dict[str, Broker]]:
    """By name; each serves."""
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(root, {"tls.server.mode": "permissive"})).start()
        found = {}
        for name, given in settings.items():
            broker = Broker(root / name, names.address, settings=given)
            found[name] = stack.enter_context(broker)
            broker.launch()
            broker.wait_ready(lambda each=broker: "boot success" in each.output(), broker.READY_S)
        yield found


def what_a_reader_gets(broker: Broker, *, tls: bool) -> bytes | None:
    """What the HA port sends to who says where its log ends; None when it hangs up."""
    with socket.create_connection(("127.0.0.1", broker.port + 1), timeout=3) as reader:
        try:
            with unchecked().wrap_socket(reader) if tls else reader as stream:
                stream.sendall(NOTHING_YET)
                return stream.recv(1 << 16) or None
        except (ssl.SSLError, ConnectionError):
            return None


def test_enforced_encryption_holds_for_the_ha_port_too(tmp_path: Path) -> None:
    master = {"brokerRole": "SYNC_MASTER", **WIDE}
    with brokers(tmp_path, master=master) as found:
        assert send(found["master"]).code == NOT_AVAILABLE
        assert what_a_reader_gets(found["master"], tls=False) is None
        assert send(found["master"]).code == NOT_AVAILABLE, "a reader in plain text is no copy"
        assert "speaks no TLS" in found["master"].output()


def test_on_a_wide_port_a_classic_slave_is_who_is_allowed(tmp_path: Path) -> None:
    master = {"brokerRole": "SYNC_MASTER", **WIDE, "haAllowedAddresses": "10.9.9.0/24, 10.8.8.8"}
    with brokers(tmp_path, master=master) as found:
        send(found["master"])
        for tls in (True, False):
            assert what_a_reader_gets(found["master"], tls=tls) is None
        assert send(found["master"]).code == NOT_AVAILABLE, "a stranger is no copy"
        assert "in neither haAllowedAddresses nor haPlainAddresses" in found["master"].output()


def test_a_stock_slave_is_allowed_by_its_address(tmp_path: Path) -> None:
    master = {"brokerRole": "SYNC_MASTER", **WIDE, "haPlainAddresses": "127.0.0.1"}
    with brokers(tmp_path, master=master) as found:
        send(found["master"])
        for tls in (True, False):
            data = what_a_reader_gets(found["master"], tls=tls)
            assert data is not None
            assert struct.unpack_from(">q", data) == (0,)
            assert len(data) >= 12, "a frame of the log"


def test_a_pair_that_enforces_encryption_replicates_and_comes_back(tmp_path: Path) -> None:
    common = {**ENFORCING, "slaveTimeout": 800}
    master = {"brokerRole": "SYNC_MASTER", **common}
    slave = {"brokerRole": "SLAVE", "brokerId": 1, **common}
    with brokers(tmp_path, master=master, slave=slave) as found:
        first, second = found["master"], found["slave"]
        wait_until(lambda: caught_up(first), 20, "the slave follows")
        assert send(first).code == 0
        second.kill()
        for number in range(40):
            send(first, b"%d" % number * 20_000)  # several batches, and more than a socket takes
        second.launch()
        wait_until(lambda: caught_up(first), 20, "the slave is back and has everything")
        assert send(first).code == 0
        wait_until(lambda: caught_up(first), 20, "the slave has everything")
        assert second.stop() == 0
        assert first.stop() == 0
        for kind in ("commitlog", "consumequeue"):
            ours, theirs = files_of(first, kind), files_of(second, kind)
            assert ours.keys() == theirs.keys() and ours
            assert [name for name in ours if ours[name] != theirs[name]] == []
