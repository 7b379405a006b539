"""Build a wheel for each CPython that is supported and try each in an empty environment.

    python -m release.wheels                    what `make wheels` does
    PYTHONS="python3.12 /opt/py314/bin/python3" python -m release.wheels --into dist

Wheels are built from the source distribution, so it is whole, too. Building takes setuptools, Cython and
what a client depends on from the package index, and a C compiler; trying takes neither.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
TRIAL: Final = "tests/system/test_light_install.py"
TRIED_WHEELS: Final = "TANDEM_WHEELS"  # the environment tells the trial which wheels to try
PYTHONS: Final = "PYTHONS"
BUILT: Final = ("*.so", "*.pyd", "*.c", "__pycache__", "*.egg-info")
WHO_ARE_YOU: Final = (
    "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2], sys.executable)"
)


class WheelUnfit(Exception):
    """A wheel that was built lacks something or carries what it should not."""


def settings() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def compiled_modules() -> list[str]:
    """The modules that must be compiled in a wheel, by their dotted names."""
    return [each["name"] for each in settings()["tool"]["setuptools"]["ext-modules"]]


def interpreters(given: str | None = None) -> dict[str, Path]:
    """Version ("3.12") -> executable, of the CPythons that are supported and here.

    given  names or paths with spaces between them; without any: PYTHONS of the environment, else
           python3.x of the search path and of pyenv, the newest first
    Raises ValueError for one of `given` that does not run or is not a supported CPython.
    """
    given = os.environ.get(PYTHONS, "") if given is None else given
    found: dict[str, Path] = {}
    for command in given.split():
        version, executable = _version(command)
        if version not in VERSIONS:
            raise ValueError(f"{command} is no CPython of {', '.join(VERSIONS)}")
        found[version] = executable
    if given.split():
        return found
    for version in VERSIONS:
        pyenv = sorted(
            (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}"),
            key=lambda path: [int(n) for n in path.parts[-3].split(".") if n.isdecimal()],
        )
        for command in (f"python{version}", *map(str, reversed(pyenv))):
            seen, executable = _version(command)
            if seen == version:
                found[version] = executable
                break
    return found


def _version(command: str) -> tuple[str, Path]:
    """(version, executable) of a CPython; ("", the command) for anything else."""
    place = shutil.which(command)
    if place is None:
        return "", Path(command)
    asked = subprocess.run(
        [place, "-c", WHO_ARE_YOU], capture_output=True, text=True, check=False, timeout=60
    )
    words = asked.stdout.strip().split(" ", 2)
    if asked.returncode or words[0] != "cpython":
        return "", Path(command)
    return words[1], Path(words[2])


def run_pip(python: Path | str, *words: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run this environment's pip for another interpreter; what it printed. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *map(str, words)]
    clean = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **(env or os.environ)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return done.stdout


def build_sources(into: Path) -> Path:
    """The source distribution, made of a copy: nothing that was built in the tree gets in."""
    into.mkdir(parents=True, exist_ok=True)
    packages = settings()["tool"]["setuptools"]["packages"]
    with tempfile.TemporaryDirectory(prefix="tandem-sources-") as scratch:
        for top in sorted({package.partition(".")[0] for package in packages}):
            shutil.copytree(ROOT / top, Path(scratch, top), ignore=shutil.ignore_patterns(*BUILT))
        for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
            shutil.copy2(ROOT / name, scratch)
        script = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
        subprocess.run(
            [sys.executable, "-c", script, str(into.resolve())],
            cwd=scratch, check=True, capture_output=True, text=True,
        )  # fmt: skip
    (made,) = into.glob("tandemmq-*.tar.gz")
    return made


def build_wheel(sources: Path, python: Path | str, into: Path, *, isolated: bool = True) -> Path:
    """A wheel for one interpreter, checked. Compiles on all processors.

    isolated  with build tools from the package index; otherwise with those of the interpreter
    Raises CalledProcessError, WheelUnfit.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-wheel-") as scratch:
        parallel = Path(scratch, "build.cfg")
        parallel.write_text(f"[build_ext]\nparallel = {os.cpu_count() or 1}\n")
        without = () if isolated else ("--no-build-isolation", "--no-index")
        run_pip(
            python, "wheel", "--no-deps", "--no-cache-dir", *without, "-w", scratch, sources,
            env={**os.environ, "DIST_EXTRA_CONFIG": str(parallel)},
        )  # fmt: skip
        (made,) = Path(scratch).glob("*.whl")
        check(made)
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, into / made.name))


def check(wheel: Path) -> None:
    """Raises WheelUnfit unless every compiled module is there and nothing but the packages."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    stems = {name.partition(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    lacking = {name.replace(".", "/") for name in compiled_modules()} - stems
    if lacking:
        raise WheelUnfit(f"{wheel.name} was built without {', '.join(sorted(lacking))}")
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    known = {each.partition(".")[0] for each in settings()["tool"]["setuptools"]["packages"]}
    strange = (tops - known) | {name for name in names if name.endswith((".pyx", ".pxd", ".c"))}
    if strange:
        raise WheelUnfit(f"{wheel.name} carries {', '.join(sorted(strange))}")


def main(words: Sequence[str] | None = None) -> int:
    """Build and try; returns the trial's exit code."""
    parser = argparse.ArgumentParser(prog="python -m release.wheels", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR")
    into: Path = parser.parse_args(words).into.resolve()
    here = interpreters()
    for old in (*into.glob("tandemmq-*.whl"), *into.glob("tandemmq-*.tar.gz")):
        old.unlink()
    sources = build_sources(into)
    print(f"built {sources.name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tandem-wheelhouse-") as scratch:
        for python in here.values():
            wheel = build_wheel(sources, python, into)
            print(f"built {wheel.name}: {wheel.stat().st_size:,} bytes, with {python}", flush=True)
            run_pip(python, "download", "--only-binary", ":all:", "-d", scratch, wheel)
        trial = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", TRIAL],
            cwd=ROOT, check=False,
            env={
                **os.environ,
                PYTHONS: " ".join(map(str, here.values())),
                TRIED_WHEELS: os.pathsep.join((str(into), scratch)),
            },
        ).returncode  # fmt: skip
    lacking = [version for version in VERSIONS if version not in here]
    if lacking:
        print(f"not built, no interpreter here: CPython {', '.join(lacking)}. "
              'Name one: make wheels PYTHONS="python3.11 /opt/py314/bin/python3.14"')  # fmt: skip
    return trial


if __name__ == "__main__":
    sys.exit(main())
