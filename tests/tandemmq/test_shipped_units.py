"""deploy/systemd and deploy/kubernetes: their validators take them, and what they name is what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tandemmq.cluster.broker import BrokerConfig
from tandemmq.cluster.config import parse_properties
from tandemmq.command.cli import command_parser
from tandemmq.command.exits import ExitCode
from tandemmq.command.serving import assignments, nameserver_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/tandemmq/bin/tandem"
EXPOSURE_MAX = 1.5  # of 10, as systemd-analyze security counts; a unit without any word has 9.6
MANIFESTS = sorted(
    set((DEPLOY / "kubernetes").glob("*.yaml")) - {DEPLOY / "kubernetes/kustomization.yaml"}
)
RELEASES = (
    "1.29",
    "1.35",
)  # the oldest in which a pod knows its index without a feature gate, and a new one


def analyzed(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd (it need not run)")
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


@pytest.fixture(params=UNITS, ids=lambda path: path.stem)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As it is installed, an instance of the template among them; its program is one that is here."""
    source: Path = request.param
    copy = tmp_path / source.name.replace("@.", "@broker-a.")
    text = source.read_text()
    assert text.count(f"ExecStart={PROGRAM} ") == 1
    copy.write_text(text.replace(PROGRAM, shutil.which("true") or "/bin/true"))
    return copy


def test_systemd_takes_every_unit_without_a_word(unit: Path) -> None:
    done = analyzed("verify", str(unit))
    # what other units of this machine are like is not ours
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert done.returncode == 0, done.stderr


def test_a_unit_that_systemd_does_not_know_is_seen(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=stricter"))
    assert "protect system" in analyzed("verify", str(unit)).stderr


def test_every_unit_is_hardened(unit: Path) -> None:
    done = analyzed("security", "--offline=true", str(unit))
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout + done.stderr)
    assert found is not None, done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_calls_a_command_that_there_is(path: Path) -> None:
    text = path.read_text()
    (line,) = re.findall(rf"^ExecStart={PROGRAM} (.+)$", text, re.MULTILINE)
    command_parser().parse_args(line.replace("%i", "broker-a").split())
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.+)$", text, re.MULTILINE)
    wanted = {ExitCode.USAGE, ExitCode.BAD_CONFIG, ExitCode.STORE_UNUSABLE}
    assert {int(code) for code in codes.split()} == wanted


def documents() -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents() if each["kind"] == kind}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_schema_takes_every_manifest(path: Path, release: str) -> None:
    for each in yaml.safe_load_all(path.read_text()):
        assert kubernetes_validate.validate(each, release, strict=True) == release


def test_a_manifest_with_a_typo_is_seen() -> None:
    broken = of_kind("StatefulSet")["broker-a"]
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, RELEASES[-1], strict=True)


def test_kustomize_makes_all_of_it() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl: apt-get install kubernetes-client")
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    assert len(made) == len(documents())
    for each in made:
        kubernetes_validate.validate(each, RELEASES[-1], strict=True)


@pytest.mark.parametrize("name", ["namesrv", "broker-a", "broker-b"])
def test_every_set_has_its_service_its_budget_and_matching_labels(name: str) -> None:
    spec = of_kind("StatefulSet")[name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert spec["replicas"] == 2
    service = of_kind("Service")[spec["serviceName"]]["spec"]
    assert (service["selector"], service["clusterIP"]) == (labels, "None")
    budget = of_kind("PodDisruptionBudget")[name]["spec"]
    assert (budget["selector"]["matchLabels"], budget["maxUnavailable"]) == (labels, 1)
    (container,) = spec["template"]["spec"]["containers"]
    assert service["ports"] == [
        {"name": each["name"], "port": each["containerPort"]} for each in container["ports"]
    ]


@pytest.mark.parametrize("name", ["namesrv", "broker-a", "broker-b"])
def test_every_pod_is_locked_up_bounded_and_asked_for_its_role(name: str) -> None:
    pod = of_kind("StatefulSet")[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert pod["securityContext"]["runAsUser"] == 10001
    inside = container["securityContext"]
    assert (inside["readOnlyRootFilesystem"], inside["allowPrivilegeEscalation"]) == (True, False)
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    assert "cpu" not in container["resources"]["limits"]
    probes = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }
    assert {each["port"] for each in probes.values()} == {"http"}
    assert [probes[kind]["path"] for kind in probes] == ["/healthz", "/healthz", "/readyz"]
    assert ports["http"] == int(settings(container, name)["httpPort"])
    volumes = {each["name"] for each in pod["volumes"]} | {"data"}
    assert {each["name"] for each in container["volumeMounts"]} == volumes


def settings(container: dict[str, Any], name: str) -> dict[str, str]:
    """Those of its file, and what its command sets over them, in its first pod."""
    command = [
        each.replace("$(POD_INDEX)", "0").replace("$(POD_IP)", "10.1.2.3")
        for each in container["args"]
    ]
    known = {each["name"] for each in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= known
    file = Path(command[command.index("-c") + 1]).name
    given = [each.removeprefix("--set=") for each in command if each.startswith("--set=")]
    text = of_kind("ConfigMap")["tandemmq"]["data"][file]
    return {**parse_properties(text), **assignments(given)}


@pytest.mark.parametrize("name", ["broker-a", "broker-b"])
def test_a_broker_starts_with_what_its_pod_gives_it(name: str, tmp_path: Path) -> None:
    (container,) = of_kind("StatefulSet")[name]["spec"]["template"]["spec"]["containers"]
    command_parser().parse_args(container["args"])
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    found = settings(container, name) | {"httpTokenFile": str(token)}
    config = BrokerConfig.from_properties(found, insecure=True, as_rocketmq=True)
    assert (config.name, config.mode.value, config.advertised_ip) == (name, "S0", "10.1.2.3")
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (ports["broker"], ports["fast"]) == (config.listen_port, config.listen_port - 2)
    assert ports["replication"] == config.ha_listen_port
    handed = container["lifecycle"]["preStop"]["exec"]["command"]
    assert handed[0] == "tandem"
    assert command_parser().parse_args(handed[1:]).address == f"127.0.0.1:{config.listen_port}"


def test_name_servers_start_and_are_where_brokers_look_for_them(tmp_path: Path) -> None:
    (container,) = of_kind("StatefulSet")["namesrv"]["spec"]["template"]["spec"]["containers"]
    command_parser().parse_args(container["args"])
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    found = settings(container, "namesrv") | {"httpTokenFile": str(token)}
    config, controller = nameserver_settings(
        found, tmp_path / "namesrv.conf", insecure=True, as_rocketmq=True
    )
    assert config.listen_port == 9876
    peers = [each.partition("-")[2] for each in controller.peers.split(";")]
    (broker,) = of_kind("StatefulSet")["broker-a"]["spec"]["template"]["spec"]["containers"]
    asked = settings(broker, "broker-a")
    assert asked["controllerAddr"].split(";") == peers
    assert [each.partition(":")[0] for each in asked["namesrvAddr"].split(";")] == [
        each.partition(":")[0] for each in peers
    ]


def test_the_hook_for_kubernetes_deletes_the_pod_that_has_the_address(tmp_path: Path) -> None:
    """kubectl is one of ours here, which writes down what it is told: there is no cluster to ask."""
    told = tmp_path / "told"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >>{told}\ncase "$*" in *podIP=10.1.2.3*) echo pod/broker-a-1 ;; esac\n'
    )
    kubectl.chmod(0o755)
    script = [str(DEPLOY / "restart/kubernetes.sh")]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run([*script, "10.1.2.3"], env=env, check=False).returncode == 0
    lines = told.read_text().splitlines()
    assert lines[1] == "-n tandemmq delete pod/broker-a-1 --wait"
    nobody = subprocess.run(
        [*script, "10.9.9.9"], env=env, check=False, capture_output=True, text=True
    )
    assert (nobody.returncode, "no pod of namespace tandemmq" in nobody.stderr) == (1, True)
