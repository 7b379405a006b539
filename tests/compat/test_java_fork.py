"""A master that a power cut left with a shorter log than its slave's, one of the two RocketMQ's (INV-36)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from raw_wire import SEND, Wire, json_frame, send_ext
from replicas import OURS, log_end, make_member, make_topics, wait_equal
from test_classic_fork import cut_power

from tandemmq.chaos.asking import ask, registered
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer

TOPIC = "Forked"
GET_BROKER_HA_STATUS = 907
JAVA_RETRY_S = 13  # its slaves try again every 5 s, and register after 10


def send_many(broker: Broker, name: str, count: int) -> dict[bytes, int]:
    """Body of each message -> code of its answer."""
    codes = {}
    with Wire(broker.address) as wire:
        for number in range(count):
            body = f"{name}-{number}".encode().ljust(400, b".")
            codes[body] = wire.request(json_frame(SEND, send_ext(TOPIC), body)).code
    return codes


def in_sync(master: Broker) -> int:
    code, _, body = ask(master.address, GET_BROKER_HA_STATUS)
    assert code == 0
    count: int = json.loads(body)["inSyncSlaveNums"]
    return count


@pytest.fixture
def name_server(tmp_path: Path) -> NameServer:
    return NameServer(tmp_path)


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_a_stock_slave_that_kept_what_our_master_lost_never_counts_again(
    java: None, tmp_path: Path, name_server: NameServer, version: str
) -> None:
    with name_server:
        name_server.start()
        at = name_server.address
        master = make_member(OURS, tmp_path, at, "g", 0, brokerRole="SYNC_MASTER", slaveTimeout=800)
        slave = make_member(version, tmp_path, at, "g", 1)
        with master, slave:
            master.start()
            make_topics(at, master, {TOPIC: 4})
            slave.start()
            wait_until(lambda: registered(at, "g", 1), 60, "the slave is known")
            wait_until(lambda: in_sync(master) == 1, 60, "the slave follows")
            assert set(send_many(master, "before", 20).values()) == {0}
            wait_equal(master, slave)
            kept = log_end(master)
            assert set(send_many(master, "lost", 10).values()) == {0}
            end = wait_equal(master, slave)
            master.kill()
            cut_power(master, kept)
            master.start()
            after: dict[bytes, int] = {}
            while log_end(master) <= end + 4_000:
                after |= send_many(master, f"after-{len(after)}", 10)
            until = time.monotonic() + JAVA_RETRY_S
            while time.monotonic() < until:
                after |= send_many(master, f"after-{len(after)}", 1)
                time.sleep(0.2)
            assert set(after.values()) == {11}
            assert in_sync(master) == 0 and log_end(slave) == end
            assert "a person must act why=the slave at 127.0.0.1" in master.output()

            # one that is seeded anew is let in, and one that was only restarted is again
            slave.kill()
            slave.store.rename(tmp_path / "moved-away")
            slave.start()
            wait_equal(master, slave)
            slave.kill()
            slave.start()
            wait_until(lambda: in_sync(master) == 1, 60, "the slave follows again")
            assert set(send_many(master, "again", 5).values()) == {0}


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_our_slave_that_kept_what_a_stock_master_lost_stops(
    java: None, tmp_path: Path, name_server: NameServer, version: str
) -> None:
    with name_server:
        name_server.start()
        at = name_server.address
        master = make_member(version, tmp_path, at, "g", 0)
        slave = make_member(OURS, tmp_path, at, "g", 1)
        with master, slave:
            master.start()
            make_topics(at, master, {TOPIC: 4})
            slave.start()
            send_many(master, "before", 20)
            kept = wait_equal(master, slave)
            send_many(master, "lost", 10)
            end = wait_equal(master, slave)
            master.kill()
            cut_power(master, kept)
            master.start()
            count = 0
            while log_end(master) <= end + 4_000:
                send_many(master, f"after-{count}", 10)
                count += 1
            wait_until(lambda: "a person must act" in slave.output(), 60, "the slave stops")
            assert "two logs" in slave.output()
            assert log_end(slave) == end
            time.sleep(3)
            assert log_end(slave) == end
