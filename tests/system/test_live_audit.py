"""Audits of running brokers: no false alarm under load, behind retention or a frozen slave; damage is found."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from audited_group import AuditedGroup, HttpBroker, audited_group
from command_line import Done, run
from raw_wire import SEND, Wire, json_frame, producing, send_ext

from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.storage.record import scan

pytestmark = pytest.mark.system

UPDATE_BROKER_CONFIG = 25
SEGMENT_BYTES = 1 << 20  # of SMALL_FILES


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedGroup]:
    """A pair with four segments of messages; tests leave it equal."""
    with audited_group(tmp_path_factory.mktemp("audited")) as made:
        made.fill(2_500)
        made.wait_caught_up()
        yield made


def segments(broker: Broker) -> list[Path]:
    return sorted((broker.store / "commitlog").iterdir())


def blank_end(path: Path) -> int:
    """Where the padding of a full segment begins."""
    data = path.read_bytes()
    for head in scan(data, 0, len(data)):
        if head.blank:
            return head.position + 8
    raise AssertionError(f"{path} is not full")


def overwrite(path: Path, position: int, data: bytes) -> bytes:
    """Change a file under a running broker; what was there before."""
    with path.open("r+b") as file:
        file.seek(position)
        before = file.read(len(data))
        file.seek(position)
        file.write(data)
    return before


def assert_no_alarm(done: Done) -> None:
    assert done.code == 0, done.out + done.err
    summary = json.loads(done.out)
    assert summary["verdict"] == "equal"
    assert [row for row in summary["divergence_rows"] if row["class"] != "LAG"] == []
    assert [row for row in summary["finding_rows"] if row["severity"] != "info"] == []


# -- nothing is wrong ------------------------------------------------------------------------------


def test_running_pair_is_equal_and_says_so_in_one_line(group: AuditedGroup) -> None:
    done = group.audit()
    assert done.code == 0, done.err
    assert done.out.startswith("broker-a-1 equals broker-a-0: ")
    assert len(done.out.splitlines()) == 1


def test_pair_under_load_raises_no_alarm(group: AuditedGroup) -> None:
    with producing(group.master.address, "Load") as load:
        for _ in range(3):
            assert_no_alarm(group.audit("--json"))
    assert load.problem is None and not load.refused
    group.wait_caught_up()


def test_slave_that_was_frozen_lags_and_is_equal_below(group: AuditedGroup) -> None:
    with producing(group.master.address, "Load", body=b"y" * 2000):
        for _ in range(3):
            os.kill(group.slave.pid, signal.SIGSTOP)
            try:
                wait_until_behind(group, 200_000)
            finally:
                os.kill(group.slave.pid, signal.SIGCONT)
            assert_no_alarm(group.audit("--json"))
    group.wait_caught_up()


def wait_until_behind(group: AuditedGroup, distance: int) -> None:
    """Until the master has written so much that its frozen slave cannot have."""
    begin = group.master.json("/healthz")["end"]
    wait_until(lambda: group.master.json("/healthz")["end"] > begin + distance, 20, "it lags")


def test_random_bytes_in_padding_raise_no_alarm(group: AuditedGroup) -> None:
    rng = random.Random(3)
    for path in segments(group.slave)[:2]:
        start = blank_end(path)
        overwrite(path, start, rng.randbytes(SEGMENT_BYTES - start))
    assert_no_alarm(group.audit("--json"))


def test_digests_of_running_brokers_compare(group: AuditedGroup, tmp_path: Path) -> None:
    files = []
    for broker in (group.master, group.slave):
        files.append(tmp_path / f"{broker.http_port}.parquet")
        words = ("audit", "digest", broker.url, "--out", files[-1])
        done = run(*words, "--token-file", broker.token_file)
        assert done.code == 0, done.err
    assert run("audit", "compare", *files).code == 0


# -- retention -------------------------------------------------------------------------------------


RETENTION = {
    "cleanResourceInterval": 200,
    "deleteCommitLogFilesInterval": 0,
    "flushConsumeQueueThoroughInterval": 500,  # nothing goes before its queue entries are on the disk
}


def expire(broker: HttpBroker) -> None:
    """Let retention take every segment but the last, by telling it that the disk is too full."""
    with Wire(broker.address) as wire:
        setting = b"diskSpaceCleanForciblyRatio=1\n"
        assert wire.request(json_frame(UPDATE_BROKER_CONFIG, {}, setting)).code == 0


def wait_until_expired(broker: HttpBroker) -> int:
    """Where the log begins then."""
    last = SEGMENT_BYTES * (broker.json("/healthz")["end"] // SEGMENT_BYTES)
    wait_until(lambda: broker.json("/healthz")["start"] == last, 20, "retention was there")
    return last


def test_segments_that_retention_took_on_one_side_are_not_missed(tmp_path: Path) -> None:
    with audited_group(tmp_path, **RETENTION) as group:
        group.fill(2_500)
        group.wait_caught_up()
        expire(group.slave)
        start = wait_until_expired(group.slave)
        done = group.audit("--json")
        assert_no_alarm(done)
        assert json.loads(done.out)["retained_bytes"] == start > 2 * SEGMENT_BYTES


def test_segments_that_go_while_they_are_read_are_not_missed(tmp_path: Path) -> None:
    """The port hands out 1.5 MB/s: the audit takes seconds, and retention comes in the middle."""
    with audited_group(tmp_path, httpBytesPerSecondMax=1_500_000, **RETENTION) as group:
        group.fill(2_500)
        group.wait_caught_up()
        found: list[Done] = []
        audit = threading.Thread(target=lambda: found.append(group.audit("--json", "--workers", 1)))
        before = bytes_read(group.master)
        audit.start()
        try:
            wait_until(lambda: bytes_read(group.master) > before + SEGMENT_BYTES, 20, "it reads")
            for broker in (group.master, group.slave):
                expire(broker)
            start = wait_until_expired(group.master)
        finally:
            audit.join()
        assert_no_alarm(found[0])
        summary = json.loads(found[0].out)
        assert summary["start_offset"] == start
        assert summary["bytes_compared"] > summary["end_offset"] - start


def bytes_read(broker: Broker) -> int:
    """What the process has read from files so far, by any call that counts as reading."""
    text = Path(f"/proc/{broker.pid}/io").read_text("ascii")
    return int(text.split("rchar: ")[1].split()[0])


# -- something is wrong ------------------------------------------------------------------------------


def test_damage_on_a_running_slave_is_found_explained_and_repaired(tmp_path: Path) -> None:
    with audited_group(tmp_path) as group:
        group.fill(1_500)
        group.wait_caught_up()
        path = segments(group.slave)[0]
        with path.open("rb") as file:
            head = next(iter(scan(file.read(), 0, SEGMENT_BYTES)))
        body = head.position + head.size - len(head.properties) - 2 - 1 - len(head.topic) - 1
        before = overwrite(path, body, b"\xff")
        assert before != b"\xff"

        done = group.audit("--json", "--out", tmp_path / "audits")
        assert done.code == 1
        (row,) = json.loads(done.out)["divergence_rows"]
        assert (row["class"], row["replica"], row["side"]) == ("CRC_SLAVE", "broker-a-1", "replica")
        (run_directory,) = (tmp_path / "audits").iterdir()
        access = ("--token-file", group.master.token_file)

        told = run("audit", "explain", run_directory, body, *access)
        assert told.code == 1
        assert "checksum right" in told.out and "checksum WRONG" in told.out

        refused = run("audit", "repair", run_directory, "--yes", *access)
        assert refused.code == 1
        assert "stop its broker, and say where its store is with --at broker-a-1=DIR" in refused.out

        assert group.slave.stop() == 0
        at = ("--at", f"broker-a-1={group.slave.store}")
        mended = run("audit", "repair", run_directory, "--yes", *at, *access)
        assert mended.code == 0, mended.out + mended.err
        assert overwrite(path, body, before) == before
        group.slave.start()
        group.wait_caught_up()
        assert_no_alarm(group.audit("--json"))


def test_queue_entry_that_points_elsewhere_is_found_on_a_running_slave(tmp_path: Path) -> None:
    with audited_group(tmp_path) as group:
        group.fill(600)
        group.wait_caught_up()
        wait_until(
            lambda: group.slave.json("/consumequeue")["queues"]
            and all(
                mine["max"] == theirs["max"]
                for mine, theirs in zip(
                    sorted(group.slave.json("/consumequeue")["queues"], key=str),
                    sorted(group.master.json("/consumequeue")["queues"], key=str),
                    strict=True,
                )
            ),
            20,
            "the slave has dispatched",
        )  # fmt: skip
        entry = next((group.slave.store / "consumequeue" / "Orders").glob("*/*"))
        overwrite(entry, 5, b"\x77")
        summary = json.loads(group.audit("--json").out)
        found = {row["check"] for row in summary["finding_rows"] if row["severity"] == "critical"}
        assert found == {"cq_wrong_record"}
        assert {row["replica"] for row in summary["finding_rows"]} == {"broker-a-1"}


# -- bad input ---------------------------------------------------------------------------------------


def test_wrong_token_wrong_names_and_dead_brokers_are_one_sentence(
    group: AuditedGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("b-token-of-some-length", encoding="ascii")
    monkeypatch.delenv("TANDEM_HTTP_TOKEN", raising=False)
    nobody = f"127.0.0.1:{PORTS.take((0,))}"
    namesrv = ("audit", "run", "--namesrv", group.names.address)
    cases: list[tuple[Done, int, str]] = [
        (run(*namesrv, "--token-file", wrong), 64, "refuses this token: give the broker's httpToken"),
        (run(*namesrv), 64, "wants a token"),
        (run("audit", "run", "--namesrv", nobody), 64, nobody),
        (group.audit("--group", "broker-x"), 64, "no broker group 'broker-x' is registered"),
        (group.audit("--cluster", "Nowhere"), 64, "no cluster 'Nowhere' at the name server"),
        (group.audit("--until", str(1 << 40)), 64, "is beyond the log of"),
        (run("audit", "run", group.master.url, f"http://{nobody}"), 64, "wants a token"),
        (
            run("audit", "run", group.master.url, f"http://{nobody}",
                "--token-file", group.master.token_file),
            3, f"http://{nobody} does not answer: nobody listens there",
        ),
    ]  # fmt: skip
    for done, code, sentence in cases:
        assert done.code == code, (sentence, done)
        assert sentence in done.err
        assert len(done.err.splitlines()) == 1, done.err
        assert done.out == ""


def test_frozen_slave_is_no_result(group: AuditedGroup) -> None:
    os.kill(group.slave.pid, signal.SIGSTOP)
    try:
        done = group.audit()
    finally:
        os.kill(group.slave.pid, signal.SIGCONT)
    assert done.code == 3
    assert "broker-a-1 at" in done.err and "does not answer" in done.err
    group.wait_caught_up()


def test_broker_without_http_port_is_told_which_settings_it_lacks(tmp_path: Path) -> None:
    with NameServer(tmp_path).start() as names:
        settings = {"brokerRole": "SLAVE", "brokerId": 1}
        with (
            HttpBroker(tmp_path / "m", names.address, settings={}).start() as master,
            Broker(tmp_path / "s", names.address, settings=settings).start() as slave,
        ):
            words = ("audit", "run", "--namesrv", names.address, "--token-file", master.token_file)
            wait_until(lambda: run(*words).code == 64, 20, "both are registered")
            done = run(*words)
            assert done.err == (
                f"tandem audit: broker-a-1 at {slave.address} has no HTTP port: set httpPort and"
                " httpToken (or httpTokenFile) in its broker.conf\n"
            )


def test_brokers_of_other_clusters_are_not_mixed(tmp_path: Path) -> None:
    with (
        NameServer(tmp_path).start() as names,
        HttpBroker(tmp_path / "m", names.address, settings={}).start() as master,
        HttpBroker(
            tmp_path / "x", names.address, settings={}, name="broker-x", cluster="Other"
        ).start() as stranger,
    ):
        access = ("--token-file", master.token_file)
        done = run("audit", "run", "--namesrv", names.address, *access)
        assert done.code == 64
        assert "knows several clusters (Other, TestCluster): choose with --cluster" in done.err
        done = run("audit", "run", "--namesrv", names.address, "--cluster", "Other", *access)
        assert done.code == 64
        assert "no group has two running replicas (broker-x)" in done.err
        done = run("audit", "run", master.url, stranger.url, *access)
        assert done.code == 64
        assert "is TestCluster#broker-a, " in done.err and "is Other#broker-x" in done.err


def test_other_delay_levels_than_the_usual_are_asked_for(tmp_path: Path) -> None:
    """The queue entry of a delayed message holds its delivery time, which the levels decide."""
    with audited_group(tmp_path, messageDelayLevel="1h 2h 3h") as group:
        group.fill(20)
        with Wire(group.master.address) as wire:
            for number in range(5):
                ext = send_ext("Orders", properties="DELAY\x012\x02")
                assert wire.request(json_frame(SEND, ext, b"later", opaque=number)).code == 0
        group.wait_caught_up()
        assert_no_alarm(group.audit("--json"))
        assert group.audit("--delay-levels", "1s 5s 9s").code == 1
