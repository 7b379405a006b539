"""What an application gets by `pip install tandemmq`: a client, compiled, without servers or a compiler.

For the interpreter of these tests the wheel is built here. `make wheels` builds those of all versions and
runs this with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from light_install import Light, built_here

from release import wheels
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.command.exits import ExitCode
from tandemmq.command.extras import SERVER_MODULES

# Compiling takes most of it: half a minute on two processors that have nothing else to do.
pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"

COMPILED = """
import importlib, sys
for name in sys.argv[1:]:
    print(name, importlib.import_module(name).__file__)
import tandemmq.cluster.client.hot, tandemmq.storage.record
print(tandemmq.cluster.client.hot.COMPILED, tandemmq.storage.COMPILED, tandemmq.storage.record.crc32.__module__)
print(*sorted(name for name in sys.modules if name.startswith(("uvloop", "aiohttp", "tandemmq.chaos"))))
"""

ROUND_TRIP = """
import asyncio, sys
from tandemmq import Compression, Message, Producer, PushConsumer, ReceivedMessage, StartFrom

TEXT = b"an order that is long enough to be worth compressing; " * 200
seen: set[bytes] = set()
complete = asyncio.Event()


async def take(message: ReceivedMessage) -> None:
    seen.add(message.body)
    if len(seen) == 3 * 20:
        complete.set()


async def main() -> None:
    for kind in Compression:
        async with Producer("shop", namesrv=sys.argv[1], compression=kind) as producer:
            results = await asyncio.gather(
                *(producer.send(Message("Orders", b"%s %d " % (kind.name.encode(), n) + TEXT)) for n in range(20))
            )
            assert all(result.ok for result in results)
    async with PushConsumer(
        "billing", take, namesrv=sys.argv[1], subscribe={"Orders": "*"}, start=StartFrom.FIRST
    ):
        async with asyncio.timeout(30):
            await complete.wait()
    assert all(body.endswith(TEXT) for body in seen)
    print(len(seen), "came back")


asyncio.run(main())
"""


@pytest.fixture(
    scope="module", params=wheels.VERSIONS if wheels.TRIED_WHEELS in os.environ else [OURS]
)
def light(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Light:
    """An environment with our wheel for one version of CPython, and what it needs."""
    version: str = request.param
    directory = tmp_path_factory.mktemp(f"light-{version}")
    if places := os.environ.get(wheels.TRIED_WHEELS):
        python = wheels.interpreters().get(version)
        if python is None:
            pytest.skip(f"no CPython {version} here: name one, make wheels PYTHONS=...")
        find_links = [Path(place) for place in places.split(os.pathsep)]
        return Light(python, directory, find_links)
    return Light(sys.executable, directory, built_here(directory / "wheels"))


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    """A name server and a broker from here, where everything is installed."""
    directory = tmp_path_factory.mktemp("servers")
    with NameServer(directory).start() as server, Broker(directory, server.address).start():
        yield server


def test_nothing_is_installed_but_what_a_client_needs(light: Light) -> None:
    found = light.installed()
    assert found >= {"tandemmq", "isal", "lz4", "msgspec"}
    assert found <= {"tandemmq", "isal", "lz4", "msgspec", "backports-zstd", "backports.zstd"}
    for name in ("chaos", "bench", "tests", "release"):
        assert light.run("-c", f"import {name}").returncode, name


def test_every_compiled_module_is_there_and_used(light: Light) -> None:
    # a broker's own is in the wheel, too, but imports what only its extra brings
    modules = [
        each
        for each in wheels.compiled_modules()
        if not each.startswith("tandemmq.cluster.broker.")
    ]
    done = light.run("-c", COMPILED, *modules)
    *files, used, servers = done.stdout.splitlines()
    assert (done.stderr, used, servers) == ("", "True True isal.isal_zlib", "")
    site_packages = str(light.directory / "venv/lib")
    for module, line in zip(modules, files, strict=True):
        name, file = line.split(" ", 1)
        assert name == module
        assert file.startswith(site_packages) and file.endswith(".so"), file


def test_a_client_sends_and_consumes_with_every_compression(
    light: Light, name_server: NameServer
) -> None:
    done = light.run("-W", "error", "-c", ROUND_TRIP, name_server.address)
    assert (done.stderr, done.stdout) == ("", "60 came back\n")


@pytest.mark.parametrize("kind", ["module", "package"])
def test_an_application_may_have_modules_of_our_folders_names(
    light: Light, name_server: NameServer, tmp_path: Path, kind: str
) -> None:
    for name in ("storage", "cluster", "replication", "chaos", "bench", "docs", "release", "tests"):
        file = tmp_path / (f"{name}.py" if kind == "module" else f"{name}/__init__.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text("OURS = True\n")
    program = (
        "import storage, cluster, replication, chaos, bench, docs, release, tests\n" + ROUND_TRIP
    )
    (tmp_path / "application.py").write_text(
        program + "\nassert storage.OURS and cluster.OURS and replication.OURS and chaos.OURS\n"
    )
    done = light.run("-W", "error", tmp_path / "application.py", name_server.address)
    assert (done.stderr, done.stdout) == ("", "60 came back\n")


def test_commands_that_are_clients_work(light: Light, name_server: NameServer) -> None:
    to = ("-n", name_server.address)
    topic = f"Lines{light.directory.name.rpartition('-')[2].replace('.', '')}"
    sent = light.tandem("send", topic, *to, stdin="one\ntwo\nthree\n")
    assert sent.returncode == ExitCode.OK, sent.stderr
    assert sent.stdout.count("SEND_OK") == 3
    shown = light.tandem("tail", topic, "--from", "first", "--until-end", *to)
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert {line.split()[-1] for line in shown.stdout.splitlines()[:3]} == {"one", "two", "three"}
    for words in (
        ("admin", "clusterList", *to),
        ("admin", "topicStatus", "-t", topic, *to),
        ("bench", "--count", "200", *to),
        ("completion", "bash"),
        ("--help",),
    ):
        done = light.tandem(*words)
        assert (done.returncode, done.stderr) == (ExitCode.OK, ""), words


@pytest.mark.parametrize(
    "words",
    [
        "nameserver", "controller", "broker -n 127.0.0.1:9876", "local up", "local start broker-a",
        "inspect .", "check-config broker.conf",
    ],
)  # fmt: skip
def test_what_a_server_is_needed_for_says_in_one_line_what_to_install(
    light: Light, words: str
) -> None:
    done = light.tandem(*words.split())
    assert (done.returncode, done.stdout) == (ExitCode.MISSING, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'tandemmq[server]'" in done.stderr
    assert all(each in done.stderr for each in SERVER_MODULES)


def test_the_audit_names_the_extra_too(light: Light) -> None:
    stores = [light.directory / "master", light.directory / "slave"]
    for store in stores:
        (store / "commitlog").mkdir(parents=True, exist_ok=True)
    done = light.tandem("audit", "run", *stores)
    assert done.returncode == 64, done.stderr
    assert done.stderr == "tandem audit: xxhash is not installed: pip install 'tandemmq[server]'\n"
