"""Settings of a name server: RocketMQ's keys, and which of them may change while it runs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

from tandemmq.cluster.access.startup import SECRETS, AccessConfig
from tandemmq.cluster.addresses import ANY, LOOPBACK, reached_at
from tandemmq.cluster.config import (
    ConfigError,
    Properties,
    is_loopback,
    keys_of,
    parse_settings,
    settings_in_force,
)
from tandemmq.cluster.httpsettings import SECRETS as HTTP_SECRETS
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.tlssettings import KEYS as TLS_KEYS
from tandemmq.cluster.tlssettings import SECRETS as TLS_SECRETS
from tandemmq.cluster.tlssettings import TlsConfig, read_tls
from tandemmq.storage.settings import ours, setting

log = logging.getLogger(__name__)

CHANGEABLE: Final = frozenset(
    {
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "enableAllTopicList",
        "enableTopicList",
        "deleteTopicWithBrokerRegistration",
        "needWaitForService",
        "waitSecondsForService",
    }
)
"""What UPDATE_NAMESRV_CONFIG may set. Everything else keeps its value while the process runs."""

WITHOUT_EFFECT: Final = frozenset(
    {
        # sizes of thread pools and buffers that this server does not have
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "serverNettyWorkerGroupEnable",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "rocketmqHome",
        "enableShutdownGracefully",
        "shutdownWaitTimeSeconds",
        "productEnvName",
    }
)

_NO_ACTING_MASTERS: Final = (
    "must be false: no slave acts as master here. Without the line a group whose master is away is read from its "
    "slaves and takes no messages; a controller makes one of them the master (docs/howto/controller.md)"
)
NOT_SUPPORTED: Final = {
    "clusterTest": "must be false: a topic that is not known here is looked up nowhere else",
    "supportActingMaster": _NO_ACTING_MASTERS,
    "notifyMinBrokerIdChanged": _NO_ACTING_MASTERS,
}
"""Switches whose function is missing here, and what to do instead: they may be off, not on."""

Port = Annotated[int, Meta(ge=0, le=65535)]


class NameServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a name server needs to know. Defaults are RocketMQ's, but for where it listens.

    bind_address        loopback unless configured
    config_store_path   where UPDATE_NAMESRV_CONFIG writes; "" means that it is not kept
    controller_embedded a controller runs in this process, with settings from the same file and a port of its own
    console_reports_path  a directory whose reports of audits and campaigns the console links; "" is none
    access              whether requests that change anything must be signed, and by whom
    tls                 what the ports encrypt with
    http                the HTTP port, for the controller in the same process, too
    insecure            --insecure: serve other machines without TLS
    as_rocketmq         a settings file was given: without bindAddress every address is listened on, as at RocketMQ
    """

    bind_address: str = setting("bindAddress", "127.0.0.1")
    listen_port: Port = setting("listenPort", 9876)
    kv_config_path: str = setting("kvConfigPath", "")
    config_store_path: str = setting("configStorePath", "")
    order_message_enabled: bool = setting("orderMessageEnable", False)
    order_topics_returned: bool = setting("returnOrderTopicConfigToBroker", True)
    all_topic_list_enabled: bool = setting("enableAllTopicList", True)
    topic_list_enabled: bool = setting("enableTopicList", True)
    topics_follow_registration: bool = setting("deleteTopicWithBrokerRegistration", False)
    wait_for_service: bool = setting("needWaitForService", False)
    wait_for_service_s: Annotated[int, Meta(ge=0, le=3600)] = setting("waitSecondsForService", 45)
    scan_interval_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = setting(
        "scanNotActiveBrokerInterval", 5_000
    )
    idle_s_max: Annotated[int, Meta(ge=1)] = setting("serverChannelMaxIdleTimeSeconds", 120)
    config_blacklist: str = setting(
        "configBlackList", "configBlackList;configStorePath;kvConfigPath"
    )
    controller_embedded: bool = setting("enableControllerInNamesrv", False)
    console_reports_path: str = ours("consoleReportsPath", "")
    access: AccessConfig = AccessConfig()
    tls: TlsConfig = TlsConfig()
    http: HttpConfig = HttpConfig()
    insecure: bool = False
    as_rocketmq: bool = False

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, str],
        *,
        path: Path | None = None,
        insecure: bool = False,
        as_rocketmq: bool = False,
        home: Path | None = None,
        also_known: Collection[str] = (),
    ) -> Self:
        """Settings from the lines of a namesrv.conf. Raises ConfigError.

        path        the file they came from: UPDATE_NAMESRV_CONFIG writes there
        home        the user's directory; the default places lie below it
        also_known  keys of the controller that reads the same file
        """
        given: Properties = dict(properties)
        for key, allowed in NOT_SUPPORTED.items():
            if given.pop(key, "false").strip().lower() == "true":
                raise ConfigError(key, "true", allowed)
        below = (home if home is not None else Path.home()) / "namesrv"
        given.setdefault("kvConfigPath", str(below / "kvConfig.json"))
        if path is not None:
            given["configStorePath"] = str(path)
        given.setdefault("configStorePath", str(below / "namesrv.properties"))
        given.pop("insecure", None)
        if as_rocketmq and not given.get("bindAddress", "").strip():
            given["bindAddress"] = ANY
        access = parse_settings(AccessConfig, given, also_known=given.keys())
        http = parse_settings(HttpConfig, given, also_known=given.keys())
        shared = keys_of(AccessConfig, HttpConfig).keys() | TLS_KEYS
        return parse_settings(
            cls,
            given,
            also_known={*WITHOUT_EFFECT, *shared, *also_known},
            access=access,
            tls=read_tls(given),
            http=http,
            insecure=insecure,
            as_rocketmq=as_rocketmq,
        )

    def to_properties(self) -> Properties:
        """Every setting in force by its key; secrets are masked."""
        parts = (self, self.access, self.tls, self.http)
        return settings_in_force(parts, SECRETS | TLS_SECRETS | HTTP_SECRETS)

    @property
    def is_exposed(self) -> bool:
        """Whether other machines reach this server without TLS."""
        return not is_loopback(self.bind_address) and not self.tls.enforced


KEYS: Final = frozenset(
    keys_of(NameServerConfig, AccessConfig, HttpConfig).keys()
    | TLS_KEYS
    | WITHOUT_EFFECT
    | set(NOT_SUPPORTED)
)
"""Every key that a name server reads: a controller in the same process must not call them unknown."""


def check_startable(config: NameServerConfig) -> None:
    """Refuse to serve strangers in the clear unless told so; with a settings file it is a warning (decision 0003).

    Raises ConfigError.
    """
    config.access.check()
    config.tls.check()
    config.http.check(encrypted=config.tls.enforced, insecure=config.insecure)
    for warning in config.access.warnings():
        log.warning("insecure: %s", warning)
    guarded = config.access.authentication
    if config.is_exposed and (config.as_rocketmq or guarded) and not config.insecure:
        log.warning("insecure: %s", exposure(config))
    elif config.is_exposed and not config.insecure:
        raise ConfigError(
            "bindAddress",
            config.bind_address,
            "anybody who reaches this address may change every route: "
            "set tls.server.mode=enforcing, "
            "or start with --insecure if the network keeps strangers away",
        )


def exposure(config: NameServerConfig) -> str:
    """Who gets in without credentials, and how to keep them out."""
    host = config.bind_address
    if host in (ANY, "::"):
        host = f"any address of this machine ({', '.join(reached_at()) or LOOPBACK})"
    if config.access.authentication:
        return (
            f"who hears what is sent to {host} at port {config.listen_port} may send a signed request again: "
            "signatures know no time. Set tls.server.mode=enforcing, or keep strangers from the network"
        )
    return (
        f"whoever reaches {host} at port {config.listen_port} may change every route without credentials. To keep "
        "strangers out set bindAddress=127.0.0.1, set tls.server.mode=enforcing, or let the network do it"
    )
