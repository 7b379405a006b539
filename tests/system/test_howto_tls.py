"""The walk of docs/howto/tls.md, block by block: certificates by openssl, settings, processes, a program, a renewal.

10.0.0.1 to 10.0.0.3 are addresses of loopback here, and the usual ports free ones.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_line import run

from tandemmq.chaos.ports import PORTS
from tandemmq.chaos.processes import ServerProcess, wait_until
from tandemmq.chaos.servers import REPOSITORY, python_command, python_env

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="needs the openssl command: apt install openssl"
    ),
]

PAGE = REPOSITORY / "docs" / "howto" / "tls.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVERS = ("nameserver", "broker")


class Walk:
    """One reader's machine: what is named in the page is in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {"9876": PORTS.take((0,)), "9878": PORTS.take((0,)), "10911": PORTS.take()}
        text = self.here(PAGE.read_text(encoding="utf-8"))
        self.commands: list[str] = []
        for language, block in BLOCK.findall(text):
            name = block.splitlines()[0].removeprefix("# ")
            if language == "console":
                self.commands += [line[2:] for line in block.splitlines() if line[:2] == "$ "]
            else:
                (directory / name).write_text(block)

    def here(self, text: str) -> str:
        text = text.replace("10.0.0.", "127.0.0.")
        for place in ("/etc/tandemmq", "/var/lib/tandemmq"):
            text = text.replace(place, str(self.directory))
        for usual, ours in self.ports.items():
            text = re.sub(rf"\b{usual}\b", str(ours), text)
        return text

    def of(self, start: str) -> list[str]:
        found = [command for command in self.commands if command.startswith(start)]
        assert found, f"the page has no command {start!r}"
        return found

    def shell(self, command: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def serving(self, command: str) -> ServerProcess:
        words = shlex.split(command)[1:]
        log = self.directory / f"{words[-1]}.log"
        return ServerProcess(words[-1], python_command(*words), log, python_env())


def test_the_walk_ends_with_a_cluster_that_takes_checked_certificates_only(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    certified = walk.of("sh certify.sh")
    for command in certified:
        walk.shell(command)
    assert (tmp_path / "broker-1.key").stat().st_mode & 0o077 == 0
    with ExitStack() as stack:
        servers = {}
        for command in [each for kind in SERVERS for each in walk.of(f"tandem {kind}")]:
            server = stack.enter_context(walk.serving(command))
            servers[server.name] = server
            server.launch()
            server.wait_ready(lambda server=server: "boot success" in server.output(), 30)
            assert "insecure: " not in server.output()
        (listing,) = walk.of("tandem admin clusterList")
        words = shlex.split(listing)[1:]
        wait_until(lambda: all(f"127.0.0.{n}:" in run(*words).out for n in (2, 3)), 20, "both")
        done = subprocess.run(
            [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            check=False, env=python_env(),
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "SEND_OK\n"), done.stderr
        bare = words[: words.index("--cert")]
        refused = run(*bare)
        assert refused.code != 0 and "wants a certificate of ours" in refused.err
        for command in certified:
            walk.shell(command)
        for server in servers.values():
            wait_until(
                lambda server=server: "TLS files read again" in server.output(), 20, server.name
            )
        assert run(*words).code == 0


def test_every_setting_of_the_page_is_one_that_is_read(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    for command in walk.of("sh certify.sh"):
        walk.shell(command)
    for name in ("namesrv.conf", "broker-1.conf", "broker-2.conf"):
        done = run("check-config", tmp_path / name)
        assert done.code == 0, done.err
        assert "unknown" not in done.err + done.out
