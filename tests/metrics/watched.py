"""A real Prometheus, its rules made quick for a test, and the clusters that it watches."""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ServerProcess, wait_until
from tandemmq.chaos.servers import python_env

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus"
MISSING: Final = "no prometheus with promtool: apt-get install prometheus"
#: so long is what rules look back on in a test, where they look back on minutes
WINDOW: Final = "8s"
#: so long something has to lag; the rules' own times are in their unit tests (promtool)
QUICK: Final = {
    "tandem_slave_lag_seconds) > 10": "tandem_slave_lag_seconds) > 3",
    "tandem:consumer_lag_seconds > 30": "tandem:consumer_lag_seconds > 5",
}
READY_S: Final = 30.0


def has_prometheus() -> bool:
    return all(map(shutil.which, ("prometheus", "promtool")))


def quick(rules: str) -> str:
    """A file of rules with the same conditions, quicker: nothing has to last or to lag for long, minutes are WINDOW."""
    rules = re.sub(r"^( +for: )\w+$", r"\g<1>1s", rules, flags=re.M)
    rules = re.sub(r"\[(\d+m)\]", f"[{WINDOW}]", rules)
    for usual, short in QUICK.items():
        rules = rules.replace(usual, short)
    return re.sub(r"offset \d+m", f"offset {WINDOW}", rules)


class Prometheus(ServerProcess):
    """Debian's, with the project's configuration: asks every second, what is named by `watch`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"http://{LOOPBACK}:{PORTS.take((0,))}"
        (directory / "targets").mkdir(parents=True)
        for name in ("recording.yml", "alerts.yml"):
            (directory / name).write_text(quick((RULES / name).read_text()))
        text = (RULES / "prometheus.yml").read_text()
        for key in ("scrape_interval", "evaluation_interval", "refresh_interval"):
            text = re.sub(rf"{key}: \w+", f"{key}: 1s", text)
        text = text.replace("scrape_timeout: 4s", "scrape_timeout: 1s")
        (directory / "prometheus.yml").write_text(text)
        self.watch("tandem", [])
        command = [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        super().__init__("prometheus", command, directory / "prometheus.log")

    def start(self) -> Self:
        self.launch()
        self.wait_ready(lambda: self._answers("/-/ready"), READY_S)
        return self

    def watch(self, job: str, addresses: Iterable[str]) -> None:
        """Whom to ask from now on, host:port each."""
        fresh = self.directory / "targets" / f"{job}.new"
        fresh.write_text(json.dumps([{"targets": list(addresses)}]))
        fresh.replace(self.directory / "targets" / f"{job}.yml")

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def api(self, path: str, **fields: str) -> Any:
        """`data` of an answer. Raises AssertionError with what Prometheus says against the question."""
        body = urllib.parse.urlencode(fields).encode() if fields else None
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data=body)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as problem:
            raise AssertionError(f"{path} {fields}: {problem.read().decode()}") from problem

    def ask(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of each series, now."""
        data = self.api("query", query=expr)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def firing(self, alert: str, labels: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Alerts of a name that fire, with these labels among theirs."""
        wanted = {"alertname": alert, **(labels or {})}.items()
        return [
            each for each in self.api("alerts")["alerts"]
            if each["state"] == "firing" and wanted <= each["labels"].items()
        ]  # fmt: skip

    def fires(self, alert: str, within_s: float = 120, **labels: str) -> dict[str, Any]:
        """Wait until it does."""
        wait_until(
            lambda: self.firing(alert, labels), within_s, f"{alert} {labels} fires", every_s=0.3
        )
        found: dict[str, Any] = self.firing(alert, labels)[0]
        return found

    def resolved(self, alert: str, within_s: float = 120, **labels: str) -> None:
        """Wait until it does not fire any more."""
        wait_until(
            lambda: not self.firing(alert, labels),
            within_s,
            f"{alert} {labels} resolves",
            every_s=0.3,
        )


class Traffic(ServerProcess):
    """traffic.py: a producer or a consumer."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        program = str(Path(__file__).with_name("traffic.py"))
        command = [sys.executable, program, *arguments]
        super().__init__(name, command, directory / f"{name}.log", python_env())


class Files(ServerProcess):
    """What node exporter's textfile collector would show: a directory over HTTP, /metrics one file in it."""

    def __init__(self, directory: Path) -> None:
        self.port = PORTS.take((0,))
        self.address = f"{LOOPBACK}:{self.port}"
        directory.mkdir(parents=True)
        self.file = directory / "metrics"
        self.file.write_text("")
        command = [
            sys.executable, "-m", "http.server", str(self.port), "--bind", LOOPBACK,
            "--directory", str(directory),
        ]  # fmt: skip
        super().__init__("files", command, directory.parent / "files.log")
