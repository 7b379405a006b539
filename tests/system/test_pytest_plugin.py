"""The fixtures as an application's tests use them: a pytest of its own, in a directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import python_env

pytestmark = pytest.mark.system

LOAD_S_MAX = 0.02
PLUGIN = "tandemmq.testing.plugin"
ROOT = Path(__file__).parents[2]

APPLICATION_TESTS = """
import asyncio
import os
from pathlib import Path

import pytest
from tandemmq import Message, Producer, PullConsumer, StartFrom

seen = []


def test_a_topic_of_its_own(tandem_cluster, tandem_topic, tandem_producer):
    assert tandem_topic.startswith("test_a_topic_of_its_own")
    assert tandem_producer.send(tandem_topic, b"17").ok
    assert tandem_cluster.directory.is_dir()
    seen.append((tandem_cluster.namesrv, tandem_topic))


@pytest.fixture(scope="module")
def wide(tandem_session_cluster):
    return tandem_session_cluster.namesrv


def test_one_cluster_for_all(wide, tandem_cluster, tandem_topic, monkeypatch):
    assert tandem_cluster.namesrv == wide == seen[0][0]
    assert tandem_topic != seen[0][1]
    monkeypatch.setenv("NAMESRV_ADDR", tandem_cluster.namesrv)

    async def there_and_back():
        async with Producer("app") as producer:
            await producer.send(Message(tandem_topic, b"17"))
        async with PullConsumer("app", subscribe={tandem_topic: "*"}, start=StartFrom.FIRST) as consumer:
            return (await anext(consumer)).body

    assert asyncio.run(there_and_back()) == b"17"


@pytest.mark.parametrize("body", ["a/b c", "x" * 200])
def test_names_are_legal_topics(body, tandem_topic):
    assert len(tandem_topic) < 80


def test_memory(tandem_memory):
    async def send():
        async with Producer("app", namesrv=tandem_memory.namesrv) as producer:
            await producer.send(Message("Orders", b"17"))

    asyncio.run(send())
    assert [each.body for each in tandem_memory.messages("Orders")] == [b"17"]


def test_failover(tandem_cluster, tandem_topic, tandem_producer, kill_master):
    assert tandem_cluster.namesrv != seen[0][0]
    before = tandem_cluster.master()
    assert tandem_producer.send(tandem_topic, b"1").copies == 2
    after = kill_master()
    assert (before.group, before.name != after.name) == (after.group, True)
    for attempt in range(100):
        try:
            assert tandem_producer.send(tandem_topic, b"2").ok
            break
        except Exception:
            assert attempt < 99
    tandem_cluster.restart(before.name)
    assert tandem_cluster.whole


def test_notes(tandem_cluster):
    pids = [str(each.pid) for each in tandem_cluster.members.values()]
    Path(os.environ["NOTES"]).write_text(" ".join([str(tandem_cluster.directory), *pids]))
    if os.environ.get("WAIT"):
        import time
        time.sleep(60)
"""


def run(directory: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-W", "error", "--rootdir", str(directory), *words],
        cwd=directory, text=True,
        env={**clean, **python_env(), **env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def notes(path: Path) -> tuple[Path, list[int]]:
    directory, *pids = path.read_text().split()
    return Path(directory), [int(each) for each in pids]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_application_tests_with_them_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(APPLICATION_TESTS)
    pytester = run(tmp_path, NOTES=str(tmp_path / "notes"))
    said, _ = pytester.communicate(timeout=110)
    assert pytester.returncode == 0, said
    assert "7 passed" in said
    directory, pids = notes(tmp_path / "notes")
    assert not directory.exists()
    assert len(pids) == 2
    assert all(map(gone, pids))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "test_app.py").write_text(APPLICATION_TESTS)
    path = tmp_path / "notes"
    pytester = run(tmp_path, "-k", "notes", NOTES=str(path), WAIT="1")
    try:
        wait_until(
            lambda: path.exists() and len(path.read_text().split()) == 3, 60, "the cluster runs"
        )
        directory, pids = notes(path)
        assert not any(map(gone, pids))
        pytester.send_signal(how)
        pytester.communicate(timeout=60)
        wait_until(lambda: all(map(gone, pids)) and not directory.exists(), 30, "all of it is gone")
    finally:
        pytester.kill()
        pytester.communicate()


def test_the_plugin_costs_next_to_nothing_where_it_is_not_used() -> None:
    code = (
        "import sys, time, pytest, tandemmq\n"
        "began = time.process_time()\n"
        "import tandemmq.testing.plugin\n"
        "took = time.process_time() - began\n"
        "print(took, *(set(sys.modules) & {'msgspec', 'tandemmq.cluster', 'tandemmq.testing.cluster'}))"
    )
    times = []
    for _ in range(3):
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **python_env()}
        )  # fmt: skip
        took, *heavy = shown.stdout.split()
        assert not heavy
        times.append(float(took))
    assert min(times) < LOAD_S_MAX


def test_the_plugin_defines_fixtures_and_nothing_else() -> None:
    """No hook of it runs in anybody's tests."""
    from tandemmq.testing import plugin

    assert not [name for name in vars(plugin) if name.startswith("pytest_")]


def test_our_modules_are_imported_as_they_are(tmp_path: Path) -> None:
    """Installed from a wheel: pytest would rewrite the assertions of all of them, and complain of those it knows."""
    installed = tmp_path / "site" / "tandemmq-9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tandemmq\nVersion: 9\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\ntandemmq = {PLUGIN}\n")
    (installed / "RECORD").write_text("tandemmq/__init__.py,,\ntandemmq/testing/plugin.py,,\n")
    (tmp_path / "test_it.py").write_text(
        "import sys, tandemmq.testing.cluster, tandemmq.cluster.client\n"
        "def test_it():\n"
        "    kinds = {type(m.__loader__).__name__ for n, m in sys.modules.items() if n.startswith('tandemmq.c')}\n"
        "    assert kinds and 'AssertionRewritingHook' not in kinds, kinds\n"
    )
    run_here = (
        "import sys, tandemmq, pytest\n"
        "sys.exit(pytest.main(['-q', '-W', 'error::pytest.PytestAssertRewriteWarning']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", run_here],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, **python_env(), "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_finds_it_where_the_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (named,) = settings["project"]["entry-points"]["pytest11"].values()
    assert named == PLUGIN


def test_a_cluster_is_there_in_a_second() -> None:
    """Measured where nothing else runs and Python may keep compiled files: on a busy machine only the bound below."""
    from tandemmq.testing import TandemCluster

    times = []
    for _ in range(2):
        began_s = time.monotonic()
        with TandemCluster():
            times.append(time.monotonic() - began_s)
    assert min(times) < 10
