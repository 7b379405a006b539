"""`tandem nameserver`, `tandem controller` and `tandem broker`: read the settings, serve until SIGTERM."""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tandemmq.cluster.config import ConfigError, Properties, read_properties
from tandemmq.cluster.logs import setup_logging
from tandemmq.cluster.process import collect_rarely, run
from tandemmq.cluster.remoting.tls import TlsUnusable
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.introduction import (
    introduce_broker,
    introduce_controller,
    introduce_nameserver,
)
from tandemmq.storage import FlushFailed, StorageError

log = logging.getLogger(__name__)

_PORT_ERRORS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}
_OF_ANOTHER = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}


def run_nameserver(arguments: argparse.Namespace) -> ExitCode:
    """Serve routes until SIGTERM or SIGINT, and with enableControllerInNamesrv the controller's requests."""
    nameserver = importlib.import_module("tandemmq.cluster.nameserver")
    _logging(arguments)
    with clear_errors():
        properties = _properties(arguments)
        if arguments.port is not None:
            properties["listenPort"] = str(arguments.port)
        config, beside = nameserver_settings(
            properties,
            _absolute(arguments.config),
            insecure=arguments.insecure,
            as_rocketmq=arguments.config is not None,
        )
        embedded = None
        if beside is not None:
            serving = importlib.import_module("tandemmq.cluster.controller").serving_controller
            embedded = partial(serving, beside, ports=2)
        introduce_nameserver(config)
        rooms = nameserver_rooms(config) if config.http.port else ()
        run(lambda: nameserver.serve_nameserver(config, _say, embedded, rooms))
    return ExitCode.OK


def nameserver_settings(
    properties: Properties, path: Path | None, *, insecure: bool = False, as_rocketmq: bool = False
) -> tuple[Any, Any | None]:
    """Settings of a name server, and of the controller beside it if there is to be one. Raises ConfigError.

    as_rocketmq  they are from a file: what it does not say of addresses is as at RocketMQ
    """
    nameserver = importlib.import_module("tandemmq.cluster.nameserver")
    if properties.get("enableControllerInNamesrv", "").strip().lower() != "true":
        config = nameserver.NameServerConfig.from_properties(
            properties, path=path, insecure=insecure, as_rocketmq=as_rocketmq
        )
        return config, None
    controller = importlib.import_module("tandemmq.cluster.controller")
    config = nameserver.NameServerConfig.from_properties(
        properties,
        path=path,
        insecure=insecure,
        as_rocketmq=as_rocketmq,
        also_known=controller.KEYS,
    )
    told = frozenset(properties)  # of what neither knows the name server has warned
    beside = controller.ControllerConfig.from_properties(
        properties, path=path, insecure=insecure, also_known=nameserver.KEYS | told
    )
    return config, beside


def run_controller(arguments: argparse.Namespace) -> ExitCode:
    """Decide who is master until SIGTERM or SIGINT."""
    controller = importlib.import_module("tandemmq.cluster.controller")
    _logging(arguments)
    with clear_errors():
        config = controller.ControllerConfig.from_properties(
            _properties(arguments), path=_absolute(arguments.config), insecure=arguments.insecure
        )
        introduce_controller(config)
        rooms = controller_rooms(config) if config.http.port else ()
        run(lambda: controller.serve_controller(config, _say, rooms))
    return ExitCode.OK


def run_broker(arguments: argparse.Namespace) -> ExitCode:
    """Serve messages until SIGTERM or SIGINT."""
    collect_rarely()  # from the first import on
    broker = importlib.import_module("tandemmq.cluster.broker")
    _logging(arguments)
    with clear_errors():
        properties = _properties(arguments)
        if arguments.namesrv is not None:
            properties["namesrvAddr"] = arguments.namesrv
        file = _absolute(arguments.config)
        config = broker.BrokerConfig.from_properties(
            properties,
            insecure=arguments.insecure,
            as_rocketmq=file is not None,
            file=str(file) if file is not None else "",
        )
        introduce_broker(config)
        rooms = broker_rooms(config) if config.http.port else ()
        run(lambda: broker.serve_broker(config, _say, rooms))
    return ExitCode.OK


# What the outer packages serve on the HTTP ports: loaded only where there is one.


def nameserver_rooms(config: Any) -> list[Any]:
    """Rooms of a name server's HTTP port, for its NameServerConfig. Raises ConfigError, TlsUnusable."""
    hosts = importlib.import_module("tandemmq.plane.hosts")
    own = hosts.own_address(config.bind_address, config.listen_port)
    console = importlib.import_module("tandemmq.console.guest")
    return [hosts.room_of(config, own), console.room_of(config)]


def controller_rooms(config: Any) -> list[Any]:
    """Rooms of a controller's HTTP port, for its ControllerConfig."""
    return [importlib.import_module("tandemmq.plane.hosts").room_of(config)]


def broker_rooms(config: Any) -> list[Any]:
    """Rooms of a broker's HTTP port, for its BrokerConfig."""
    return [importlib.import_module("tandemmq.plane.hosts").room_of(config, config.namesrv)]


def _logging(arguments: argparse.Namespace) -> None:
    """As the options say. Raises CommandFailed for a log file that cannot be written."""
    if arguments.log_file_bytes < 1 or arguments.log_files < 1:
        raise CommandFailed("--log-file-bytes and --log-files must be at least 1", ExitCode.USAGE)
    try:
        setup_logging(
            arguments.log_level,
            json=arguments.log_json or arguments.log_format == "json",
            file=arguments.log_file,
            file_bytes=arguments.log_file_bytes,
            files=arguments.log_files,
        )
    except OSError as problem:
        raise CommandFailed(f"--log-file: {problem}", ExitCode.USAGE) from problem


def _say(line: str) -> None:
    print(line, flush=True)


def _absolute(path: Path | None) -> Path | None:
    return path.absolute() if path is not None else None


def _properties(arguments: argparse.Namespace) -> Properties:
    """The file's settings, overridden by --set. Says which file is used."""
    properties: Properties = {}
    if arguments.config is not None:
        properties = read_properties(arguments.config)
        log.info("settings from file=%s", arguments.config.absolute())
    properties.update(assignments(arguments.set))
    if arguments.make_token and properties.get("httpTokenFile"):
        make_token(Path(properties["httpTokenFile"]))
    return properties


def make_token(path: Path) -> None:
    """A file with a new token, for its owner alone, where there is none. Raises OSError."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(24) + "\n")
    new.replace(path)  # whole, or not there
    log.info("http token made file=%s", path)


def assignments(texts: Sequence[str]) -> Properties:
    """KEY=VALUE arguments as settings. Raises CommandFailed for one without a key."""
    found: Properties = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise CommandFailed(f"--set takes KEY=VALUE, got {text!r}", ExitCode.USAGE)
        found[key.strip()] = value
    return found


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn what an operator can mend into one line and an exit code; bugs keep their traceback."""
    try:
        yield
    except ConfigError as problem:
        cause = problem.__cause__  # a port that a setting names may be taken
        taken = isinstance(cause, OSError) and cause.errno in _PORT_ERRORS
        code = ExitCode.PORT_TAKEN if taken else ExitCode.BAD_CONFIG
        raise CommandFailed(str(problem), code) from problem
    except TlsUnusable as problem:
        raise CommandFailed(str(problem), ExitCode.BAD_CONFIG) from problem
    except FlushFailed as problem:
        raise CommandFailed(
            f"the disk refused a flush: {problem}", ExitCode.DISK_FAILED
        ) from problem
    except StorageError as problem:
        raise CommandFailed(str(problem), ExitCode.STORE_UNUSABLE) from problem
    except OSError as problem:
        if problem.errno in _FULL_ERRORS:
            text = f"{problem}: make room where storePathRootDir and storePathCommitLog are"
            raise CommandFailed(text, ExitCode.STORE_UNUSABLE) from problem
        if problem.errno in _OF_ANOTHER and problem.filename is not None:  # a port has no file name
            text = (
                f"{problem}: it must be writable for the user that runs this, here {os.geteuid()}"
            )
            raise CommandFailed(text, ExitCode.STORE_UNUSABLE) from problem
        code = ExitCode.PORT_TAKEN if problem.errno in _PORT_ERRORS else ExitCode.FAILED
        raise CommandFailed(str(problem), code) from problem
