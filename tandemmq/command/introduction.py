"""The first lines of a server's log: what it is, what it promises, where its data is."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from typing import Any

from tandemmq import __version__
from tandemmq.doctor.atstart import advise_at_start
from tandemmq.doctor.findings import size_text
from tandemmq.doctor.hostfacts import disk_facts
from tandemmq.storage import COMPILED

log = logging.getLogger(__name__)


def introduce_broker(config: Any) -> None:
    """config: a BrokerConfig."""
    _process("broker")
    role = "by its controller" if config.controller_mode else f"fixed, {config.role.value}"
    log.info(
        "broker is name=%s cluster=%s role=%s address=%s listen=%s namesrv=%s",
        config.name, config.cluster, role, config.address, f"{config.bind_host}:{config.listen_port}",
        config.namesrv or "none",
    )  # fmt: skip
    log.info(
        "promise mode=%s acknowledged=%s hint=README.md, What is promised",
        config.mode.value, config.mode.meaning,
    )  # fmt: skip
    store = config.storage
    log.info("data store=%s commitlog=%s%s", store.root, store.commitlog_path, _disk(store.root))
    advise_at_start(dict.fromkeys((Path(store.root), store.commitlog_path)), log)


def introduce_nameserver(config: Any) -> None:
    """config: a NameServerConfig."""
    _process("name server")
    log.info(
        "name server is listen=%s controller=%s table=%s promise=routes are in memory, brokers bring them again",
        f"{config.bind_address}:{config.listen_port}",
        "in this process" if config.controller_embedded else "none", config.kv_config_path,
    )  # fmt: skip


def introduce_controller(config: Any) -> None:
    """config: a ControllerConfig."""
    _process("controller")
    where = config.etcd_endpoints if config.store_kind.value == "etcd" else config.store_path
    log.info(
        "controller is id=%s peers=%s records=%s data=%s",
        config.self_id, config.peers, config.store_kind.value, where,
    )  # fmt: skip


def _process(role: str) -> None:
    log.info(
        "starting %s version=%s python=%s compiled=%s pid=%d user=%d",
        role, __version__, platform.python_version(), "yes" if COMPILED else "no, slower",
        os.getpid(), os.geteuid(),
    )  # fmt: skip


def _disk(root: str) -> str:
    try:
        disk = disk_facts(Path(root))
    except OSError:
        return ""  # whoever opens the store says what is wrong
    return f" disk={disk.file_system or 'unknown'} free={size_text(disk.free_bytes)} used={disk.used:.0%}"
