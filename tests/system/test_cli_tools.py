"""send, tail, bench, completion and the live table: what makes the shell good enough to debug with."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, run

from tandemmq.admin.commands import COMMANDS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer, python_env
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a name server with one broker."""
    directory = tmp_path_factory.mktemp("tools")
    with NameServer(directory) as server:
        server.start()
        with Broker(directory, server.address) as broker:
            broker.start()
            yield server.address


def tandem(name_server: str, *arguments: object, stdin: bytes = b"") -> Done:
    reached = arguments[0] in ("send", "tail", "bench", "admin")
    return run(*arguments, *(["-n", name_server] if reached else []), stdin=stdin)


def well(name_server: str, *arguments: object, stdin: bytes = b"") -> str:
    done = tandem(name_server, *arguments, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def everything(name_server: str, topic: str, *arguments: object) -> list[dict[str, Any]]:
    shown = well(name_server, "tail", topic, "--from", "first", "--until-end", "--json", *arguments)
    return [json.loads(line) for line in shown.splitlines()]


def wait_readable(name_server: str, topic: str, count: int) -> None:
    wait_until(lambda: len(everything(name_server, topic)) >= count, 10, f"{count} in {topic}")


def test_properties_queue_and_hex_travel_and_filter(name_server: str) -> None:
    well(name_server, "send", "Props", "first", "--property", "a=1", "--property", "b=x y")
    well(name_server, "send", "Props", "00ff17", "--hex", "--property", "a=2", "--key", "k")
    well(name_server, "send", "Props", "third", "--queue", "broker-a:3")
    wait_readable(name_server, "Props", 3)
    (first,) = everything(name_server, "Props", "--property", "a=1")
    assert (first["properties"]["b"], first["body"]) == ("x y", "first")
    assert len(everything(name_server, "Props", "--property", "a")) == 2
    (binary,) = everything(name_server, "Props", "--key", "k")
    assert binary["body_base64"] == "AP8X"
    (third,) = everything(name_server, "Props", "--queue", "broker-a:3", "--property", "WAIT")[-1:]
    assert third["body"] == "third" and third["queue_id"] == 3
    shown = well(name_server, "tail", "Props", "--from", "first", "--until-end", "--key", "k")
    assert "00000000  00 ff 17" in shown
    verbose = well(name_server, "tail", "Props", "--from", "first", "--until-end", "--verbose")
    assert "b: x y" in verbose and "CommitLog offset" in verbose


def test_files_and_their_lines_are_messages(name_server: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a\nb\n")
    two.write_text("c\n\nd")
    well(name_server, "send", "Whole", "--file", one, "--file", two)
    well(name_server, "send", "Single", "--file", one, "--file", two, "--lines")
    wait_readable(name_server, "Single", 4)
    assert sorted(each["body"] for each in everything(name_server, "Whole")) == ["a\nb\n", "c\n\nd"]
    assert sorted(each["body"] for each in everything(name_server, "Single")) == list("abcd")


def test_tail_stops_at_a_time_and_shows_large_compressed_bodies_as_sent(name_server: str) -> None:
    body = b'{"n": 1, "text": "' + b"x" * 20_000 + b'"}'
    well(name_server, "send", "Timed", stdin=body)
    wait_readable(name_server, "Timed", 1)
    (large,) = everything(name_server, "Timed")
    assert (large["body"].encode(), large["sys_flag"] & 1) == (body, 1)  # stored compressed
    time.sleep(0.01)
    middle_ms = time.time_ns() // 1_000_000
    well(name_server, "send", "Timed", "late")
    wait_readable(name_server, "Timed", 2)
    early = well(name_server, "tail", "Timed", "--from", "first", "--to", middle_ms, "--json")
    assert [json.loads(line)["sys_flag"] & 1 for line in early.splitlines()] == [1]
    indented = well(
        name_server, "tail", "Timed", "--from", "first", "--to", middle_ms, "--body", "json"
    )
    assert '\n  "n": 1,' in indented
    hidden = well(name_server, "tail", "Timed", "--from", "first", "--until-end", "--body", "none")
    assert f"({len(body)} bytes)" in hidden


def sending(name_server: str, topic: str, **more: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tandemmq", "send", topic, "-n", name_server]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command, env=python_env(), **{"stdin": subprocess.PIPE, **pipes, **more}
    )


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_line_is_sent_when_it_is_there_and_a_signal_loses_none(
    name_server: str, end: signal.Signals
) -> None:
    topic = f"Lines{end.name}"
    with sending(name_server, topic) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"SEND_OK"), "while the pipe is open"
        wait_readable(name_server, topic, 1)
        process.stdin.write(b"".join(b"%d\n" % n for n in range(2_000)) + b"not ended")
        process.stdin.flush()
        os.read(process.stdout.fileno(), 1)
        process.send_signal(end)
        still_open, process.stdin = process.stdin, None
        _, err = process.communicate(timeout=20)
        still_open.close()
    assert process.returncode == ExitCode.INTERRUPTED
    assert b"2001 messages sent" in err and b"a last line of 9 bytes that was not ended" in err
    bodies = [each["body"] for each in everything(name_server, topic)]
    assert sorted(bodies) == sorted(["first", *map(str, range(2_000))])
    assert b"Traceback" not in err


def test_what_was_not_sent_is_said(name_server: str) -> None:
    done = tandem(name_server, "send", "Unsent", "--queue", "broker-a:99", stdin=b"a\nb\nc\n")
    assert done.code == ExitCode.FAILED
    assert "0 messages sent; not sent, or their fate unknown: 3 more" in done.err


def test_a_send_says_that_it_makes_the_topic(name_server: str) -> None:
    done = tandem(name_server, "send", "BrandNew", "x")
    assert (done.code, "no topic BrandNew is there yet" in done.err) == (0, True)
    wait_readable(name_server, "BrandNew", 1)
    assert tandem(name_server, "send", "BrandNew", "x").err == ""


def test_on_a_terminal_a_send_prompts(name_server: str) -> None:
    ours, theirs = pty.openpty()
    with sending(name_server, "Typed", stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"> " not in seen:
            seen += os.read(ours, 1_000)
        assert b"one message a line; Ctrl-D ends" in seen
        os.write(ours, b"typed\n")
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"SEND_OK")
        os.write(ours, b"\x04")
        assert process.wait(20) == 0
    os.close(ours)
    wait_readable(name_server, "Typed", 1)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["send", "T", "x", "--property", "novalue"], "NAME=VALUE"),
        (["send", "T", "zz", "--hex"], "--hex"),
        (["send", "T", "x", "--queue", "nonumber"], "BROKER:ID"),
        (["send", "T", "x", "--file", "y"], "not both"),
        (["tail", "Props", "--to", "someday"], "--to"),
        (["tail", "TBW102", "--queue", "broker-x:0"], "broker-a"),
        (["bench", "--count", "0"], "--count"),
        (["bench", "--rate", "0"], "--rate"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    name_server: str, arguments: list[str], part: str
) -> None:
    done = tandem(name_server, *arguments)
    assert (done.code, part in done.err) == (ExitCode.USAGE, True), done.err
    assert "Traceback" not in done.err


def test_bench_sends_reads_back_and_tells_latencies(name_server: str) -> None:
    found = json.loads(well(name_server, "bench", "--count", 2_000, "--size", 100, "--json"))
    assert (found["sent"], found["read"], found["missing"], found["failed"]) == (2_000, 2_000, 0, 0)
    latency = found["latency_ms"]
    ordered = [latency[name] for name in ("p50", "p90", "p99", "p999", "max")]
    assert ordered == sorted(ordered) and ordered[0] > 0
    text = well(name_server, "bench", "--seconds", 0.5, "--rate", 200, "--no-read")
    sent = int(text.split()[1])
    assert sent == 100 and "p99.9" in text and "read" not in text


def test_progress_colours_and_live_tables_are_for_terminals_only(
    name_server: str, tmp_path: Path
) -> None:
    plain = tandem(name_server, "admin", "clusterList")
    assert "\x1b" not in plain.out + plain.err
    shown = on_terminal(name_server, ["admin", "clusterList", "-i", "0.2"], until=b"\x1b[H\x1b[2J")
    assert b"\x1b[1m#Cluster Name" in shown  # bold head, cleared screen
    shown = on_terminal(name_server, ["bench", "--seconds", "1", "--no-read"], until=b"/s\r\n")
    assert b"\rsent " in shown


def on_terminal(name_server: str, arguments: list[str], until: bytes) -> bytes:
    """What a command writes to a terminal, up to some text; then Ctrl-C."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, **python_env(), "NAMESRV_ADDR": name_server}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "tandemmq", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + 20
        try:
            while until not in shown and time.monotonic() < deadline:
                if select.select([ours], [], [], 0.1)[0]:
                    shown += os.read(ours, 65_536)
        except OSError:
            pass  # the command has ended: Linux says so with EIO
        process.send_signal(signal.SIGINT)
        process.wait(10)
    os.close(ours)
    return shown


def test_a_reader_that_has_enough_ends_the_command_quietly(name_server: str) -> None:
    well(name_server, "send", "Piped", stdin=b"a line\n" * 500)
    wait_readable(name_server, "Piped", 500)
    arguments = ["tail", "Piped", "--from", "first", "--until-end", "--verbose", "-n", name_server]
    with subprocess.Popen(
        [sys.executable, "-m", "tandemmq", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **python_env()},
    ) as tailing:
        assert tailing.stdout is not None and tailing.stderr is not None
        tailing.stdout.readline()
        tailing.stdout.close()
        assert tailing.wait(20) == 0
        assert tailing.stderr.read() == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_the_shell_reads_it(
    name_server: str, shell: str, tmp_path: Path
) -> None:
    script = well(name_server, "completion", shell)
    for word in ("local", "completion", *COMMANDS):
        assert word in script, word
    if shutil.which(shell) is not None:
        path = tmp_path / "script"
        path.write_text(script)
        subprocess.run([shell, "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(name_server: str, tmp_path: Path) -> None:
    path = tmp_path / "tandem.bash"
    path.write_text(well(name_server, "completion", "bash"))

    def completed(*words: str) -> set[str]:
        line = (
            f'source "{path}"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _tandem; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ["bash", "-c", line, "bash", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert {"broker", "send", "tail", "admin", "local"} <= completed("tandem", "")
    assert completed("tandem", "adm") == {"admin"}
    assert completed("tandem", "admin", "updateTopic") == {
        "updateTopic", "updateTopicList", "updateTopicPerm"
    }  # fmt: skip
    assert "--readQueueNums" in completed("tandem", "admin", "updateTopic", "-t", "T", "--")
    assert completed("tandem", "local", "sta") == {"start", "status"}
    assert completed("tandem", "tail", "T", "--body", "h") == {"hex"}
    assert completed("tandem", "completion", "") >= {"bash", "zsh", "fish"}


def test_names_are_completed_by_asking(
    name_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well(name_server, "send", "Named", "x")
    monkeypatch.setenv("NAMESRV_ADDR", name_server)
    assert "Named" in run("complete", "topics").out.split()
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    asked = run("complete", "groups")
    assert (asked.code, asked.out, asked.err) == (0, "", "")
    for shell, lines in {
        "bash": ['[ "$previous" != "${path##* }" ] || words="$words $(tandem complete topics 2>/dev/null)"',
                 '-g) words="$(tandem complete groups 2>/dev/null)" ;;'],
        "zsh": ["compadd -- $(tandem complete processes 2>/dev/null)"],
        "fish": ["-f -a '(tandem complete processes 2>/dev/null)'"],
    }.items():  # fmt: skip
        script = well(name_server, "completion", shell)
        assert all(line in script for line in lines), shell
    bash = tmp_path / "tandem.bash"
    bash.write_text(well(name_server, "completion", "bash"))
    called = subprocess.run(
        ["bash", "-c", f'tandem() {{ echo "asked-$2"; }}; source "{bash}"; COMP_WORDS=(tandem tail a); '
         'COMP_CWORD=2; _tandem; printf "%s\\n" "${COMPREPLY[@]}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert called.stdout.split() == ["asked-topics"]


def test_messages_of_many_queues_are_shown_by_time(name_server: str) -> None:
    for number in range(12):
        well(name_server, "send", "Ordered", str(number), "--queue", f"broker-a:{number % 4}")
    wait_readable(name_server, "Ordered", 12)
    assert [each["body"] for each in everything(name_server, "Ordered")] == [
        str(n) for n in range(12)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sned", "T", "x"], "there is no command 'sned'; did you mean send?"),
        (["local", "stauts"], "there is no action 'stauts'; did you mean status?"),
        (["tail", "T", "--form", "first"], "there is no option --form; did you mean --from?"),
        (["send", "--tga", "A"], "there is no option --tga; did you mean --tag?"),
        (["send", "T", "a", "b"], "too many words: b"),
        (["send", "T", "x", "--delay-level", "99"], "a level is no number of seconds"),
        (["send", "T", "x", "--tag", "a b"], "tags must be one word"),
        (["logs"], "there is no command 'logs'; did you mean `tandem local logs`?"),
        (["help"], "`tandem --help` names them"),
        (["admin", "help"], "`tandem admin --help` names the commands"),
        (["local", "logs", "--lines", "-1"], "--lines must be at least 0, got -1"),
        (
            ["admin", "updateTopic", "-b", "a:1", "-t", "T", "-r", "-3"],
            "-r must be at least 0, got -3",
        ),
        (["admin", "clusterlst"], "did you mean clusterList?"),
        (["admin", "topicList", "--jsn"], "there is no option --jsn; did you mean --json?"),
        (["local", "status", "--dir", "/nowhere"], "tandem local up --dir /nowhere"),
    ],
)
def test_wrong_words_are_named(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.code in (ExitCode.USAGE, ExitCode.NOT_RUNNING, ExitCode.FAILED)
    assert said in done.err and "Traceback" not in done.err


def test_a_body_may_follow_the_options(name_server: str) -> None:
    well(name_server, "send", "Behind", "--tag", "A", "the body")
    wait_readable(name_server, "Behind", 1)
    assert [each["body"] for each in everything(name_server, "Behind")] == ["the body"]


def test_bare_and_version() -> None:
    assert "tandem local up --mode sync" in run().out
    assert run("--version").out.startswith("tandem 0.")


def test_who_was_not_reached_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    (tmp_path / "tandem-data").mkdir()
    members = [{"name": "namesrv", "port": 1}, {"name": "broker-a", "port": 11}]
    (tmp_path / "tandem-data" / "cluster.json").write_text(json.dumps({"members": members}))
    done = run("send", "T", "x")
    assert done.code == ExitCode.UNREACHABLE
    assert "connect to 127.0.0.1:1 failed" in done.err, "of the cluster that was started here"
    assert done.err.count("Is it running") + done.err.count("tandem local up") == 1


def test_a_group_that_never_consumed_has_no_progress(name_server: str) -> None:
    done = tandem(name_server, "admin", "consumerProgress", "-g", "nosuch")
    assert done.code in (ExitCode.NOT_FOUND, ExitCode.UNREACHABLE) and done.err.count("\n") == 1


def test_a_full_output_device_is_said() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", "completion", "bash"], stdout=full, stderr=subprocess.PIPE,
            env=python_env(), check=False,
        )  # fmt: skip
    assert done.returncode == ExitCode.FAILED
    assert done.stderr == b"tandem: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "words", [["send", "Full", "hi"], ["tail", "Full", "--from", "first", "--until-end"]]
)
def test_a_full_output_device_is_said_of_messages_too(name_server: str, words: list[str]) -> None:
    well(name_server, "send", "Full", "x")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", *words, "-n", name_server], stdout=full,
            stderr=subprocess.PIPE, env=python_env(), check=False,
        )  # fmt: skip
    assert done.returncode == ExitCode.FAILED
    sent = b"1 messages sent\n" if words[0] == "send" else b""
    said = b"tandem: the output cannot be written: No space left on device\n"
    assert done.stderr == sent + said


def test_a_file_that_cannot_be_read_after_others_were_sent(
    name_server: str, tmp_path: Path
) -> None:
    (tmp_path / "one").write_bytes(b"1\n" * 300)
    files = ("--lines", "--file", tmp_path / "one", "--file", tmp_path / "nosuch")
    done = tandem(name_server, "send", "Halfway", *files)
    assert done.code == ExitCode.FAILED
    assert "256 messages sent\ntandem: cannot read" in done.err


def test_a_broker_in_the_place_of_a_name_server_is_recognised(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.start()
        with Broker(tmp_path, server.address) as broker:
            broker.start()
            for words in (["send", "T", "x"], ["tail", "T"], ["admin", "clusterList"]):
                done = run(*words, "-n", broker.address)
                assert done.code == ExitCode.UNREACHABLE, done.err
                assert f"{broker.address} is no name server" in done.err
                assert "9876" in done.err and "older than this client" not in done.err


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("local", "up", "--dir", tmp_path / "file" / "below")
    assert (done.code, done.err.count("\n")) == (ExitCode.STORE_UNUSABLE, 1), done.err
