"""The settings files and compose files in deploy/: servers start with them, and they agree with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
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
    "${TANDEM_LOG_FORMAT:-text}": "text",
    "${TANDEM_SECURE:-./secure}": "./secure",
}


def services(name: str) -> dict[str, Any]:
    """A compose file's services as they are without any variable set."""
    text = (DEPLOY / name).read_text()
    for variable, value in DEFAULTS.items():
        text = text.replace(variable, value)
    text = re.sub(r"\$\{[A-Z]+_IMAGE:-([^}]+)\}", r"\1", text)
    assert "${" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def settings_of(service: dict[str, Any], file: Path | None) -> dict[str, str]:
    """Those of its file, and what its command sets over them."""
    command: list[str] = service["command"]
    given = [command[at + 1] for at, word in enumerate(command) if word == "--set"]
    found = {**(read_properties(file) if file else {}), **assignments(given)}
    if "httpTokenFile" in found:
        assert "--make-token" in command
        found["httpTokenFile"] = ""
        found["httpToken"] = "0123456789abcdef"
    return found


def mounted(service: dict[str, Any]) -> Path:
    """The file of the repository that it reads its settings from."""
    (source,) = (each.split(":")[0] for each in service["volumes"] if each.startswith("./conf/"))
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
        config = BrokerConfig.from_properties(properties, as_rocketmq=True, insecure=True)
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


@pytest.mark.parametrize("file", ["compose.yaml", "compose.single.yaml", "compose.noslave.yaml"])
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


def test_masters_without_slaves_start_with_rocketmqs_files() -> None:
    found = services("compose.noslave.yaml")
    for name in ("broker-a", "broker-b"):
        properties = settings_of(found[name], mounted(found[name]))
        config = BrokerConfig.from_properties(properties, as_rocketmq=True)
        assert (config.name, config.mode.value, config.controller_mode) == (name, "A0", False)
        published = {int(each.split(":")[-1]) for each in found[name]["ports"]}
        assert published == {config.listen_port, config.listen_port - 2}


def test_controllers_on_etcd_are_where_brokers_look_for_them() -> None:
    plain, over = services("compose.yaml"), services("compose.etcd.yaml")
    at = over["etcd"]["networks"]["tandem"]["ipv4_address"]
    for name in ("namesrv-a", "namesrv-b"):
        file = mounted(plain[name])
        before, after = (
            nameserver_settings(settings_of(each, file), file, insecure=True, as_rocketmq=True)[1]
            for each in (plain[name], over[name])
        )
        assert (after.self_id, after.peers) == (before.self_id, before.peers)
        assert (after.store_kind.value, after.etcd_endpoints) == ("etcd", f"http://{at}:2379")


def test_what_is_secured_differs_from_what_is_not_in_that_alone() -> None:
    plain, over = services("compose.yaml"), services("compose.secure.yaml")
    for name, service in over.items():
        before = settings_of(plain[name], mounted(plain[name]))
        after = settings_of(plain[name], mounted(service))
        added = {key: after[key] for key in after.keys() - before.keys()}
        assert before.items() <= after.items()
        assert added["tls.server.mode"] == "enforcing"
        assert added["authenticationEnabled"] == "true"
        assert all(key.startswith(("tls.", "auth", "init", "inner")) for key in added), added


def test_clients_ways_lead_through_toxiproxy_where_it_is_told() -> None:
    ways = json.loads((DEPLOY / "observability/toxiproxy.json").read_text())
    wanted = {
        f"{name}:{each.split(':')[-1]}"
        for name, service in services("compose.yaml").items() if name.startswith("broker")
        for each in service["ports"]
    }  # fmt: skip
    assert {each["upstream"] for each in ways} == wanted
    assert all(each["listen"].split(":")[1] == each["upstream"].split(":")[1] for each in ways)


def test_prometheus_asks_every_server() -> None:
    (group,) = yaml.safe_load((DEPLOY / "observability/targets/tandem.yml").read_text())
    assert set(group["targets"]) == {f"{name}:9880" for name in services("compose.yaml")}
    for name, service in services("compose.observability.yaml").items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert all(each.startswith("127.0.0.1:") for each in service["ports"]), name
        for each in service["volumes"]:
            source = each.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source


@pytest.mark.parametrize(
    "files", ["compose.noslave", "compose compose.etcd compose.secure compose.observability"]
)
def test_compose_itself_takes_them(files: str) -> None:
    if shutil.which("docker-compose") is None:
        pytest.skip("needs docker-compose: apt-get install docker-compose")
    named = [word for file in files.split() for word in ("-f", str(DEPLOY / f"{file}.yaml"))]
    done = subprocess.run(
        ["docker-compose", *named, "config", "-q"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
