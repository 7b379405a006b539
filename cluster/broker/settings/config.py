"""Settings of one broker. Field names carry units; rename maps them to RocketMQ's spelling."""

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
    parse_settings,
    setting_text,
)
from tandemmq.cluster.httpsettings import SECRETS as HTTP_SECRETS
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.tlssettings import KEYS as TLS_KEYS
from tandemmq.cluster.tlssettings import SECRETS as TLS_SECRETS
from tandemmq.cluster.tlssettings import TlsConfig, read_tls
from tandemmq.replication import LeaseTimes, Mode, StreamRules
from tandemmq.replication.door import networks
from tandemmq.storage import FlushMode, StorageConfig, pack_host

log = logging.getLogger(__name__)

#: inside name -> RocketMQ's key in broker.conf; the ones marked ours exist only here
ROCKETMQ_NAMES = {
    "cluster": "brokerClusterName",
    "name": "brokerName",
    "broker_id": "brokerId",
    "role": "brokerRole",
    "namesrv": "namesrvAddr",
    "advertised_ip": "brokerIP1",
    "ha_ip": "brokerIP2",
    "bind_address": "bindAddress",
    "listen_port": "listenPort",
    "ha_listen_port": "haListenPort",
    "ha_master_address": "haMasterAddress",
    "ha_master_broker_address": "haMasterBrokerAddress",  # ours
    "permission": "brokerPermission",
    "auto_create_topic": "autoCreateTopicEnable",
    "auto_create_group": "autoCreateSubscriptionGroup",
    "auto_create_topics_max": "autoCreateTopicsMax",  # ours
    "create_system_groups": "enableCreateSysGroup",
    "default_topic_queues": "defaultTopicQueueNums",
    "cluster_topic_enabled": "clusterTopicEnable",
    "broker_topic_enabled": "brokerTopicEnable",
    "trace_topic_enabled": "traceTopicEnable",
    "trace_topic": "msgTraceTopicName",
    "trace_on": "traceOn",
    "region": "regionId",
    "property_filter_enabled": "enablePropertyFilter",
    "retries_filtered": "filterSupportRetry",
    "transactions_rejected": "rejectTransactionMessage",
    "transaction_timeout_ms": "transactionTimeOut",
    "transaction_checks_max": "transactionCheckMax",
    "transaction_check_interval_ms": "transactionCheckInterval",
    "transaction_op_bytes_max": "transactionOpMsgMaxSize",
    "transaction_op_interval_ms": "transactionOpBatchInterval",
    "transaction_metrics_interval_ms": "transactionMetricFlushInterval",
    "single_topics_registered": "enableSingleTopicRegister",
    "replies_stored": "storeReplyMessageEnable",
    "timer_wheel_enabled": "timerWheelEnable",
    "timer_precision_ms": "timerPrecisionMs",
    "timer_roll_window_slots": "timerRollWindowSlot",
    "timer_max_delay_s": "timerMaxDelaySec",
    "timer_flush_interval_ms": "timerFlushIntervalMs",
    "timer_congest_count_max": "timerCongestNumEachSlot",
    "timer_enqueue_stopped": "timerStopEnqueue",
    "timer_dequeue_stopped": "timerStopDequeue",
    "timer_log_file_bytes": "mappedFileSizeTimerLog",
    "recall_enabled": "recallMessageEnable",
    "recall_when_not_writable": "allowRecallWhenBrokerNotWriteable",
    "slave_read_enabled": "slaveReadEnable",
    "offset_checked_in_slave": "offsetCheckInSlave",
    "long_polling_enabled": "longPollingEnable",
    "short_polling_ms": "shortPollingTimeMills",
    "lite_pull_enabled": "litePullMessageEnable",
    "pull_consumers_rejected": "rejectPullConsumerEnable",
    "offset_flush_interval_ms": "flushConsumerOffsetInterval",
    "server_side_reset": "useServerSideResetOffset",
    "members_notified": "notifyConsumerIdsChangedEnable",
    "members_notified_at_once": "realTimeNotifyConsumerChange",
    "channel_expired_ms": "channelExpiredTimeout",
    "register_interval_ms": "registerNameServerPeriod",
    "register_timeout_ms": "registerBrokerTimeoutMills",
    "controller_mode": "enableControllerMode",
    "controllers": "controllerAddr",
    "election_priority": "brokerElectionPriority",
    "epoch_file": "storePathEpochFile",
    "identity_file": "storePathBrokerIdentity",
    "ha_allowed": "haAllowedAddresses",  # ours
    "ha_plain": "haPlainAddresses",  # ours
    "ha_secret": "haSecret",  # ours
    "ha_secret_file": "haSecretFile",  # ours
    "ha_extension": "haExtensionEnable",  # ours
    "ha_compression": "haCompressionEnable",  # ours
    "accept_sends_from_ms": "startAcceptSendRequestTimeStamp",
    "started_despite": "startDespite",  # ours
    "system_topics_protected": "validateSystemTopicWhenUpdateTopic",
    "metrics_exporter": "metricsExporterType",
    "metrics_port": "metricsPromExporterPort",
    "metrics_host": "metricsPromExporterHost",
    "metrics_labels": "metricsLabel",
    "unread_output_bytes_max": "unreadOutputBytesMax",  # ours
    "http_readers_max": "httpReadersMax",  # ours
    "http_bytes_per_second_max": "httpBytesPerSecondMax",  # ours
}

_GAP_KEY_OF_4 = "haSlaveFallbehindMax"

#: set by the command line or by nobody: never read from a file, never shown
NOT_IN_FILES = frozenset(
    {
        "storage",
        "rules",
        "lease",
        "access",
        "rights",
        "tls",
        "http",
        "waits_for_slaves",
        "insecure",
        "as_rocketmq",
        "kept",
        "file",
    }
)

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


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, rename=ROCKETMQ_NAMES):
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
    cluster: str = "DefaultCluster"
    name: str = msgspec.field(default_factory=host_name)
    broker_id: Annotated[int, Meta(ge=-1)] = 0  # -1: the controller gives one
    role: Role = Role.ASYNC_MASTER
    namesrv: str = ""  # host:port;host:port
    advertised_ip: str = ""  # empty: the address we listen on
    ha_ip: str = ""
    bind_address: str = ""  # empty: advertised_ip if that is set, else decision 0003
    listen_port: Annotated[int, Meta(ge=0, le=65535)] = 10911  # 0: any free one; no fast port then
    ha_listen_port: NotNegative = 0  # 0: listen_port + 1
    ha_master_address: str = ""  # of a slave's master, host:port; empty: a name server says
    ha_master_broker_address: str = ""  # where it answers clients; empty: name server, or port - 1
    permission: Annotated[int, Meta(ge=0, le=7)] = 6
    auto_create_topic: bool = True
    auto_create_group: bool = True
    auto_create_topics_max: Positive = 100_000  # no broken client fills the disk with queues
    create_system_groups: bool = True
    default_topic_queues: Positive = 8
    cluster_topic_enabled: bool = True
    broker_topic_enabled: bool = True
    trace_topic_enabled: bool = False
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    region: str = "DefaultRegion"
    property_filter_enabled: bool = False
    retries_filtered: bool = False
    transactions_rejected: bool = False
    transaction_timeout_ms: Positive = 6_000  # a producer is not asked before
    transaction_checks_max: Positive = 15  # then a half message goes to TRANS_CHECK_MAX_TIME_TOPIC
    transaction_check_interval_ms: Positive = 30_000
    transaction_op_bytes_max: Positive = 4_096  # of one note of which transactions are over
    transaction_op_interval_ms: Positive = 3_000
    transaction_metrics_interval_ms: Positive = 10_000
    single_topics_registered: bool = False  # each by request 217, not as a registration of a part
    replies_stored: bool = True  # replies to requests: in the reply topic too, not only pushed
    timer_wheel_enabled: bool = True
    timer_precision_ms: Annotated[int, Meta(ge=10, le=60_000)] = 1_000  # a store keeps it
    timer_roll_window_slots: Positive = 172_800  # longer waits are put back into the log on the way
    timer_max_delay_s: Positive = 259_200
    timer_flush_interval_ms: Positive = 1_000
    timer_congest_count_max: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] = (
        1 << 31
    ) - 1  # for one slot; above it more and more are refused
    timer_enqueue_stopped: bool = False
    timer_dequeue_stopped: bool = False
    timer_log_file_bytes: Annotated[int, Meta(ge=4_096)] = 104_857_600
    recall_enabled: bool = False
    recall_when_not_writable: bool = True
    slave_read_enabled: bool = True  # RocketMQ: false, and nobody reads while a master is down
    offset_checked_in_slave: bool = False
    long_polling_enabled: bool = True
    short_polling_ms: Positive = 1_000
    lite_pull_enabled: bool = True
    pull_consumers_rejected: bool = False
    offset_flush_interval_ms: Positive = (
        5_000  # at most this much progress is repeated after a crash
    )
    server_side_reset: bool = True
    members_notified: bool = True
    members_notified_at_once: bool = True
    channel_expired_ms: Positive = 120_000
    register_interval_ms: Positive = 30_000
    register_timeout_ms: Positive = 24_000
    controller_mode: bool = False
    controllers: str = ""  # host:port;host:port
    election_priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = (
        1 << 31
    ) - 1  # of equals the lowest is elected
    epoch_file: str = ""  # empty: storePathRootDir/epochFileCheckpoint
    identity_file: str = ""  # empty: storePathRootDir/brokerIdentity
    ha_allowed: str = (
        ""  # from where slaves may connect: IP addresses and networks; empty: docs/operations.md
    )
    ha_plain: str = ""  # stock replicas, whose stream is in plain text also where TLS is enforced
    ha_secret: str = ""  # replicas of a group prove it to each other; stock replicas cannot
    ha_secret_file: str = ""  # or the file that holds it
    ha_extension: bool = True  # between our replicas; needs a controller
    ha_compression: bool = False  # as a slave: lz4, for a link slower than the machine
    accept_sends_from_ms: NotNegative = 0
    started_despite: str = (
        ""  # what RocketMQ left open in the store and an operator gives up: leftopen.py
    )
    system_topics_protected: bool = True
    metrics_exporter: MetricsExporter = MetricsExporter.DISABLE
    metrics_port: Port = 5557
    metrics_host: str = ""  # empty: loopback
    metrics_labels: str = ""
    unread_output_bytes_max: Annotated[int, Meta(ge=1 << 20)] = (
        512 << 20
    )  # of all connections together
    http_readers_max: Positive = 4  # at once; more of them wait
    http_bytes_per_second_max: NotNegative = (
        200_000_000  # of all readers: an audit must not starve clients; 0: no limit
    )
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
        for key in ("ha_master_address", "ha_master_broker_address"):
            text, key = getattr(self, key), ROCKETMQ_NAMES[key]
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
        known = set(keys_of(BrokerConfig)) - NOT_IN_FILES
        http = parse_settings(HttpConfig, given, also_known=given.keys())
        for kind in (
            StorageConfig,
            StreamRules,
            LeaseTimes,
            AccessConfig,
            RightsConfig,
            HttpConfig,
        ):
            known |= keys_of(kind).keys()
        return parse_settings(
            BrokerConfig,
            given,
            also_known=known | TLS_KEYS | set(WITHOUT_EFFECT),
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
        found: Properties = {
            key: "******" if key in SECRET and text else text for key, text in self.kept.items()
        }
        for struct in self.parts:
            for field in msgspec.structs.fields(type(struct)):
                if field.name not in NOT_IN_FILES:
                    text = setting_text(getattr(struct, field.name))
                    secret = field.encode_name in SECRET and text
                    found[field.encode_name] = "******" if secret else text
        return found


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
