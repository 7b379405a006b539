"""Compiles bench's C sources on first use, into .cache/bench at the root of the repository."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "bench"
FLAGS = ("-O3", "-std=gnu11", "-Wall", "-Wextra")


class BuildFailed(Exception):
    """The C compiler is missing or refused a source."""


def compile_c(source: Path, name: str, *flags: str) -> Path:
    """Compile `source` unless that was done before, with the same flags; the file made."""
    headers = sorted(source.parent.glob("*.h"))
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildFailed("no C compiler found: install cc or name one in CC")
    text = source.read_bytes() + b"".join(header.read_bytes() for header in headers)
    key = hashlib.sha256(text + repr((compiler, FLAGS, flags)).encode()).hexdigest()
    made = CACHE / f"{name}-{key[:16]}{'.so' if '-shared' in flags else ''}"
    if made.exists():
        return made
    CACHE.mkdir(parents=True, exist_ok=True)
    part = made.with_name(f"{made.name}.{os.getpid()}.part")
    command = [compiler, *FLAGS, *flags, "-o", str(part), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr}")
    part.replace(made)
    return made


def blaster() -> Path:
    """The load generator's executable."""
    return compile_c(HERE / "blaster.c", "blaster")


def echo_split() -> ModuleType:
    """The echo server's extension module."""
    include = sysconfig.get_paths()["include"]
    made = compile_c(HERE / "echo_split.c", "echo_split", "-shared", "-fPIC", f"-I{include}")
    loader = importlib.machinery.ExtensionFileLoader("echo_split", str(made))
    spec = importlib.util.spec_from_file_location("echo_split", made, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
