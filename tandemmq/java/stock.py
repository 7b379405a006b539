"""Apache RocketMQ's own programs, of any release: fetched by Maven, our driver for its clients compiled by javac.

Both happen once; what they made is kept in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "sources"
VERSIONS: Final = ("4.9.7", "5.3.3")
NEWEST: Final = VERSIONS[-1]

# A JVM that starts fast and leaves the cores to others: no second compiler, no collector threads.
LEAN: Final = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]
# 4.9.7 unmaps files through internals that JDK 17 hides.
OPENS: Final = [
    option
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang")
    for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
] + ["--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"]

LOGBACK: Final = """<configuration><appender name="F" class="{prefix}ch.qos.logback.core.FileAppender">
<file>{log}</file><encoder><pattern>%d %p %t %logger{{0}} - %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="F"/></root></configuration>
"""


class JavaFailed(Exception):
    """Maven, javac or a JVM did not do what it was started for; carries what it said."""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandemmq" / "java"


def java_missing() -> str | None:
    """Why Java tests cannot run here and what to install; None if they can."""
    absent = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if absent:
        return (
            f"{', '.join(absent)} not on the PATH: install a JDK (11 or later) and Maven, "
            "e.g. apt-get install openjdk-17-jdk-headless maven"
        )
    return None


def classpath(version: str) -> str:
    """Class path of clients, tools and servers of one release; Maven fetches what is not there.

    Raises JavaFailed, OSError.
    """
    pom = (SOURCES / "pom.xml").read_bytes()
    cache = _cache()
    kept = cache / f"classpath-{version}-{hashlib.sha256(pom).hexdigest()[:12]}.txt"
    if kept.exists() and all(map(os.path.exists, kept.read_text().split(os.pathsep))):
        return kept.read_text()
    cache.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}.new")
    command = [
        "mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:build-classpath",
        f"-Drocketmq.version={version}", f"-Dmdep.outputFile={fresh}",
    ]  # fmt: skip
    for mode in (["-o"], []):  # what the local repository holds is enough most times
        run = subprocess.run([*command, *mode], capture_output=True, text=True, check=False)
        if run.returncode == 0 and fresh.exists():
            fresh.write_text(fresh.read_text().strip())
            fresh.replace(kept)
            return kept.read_text()
    raise JavaFailed(f"Maven did not resolve {version}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")


def compiled(version: str) -> Path:
    """Directory of our driver's classes for one release; compiled once per content of sources."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    cache = _cache()
    kept = cache / f"driver-{version}-{digest.hexdigest()[:12]}"
    if kept.exists():
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=cache))
    command = [
        "javac",
        "-nowarn",
        "-encoding",
        "UTF-8",
        "-d",
        str(fresh),
        "-cp",
        classpath(version),
    ]
    run = subprocess.run(
        [*command, *map(str, sources)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise JavaFailed(f"javac: {run.stdout}{run.stderr}")
    with contextlib.suppress(OSError):  # another process was first
        fresh.rename(kept)
    return kept


def java_command(
    version: str, main: str, home: Path, *arguments: str, heap_mb: int, options: Iterable[str] = ()
) -> list[str]:
    """Command line of one JVM whose home directory (logs, local offsets, settings) is `home`.

    main  a class of the release or of our driver, or a Java file that needs them
    """
    prepare_home(version, home)
    return [
        "java", *LEAN, *OPENS, f"-Xmx{heap_mb}m",
        f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
        "-Drocketmq.client.logLevel=WARN", f"-Drocketmq.client.logRoot={home}/logs",
        "-Djava.net.preferIPv4Stack=true", "-Dio.netty.allocator.type=unpooled", *options,
        "-cp", os.pathsep.join([str(compiled(version)), classpath(version)]), main, *arguments,
    ]  # fmt: skip


def prepare_home(version: str, home: Path) -> None:
    """What is expected below ROCKETMQ_HOME: settings of logs (4.x does not start without)."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    prefix = "" if version.startswith("4.") else "org.apache.rocketmq.logging."
    for part in ("broker", "namesrv", "tools"):
        text = LOGBACK.format(log=home / "logs" / f"{part}.log", prefix=prefix)
        for name in (f"logback_{part}.xml", f"rmq.{part}.logback.xml"):
            (conf / name).write_text(text)


def java_env(home: Path) -> dict[str, str]:
    """Environment of such a JVM, on top of ours."""
    return {"ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": "", "JAVA_TOOL_OPTIONS": ""}
