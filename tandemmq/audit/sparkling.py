"""A Spark session for `tandem audit`, started as fast as a JVM can be, or an existing cluster's."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

    from tandemmq.replication.audit.live import Access
    from tandemmq.replication.audit.plan import Engine

JAVA_MIN: Final = 17
ARCHIVE_MAKING_S: Final = 600
_UNPACKED: Final = "audit"  # what executors call an unpacked environment
_JIT: Final = {"c1": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "c2": "-XX:+UseSerialGC"}


def spark_engine(
    master: str,
    jit: str,
    places: dict[str, str],
    access: Access | None = None,
    out: Path | None = None,
    archive: Path | None = None,
) -> Engine:
    """The engine on a context of its own. Raises BadInput when Java or Spark is missing or too old, Java
    not before the first pass."""
    job = _module("tandemmq.replication.audit.spark_job")
    engine: Engine = job.SparkEngine(lambda: context(master, jit, archive), places, access, out)
    return engine


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name and problem.name.split(".")[0] in {"pyspark", "pyarrow", "numpy"}:
            raise _bad_input(
                f"the Spark engine needs {problem.name}: pip install 'tandemmq[audit]'"
            ) from problem
        raise


def _bad_input(text: str) -> Exception:
    problem: Exception = importlib.import_module("tandemmq.replication.audit.errors").BadInput(text)
    return problem


def context(master: str = "", jit: str = "c1", archive: Path | None = None) -> tuple[Any, bool]:
    """What runs tasks, and whether it was started here: Spark without its SQL, which takes as long to
    start as everything else. Raises BadInput."""
    check_java()
    spark = _module("pyspark")
    ours = spark.SparkContext._active_spark_context is None
    conf = _configuration(spark.SparkConf(), master, jit, "tasks", archive)
    made = _started(lambda: spark.SparkContext.getOrCreate(conf), master)
    made.setLogLevel("ERROR")
    return made, ours


def session(master: str = "", jit: str = "c1", archive: Path | None = None) -> Any:
    """A session, for queries and streams. Raises BadInput."""
    check_java()
    conf = _configuration(_module("pyspark").SparkConf(), master, jit, "sql", archive)
    builder = _module("pyspark.sql").SparkSession.builder
    made = _started(lambda: builder.config(conf=conf).getOrCreate(), master)
    made.sparkContext.setLogLevel("ERROR")
    return made


def _started(start: Callable[[], Any], master: str) -> Any:
    java_error = _module("py4j.protocol").Py4JError
    spark_error = _module("pyspark.errors").PySparkException
    try:
        return start()
    except (java_error, spark_error) as problem:
        cause = getattr(problem, "java_exception", None)
        text = str(cause.toString() if cause is not None else problem).splitlines()[0]
        raise _bad_input(f"Spark does not start on {master or 'local[*]'}: {text}") from problem


def _beside_audit(name: str) -> Path:
    return Path(importlib.import_module("tandemmq.replication.audit").__file__ or "").parent / name


def _configuration(conf: Any, master: str, jit: str, purpose: str, archive: Path | None) -> Any:
    """Local JVMs start with the first compiler only: audits are over before the second one pays."""
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JIT["c1"])
    settings = {
        "spark.app.name": "tandem audit",
        "spark.master": master or "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1" if not master or master.startswith("local") else "16",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": " ".join(
            (
                _JIT[jit],
                f"-Dlog4j2.configurationFile={_beside_audit('spark-log4j2.properties')}",
                _class_archive(jit, purpose),
            )
        ),
        "spark.sql.codegen.wholeStage": "false",  # a handful of rows: not worth compiling
        "spark.sql.adaptive.enabled": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine starts Python in more than 15 s
    }
    if not master or master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return conf.setAll([*settings.items(), *_packages(archive).items()])


def _packages(archive: Path | None) -> dict[str, str]:
    """How executors come by Python and our packages.

    From an archive of an environment; else, where PYSPARK_PYTHON names one, from that interpreter; else
    from ours, which must be at the same place there.
    """
    if archive is not None:
        os.environ["PYSPARK_PYTHON"] = f"./{_UNPACKED}/bin/python"
        return {"spark.archives": f"{archive.absolute()}#{_UNPACKED}"}
    if "PYSPARK_PYTHON" in os.environ:
        return {}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    packages = str(Path(importlib.import_module("tandemmq").__file__ or "").parents[1])
    paths = [packages, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}


def _class_archive(jit: str, purpose: str) -> str:
    """JVM options that load Spark's classes from an archive in the user's cache, or make it at exit.

    The archive belongs to one JDK, one Spark and one purpose (tasks need a third of the classes of sql); a
    JVM that cannot use it goes on without. It takes 70 to 190 MB and saves half of a start.
    """
    spark = importlib.import_module("pyspark")
    java = os.path.realpath(_java() or "java")
    key = hashlib.sha256(f"{java} {spark.__file__} {spark.__version__} {jit} {purpose}".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandemmq"
    archive = cache / f"spark-{key.hexdigest()[:16]}.jsa"
    if archive.exists():
        return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""  # no cache directory: every start takes its time
    making = archive.with_name(f".{archive.name}.making")
    try:
        if time.time() - making.stat().st_mtime < ARCHIVE_MAKING_S:
            return ""  # another audit is at it
    except FileNotFoundError:
        pass
    making.touch()
    return f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def check_java() -> None:
    """Raises BadInput, in one sentence, when there is no Java that Spark runs on."""
    java = _java()
    if java is None or not Path(java).exists():
        raise _bad_input(f"Spark needs Java {JAVA_MIN} or later, and no java was found")
    shown = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if found is None:
        raise _bad_input(f"{java} -version tells no version: {shown.stderr.strip()[:100]}")
    if int(found[1]) < JAVA_MIN:
        raise _bad_input(f"Spark needs Java {JAVA_MIN} or later, {java} is {found[1]}")


def watch(places: dict[str, str], arguments: argparse.Namespace, access: Access) -> int:
    """Compare what two logs gain, until interrupted or, with --once, until their ends."""
    if len(places) != 2:
        raise _bad_input("watch compares two stores: the master's and one replica's")
    reference, replica = places.values()
    stores = _module("tandemmq.replication.audit.stores")
    for name, place in places.items():
        stores.open_replica(place, name, access=access).close()
    job = _module("tandemmq.replication.audit.spark_job")
    ours = _module("pyspark").SparkContext._active_spark_context is None
    spark = session(arguments.spark_master, arguments.jit, arguments.spark_archive)
    before = _island_count(arguments.out)
    query = job.watch(
        spark, reference, replica, access, arguments.out, arguments.every, arguments.once,
        lambda line: print(line, flush=True),
    )  # fmt: skip
    try:
        query.awaitTermination()
    finally:
        query.stop()
        if ours:
            spark.stop()
    return 1 if _island_count(arguments.out) > before else 0


def _island_count(out: Path) -> int:
    directory = out / "islands"
    return len(list(directory.glob("*.parquet"))) if directory.is_dir() else 0
