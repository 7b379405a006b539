"""Settings of a controller: RocketMQ's keys of namesrv.conf or controller.conf, and ours beside them."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Self

import msgspec
from msgspec import Meta

from tandemmq.cluster.access.startup import SECRETS, AccessConfig
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
from tandemmq.cluster.remoting.channel import split_address
from tandemmq.cluster.tlssettings import KEYS as TLS_KEYS
from tandemmq.cluster.tlssettings import SECRETS as TLS_SECRETS
from tandemmq.cluster.tlssettings import TlsConfig, read_tls
from tandemmq.replication import LeaseTimes
from tandemmq.replication.door import networks
from tandemmq.storage.settings import ours, setting

log = logging.getLogger(__name__)

CHANGEABLE: Final = frozenset({"enableElectUncleanMaster"})
"""What UPDATE_CONTROLLER_CONFIG may set. Everything else keeps its value while the process runs."""

WITHOUT_EFFECT: Final = frozenset(
    {
        # no Raft log and no thread pools here; dead brokers are noticed by their connection or their lease
        "controllerThreadPoolNums",
        "controllerRequestThreadPoolQueueCapacity",
        "electMasterMaxRetryCount",
        "isProcessReadEvent",
        "mappedFileSize",
        "notifyBrokerRoleChanged",
        "scanInactiveMasterInterval",
        "scanNotActiveBrokerInterval",
        "jRaftControllerRPCAddr",
        "jRaftElectionTimeoutMs",
        "jRaftGroupId",
        "jRaftInitConf",
        "jRaftScanWaitTimeoutMs",
        "jRaftServerId",
        "jRaftSnapshotIntervalSecs",
        "rocketmqHome",
        "enableStartupController",
        "metricLoggingExporter",
        "metricsGrpcExporterTarget",
        "metricsGrpcExporterHeader",
        "metricsLabel",
    }
)

_SECRETS: Final = frozenset({"etcdPassword"}) | SECRETS | TLS_SECRETS | HTTP_SECRETS
_PEER: Final = re.compile(r"([A-Za-z0-9_]{1,64})-(.{1,255})")
_PREFIX: Final = re.compile(r"/[A-Za-z0-9_./-]{0,200}")
PEERS_MAX: Final = 16

Port = Annotated[int, Meta(ge=0, le=65535)]


class Kind(enum.Enum):
    """controllerType. There is one; jRaft has other keys for its addresses."""

    DLEDGER = "DLedger"


class StoreKind(enum.Enum):
    """Where the records live: in a file of this controller, or in etcd for several of them."""

    FILE = "file"
    ETCD = "etcd"


class Exporter(enum.Enum):
    """Where metrics go."""

    DISABLE = "DISABLE"
    PROM = "PROM"


class Peer(NamedTuple):
    """One controller: its name, and where brokers and tools reach it."""

    id: str
    address: str


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a controller needs to know.

    peers         "n0-HOST:PORT;n1-HOST:PORT": every controller; the entry of self_id is our address
    bind_address  where to listen; "" is the host of our address
    times         lease and election wait, from the same file
    fast          elect at once when a master's process is gone on two witnesses, not only by its lease
    store_kind    with a file the first of several peers leads and the others only say so: no second copy of the records
    allowed       from where brokers and operators may change anything, besides this machine: IP addresses and
                  networks. "": brokers from everywhere, operators from hosts of registered replicas
    replica_host_check  who proves nothing (a stock replica) must come from the host that it registered
    etcd_prefix   our keys begin with it and the group's name
    access        whether requests must be signed, and by whom; how we sign what we send to brokers
    tls           what the ports encrypt with, and what we send to brokers
    http          the HTTP port of a controller that is a process of its own; a name server has its own
    insecure      --insecure: serve other machines without TLS
    """

    group: str = setting("controllerDLegerGroup", "tandem")
    peers: str = setting("controllerDLegerPeers", "n0-127.0.0.1:9878")
    self_id: str = setting("controllerDLegerSelfId", "n0")
    kind: Kind = setting("controllerType", Kind.DLEDGER)
    store_path: str = setting("controllerStorePath", "")
    unclean: bool = setting("enableElectUncleanMaster", False)
    config_store_path: str = setting("configStorePath", "")
    config_blacklist: str = setting("configBlackList", "configBlackList;configStorePath")
    bind_address: str = ours("bindAddress", "")
    fast: bool = ours("controllerFastElection", True)
    store_kind: StoreKind = ours("controllerStore", StoreKind.FILE)
    allowed: str = ours("controllerAllowedAddresses", "")
    replica_host_check: bool = ours("controllerReplicaHostCheck", True)
    etcd_endpoints: str = ours("etcdEndpoints", "")
    etcd_prefix: str = ours("etcdPrefix", "/tandemmq/controller/")
    etcd_lease_s: Annotated[int, Meta(ge=2, le=60)] = ours("etcdLeaseSeconds", 3)
    etcd_user: str = ours("etcdUser", "")
    etcd_password: str = ours("etcdPassword", "")
    etcd_ca_path: str = ours("etcdCaPath", "")
    etcd_certificate_path: str = ours("etcdCertPath", "")
    etcd_key_path: str = ours("etcdKeyPath", "")
    metrics_exporter: Exporter = setting("metricsExporterType", Exporter.DISABLE)
    metrics_port: Port = setting("metricsPromExporterPort", 5558)
    metrics_host: str = setting("metricsPromExporterHost", "127.0.0.1")
    idle_s_max: Annotated[int, Meta(ge=10)] = setting("serverChannelMaxIdleTimeSeconds", 120)
    times: LeaseTimes = LeaseTimes()
    access: AccessConfig = AccessConfig()
    tls: TlsConfig = TlsConfig()
    http: HttpConfig = HttpConfig()
    insecure: bool = False

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, str],
        *,
        path: Path | None = None,
        insecure: bool = False,
        home: Path | None = None,
        also_known: frozenset[str] = frozenset(),
    ) -> Self:
        """Settings from the lines of a controller.conf or a namesrv.conf. Raises ConfigError.

        path        the file they came from: UPDATE_CONTROLLER_CONFIG writes there
        also_known  keys of the name server that reads the same file
        """
        given: Properties = dict(properties)
        below = home if home is not None else Path.home()
        given.setdefault("controllerStorePath", str(below / "controller"))
        if path is not None:
            given["configStorePath"] = str(path)
        given.setdefault("configStorePath", str(below / "controller" / "controller.properties"))
        times = parse_settings(LeaseTimes, given, also_known=given.keys())
        access = parse_settings(AccessConfig, given, also_known=given.keys())
        http = parse_settings(HttpConfig, given, also_known=given.keys())
        shared = keys_of(LeaseTimes, AccessConfig, HttpConfig).keys() | TLS_KEYS
        config = parse_settings(
            cls,
            given,
            also_known={*WITHOUT_EFFECT, *shared, *also_known},
            times=times,
            access=access,
            tls=read_tls(given),
            http=http,
            insecure=insecure,
        )
        config._check()
        return config

    def _check(self) -> None:
        if self.self_id not in {peer.id for peer in self.all_peers}:
            raise ConfigError(
                "controllerDLegerSelfId",
                self.self_id,
                f"is not in controllerDLegerPeers={self.peers}",
            )
        if self.store_kind is StoreKind.ETCD and not self.endpoints:
            raise ConfigError("etcdEndpoints", "", "must name etcd when controllerStore=etcd")
        for endpoint in self.endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise ConfigError("etcdEndpoints", endpoint, "must be http://HOST:PORT")
        try:
            networks(self.allowed)
        except ValueError as problem:
            raise ConfigError("controllerAllowedAddresses", self.allowed, str(problem)) from None
        if _PREFIX.fullmatch(self.etcd_prefix) is None:
            raise ConfigError("etcdPrefix", self.etcd_prefix, "must be /NAME/ of a-z A-Z 0-9 _ . -")

    @property
    def all_peers(self) -> list[Peer]:
        """Every controller, ourselves included. Raises ConfigError."""
        found: list[Peer] = []
        for text in filter(None, map(str.strip, self.peers.split(";"))):
            match = _PEER.fullmatch(text)
            try:
                if match is None:
                    raise ValueError
                split_address(match[2])
            except ValueError:
                raise ConfigError(
                    "controllerDLegerPeers", text, "must be ID-HOST:PORT, several with ; between"
                ) from None
            found.append(Peer(match[1], match[2]))
        ids = {peer.id for peer in found}
        addresses = {peer.address for peer in found}
        if len(ids) < len(found) or len(addresses) < len(found) or len(found) > PEERS_MAX:
            raise ConfigError(
                "controllerDLegerPeers", self.peers, f"must be at most {PEERS_MAX}, each once"
            )
        return found

    @property
    def me(self) -> Peer:
        """Our own entry."""
        return next(peer for peer in self.all_peers if peer.id == self.self_id)

    @property
    def endpoints(self) -> list[str]:
        """etcd's addresses, "http://HOST:PORT"."""
        parts = re.split(r"[;,]", self.etcd_endpoints)
        return [part.strip().rstrip("/") for part in parts if part.strip()]

    @property
    def bind_host(self) -> str:
        return self.bind_address or split_address(self.me.address)[0]

    @property
    def port(self) -> int:
        return split_address(self.me.address)[1]

    @property
    def is_exposed(self) -> bool:
        """Whether other machines reach this controller without TLS."""
        return not is_loopback(self.bind_host) and not self.tls.enforced

    def to_properties(self) -> Properties:
        """Every setting in force by its key; secrets are masked."""
        return settings_in_force((self, self.times, self.access, self.tls, self.http), _SECRETS)


KEYS: Final = frozenset(
    keys_of(ControllerConfig, LeaseTimes, AccessConfig, HttpConfig).keys()
    | TLS_KEYS
    | WITHOUT_EFFECT
)
"""Every key that a controller reads: a name server that embeds one must not call them unknown."""


def check_startable(config: ControllerConfig) -> None:
    """Refuse to serve strangers in the clear unless told so. Raises ConfigError."""
    config.access.check()
    config.tls.check()
    config.http.check(encrypted=config.tls.enforced, insecure=config.insecure)
    for warning in config.tls.warnings():
        log.warning("insecure: %s", warning)
    for endpoint in config.endpoints if config.store_kind is StoreKind.ETCD else ():
        if config.tls.enforced and endpoint.startswith("http://"):
            log.warning(
                "insecure: etcd is spoken to in plain text at %s, and this controller takes TLS only: give "
                "etcdEndpoints https:// and etcdCaPath",
                endpoint,
            )
    if config.is_exposed and not config.insecure and not config.access.authentication:
        raise ConfigError(
            "bindAddress" if config.bind_address else "controllerDLegerPeers",
            config.bind_host,
            "anybody who reaches this address may depose every master: set "
            "tls.server.mode=enforcing, or start with --insecure if the network keeps strangers away",
        )
    shown = config.metrics_exporter is Exporter.PROM
    if shown and not is_loopback(config.metrics_host) and not config.insecure:
        raise ConfigError(
            "metricsPromExporterHost",
            config.metrics_host,
            "must be loopback: the page has no access control; or start with --insecure",
        )
