"""The load generator against servers that are right, and against some that must be refused."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.__main__ import with_figures
from bench.accounting import anonymous_bytes, listens
from bench.build import blaster, compile_c
from bench.load import Load, Row, Run, RunRefused, Timing, check_growth, read_result, run_load
from bench.measure import Results
from bench.report import missed
from bench.servers import PORTS, Echo, Server, Tandem, running
from bench.wire import Line
from tandemmq.chaos.processes import ProcessBroken

pytestmark = pytest.mark.system

SHORT = Timing(warmup_s=0.1, seconds=0.5, core=None)
ALL_CORES = frozenset(range(1024))
BENCH = Path(bench.__file__).parent


@pytest.fixture
def echo() -> Iterator[Server]:
    with running(Echo(ALL_CORES)) as server:
        yield server


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    with running(Tandem(tmp_path, ALL_CORES)) as server:
        yield server


def blast(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The generator by itself, without the runner's checks around it."""
    command = [str(blaster()), "--port", str(server.port), "--pid", str(server.pid), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("header", ["json", "binary"])
@pytest.mark.parametrize(
    ("connections", "outstanding", "body_bytes"), [(4, 16, 1024), (1, 1, 9000)]
)
def test_the_echo_server_answers_every_frame(
    echo: Server, header: Any, connections: int, outstanding: int, body_bytes: int
) -> None:
    run, command = run_load(echo, Load("send", connections, outstanding, body_bytes, header), SHORT)
    assert run.messages > 100
    assert run.acknowledged_total >= run.messages
    assert 0 < run.p50_us <= run.p99_us <= run.p999_us <= run.max_us
    assert run.cpu_us_per_message > 0
    assert "--mode send" in command


def test_a_paced_load_keeps_its_rate(echo: Server) -> None:
    run, _ = run_load(echo, Load("send", 8, 4, 128, rate=2000), replace(SHORT, seconds=1.0))
    assert run.rate == pytest.approx(2000, rel=0.2)


def test_a_load_of_a_count_sends_exactly_that_many(echo: Server) -> None:
    run, _ = run_load(echo, Load("send", 3, 7, 128), replace(SHORT, warmup_s=0.0, count=20_000))
    assert run.acknowledged_total == run.messages == 20_000


def test_a_server_that_answers_a_wrong_opaque_is_refused() -> None:
    refused = pytest.raises(RunRefused, match="answers no outstanding request")
    with running(Echo(ALL_CORES, opaque_offset=1)) as liar, refused:
        run_load(liar, Load("send", 2, 1), SHORT)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (r"\"code\":0", r"\"code\":2", "code 2"),
        (r"\"flag\":1", r"\"flag\":0", "frame is no response"),
        (r"\"queueOffset\"", r"\"queueOffzet\"", "answer without queueOffset"),
        (r"\"queueOffset\":\"0", r"\"queueOffset\":\"x", "header is no JSON"),
        (r"\"version\":479}", r"\"version\":479 ", "header is no JSON"),
        ("put32(json_answer + 4, head)", "put32(json_answer + 4, head + 9)", "malformed frame"),
        ("put32(json_answer, 4 + head)", "put32(json_answer, 2)", "frame of 6 bytes"),
    ],
)
def test_a_server_that_answers_wrongly_is_refused(
    tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    with running(liar_made_by(tmp_path, before, after)) as liar:
        done = blast(liar, "--seconds", "0.3", "--warmup", "0")
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stdout == ""


def liar_made_by(directory: Path, before: str, after: str) -> Server:
    """An echo server whose C source has one thing changed."""
    source = (BENCH / "echo_split.c").read_text()
    assert before in source
    (directory / "echo_split.c").write_text(source.replace(before, after))
    script = directory / "liar.py"
    script.write_text(
        "import sys, bench.build, pathlib\n"
        "bench.build.HERE = pathlib.Path(sys.argv[1])\n"
        "import bench.echo\n"
        "sys.argv[1:] = []\n"
        "bench.echo.main()\n"
    )
    command = [sys.executable, str(script), str(directory)]
    return Server(
        "liar",
        command,
        0,
        r"ready port=(\d+)",
        cores=ALL_CORES,
        environment={"PYTHONPATH": str(BENCH.parent)},
    )


def test_a_process_that_did_not_work_is_refused(echo: Server) -> None:
    with running(Echo(ALL_CORES)) as idle:
        done = blast(echo, "--pid", str(idle.pid), "--seconds", "0.5")
        assert done.returncode == 0
        with pytest.raises(RunRefused, match="another answered"):
            read_result(json.loads(done.stdout), "an idle process")


def test_a_port_that_another_process_listens_on_is_refused(echo: Server) -> None:
    with running(Echo(ALL_CORES)) as other:
        assert listens(other.pid, other.port)
        assert not listens(other.pid, echo.port)
        other.port = echo.port
        with pytest.raises(ProcessBroken, match="does not listen on port"):
            run_load(other, Load("send", 1, 1), SHORT)


def test_a_server_that_ends_instead_of_getting_ready_is_reported() -> None:
    silent = Server(
        "silent", [sys.executable, "-c", "print('no luck')"], PORTS.take(), "ready", cores=ALL_CORES
    )
    with pytest.raises(ProcessBroken, match="no luck"), running(silent):
        pass


def test_a_compiler_is_asked_once_per_source(tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    first = compile_c(source, "empty")
    made_ns = first.stat().st_mtime_ns
    assert compile_c(source, "empty") == first
    assert first.stat().st_mtime_ns == made_ns
    first.unlink()


@pytest.mark.parametrize("header", ["json", "binary"])
def test_our_broker_takes_and_gives_back_what_was_sent(broker: Server, header: Any) -> None:
    pull = Load("pull", 2, 2, 512, header)
    broker.create_topic(pull.topic)
    fill, _ = run_load(
        broker, Load("send", 2, 8, 512, header), replace(SHORT, count=4000), pull.topic
    )
    assert fill.acknowledged_total == 4000
    assert sum(high - low for low, high in broker.queue_ranges(pull.topic)) == 4000
    run: Run
    run, _ = run_load(broker, pull, SHORT)
    assert run.messages >= 32
    assert run.body_bytes > run.messages * 512


def test_our_broker_answers_a_held_pull_when_a_message_comes(broker: Server) -> None:
    wake = Load("wake", 2, 1, 128)
    broker.create_topic(wake.topic)
    run, _ = run_load(broker, wake, replace(SHORT, count=50))
    assert run.messages == 50
    assert run.p99_us < 1_000_000


def test_a_broker_that_stored_less_than_it_acknowledged_is_refused(broker: Server) -> None:
    broker.create_topic("bench-lost")
    before = broker.queue_ranges("bench-lost")
    with Line(broker.port) as line:
        line.send("bench-lost", 0, b"one")
        line.send("bench-lost", 0, b"two")
    check_growth(broker, "bench-lost", before, 2)
    with pytest.raises(RunRefused, match="its queues grew by 2"):
        check_growth(broker, "bench-lost", before, 1)


def test_anonymous_memory_of_a_process_is_read(echo: Server) -> None:
    assert 1 << 20 < anonymous_bytes(echo.pid) < 1 << 30


def record(queue_offset: int, body: bytes, *, queue_id: int = 0, size_error: int = 0) -> bytes:
    """A stored message as a pull's body carries it (docs/formats.md "Record")."""
    tail = b"\x01t" + b"\x00\x00"
    size = 84 + 4 + len(body) + len(tail) + size_error
    head = struct.pack(">iIiiiqq", size, 0xDAA320A7, 0, queue_id, 0, queue_offset, 0)
    return head + bytes(48) + struct.pack(">i", len(body)) + body + tail


def serve_pulls(
    listener: socket.socket, make_body: Callable[[int, bytes], bytes], ahead: int
) -> None:
    """Answer pulls on one connection with `make_body(queue_offset, body as it was sent)`."""
    sent = bytes(97 + (i * 7 + i // 26) % 26 for i in range(100))
    connection, _ = listener.accept()
    # the generator leaves in the middle when it refuses the run
    with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
        while len(prefix := stream.read(8)) == 8:
            length, word = struct.unpack(">ii", prefix)
            header = json.loads(stream.read(word))
            stream.read(length - 4 - word)
            at = int(header["extFields"]["queueOffset"])
            fields = {"nextBeginOffset": str(at + 2 + ahead), "minOffset": "0", "maxOffset": "64"}
            answer = {"code": 0, "flag": 1, "opaque": header["opaque"], "extFields": fields}
            head, body = json.dumps(answer).encode(), make_body(at, sent)
            frame = struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body
            connection.sendall(frame)


@pytest.mark.parametrize(
    ("make_body", "ahead", "complaint"),
    [
        (lambda at, body: record(at, body) + record(at + 1, body), 0, ""),
        (lambda at, body: record(at, body) + record(at + 1, body)[:-1], 0, "are left"),
        (lambda at, body: record(at, body) + record(at + 1, body) + b"\0" * 8, 0, "record cut"),
        (lambda at, body: record(at, body) + record(at + 1, body, size_error=-1), 0, "record cut"),
        (lambda at, body: record(at, body) + record(at + 2, body), 0, "queue offset"),
        (
            lambda at, body: record(at, body) + record(at + 1, body, queue_id=1),
            0,
            "record of queue 1",
        ),
        (lambda at, body: record(at, body[::-1]) + record(at + 1, body), 0, "body differs"),
        (lambda at, body: record(at, body) + record(at + 1, body[1:]), 0, "body of 99 bytes"),
        (lambda at, body: record(at, body) + record(at + 1, body), 1, "nextBeginOffset"),
        (lambda at, body: b"", -2, "FOUND without a message"),
    ],
)
def test_a_pull_is_counted_by_its_records_and_refused_when_they_are_wrong(
    make_body: Callable[[int, bytes], bytes], ahead: int, complaint: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_pulls, args=(listener, make_body, ahead))
        thread.start()
        command = [
            str(blaster()),
            "--mode",
            "pull",
            "--port",
            str(listener.getsockname()[1]),
            "--body",
            "100",
        ]
        command += [
            "--connections",
            "1",
            "--outstanding",
            "3",
            "--ranges",
            "0:64",
            "--seconds",
            "0.2",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        thread.join()
    assert done.returncode == (2 if complaint else 0), done.stderr
    if complaint:
        assert complaint in done.stderr
    else:
        result = json.loads(done.stdout)
        assert result["messages"] == 2 * result["responses"] > 0


def run_at(rate: float) -> Run:
    return Run(rate, 100, 1.0, 100, 0, 1, 2, 3, 4, 1.0, 0.9, 0.0, 0.5, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("rate", "sentences"), [(400_000.0, 0), (190_000.0, 1), (100_000.0, 2)])
def test_a_missed_ratio_is_named(rate: float, sentences: int) -> None:
    load = Load("send", 8, 64)
    rows = [
        ("echo", 1_000_000.0),
        ("ours", rate),
        ("RocketMQ 5.3.3", 50_000.0),
        ("RocketMQ 5.3.3", 30_000.0),
    ]
    results = Results(
        [Row(name, load, f"{n} cores", "", [run_at(rate)]) for n, (name, rate) in enumerate(rows)]
    )
    assert len(missed(results)) == sentences, missed(results)


def test_the_document_keeps_its_words_around_new_figures() -> None:
    document = (BENCH.parent / "docs" / "benchmarks.md").read_text()
    once = with_figures(document, "1,000/s\n")
    assert "```text\n1,000/s\n```" in once
    assert with_figures(once, "1,000/s\n") == once
    assert once.startswith("# Benchmarks")
    with pytest.raises(SystemExit):
        with_figures("no markers", "1,000/s\n")


@pytest.mark.parametrize("kind", ["--check", "--live"])
def test_the_stream_is_measured_in_each_dialect(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "bench.replication", "--bytes", "8000000", "--runs", "1"]
    done = subprocess.run(
        [*command, "--data", str(tmp_path), "--dispatch", kind],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    dialects = ["classic", "auto-switch", "extended"]
    assert [line.split()[0] for line in lines[:3]] == dialects
    assert [line.split()[1] for line in lines[3:]] == [f"{each}:" for each in dialects]
    for line in lines[:3]:
        assert "GB/s  master" in line and ("identical" in line) == (kind == "--check")
