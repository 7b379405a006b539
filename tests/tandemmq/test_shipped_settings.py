"""The settings files and compose files in deploy/: servers start with them, and they agree with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandemmq.cluster.broker import BrokerConfig
from tandemmq.cluster.config import read_properties
from tandemmq.command.checking import check
from tandemmq.command.serving import assignments, nameserver_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
EPHEMERAL = 32768
ROLES = {
    "2m-2s-sync": {"broker-a": "SYNC_MASTER", "broker-a-s": "SLAVE"},
    "2m-2s-async": {"broker-a": "ASYNC_MASTER", "broker-a-s": "SLAVE"},
    "2m-noslave": {"broker-a": "ASYNC_MASTER"},
}
FILES = sorted((DEPLOY / "conf").glob("2m-*/*.properties"))
DEFAULTS = {
    "${TANDEM_NET:-172.29.88}": "172.29.88",
    "${TANDEM_HOST:-}": "",
    "${TANDEM_PUBLISH:-127.0.0.1}": "127.0.0.1",
    "${TANDEM_IMAGE:-tandemmq}": "tandemmq",
}


def services(name: str) -> dict[str, Any]:
    """A compose file's services as they are without any variable set."""
    text = (DEPLOY / name).read_text()
    for variable, value in DEFAULTS.items():
        text = text.replace(variable, value)
    assert "${" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def settings_of(service: dict[str, Any], file: Path | None) -> dict[str, str]:
    """Those of its file, and what its command sets over them."""
    command: list[str] = service["command"]
    given = [command[at + 1] for at, word in enumerate(command) if word == "--set"]
    return {**(read_properties(file) if file else {}), **assignments(given)}


def mounted(service: dict[str, Any]) -> Path:
    """The file of the repository that it reads its settings from."""
    (source,) = (each.split(":")[0] for each in service["volumes"] if each.startswith("./"))
    return DEPLOY / str(source)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_broker_starts_with_each_of_rocketmqs_files(file: Path) -> None:
    found = check(file, "broker", namesrv="127.0.0.1:9876")
    group = file.stem.removesuffix("-s")
    wanted = ROLES[file.parent.name][file.stem.replace("broker-b", "broker-a")]
    assert (found["brokerName"], found["brokerRole"]) == (group, wanted)
    assert found["brokerId"] == ("1" if file.stem.endswith("-s") else "0")


def test_every_directory_has_both_groups_whole() -> None:
    found = {(file.parent.name, file.stem) for file in FILES}
    names = {(folder, name) for folder, roles in ROLES.items() for name in roles}
    assert found == names | {(folder, name.replace("-a", "-b")) for folder, name in names}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_brokers_start_with_what_compose_gives_them(mode: str) -> None:
    over = services("compose.async.yaml") if mode == "async" else {}
    for name, service in services("compose.yaml").items():
        if not name.startswith("broker"):
            continue
        properties = settings_of(service, mounted({**service, **over.get(name, {})}))
        config = BrokerConfig.from_properties(properties, as_rocketmq=True)
        assert config.mode.value == {"sync": "S0", "async": "A0"}[mode]
        assert name.startswith(config.name)
        own = service["networks"]["tandem"]["ipv4_address"]
        assert (config.ha_ip, config.advertised_ip) == (own, ""), "guessed: it has no other"
        published = {int(each.split(":")[-1]) for each in service["ports"]}
        assert published == {config.listen_port, config.listen_port - 2}
        assert service["healthcheck"]["test"][-1] == f"127.0.0.1:{config.listen_port}"


def test_controllers_are_where_brokers_look_for_them() -> None:
    found = services("compose.yaml")
    wanted = set()
    for name in ("namesrv-a", "namesrv-b"):
        service = found[name]
        file = mounted(service)
        _, controller = nameserver_settings(
            settings_of(service, file), file, insecure=True, as_rocketmq=True
        )
        own = service["networks"]["tandem"]["ipv4_address"]
        assert f"{controller.self_id}-{own}:9878" in controller.peers
        wanted.add(f"{own}:9878")
    for name in ("broker-a-0", "broker-b-1"):
        settings = settings_of(found[name], mounted(found[name]))
        assert set(settings["controllerAddr"].split(";")) == wanted


@pytest.mark.parametrize("file", ["compose.yaml", "compose.single.yaml"])
def test_every_container_is_locked_up_and_bounded(file: str) -> None:
    ports = []
    for name, service in services(file).items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["mem_limit"], name
        assert [each for each in service["volumes"] if each.endswith(":/data")], name
        ports += [int(each.split(":")[1]) for each in service["ports"]]
        assert all(each.startswith("127.0.0.1:") for each in service["ports"]), name
    assert len(set(ports)) == len(ports)
    assert max(ports) < EPHEMERAL
