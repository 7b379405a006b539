"""What stops a start although every setting can be read: what cannot be served as it was asked for."""

from __future__ import annotations

import logging

from tandemmq.cluster.addresses import ANY, LOOPBACK, reached_at
from tandemmq.cluster.broker.settings.access import check_access
from tandemmq.cluster.broker.settings.config import (
    BrokerConfig,
    MetricsExporter,
    Role,
)
from tandemmq.cluster.broker.settings.proofs import ha_secret
from tandemmq.cluster.broker.settings.unserved import refuse_unserved
from tandemmq.cluster.broker.standing.haport import opened_to_all
from tandemmq.cluster.config import ConfigError, is_loopback

log = logging.getLogger(__name__)


def check_startable(config: BrokerConfig) -> None:
    """Refuse what cannot be served as asked; warn of what is served differently.

    Raises ConfigError.
    """
    for key, value in config.kept.items():
        refuse_unserved(key, value)
    replicated = config.controller_mode or config.role is Role.SLAVE
    check_access(config.access, config.rights, replicated=replicated)
    if not config.rights.migrated and not config.users_path.exists():
        config.access.check()
    config.tls.check()
    if config.name_servers or replicated:
        for warning in config.tls.warnings():
            log.warning("insecure: %s", warning)
    if config.controller_mode:
        rules = config.rules
        if config.waits_for_slaves and not rules.all_in_set:
            log.warning(
                "allAckInSyncStateSet=false: what only inSyncReplicas=%d replicas hold can be lost "
                "at a failover although it was acknowledged", rules.copies_wanted,
            )  # fmt: skip
    elif config.role is Role.SLAVE and not (config.name_servers or config.ha_master_address):
        raise ConfigError(
            "brokerRole",
            "SLAVE",
            "a slave must know where its master is: set namesrvAddr or haMasterAddress, or start with -n",
        )
    if "," in config.storage.commitlog_dir:
        raise ConfigError(
            "storePathCommitLog", config.storage.commitlog_dir, "must be one directory"
        )
    exported = config.metrics_exporter is MetricsExporter.PROM
    if (
        exported
        and config.metrics_host
        and not is_loopback(config.metrics_host)
        and not config.insecure
    ):
        raise ConfigError(
            "metricsPromExporterHost",
            config.metrics_host,
            "must be loopback: the page has no access control; or start with --insecure",
        )
    config.http.check(encrypted=config.tls.enforced, insecure=config.insecure)
    if (
        ha_secret(config)
        and (config.ha_secret or config.ha_secret_file)
        and not (config.controller_mode and config.ha_extension)
    ):
        raise ConfigError(
            "haSecret" if config.ha_secret else "haSecretFile",
            config.ha_secret_file,
            "needs enableControllerMode=true and haExtensionEnable=true: RocketMQ's own streams "
            "know no secret",
        )
    if config.is_exposed and (config.as_rocketmq or config.guarded) and not config.insecure:
        log.warning("insecure: %s", exposure(config))
    elif config.is_exposed and not config.insecure:
        raise ConfigError(
            "bindAddress" if config.bind_address else "brokerIP1",
            config.bind_host,
            "anybody who reaches this address may read and write everything: set "
            "tls.server.mode=enforcing, or start with --insecure if the network keeps them away",
        )


def exposure(config: BrokerConfig) -> str:
    """Who gets in without credentials, who does not, and how to keep the others out too."""
    host = config.bind_host
    where = host
    if host in (ANY, "::"):
        where = f"any address of this machine ({', '.join(reached_at()) or LOOPBACK})"
    if config.guarded:
        return (
            f"who hears what is sent to {where} at port {config.listen_port} or {config.listen_port - 2} reads it, and "
            "may send a signed request again: signatures know no time. Set tls.server.mode=enforcing, or keep "
            "strangers from the network"
        )
    text = (
        f"whoever reaches {where} at port {config.listen_port} or {config.listen_port - 2} may read and write "
        "everything without credentials"
    )
    if not config.controller_mode and config.role is not Role.SLAVE:
        text += f"; at port {config.ha_listen_port} "
        named = " ".join(filter(None, (config.ha_allowed, config.ha_plain)))
        if opened_to_all(config):
            text += "everybody may read the whole log as a slave, until haAllowedAddresses names the slaves"
        else:
            text += "slaves get in from "
            text += named or "this machine only, until haAllowedAddresses names others"
    return (
        f"{text}. To keep strangers out set bindAddress=127.0.0.1, set tls.server.mode=enforcing, or let the "
        "network do it"
    )
