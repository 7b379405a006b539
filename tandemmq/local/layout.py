"""What a local cluster consists of: its processes, their ports and settings, and where they keep things.

In the directory the user names: cluster.json (who, and on which ports), *.conf (ours at first, the
user's to change), run/*.pid, logs/*.log, store/NODE, namesrv/, http.token for those who act in the
console or may read the brokers' raw logs (`tandem audit run --namesrv`); with replicas controller/.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq.command.exits import CommandFailed, ExitCode

LOOPBACK: Final = "127.0.0.1"
ANYWHERE: Final = "0.0.0.0"
CLUSTER: Final = "TandemCluster"
NAME_SERVER: Final = "namesrv"
GROUPS: Final = ("broker-a", "broker-b")
MODES: Final = ("sync", "async")
REPLICAS: Final = 2
NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10_911
BROKER_STEP: Final = 10  # between the ports of two brokers
HTTP_STEP: Final = 2  # above a broker's port: metrics, health, the API, and raw files for audits
CONTROLLER_STEP: Final = 2  # above the name server's port, as in RocketMQ's examples
CONSOLE_STEP: Final = 3  # above the name server's port: its pages for a browser
EPHEMERAL_PORT: Final = 32_768  # from here on Linux hands ports to outgoing connections
SHIFT: Final = 100  # to the next ports, where the usual ones are taken


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """One process of the local cluster. group: the broker name it serves, "" for the name server.

    host  what a broker tells others that it is reached by
    """

    name: str
    port: int
    group: str = ""
    host: str = LOOPBACK

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_broker(self) -> bool:
        return self.name != NAME_SERVER


@dataclass(frozen=True, slots=True)
class Shape:
    """What a new cluster is like beside its mode and ports.

    groups    how many broker names, 1 or 2
    host      what clients reach it by
    bind      the address where everybody listens
    settings  of every broker, over those that we write
    console   whether the name server has pages for a browser; without them it starts sooner
    """

    groups: int = len(GROUPS)
    host: str = LOOPBACK
    bind: str = LOOPBACK
    settings: Mapping[str, str] = field(default_factory=dict)
    console: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a local cluster keeps things, and who belongs to it, the name server first.

    mode             "sync" or "async": two replicas per group under a controller; "": masters alone
    controller_port  0 without a mode
    console_port     of the name server's pages; 0 for clusters of releases that had none
    shape            as it was made; of one that was made before host and bind are known
    """

    directory: Path
    members: tuple[LocalProcess, ...]
    mode: str = ""
    controller_port: int = 0
    console_port: int = 0
    shape: Shape = field(default_factory=Shape, compare=False)

    @property
    def name_server(self) -> LocalProcess:
        return self.members[0]

    @property
    def brokers(self) -> tuple[LocalProcess, ...]:
        return self.members[1:]

    @property
    def controller(self) -> str:
        """Where the controller listens, in the name server's process."""
        return f"{LOOPBACK}:{self.controller_port}"

    @property
    def console(self) -> str:
        """Address of the console, "" where there is none."""
        if not self.console_port:
            return ""
        return f"http://{LOOPBACK}:{self.console_port}/console/"

    @property
    def groups(self) -> dict[str, list[LocalProcess]]:
        """Broker name -> its replicas."""
        found: dict[str, list[LocalProcess]] = {}
        for member in self.brokers:
            found.setdefault(member.group, []).append(member)
        return found

    def member(self, name: str) -> LocalProcess:
        """Raises CommandFailed for a name that nobody has."""
        for each in self.members:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.members)
        raise CommandFailed(f"no process {name!r}; there are {names}")

    def ports(self, member: LocalProcess) -> list[int]:
        """Every port that this process listens on."""
        if not member.is_broker:
            return [each for each in (member.port, self.controller_port, self.console_port) if each]
        own = [member.port, member.port - 2, member.port + 1]  # the fast one, the one for slaves
        return list(filter(None, [*own, self.http_port(member)]))

    def http_port(self, member: LocalProcess) -> int:
        """Where it serves HTTP; 0: nowhere, as in clusters of releases that had none."""
        if not member.is_broker:
            return self.console_port
        return member.port + HTTP_STEP if self.mode or self.console_port else 0

    def http(self, member: LocalProcess) -> str:
        """The address of that, "" where there is none."""
        port = self.http_port(member)
        return f"http://{LOOPBACK}:{port}" if port else ""

    def pid_file(self, member: LocalProcess) -> Path:
        return self.directory / "run" / f"{member.name}.pid"

    def log_file(self, member: LocalProcess) -> Path:
        return self.directory / "logs" / f"{member.name}.log"

    def config_file(self, member: LocalProcess) -> Path:
        return self.directory / f"{member.name}.conf"

    @property
    def token_file(self) -> Path:
        """What readers of the brokers' HTTP ports must show, and who acts in the console."""
        return self.directory / "http.token"

    def store(self, member: LocalProcess) -> Path:
        return self.directory / "store" / member.name


def open_layout(directory: Path) -> Layout:
    """The cluster of a directory. Raises CommandFailed when there is none or its file is broken."""
    path = directory / "cluster.json"
    try:
        found = json.loads(path.read_text())
        host = str(found.get("host") or "")
        members = tuple(_member(entry, host or LOOPBACK) for entry in found["members"])
        mode, port = str(found.get("mode") or ""), int(found.get("controller_port") or 0)
        console = int(found.get("console_port") or 0)
        if not members or members[0].is_broker or mode not in ("", *MODES):
            raise ValueError(f"mode {mode!r}, members {members}")
    except FileNotFoundError:
        raise CommandFailed(
            f"no local cluster in {directory}: start one with `tandem local up --dir {directory}`",
            ExitCode.NOT_RUNNING,
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CommandFailed(f"{path} cannot be read: {problem!r}", ExitCode.BAD_CONFIG) from problem
    shape = Shape(host=host, bind=ANYWHERE) if host else Shape()
    return Layout(directory, members, mode, port, console, shape)


def _member(entry: dict[str, Any], host: str) -> LocalProcess:
    name = str(entry["name"])
    if name == NAME_SERVER:
        return LocalProcess(name, int(entry["port"]))
    return LocalProcess(name, int(entry["port"]), str(entry.get("group") or name), host)


def open_or_create(
    directory: Path, mode: str | None, namesrv_port: int | None, broker_port: int | None,
    shape: Shape | None = None,
) -> Layout:  # fmt: skip
    """The cluster of a directory, or a new one: settings and ports are written once, then kept.

    mode None: as it is, a new one without replicas. A port of None: as it is, a new one the usual
    if all that belong to it are free, else the next that are.
    Raises CommandFailed when it is another cluster than the one that is wanted, or a port cannot be.
    """
    if (directory / "cluster.json").exists():
        layout = open_layout(directory)
        _check_same(layout, mode, namesrv_port, broker_port)
        return layout
    layout = _planned(directory, mode or "", namesrv_port, broker_port, shape or Shape())
    for path in (directory / "run", directory / "logs", directory / "namesrv"):
        path.mkdir(parents=True, exist_ok=True)
    if not layout.token_file.exists():
        layout.token_file.touch(mode=0o600)
        layout.token_file.write_text(secrets.token_urlsafe(24) + "\n")
    for member in layout.members:
        if not layout.config_file(member).exists():
            layout.config_file(member).write_text(settings_text(layout, member))
    entries = [
        {"name": each.name, "port": each.port, **({"group": each.group} if each.group else {})}
        for each in layout.members
    ]
    tree: dict[str, object] = {"members": entries, "console_port": layout.console_port}
    if layout.mode:
        tree |= {"mode": layout.mode, "controller_port": layout.controller_port}
    if layout.shape.bind != LOOPBACK:
        tree["host"] = layout.shape.host
    (directory / "cluster.json").write_text(json.dumps(tree, indent=1) + "\n")
    return layout


def _check_same(
    layout: Layout, mode: str | None, namesrv_port: int | None, broker_port: int | None
) -> None:
    if mode is not None and mode != layout.mode:
        what = f"made with --mode {layout.mode}" if layout.mode else "without replicas"
        raise CommandFailed(
            f"{layout.directory} holds a cluster {what}; leave --mode out, or choose another --dir"
        )
    found = [member.port for member in layout.members]
    if namesrv_port not in (None, found[0]) or broker_port not in (None, found[1]):
        raise CommandFailed(
            f"{layout.directory} holds a cluster with ports {found}; "
            "leave the port options out, or choose another --dir"
        )


def _planned(
    directory: Path, mode: str, namesrv_port: int | None, broker_port: int | None, shape: Shape
) -> Layout:
    """A layout on ports that are named, or free."""
    shifts = range(0, EPHEMERAL_PORT - BROKER_PORT, SHIFT)
    name_servers = shifts if namesrv_port is None else (0,)
    brokers = shifts if broker_port is None else (0,)
    first: CommandFailed | None = None
    for shift in max(name_servers, brokers, key=len):
        layout = _layout(
            directory,
            mode,
            NAME_SERVER_PORT + shift if namesrv_port is None else namesrv_port,
            BROKER_PORT + shift if broker_port is None else broker_port,
            shape,
        )
        _check_range(layout)
        taken = [port for port in _free_to_choose(layout, namesrv_port, broker_port)
                 if port_problem(port) is not None]  # fmt: skip
        if not taken:
            return layout
        first = first or CommandFailed(f"port {taken[0]} is taken", ExitCode.PORT_TAKEN)
    raise first or CommandFailed("no ports", ExitCode.PORT_TAKEN)


def _free_to_choose(
    layout: Layout, namesrv_port: int | None, broker_port: int | None
) -> Iterator[int]:
    """The ports that the user did not name: those must be free, the others are the user's word."""
    for member in layout.members:
        if (broker_port if member.is_broker else namesrv_port) is None:
            yield from layout.ports(member)


def _layout(
    directory: Path, mode: str, namesrv_port: int, broker_port: int, shape: Shape
) -> Layout:
    groups = GROUPS[: shape.groups]
    names = [(group, group) for group in groups]
    if mode:
        names = [(f"{group}-{n}", group) for group in groups for n in range(REPLICAS)]
    brokers = tuple(
        LocalProcess(name, broker_port + BROKER_STEP * place, group, shape.host)
        for place, (name, group) in enumerate(names)
    )
    controller = namesrv_port + CONTROLLER_STEP if mode else 0
    members = (LocalProcess(NAME_SERVER, namesrv_port), *brokers)
    console = namesrv_port + CONSOLE_STEP if shape.console else 0
    return Layout(directory, members, mode, controller, console, shape)


def _check_range(layout: Layout) -> None:
    for port in (port for member in layout.members for port in layout.ports(member)):
        if not 1024 <= port < EPHEMERAL_PORT:
            raise CommandFailed(
                f"port {port} is not in 1024..{EPHEMERAL_PORT - 1}: above that range outgoing "
                "connections may take it first",
                ExitCode.USAGE,
            )


def port_problem(port: int) -> str | None:
    """Why nobody can listen there now; None when one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as problem:
            return problem.strerror
    return None


def settings_text(layout: Layout, member: LocalProcess) -> str:
    """The first settings file of a process: RocketMQ's keys only."""
    lines = _broker_settings(layout, member) if member.is_broker else _name_server_settings(layout)
    head = f"# {member.name} of the local cluster, written by `tandem local up`; yours to change\n"
    return head + "".join(f"{key}={value}\n" for key, value in lines.items())


def _name_server_settings(layout: Layout) -> dict[str, object]:
    lines: dict[str, object] = {
        "bindAddress": layout.shape.bind,
        "listenPort": layout.name_server.port,
        "kvConfigPath": layout.directory / "namesrv" / "kvConfig.json",
        "httpPort": layout.console_port,
        "httpTokenFile": layout.token_file,
    }
    if layout.mode:
        lines |= {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "tandem",
            "controllerDLegerPeers": f"n0-{layout.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": layout.directory / "controller",
        }
    return lines


def _broker_settings(layout: Layout, member: LocalProcess) -> dict[str, object]:
    lines: dict[str, object] = {
        "brokerClusterName": CLUSTER,
        "brokerName": member.group,
        "brokerId": -1 if layout.mode else 0,
        "brokerRole": "SYNC_MASTER" if layout.mode == "sync" else "ASYNC_MASTER",
        "brokerIP1": layout.shape.host,
        "listenPort": member.port,
        "namesrvAddr": layout.name_server.address,
        "storePathRootDir": layout.store(member),
        "mappedFileSizeCommitLog": 64 << 20,
        "flushDiskType": "ASYNC_FLUSH",
    }
    if layout.mode:
        lines |= {
            "registerNameServerPeriod": 10_000,  # how soon a name server that was killed knows us again
            "haListenPort": member.port + 1,
            "enableControllerMode": "true",
            "controllerAddr": layout.controller,
        }
    if layout.http_port(member):
        lines |= {"httpPort": layout.http_port(member), "httpTokenFile": layout.token_file}
    if layout.shape.bind != LOOPBACK:
        lines |= {"bindAddress": layout.shape.bind, "brokerIP2": LOOPBACK}
    return lines | dict(layout.shape.settings)
