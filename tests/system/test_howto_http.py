"""The commands of docs/howto/http.md, run as they are printed, one after the other, against a live cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from http_ports import http_cluster

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import REPOSITORY, python_env

pytestmark = pytest.mark.system

PAGE = REPOSITORY / "docs" / "howto" / "http.md"
ANYTHING = "…"


@dataclass(frozen=True)
class Step:
    """A command, and what is printed below it; … stands for anything."""

    command: str
    printed: str

    def matches(self, output: str) -> bool:
        pattern = ".*".join(map(re.escape, self.printed.strip().split(ANYTHING)))
        return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


def steps(text: str) -> list[Step]:
    """Every command of every console block, in order; a here-document belongs to its command."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            end = re.search(r"^END\n", part, re.M) if "<<'END'" in part else None
            cut = end.end() if end is not None else part.index("\n") + 1
            found.append(Step(part[:cut], part[cut:]))
    return found


def test_page_prints_what_its_commands_print(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is missing: apt-get install curl")
    found = steps(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 12
    with http_cluster(tmp_path) as cluster:
        (tmp_path / "tandem-data").mkdir()
        (tmp_path / "tandem-data" / "http.token").symlink_to(tmp_path / "http.token")
        places = {
            "127.0.0.1:9879": f"127.0.0.1:{cluster.names_http.port}",
            "127.0.0.1:10913": f"127.0.0.1:{cluster.brokers_http[0].port}",
            "TandemCluster": "TestCluster",
            "python -": f"{sys.executable} -",
        }
        said: list[str] = []
        for step in found:
            command, printed = step.command, step.printed
            for written, real in places.items():
                command, printed = command.replace(written, real), printed.replace(written, real)
            said.append(command)
            outputs: list[str] = []

            def prints(wanted: Step = Step(command, printed), outputs: list[str] = outputs) -> bool:
                outputs[:] = [run(tmp_path, said)]  # again: name servers learn of a topic soon
                return wanted.matches(outputs[0])

            try:
                wait_until(prints, 30, command)
            except AssertionError:
                pytest.fail(f"{command}prints\n{outputs[0]}\nand not\n{printed}")


def run(directory: Path, commands: list[str]) -> str:
    """What the last of these commands prints, in a shell that has run the assignments before it."""
    before = [each for each in commands[:-1] if re.match(r"(export )?[A-Z]+=", each)]
    done = subprocess.run(
        ["bash", "-c", "".join([*before, commands[-1]])],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **python_env()},
    )
    return done.stdout
