"""What a local cluster consists of: members, ports, settings that our servers and RocketMQ's read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.cluster.config import read_properties
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.local import layout as layouts
from tandemmq.local.layout import LOOPBACK, Layout, open_layout, open_or_create
from tandemmq.local.processes import says_no_address

Taken = Callable[..., None]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Says which ports are taken; none of them is looked at."""
    ports: set[int] = set()
    monkeypatch.setattr(
        layouts, "port_problem", lambda port: "Address already in use" if port in ports else None
    )
    return lambda *more: ports.update(more)


def created(directory: Path, mode: str | None = None) -> Layout:
    return open_or_create(directory, mode, None, None)


@pytest.mark.parametrize("mode", [None, "sync"])
def test_every_process_stays_on_loopback(tmp_path: Path, taken: Taken, mode: str | None) -> None:
    layout = created(tmp_path, mode)
    for member in layout.members:
        file = layout.config_file(member)
        settings = read_properties(file)
        said = settings.get("bindAddress") or settings.get("brokerIP1")
        assert said == LOOPBACK and not says_no_address(file)
        file.write_text("listenPort=9876\n")  # as a release wrote it that listened there without it
        assert says_no_address(file)


def test_without_a_mode_there_are_two_masters_alone(tmp_path: Path, taken: Taken) -> None:
    layout = created(tmp_path)
    assert [(each.name, each.port) for each in layout.members] == [
        ("namesrv", 9876), ("broker-a", 10_911), ("broker-b", 10_921)
    ]  # fmt: skip
    settings = read_properties(tmp_path / "broker-a.conf")
    assert (settings["brokerName"], settings["brokerId"]) == ("broker-a", "0")
    assert "enableControllerMode" not in settings
    assert settings["httpPort"] == "10913"
    assert settings["httpTokenFile"] == str(layout.token_file)
    assert [layout.http(each) for each in layout.members] == [
        "http://127.0.0.1:9879", "http://127.0.0.1:10913", "http://127.0.0.1:10923"
    ]  # fmt: skip
    name_server = read_properties(tmp_path / "namesrv.conf")
    assert "enableControllerInNamesrv" not in name_server
    assert name_server["httpPort"] == "9879"
    assert layout.console == "http://127.0.0.1:9879/console/"


def test_a_cluster_of_a_release_without_a_console_stays_as_it_is(
    tmp_path: Path, taken: Taken
) -> None:
    created(tmp_path)
    file = tmp_path / "cluster.json"
    file.write_text(
        json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "console_port"})
    )
    layout = open_layout(tmp_path)
    assert (layout.console, layout.ports(layout.name_server)) == ("", [9876])
    assert layout.http(layout.brokers[0]) == ""
    assert layout.ports(layout.brokers[0]) == [10_911, 10_909, 10_912]


@pytest.mark.parametrize(("mode", "role"), [("sync", "SYNC_MASTER"), ("async", "ASYNC_MASTER")])
def test_a_mode_makes_two_groups_of_two_replicas_and_a_controller(
    tmp_path: Path, taken: Taken, mode: str, role: str
) -> None:
    layout = created(tmp_path, mode)
    assert [(each.name, each.group, each.port) for each in layout.brokers] == [
        ("broker-a-0", "broker-a", 10_911),
        ("broker-a-1", "broker-a", 10_921),
        ("broker-b-0", "broker-b", 10_931),
        ("broker-b-1", "broker-b", 10_941),
    ]
    assert layout.controller == "127.0.0.1:9878"
    name_server = read_properties(tmp_path / "namesrv.conf")
    assert name_server["enableControllerInNamesrv"] == "true"
    assert name_server["controllerDLegerPeers"] == "n0-127.0.0.1:9878"
    assert name_server["controllerDLegerSelfId"] == "n0"
    for member in layout.brokers:
        settings = read_properties(layout.config_file(member))
        assert settings["brokerName"] == member.group
        assert (settings["brokerId"], settings["brokerRole"]) == ("-1", role)
        assert settings["enableControllerMode"] == "true"
        assert settings["controllerAddr"] == layout.controller
        assert settings["haListenPort"] == str(member.port + 1)
        assert settings["httpPort"] == str(member.port + 2)
        assert settings["storePathRootDir"] == str(tmp_path / "store" / member.name)
    assert open_layout(tmp_path) == layout
    token = layout.token_file
    assert (len(token.read_text().strip()), token.stat().st_mode & 0o777) == (32, 0o600)


def test_no_two_processes_share_a_port(tmp_path: Path, taken: Taken) -> None:
    layout = created(tmp_path, "sync")
    ports = [port for member in layout.members for port in layout.ports(member)]
    assert len(ports) == len(set(ports)) == 3 + 4 * 4


def test_usual_ports_that_are_taken_are_left_and_the_choice_is_remembered(
    tmp_path: Path, taken: Taken
) -> None:
    taken(10_942)  # where the last broker would wait for its slave
    layout = created(tmp_path, "sync")
    assert [each.port for each in layout.members] == [9976, 11_011, 11_021, 11_031, 11_041]
    taken(9976, 11_011)  # by ourselves
    assert created(tmp_path) == layout
    assert open_or_create(tmp_path, "sync", 9976, 11_011) == layout


def test_a_port_that_is_named_stays_even_when_it_is_taken(tmp_path: Path, taken: Taken) -> None:
    taken(20_000, 10_911)
    layout = open_or_create(tmp_path, None, 20_000, None)
    assert [each.port for each in layout.members] == [20_000, 11_011, 11_021]


def test_ports_that_outgoing_connections_may_take_are_refused(tmp_path: Path, taken: Taken) -> None:
    for namesrv, broker in ((40_000, None), (None, 32_750), (1_000, None)):
        with pytest.raises(CommandFailed, match=r"not in 1024\.\.32767") as caught:
            open_or_create(tmp_path / "x", "sync", namesrv, broker)
        assert caught.value.code == ExitCode.USAGE
    assert not (tmp_path / "x").exists()


def test_another_kind_of_cluster_in_the_same_directory_is_refused(
    tmp_path: Path, taken: Taken
) -> None:
    created(tmp_path / "replicas", "sync")
    with pytest.raises(CommandFailed, match="made with --mode sync"):
        created(tmp_path / "replicas", "async")
    created(tmp_path / "alone")
    with pytest.raises(CommandFailed, match="without replicas"):
        created(tmp_path / "alone", "sync")
    with pytest.raises(CommandFailed, match=r"with ports \[9876, 10911, 10921\]"):
        open_or_create(tmp_path / "alone", None, None, 20_911)


def test_settings_that_the_user_changed_stay(tmp_path: Path, taken: Taken) -> None:
    layout = created(tmp_path, "sync")
    path = layout.config_file(layout.brokers[0])
    path.write_text("flushDiskType=SYNC_FLUSH\n")
    (tmp_path / "cluster.json").unlink()
    assert created(tmp_path, "sync") == layout
    assert path.read_text() == "flushDiskType=SYNC_FLUSH\n"


def test_cluster_of_an_earlier_version_is_opened(tmp_path: Path) -> None:
    members = [{"name": "namesrv", "port": 9876}, {"name": "broker-a", "port": 10_911}]
    (tmp_path / "cluster.json").write_text(json.dumps({"members": members}))
    layout = open_layout(tmp_path)
    assert (layout.mode, layout.controller_port) == ("", 0)
    assert layout.groups == {"broker-a": [layout.brokers[0]]}


@pytest.mark.parametrize(
    "text", ["", "{}", '{"members": []}', '{"members": [{"name": "broker-a", "port": 1}]}',
             '{"members": [{"name": "namesrv", "port": 1}], "mode": "half"}', "[]"],
)  # fmt: skip
def test_broken_description_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(CommandFailed, match=r"cluster\.json cannot be read") as caught:
        open_layout(tmp_path)
    assert caught.value.code == ExitCode.BAD_CONFIG


def test_unknown_member_is_answered_with_those_there_are(tmp_path: Path, taken: Taken) -> None:
    with pytest.raises(CommandFailed, match="there are namesrv, broker-a-0, broker-a-1, broker-b"):
        created(tmp_path, "sync").member("broker-a")
