"""Changes of settings over the wire: what is not allowed is refused whole, and no file is harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_wire import Wire, files_below, json_frame, lone_broker, send_one

from tandemmq.chaos.asking import ask
from tandemmq.chaos.servers import Broker, NameServer

pytestmark = pytest.mark.system

UPDATE_BROKER, GET_BROKER = 25, 26
UPDATE_NAMES, GET_NAMES = 318, 319
SUCCESS = 0

HOSTILE = {
    "unknown key": b"noSuchSetting=1",
    "a path": b"storePathRootDir=/tmp/elsewhere",
    "another path": b"storePathCommitLog=../../x",
    "home, as in CVE-2023-33246": b"rocketmqHome=-c $@|sh . echo id",
    "key-value path, as in CVE-2023-37582": b"kvConfigPath=/tmp/kv.json",
    "its own file": b"configStorePath=/tmp/x.properties",
    "the list itself": b"configBlackList=x",
    "address": b"brokerIP1=0.0.0.0",
    "port": b"listenPort=1",
    "name": b"brokerName=x/../y",
    "insecure": b"insecure=true",
    "escaped newline in a key": b"a\\nstorePathRootDir=/tmp",
    "newline that begins a setting": b"brokerPermission=6\nstorePathRootDir=/tmp/x",
    "carriage return": b"brokerPermission=6\rnamesrvAddr=evil:1",
    "escaped line end": b"brokerPermission=4\\nnamesrvAddr=evil:1",
    "bad number": b"brokerPermission=six",
    "number out of range": b"brokerPermission=900",
    "negative": b"flushIntervalCommitLog=-1",
    "no UTF-8": b"brokerPermission=\xff\xfe",
    "bad escape": b"brokerPermission=\\u12",
    "huge": b"brokerPermission=6\n" + b"#" * 300_000,
    "continued for ever": b"brokerPermission=" + b"6\\\n" * 80_000,
    "NUL": b"brokerPermission=6\0",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NameServer, Broker]]:
    directory = tmp_path_factory.mktemp("config")
    with (
        NameServer(directory / "names").start() as name_server,
        lone_broker(directory / "broker", {"namesrvAddr": name_server.address}).start() as broker,
    ):
        send_one(broker.address, "T")
        yield name_server, broker


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_change_is_refused_whole(servers: tuple[NameServer, Broker], kind: str) -> None:
    for server, update, read in (
        (servers[1], UPDATE_BROKER, GET_BROKER),
        (servers[0], UPDATE_NAMES, GET_NAMES),
    ):
        directory = server.log.parent
        before = ask(server.address, read)[2]
        files = {path.name: path.read_bytes() for path in directory.glob("*.conf*")}
        names = {path for path in files_below(directory) if "store/" not in path}
        with Wire(server.address) as wire:
            answer = wire.request(json_frame(update, {}, HOSTILE[kind]))
        assert answer.code != SUCCESS, server.name
        assert answer.remark and len(answer.remark) < 1_000
        assert ask(server.address, read)[2] == before
        assert {path.name: path.read_bytes() for path in directory.glob("*.conf*")} == files
        assert {path for path in files_below(directory) if "store/" not in path} == names
        assert "Traceback" not in server.output()


def test_an_allowed_change_is_written_in_one_line_and_survives_a_restart(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        broker.start()
        with Wire(broker.address) as wire:
            change = b"fileReservedTime=48\nmessageDelayLevel=1s 2s"
            assert wire.request(json_frame(UPDATE_BROKER, {}, change)).code != SUCCESS
            assert b"fileReservedTime=48" not in ask(broker.address, GET_BROKER)[2], (
                "all or nothing"
            )
            assert (
                wire.request(json_frame(UPDATE_BROKER, {}, b"fileReservedTime=48")).code == SUCCESS
            )
        lines = (tmp_path / "broker-a.conf").read_text().splitlines()
        assert lines.count("fileReservedTime=48") == 1
        assert broker.stop() == 0
        broker.start()
        assert b"fileReservedTime=48" in ask(broker.address, GET_BROKER)[2]


def test_secrets_are_not_handed_out(tmp_path: Path) -> None:
    secret = "hunter2-planted"
    names = NameServer(tmp_path / "names", {"tls.server.keyPassword": secret}).start()
    broker = lone_broker(
        tmp_path / "broker",
        {"tls.server.keyPassword": secret, "httpToken": secret},
    )
    with names, broker:
        broker.start()
        for server, read in ((names, GET_NAMES), (broker, GET_BROKER)):
            answer = ask(server.address, read)[2]
            assert secret.encode() not in answer
            assert secret not in server.output()
