"""Settings of one broker. Field names carry units; keys are in RocketMQ's spelling."""

from __future__ import annotations

import enum
import logging
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tandemmq.cluster.access.startup import SECRETS, AccessConfig
from tandemmq.cluster.addresses import ANY, LOOPBACK, is_here, local_address
from tandemmq.cluster.broker.settings.access import RightsConfig, with_plain_file
from tandemmq.cluster.broker.settings.known_keys import COUNTED_ON, WITHOUT_EFFECT
from tandemmq.cluster.config import (
    NAME_SERVERS_VARIABLE,
    Properties,
    is_loopback,
    keys_of,
    masked,
    parse_settings,
    settings_in_force,
)
from tandemmq.cluster.httpsettings import SECRETS as HTTP_SECRETS
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.tlssettings import KEYS as TLS_KEYS
from tandemmq.cluster.tlssettings import SECRETS as TLS_SECRETS
from tandemmq.cluster.tlssettings import TlsConfig, read_tls
from tandemmq.replication import LeaseTimes, Mode, StreamRules
from tandemmq.replication.door import networks
from tandemmq.storage import FlushMode, StorageConfig, pack_host
from tandemmq.storage.settings import ours, setting

log = logging.getLogger(__name__)

_GAP_KEY_OF_4 = "haSlaveFallbehindMax"

#: handed out to nobody
SECRET = frozenset({"haSecret"}) | SECRETS | TLS_SECRETS | HTTP_SECRETS

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}").fullmatch
_HOST_NAME_REPLACED = re.compile(r"[^%|a-zA-Z0-9_-]").sub


class Role(enum.Enum):
    """What a broker is in its group."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class MetricsExporter(enum.Enum):
    """Where metrics go."""

    DISABLE = "DISABLE"
    PROM = "PROM"


#: what startDespite may name: each is something that RocketMQ may have left open in a store (leftopen.py)
LEFT_OPEN_WORDS = frozenset(
    {"timers", "halves", "staticTopics", "compaction", "batchQueues", "lightQueues"}
)

Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[int, Meta(gt=0)]
NotNegative = Annotated[int, Meta(ge=0)]


def host_name() -> str:
    """The default broker name: this machine's, in the alphabet of names."""
    return _HOST_NAME_REPLACED("-", socket.gethostname()) or "DEFAULT_BROKER"


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker needs to know.

    Defaults are RocketMQ's, but for what is reachable from outside.

    waits_for_slaves   what brokerRole, allAckInSyncStateSet and inSyncReplicas say together
    kept   settings of the file that change nothing here; request 26 hands them out again
    """

    storage: StorageConfig
    rules: StreamRules = StreamRules()
    lease: LeaseTimes = LeaseTimes()
    access: AccessConfig = AccessConfig()
    rights: RightsConfig = RightsConfig()
    tls: TlsConfig = TlsConfig()
    http: HttpConfig = HttpConfig()
    waits_for_slaves: bool = False
    cluster: str = setting("brokerClusterName", "DefaultCluster")
    name: str = msgspec.field(default_factory=host_name, name="brokerName")
    broker_id: Annotated[int, Meta(ge=-1)] = setting("brokerId", 0)  # -1: the controller gives one
    role: Role = setting("brokerRole", Role.ASYNC_MASTER)
    namesrv: str = setting("namesrvAddr", "")  # host:port;host:port
    advertised_ip: str = setting("brokerIP1", "")  # empty: the address we listen on
    ha_ip: str = setting("brokerIP2", "")
    # empty: advertised_ip if that is set, else decision 0003
    bind_address: str = setting("bindAddress", "")
    # 0: any free one; no fast port then
    listen_port: Annotated[int, Meta(ge=0, le=65535)] = setting("listenPort", 10911)
    ha_listen_port: NotNegative = setting("haListenPort", 0)  # 0: listen_port + 1
    # of a slave's master, host:port; empty: a name server says
    ha_master_address: str = setting("haMasterAddress", "")
    # where it answers clients; empty: name server, or port - 1
    ha_master_broker_address: str = ours("haMasterBrokerAddress", "")
    permission: Annotated[int, Meta(ge=0, le=7)] = setting("brokerPermission", 6)
    auto_create_topic: bool = setting("autoCreateTopicEnable", True)
    auto_create_group: bool = setting("autoCreateSubscriptionGroup", True)
    # no broken client fills the disk with queues
    auto_create_topics_max: Positive = ours("autoCreateTopicsMax", 100_000)
    create_system_groups: bool = setting("enableCreateSysGroup", True)
    default_topic_queues: Positive = setting("defaultTopicQueueNums", 8)
    cluster_topic_enabled: bool = setting("clusterTopicEnable", True)
    broker_topic_enabled: bool = setting("brokerTopicEnable", True)
    trace_topic_enabled: bool = setting("traceTopicEnable", False)
    trace_topic: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")
    trace_on: bool = setting("traceOn", True)
    region: str = setting("regionId", "DefaultRegion")
    property_filter_enabled: bool = setting("enablePropertyFilter", False)
    retries_filtered: bool = setting("filterSupportRetry", False)
    transactions_rejected: bool = setting("rejectTransactionMessage", False)
    # a producer is not asked before
    transaction_timeout_ms: Positive = setting("transactionTimeOut", 6_000)
    # then a half message goes to TRANS_CHECK_MAX_TIME_TOPIC
    transaction_checks_max: Positive = setting("transactionCheckMax", 15)
    transaction_check_interval_ms: Positive = setting("transactionCheckInterval", 30_000)
    # of one note of which transactions are over
    transaction_op_bytes_max: Positive = setting("transactionOpMsgMaxSize", 4_096)
    transaction_op_interval_ms: Positive = setting("transactionOpBatchInterval", 3_000)
    transaction_metrics_interval_ms: Positive = setting("transactionMetricFlushInterval", 10_000)
    # each by request 217, not as a registration of a part
    single_topics_registered: bool = setting("enableSingleTopicRegister", False)
    # replies to requests: in the reply topic too, not only pushed
    replies_stored: bool = setting("storeReplyMessageEnable", True)
    timer_wheel_enabled: bool = setting("timerWheelEnable", True)
    # a store keeps it
    timer_precision_ms: Annotated[int, Meta(ge=10, le=60_000)] = setting("timerPrecisionMs", 1_000)
    # longer waits are put back into the log on the way
    timer_roll_window_slots: Positive = setting("timerRollWindowSlot", 172_800)
    timer_max_delay_s: Positive = setting("timerMaxDelaySec", 259_200)
    timer_flush_interval_ms: Positive = setting("timerFlushIntervalMs", 1_000)
    # for one slot; above it more and more are refused
    timer_congest_count_max: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] = setting(
        "timerCongestNumEachSlot", (1 << 31) - 1
    )
    timer_enqueue_stopped: bool = setting("timerStopEnqueue", False)
    timer_dequeue_stopped: bool = setting("timerStopDequeue", False)
    timer_log_file_bytes: Annotated[int, Meta(ge=4_096)] = setting(
        "mappedFileSizeTimerLog", 104_857_600
    )
    recall_enabled: bool = setting("recallMessageEnable", False)
    recall_when_not_writable: bool = setting("allowRecallWhenBrokerNotWriteable", True)
    # RocketMQ: false, and nobody reads while a master is down
    slave_read_enabled: bool = setting("slaveReadEnable", True)
    offset_checked_in_slave: bool = setting("offsetCheckInSlave", False)
    long_polling_enabled: bool = setting("longPollingEnable", True)
    short_polling_ms: Positive = setting("shortPollingTimeMills", 1_000)
    lite_pull_enabled: bool = setting("litePullMessageEnable", True)
    pull_consumers_rejected: bool = setting("rejectPullConsumerEnable", False)
    # at most this much progress is repeated after a crash
    offset_flush_interval_ms: Positive = setting("flushConsumerOffsetInterval", 5_000)
    server_side_reset: bool = setting("useServerSideResetOffset", True)
    members_notified: bool = setting("notifyConsumerIdsChangedEnable", True)
    members_notified_at_once: bool = setting("realTimeNotifyConsumerChange", True)
    channel_expired_ms: Positive = setting("channelExpiredTimeout", 120_000)
    register_interval_ms: Positive = setting("registerNameServerPeriod", 30_000)
    register_timeout_ms: Positive = setting("registerBrokerTimeoutMills", 24_000)
    controller_mode: bool = setting("enableControllerMode", False)
    controllers: str = setting("controllerAddr", "")  # host:port;host:port
    # of equals the lowest is elected
    election_priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = setting(
        "brokerElectionPriority", (1 << 31) - 1
    )
    # empty: storePathRootDir/epochFileCheckpoint
    epoch_file: str = setting("storePathEpochFile", "")
    # empty: storePathRootDir/brokerIdentity
    identity_file: str = setting("storePathBrokerIdentity", "")
    # from where slaves may connect: IP addresses and networks; empty: docs/operations.md
    ha_allowed: str = ours("haAllowedAddresses", "")
    # stock replicas, whose stream is in plain text also where TLS is enforced
    ha_plain: str = ours("haPlainAddresses", "")
    # replicas of a group prove it to each other; stock replicas cannot
    ha_secret: str = ours("haSecret", "")
    ha_secret_file: str = ours("haSecretFile", "")  # or the file that holds it
    ha_extension: bool = ours("haExtensionEnable", True)  # between our replicas; needs a controller
    # as a slave: lz4, for a link slower than the machine
    ha_compression: bool = ours("haCompressionEnable", False)
    accept_sends_from_ms: NotNegative = setting("startAcceptSendRequestTimeStamp", 0)
    # what RocketMQ left open in the store and an operator gives up: leftopen.py
    started_despite: str = ours("startDespite", "")
    system_topics_protected: bool = setting("validateSystemTopicWhenUpdateTopic", True)
    metrics_exporter: MetricsExporter = setting("metricsExporterType", MetricsExporter.DISABLE)
    metrics_port: Port = setting("metricsPromExporterPort", 5557)
    metrics_host: str = setting("metricsPromExporterHost", "")  # empty: loopback
    metrics_labels: str = setting("metricsLabel", "")
    # of all connections together
    unread_output_bytes_max: Annotated[int, Meta(ge=1 << 20)] = ours(
        "unreadOutputBytesMax", 512 << 20
    )
    http_readers_max: Positive = ours("httpReadersMax", 4)  # at once; more of them wait
    # of all readers: an audit must not starve clients; 0: no limit
    http_bytes_per_second_max: NotNegative = ours("httpBytesPerSecondMax", 200_000_000)
    insecure: bool = False
    as_rocketmq: bool = False
    file: str = ""  # where the settings came from, and where changed ones are written
    kept: dict[str, str] = {}

    def __post_init__(self) -> None:
        for key, name in (("brokerName", self.name), ("brokerClusterName", self.cluster)):
            if _NAME(name) is None:
                raise ValueError(f"{key} may hold letters, digits and %|-_ only, got {name!r}")
        split_addresses(self.namesrv)
        split_addresses(self.controllers, "controllerAddr")
        if unknown := self.despite - LEFT_OPEN_WORDS:
            raise ValueError(
                f"startDespite may name {', '.join(sorted(LEFT_OPEN_WORDS))}, got {', '.join(sorted(unknown))}"
            )
        for key, text in (
            ("haAllowedAddresses", self.ha_allowed),
            ("haPlainAddresses", self.ha_plain),
        ):
            try:
                networks(text)
            except ValueError as problem:
                raise ValueError(f"{key}: {problem}") from None
        for key, text in (
            ("haMasterAddress", self.ha_master_address),
            ("haMasterBrokerAddress", self.ha_master_broker_address),
        ):
            if len(split_addresses(text, key)) > 1:
                raise ValueError(f"{key} must be one address, got {text!r}")
        if self.controller_mode:
            if not self.controllers.strip():
                raise ValueError("controllerAddr must name a controller with enableControllerMode")
            msgspec.structs.force_setattr(self, "broker_id", -1)  # whatever the file says
        elif self.broker_id < 0:
            raise ValueError("brokerId must be at least 0 without enableControllerMode")
        elif self.role is not Role.SLAVE and self.broker_id:
            msgspec.structs.force_setattr(
                self, "broker_id", 0
            )  # a master is id 0 whatever its file says
        if self.role is Role.SLAVE and not self.broker_id:  # never with a controller
            raise ValueError("brokerId must be above 0 with brokerRole=SLAVE")
        if self.listen_port in (1, 2):
            raise ValueError("listenPort must leave room for the fast port two below it")
        if not self.ha_listen_port:
            msgspec.structs.force_setattr(self, "ha_listen_port", self.listen_port + 1)
        interval_ms = min(max(self.register_interval_ms, 10_000), 60_000)
        msgspec.structs.force_setattr(self, "register_interval_ms", interval_ms)

    @property
    def despite(self) -> frozenset[str]:
        """The words of startDespite."""
        return frozenset(filter(None, re.split(r"[,;\s]+", self.started_despite)))

    @property
    def name_servers(self) -> list[tuple[str, int]]:
        return split_addresses(self.namesrv)

    @property
    def controller_addresses(self) -> list[tuple[str, int]]:
        return split_addresses(self.controllers, "controllerAddr")

    @property
    def mode(self) -> Mode:
        """What an acknowledgement promises with a controller. Source: decision 0004 "Modes"."""
        flushed = self.storage.flush_mode is FlushMode.SYNC
        return Mode.of(synchronous=self.waits_for_slaves, flushed=flushed)

    @property
    def epoch_path(self) -> Path:
        return Path(self.epoch_file or Path(self.storage.root) / "epochFileCheckpoint")

    @property
    def identity_path(self) -> Path:
        return Path(self.identity_file or Path(self.storage.root) / "brokerIdentity")

    @property
    def parts(self) -> tuple[msgspec.Struct, ...]:
        """The structs that hold settings of the one file."""
        own = (self.storage, self.rules, self.lease, self.access, self.rights, self.tls, self.http)
        return *own, self

    @property
    def guarded(self) -> bool:
        """Whether somebody is asked who they are."""
        return self.access.authentication or self.rights.plain

    @property
    def bind_host(self) -> str:
        """The address to listen on (decision 0003): what is configured, else loopback or, with RocketMQ's file, all.

        There brokerIP1 may be an address of the machine around a container: then we listen on all of ours.
        """
        said = self.bind_address or self.advertised_ip
        if not self.as_rocketmq or self.bind_address:
            return said or LOOPBACK
        return said if said and is_here(said) else ANY

    @property
    def advertised_host(self) -> str:
        """The address that clients are told, and that is stored in messages."""
        if self.advertised_ip:
            return self.advertised_ip
        host = self.bind_host
        return local_address() if host in (ANY, "::") else host

    @property
    def is_exposed(self) -> bool:
        """Whether other machines reach this broker without TLS."""
        return not is_loopback(self.bind_host) and not self.tls.enforced

    @property
    def address(self) -> str:
        """ip:port as name servers and clients know this broker."""
        return f"{self.advertised_host}:{self.listen_port}"

    @property
    def ha_address(self) -> str:
        return f"{self.ha_ip or self.advertised_host}:{self.ha_listen_port}"

    @property
    def config_path(self) -> Path:
        """Where topics, groups and offsets are kept."""
        return Path(self.storage.root) / "config"

    @property
    def users_path(self) -> Path:
        """Where users and rules of access control are kept."""
        return self.config_path / "access.json"

    @staticmethod
    def from_properties(
        properties: Mapping[str, str],
        *,
        insecure: bool = False,
        as_rocketmq: bool = False,
        file: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> BrokerConfig:
        """Settings from the lines of a broker.conf, merged with those of the command line.

        as_rocketmq  a settings file was given: what it does not say of addresses is as at RocketMQ
                Raises ConfigError naming key, value and what is allowed.
        """
        given: Properties = dict(properties)
        if not given.get("namesrvAddr") and environment.get(NAME_SERVERS_VARIABLE):
            given["namesrvAddr"] = environment[NAME_SERVERS_VARIABLE]
        given.setdefault("storePathRootDir", str(Path.home() / "store"))
        kept = {key: text.strip() for key, text in given.items() if key in WITHOUT_EFFECT}
        for key in sorted(kept):
            log.debug("setting has no effect here key=%s why=%s", key, WITHOUT_EFFECT[key])
        if missed := [
            key for key in sorted(COUNTED_ON & kept.keys()) if kept[key].lower() == "true"
        ]:
            log.warning("switched on, and not built yet, so without effect: %s", " ".join(missed))
        if _GAP_KEY_OF_4 in given:
            given.setdefault("haMaxGapNotInSync", given.pop(_GAP_KEY_OF_4))
        storage = parse_settings(StorageConfig, given, also_known=given.keys())
        rules = parse_settings(StreamRules, given, also_known=given.keys())
        waits, rules = _waits_for_slaves(given, rules)
        lease = parse_settings(LeaseTimes, _beating_in_time(given), also_known=given.keys())
        access = parse_settings(AccessConfig, given, also_known=given.keys())
        placed = with_plain_file(given, file, environment)
        rights = parse_settings(RightsConfig, placed, also_known=placed.keys())
        http = parse_settings(HttpConfig, given, also_known=given.keys())
        known = keys_of(
            StorageConfig, StreamRules, LeaseTimes, AccessConfig, RightsConfig, HttpConfig
        )
        return parse_settings(
            BrokerConfig,
            given,
            also_known={*known, *TLS_KEYS, *WITHOUT_EFFECT},
            storage=storage,
            rules=rules,
            lease=lease,
            access=access,
            rights=rights,
            tls=read_tls(given),
            http=http,
            waits_for_slaves=waits,
            insecure=insecure,
            as_rocketmq=as_rocketmq,
            file=file,
            kept=kept,
        )

    def to_properties(self) -> Properties:
        """Every setting as it is in force, by RocketMQ's keys, and the kept ones; secrets masked."""
        return masked(self.kept, SECRET) | settings_in_force(self.parts, SECRET)


def _waits_for_slaves(given: Mapping[str, str], rules: StreamRules) -> tuple[bool, StreamRules]:
    """Whether acknowledgements wait for slaves when a controller gives the roles; and the rules for it.

    Never less than RocketMQ would do with the same file: there every master is a SYNC_MASTER, and
    allAckInSyncStateSet, false by default, decides. Here brokerRole decides: ASYNC_MASTER does not
    wait unless one of the other two says so, SYNC_MASTER does, and so does SLAVE, which RocketMQ's
    own examples have.
    """
    role = given.get("brokerRole", Role.ASYNC_MASTER.value).strip()
    all_in_set = given.get("allAckInSyncStateSet", "").strip().lower()
    waits = (
        role == Role.SYNC_MASTER.value
        or all_in_set == "true"
        or rules.copies_wanted > 1
        or (role == Role.SLAVE.value and all_in_set != "false")
    )
    if not waits or rules.copies_wanted < 2:  # else the file may say how many are enough
        rules = msgspec.structs.replace(rules, all_in_set=waits)
    if waits and given.get("enableControllerMode", "").strip().lower() == "true":
        if rules.all_in_set and all_in_set == "false":
            log.info(
                "allAckInSyncStateSet=false has no effect: brokerRole=%s waits for the whole "
                "sync-state-set, or for inSyncReplicas=2 and more",
                role,
            )
        if rules.catch_up_ms_max >= rules.slave_timeout_ms:
            log.warning(
                "haMaxTimeSlaveNotCatchup=%d is not below slaveTimeout=%d: a slave that stands still "
                "stays in the sync-state-set so long, and each send waits for slaveTimeout",
                rules.catch_up_ms_max,
                rules.slave_timeout_ms,
            )
    return waits, rules


def _beating_in_time(given: Mapping[str, str]) -> Mapping[str, str]:
    """RocketMQ's heartbeat is too slow for our lease: unless a lease is named too, beat more often."""
    text = given.get("brokerHeartbeatInterval", "").strip()
    usual = LeaseTimes()
    if "haLeaseMillis" in given or not text.isdigit() or int(text) * 3 < usual.lease_ms:
        return given
    log.info(
        "brokerHeartbeatInterval=%s is too long for a lease of %d ms, beating every %d ms",
        text, usual.lease_ms, usual.heartbeat_ms,
    )  # fmt: skip
    return {key: value for key, value in given.items() if key != "brokerHeartbeatInterval"}


def split_addresses(text: str, key: str = "namesrvAddr") -> list[tuple[str, int]]:
    """host and port of each part of `host:port;host:port`.

    ValueError names the part that is none.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{key} must be host:port;host:port, got {part!r}")
        found.append((host.strip("[]"), int(port)))
    return found


def split_labels(text: str) -> dict[str, str]:
    """metricsLabel: `key:value,key:value`."""
    pairs = (part.partition(":") for part in text.split(",") if part.strip())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def packed_host(config: BrokerConfig) -> bytes:
    """The advertised address as records store it; a host name is looked up once, here."""
    host = config.advertised_host
    try:
        return pack_host(host, config.listen_port)
    except ValueError:
        found = socket.getaddrinfo(host, config.listen_port, type=socket.SOCK_STREAM)
        return pack_host(str(found[0][4][0]), config.listen_port)
