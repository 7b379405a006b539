"""An empty environment with nothing but what `pip install tandemmq` puts there, from wheels alone."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from release import wheels

NO_TOOLS = {"PATH": "/nonexistent", "CC": "/nonexistent", "CXX": "/nonexistent"}
PYTHON_FROM_OUTSIDE = ("PYTHON", "PIP_", "TANDEM_", "VIRTUAL_ENV", "NAMESRV_ADDR")


class Light:
    """One environment: `python` runs in it, `tandem` is its command."""

    def __init__(self, interpreter: Path | str, directory: Path, find_links: list[Path]) -> None:
        self.directory = directory
        self.find_links = find_links
        self.python = directory / "venv/bin/python"
        subprocess.run([interpreter, "-m", "venv", "--without-pip", directory / "venv"], check=True)
        self.install("tandemmq")

    @property
    def environment(self) -> dict[str, str]:
        """Ours without a compiler on the path, and without what would bring packages in from outside."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(PYTHON_FROM_OUTSIDE)}
        return {**kept, **NO_TOOLS}

    def install(self, what: str) -> None:
        """From `find_links` only. Raises CalledProcessError."""
        links = [word for each in self.find_links for word in ("--find-links", each)]
        env = {**self.environment, "PIP_CONFIG_FILE": os.devnull}
        wheels.run_pip(self.python, "install", "--no-index", *links, what, env=env)

    def installed(self) -> set[str]:
        """What `pip list` shows."""
        env = {**self.environment, "PIP_CONFIG_FILE": os.devnull}
        listed = json.loads(wheels.run_pip(self.python, "list", "--format", "json", env=env))
        return {each["name"].lower().replace("_", "-") for each in listed}

    def run(
        self, *words: object, stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run this environment's interpreter, away from the repository."""
        return subprocess.run(
            [self.python, *map(str, words)], cwd=self.directory, env=self.environment,
            input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip

    def tandem(self, *words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command that the wheel brought."""
        return self.run(self.python.with_name("tandem"), *words, stdin=stdin)


def needed(wheel: Path) -> list[str]:
    """The distributions that a wheel requires without any extra, in this interpreter."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    found = (Requirement(line[15:]) for line in lines if line.startswith("Requires-Dist: "))
    return [
        each.name for each in found if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def packed_again(name: str, into: Path) -> Path:
    """A wheel of a distribution that is installed beside these tests: it takes no package index."""
    distribution = metadata.distribution(name)
    tags = [line[5:] for line in (distribution.read_text("WHEEL") or "").splitlines()
            if line.startswith("Tag: ")]  # fmt: skip
    stem = f"{distribution.metadata['Name'].replace('-', '_').replace('.', '_')}-{distribution.version}"
    wheel = into / f"{stem}-{tags[0]}.whl"
    into.mkdir(parents=True, exist_ok=True)
    record = ""
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in distribution.files or ():
            if file.parts[0] == ".." or file.suffix == ".pyc" or file.name in _MADE_BY_PIP:
                continue
            if file.name == "RECORD":
                record = str(file)
                continue
            archive.write(file.locate(), str(file))
        archive.writestr(record, _record(archive, record))
    return wheel


_MADE_BY_PIP = {"INSTALLER", "REQUESTED", "direct_url.json"}


def _record(archive: zipfile.ZipFile, record: str) -> str:
    lines = []
    for name in archive.namelist():
        data = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{record},,", ""])


def built_here(into: Path) -> list[Path]:
    """Where our wheel for the interpreter of these tests is found, and what it needs."""
    wheel = wheels.build_wheel(wheels.build_sources(into), sys.executable, into, isolated=False)
    for name in needed(wheel):
        packed_again(name, into)
    return [into]
