"""The tutorial, the README and the how-tos do what they print.

The tutorial's blocks run in order, in an empty directory with a cluster of its own: ```python blocks
are saved under the name in their first line, in ```console blocks `$ ` begins a command and the other
lines are what it prints. Ids, times, rates, ports, pids and which queue was chosen are left out of
the comparison; the order of lines too, since queues answer in any order.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tandemmq.admin.commands import COMMANDS, admin_parser
from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.scenarios.command import parser as chaos_parser
from tandemmq.chaos.servers import REPOSITORY, python_env
from tandemmq.command.cli import command_parser

pytestmark = pytest.mark.system

TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
README = REPOSITORY / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: four brokers, and a name server with its controller, relative to the first broker's port
OFFSETS = (*(10 * broker + step for broker in range(4) for step in (-2, 0, 1, 2)), 50, 52)

#: (what may differ, what stands for it), in this order
DIFFERS = (
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d{3}", "TIME"),
    (r"(?<=[\w./])/tandem-data", "/tandem-data"),
    (r"\S*(?=/tandem-data)", ""),
    (r"broker-[ab]:\d \d+", "BROKER:QUEUE OFFSET"),
    (r"broker-[ab]:\d offset=\d+", "BROKER:QUEUE OFFSET"),
    (r"broker-[ab] +\d +\d+$", "BROKER QUEUE OFFSET"),
    (r"(?<=running) +\d+", " PID"),
    (r"\b\d[\d,]*(\.\d+)?(?=( s\b|/s| MiB/s| ms\b))", "N"),
    (r"(?<=(p50|p90|p99|max)) [\d.]+|(?<=p99\.9) [\d.]+", " N"),
    (r" +", " "),
)


def comparable(text: str) -> list[str]:
    """Its lines without what differs from run to run, sorted."""
    for pattern, stands_for in DIFFERS:
        text = re.sub(pattern, stands_for, text, flags=re.MULTILINE)
    return sorted(line.rstrip() for line in text.splitlines() if line.strip())


@dataclass
class Shell:
    """Runs the lines of a document as somebody in an empty directory would."""

    directory: Path
    broker_port: int = field(default_factory=lambda: PORTS.take(OFFSETS))

    @property
    def namesrv_port(self) -> int:
        return self.broker_port + 50

    def __post_init__(self) -> None:
        commands = self.directory / "bin"
        commands.mkdir(parents=True)
        for name, call in (("tandem", "-m tandemmq"), ("python", "")):
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
            path.chmod(0o755)
        self.home = self.directory / "home"
        self.home.mkdir()

    def own_ports(self, text: str) -> str:
        """The document's ports are the usual ones; this machine may have them in use."""
        for usual, ours in (
            ("9876", self.namesrv_port),
            ("9879", self.namesrv_port + 3),  # its console
            ("10911", self.broker_port),
            ("10921", self.broker_port + 10),
        ):
            text = text.replace(f":{usual}", f":{ours}")
        ports = f"--namesrv-port {self.namesrv_port} --broker-port {self.broker_port}"
        return re.sub(r"^(tandem local up)\b", rf"\1 {ports}", text, flags=re.MULTILINE)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", self.own_ports(command)],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                **python_env(),
                "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
                "NAMESRV_ADDR": f"127.0.0.1:{self.namesrv_port}",
            },
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    if (made.home / "tandem-data").exists():
        assert made.run("tandem local down --kill").returncode == 0


def steps(block: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith(("$ ", "# ")):  # "#": as root
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def test_every_block_of_the_tutorial_does_what_it_says(shell: Shell) -> None:
    ran = 0
    for language, block in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        if language == "python":
            name = block.splitlines()[0].removeprefix("# ")
            (shell.home / name).write_text(shell.own_ports(block))
        elif language == "console":
            for command, expected in steps(block):
                done = shell.run(command)
                assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
                # a program's stderr is its log
                shown = done.stdout + (done.stderr if command.startswith("tandem") else "")
                wanted = comparable(shell.own_ports(expected))
                assert comparable(shown) == wanted, f"$ {command}\n{shown}"
                ran += 1
    assert ran >= 15  # the pattern still finds the blocks


def test_the_commands_and_the_python_of_the_readme_work(shell: Shell) -> None:
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    (commands,) = [text for _, text in blocks if "tandem local up" in text]
    (program,) = [text for language, text in blocks if language == "python"]
    for line in commands.splitlines():
        done = shell.run(line.partition(" #")[0])
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    head, _, body = shell.own_ports(program).partition("\n\n")
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    (shell.home / "readme.py").write_text(
        f"import asyncio\n{head}\nasync def main():\n{indented}\nasyncio.run(main())\n"
    )
    done = shell.run("python readme.py")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Orders@broker-[ab]:\d \d+\n", done.stdout), done.stdout
    assert shell.run("tandem local down").returncode == 0


HOWTOS = sorted((REPOSITORY / "docs" / "howto").glob("*.md"))


@pytest.mark.parametrize("document", HOWTOS, ids=lambda path: path.stem)
def test_every_command_and_program_of_a_howto_is_understood(document: Path) -> None:
    """Options exist and Python compiles; nothing is run."""
    found = 0
    for language, block in BLOCK.findall(document.read_text(encoding="utf-8")):
        if language == "python":
            compile(block, document.name, "exec", flags=0x2000)  # top-level await
            found += 1
        elif language == "console":
            for command, _ in steps(block):
                for words in calls(command):
                    if words[:2] == ["tandem", "admin"]:
                        named = COMMANDS.get(words[2])
                        assert named is not None or words[2].startswith("-"), command
                        admin_parser(named).parse_args(words[2:])
                    elif words[:2] == ["tandem", "chaos"]:
                        chaos_parser().parse_args(words[2:])
                    elif words[:1] == ["tandem"]:
                        command_parser().parse_args(words[1:])
                    found += 1
    assert found


def calls(command: str) -> list[list[str]]:
    """The words of each program that a command line calls, without redirections."""
    found: list[list[str]] = [[]]
    words = iter(shlex.split(command))
    for word in words:
        if word in ("|", "&&"):
            found.append([])
        elif word == ">":
            next(words)
        else:
            found[-1].append(word)
    return found
