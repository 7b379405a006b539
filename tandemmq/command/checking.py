"""`tandem check-config`: would a server start with this file, and what would it warn of?"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from pathlib import Path

from tandemmq.cluster.config import ConfigError, read_properties
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.serving import nameserver_settings
from tandemmq.storage import StorageError


class _Warnings(logging.Handler):
    """Collects what the settings reader warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run_check_config(arguments: argparse.Namespace) -> ExitCode:
    """Print warnings and the verdict; BAD_CONFIG when the server would refuse to start, STORE_UNUSABLE when
    it would for what is in its store, if that is on this machine."""
    file: Path = arguments.file
    role = arguments.role or role_of(file)
    warnings = _Warnings()
    logger = logging.getLogger("tandemmq.cluster")
    logger.addHandler(warnings)
    try:
        settings = check(file, role, namesrv=arguments.namesrv, insecure=arguments.insecure)
    except (ConfigError, StorageError, OSError) as problem:
        code = ExitCode.BAD_CONFIG if isinstance(problem, ConfigError) else ExitCode.STORE_UNUSABLE
        if arguments.json:
            print(json.dumps({"ok": False, "role": role, "problem": str(problem)}))
            return code
        raise CommandFailed(str(problem), code) from problem
    finally:
        logger.removeHandler(warnings)
    if arguments.json:
        found = {"ok": True, "role": role, "warnings": warnings.lines, "settings": settings}
        print(json.dumps(found))
        return ExitCode.OK
    for line in warnings.lines:
        print(f"warning: {line}", file=sys.stderr)
    print(f"{file}: a {role} starts with it, {len(warnings.lines)} warnings")
    return ExitCode.OK


def role_of(file: Path) -> str:
    """What a settings file is for, by its name."""
    roles = {"namesrv": "nameserver", "nameserver": "nameserver", "controller": "controller"}
    for part, role in roles.items():
        if part in file.name:
            return role
    return "broker"


def check(
    file: Path, role: str, *, namesrv: str | None = None, insecure: bool = False
) -> dict[str, str]:
    """The settings in force with this file and these options, by RocketMQ's keys.

    Raises ConfigError, StorageError, OSError.
    """
    properties = read_properties(file)
    if role == "nameserver":
        config = importlib.import_module("tandemmq.cluster.nameserver.config")
        settings, beside = nameserver_settings(
            properties, file.absolute(), insecure=insecure, as_rocketmq=True
        )
        if beside is not None:
            controller = importlib.import_module("tandemmq.cluster.controller.config")
            controller.check_startable(beside)
            config.check_startable(settings)
            return {**beside.to_properties(), **settings.to_properties()}
    elif role == "controller":
        config = importlib.import_module("tandemmq.cluster.controller.config")
        settings = config.ControllerConfig.from_properties(
            properties, path=file.absolute(), insecure=insecure
        )
    else:
        config = importlib.import_module("tandemmq.cluster.broker")
        if namesrv is not None:
            properties["namesrvAddr"] = namesrv
        settings = config.BrokerConfig.from_properties(
            properties, insecure=insecure, as_rocketmq=True, file=str(file.absolute())
        )
        config.check_startable(settings)
        config.check_store(settings)
    if role != "broker":
        config.check_startable(settings)
    found: dict[str, str] = settings.to_properties()
    return found
