"""The name server's process: requests to the route table and the KV table, and answers back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from tandemmq.cluster.access.doorkeeper import super_keeper
from tandemmq.cluster.access.needs import NAME_SERVER_OPEN, NAME_SERVER_SUPER
from tandemmq.cluster.config import (
    ConfigError,
    format_properties,
    read_properties,
)
from tandemmq.cluster.livesettings import asked_settings, changed_config
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.nameserver.config import (
    CHANGEABLE,
    NameServerConfig,
    check_startable,
    exposure,
)
from tandemmq.cluster.nameserver.kvconfig import ORDER_TOPICS, KvConfig, TableFull
from tandemmq.cluster.nameserver.registration import Topics, check_crc, is_compressed, read_topics
from tandemmq.cluster.nameserver.routes import (
    UNIT_FLAG,
    UNIT_SUBSCRIPTION_FLAG,
    DataVersion,
    QueueData,
    Registration,
    RegistrationRefused,
    RouteTable,
    address_problem,
    name_problem,
)
from tandemmq.cluster.process import (
    connections_affordable,
    raise_open_files_limit,
    running,
    stop_signals,
)
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.errors import Refused
from tandemmq.cluster.remoting.headers import (
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    ClusterHeader,
    Header,
    KeyHeader,
    MemberGroupHeader,
    RegisterBrokerHeader,
    RouteHeader,
    TopicHeader,
)
from tandemmq.cluster.remoting.server import Listen, RemotingServer
from tandemmq.cluster.remoting.stream import ConnectionLimits
from tandemmq.storage import Clock, SystemClock, jsonfile

if TYPE_CHECKING:
    from tandemmq.cluster.httpport import Room
    from tandemmq.cluster.metrics import MetricTable

log = logging.getLogger(__name__)

INSECURE_REMINDER_S: Final = 3600
LARGE_BODY_BYTES: Final = 64 * 1024  # above it a body is not parsed on the loop's thread
SETTINGS_BYTES_MAX: Final = 256 * 1024
UNREGISTERED: Final = -1  # no broker id: a broker says goodbye
ZONE_FIELD: Final = "__ZONE_NAME"
FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_Kind = TypeVar("_Kind")

_odd_names = once_per(60)
_doubts = once_per(1)
_encode: Final = msgspec.json.Encoder().encode


class _WipedAnswer(Header):
    wipe_topic_count: int


class _AddedAnswer(Header):
    add_topic_count: int


class _RouteBody(msgspec.Struct, rename="camel"):
    queue_datas: list[QueueData] = msgspec.field(default_factory=list)


def reply_to(problem: Exception) -> tuple[int, str] | None:
    """Code and remark for what handlers raise on purpose."""
    if isinstance(problem, Refused):
        return problem.code, problem.remark
    if isinstance(problem, (RegistrationRefused, TableFull)):
        return ResponseCode.SYSTEM_ERROR, str(problem)
    return None


class RouteJudge(Protocol):
    """Knows the replicas of controlled groups: the controller in the same process."""

    def refuse_route(self, group: str, broker_id: int, address: str, host: str) -> str | None:
        """Why routes of this group do not follow a request from `host`; None when they do."""


class ControllerBeside(RouteJudge, Protocol):
    """The controller in the same process."""

    def why_not_ready(self) -> list[str]:
        """What it does not do now; nothing when it decides, or knows who does."""

    def metrics(self) -> MetricTable:
        """What Prometheus is shown of it."""


class NameServer:
    """Handlers of all requests; owns the tables, not the sockets.

    judge   asked before a route changes; None where no controller is near
    """

    judge: RouteJudge | None = None

    def __init__(self, config: NameServerConfig, kv: KvConfig, clock: Clock) -> None:
        self.config = config
        self.kv = kv
        self.routes = RouteTable(topics_follow_registration=config.topics_follow_registration)
        self._clock = clock
        self._started_ms = clock.monotonic_ms()
        self._updating = asyncio.Lock()

    def table(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.handle_get_routeinfo_by_topic,
            RequestCode.REGISTER_BROKER: self.handle_register_broker,
            RequestCode.UNREGISTER_BROKER: self.handle_unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.handle_broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.handle_query_data_version,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.handle_get_broker_cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.handle_get_broker_member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.handle_get_all_topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.handle_get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.handle_get_system_topic_list,
            RequestCode.GET_UNIT_TOPIC_LIST: self.handle_get_unit_topic_list,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.handle_get_has_unit_sub_topic_list,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (
                self.handle_get_has_unit_sub_ununit_topic_list
            ),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.handle_wipe_write_perm_of_broker,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.handle_add_write_perm_of_broker,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.handle_delete_topic_in_namesrv,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.handle_register_topic_in_namesrv,
            RequestCode.PUT_KV_CONFIG: self.handle_put_kv_config,
            RequestCode.GET_KV_CONFIG: self.handle_get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.handle_delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.handle_get_kvlist_by_namespace,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.handle_update_namesrv_config,
            RequestCode.GET_NAMESRV_CONFIG: self.handle_get_namesrv_config,
        }

    @property
    def waits_ms(self) -> int:
        """So long no route is given yet: needWaitForService lets brokers register first. 0: routes are given."""
        if not self.config.wait_for_service:
            return 0
        age_ms = self._clock.monotonic_ms() - self._started_ms
        return max(0, self.config.wait_for_service_s * 1000 - age_ms)

    # ---- brokers

    def handle_register_broker(
        self, request: Command, connection: Connection
    ) -> Command | Awaitable[Command]:
        header = RegisterBrokerHeader.of(request)
        for problem in (
            name_problem("broker", header.broker_name),
            name_problem("cluster", header.cluster_name),
            address_problem(header.broker_addr),
        ):
            if problem is not None:
                raise RegistrationRefused(problem)
        check_crc(request.body, header.body_crc32)
        if len(request.body or b"") > LARGE_BODY_BYTES or is_compressed(
            request.body, header.compressed
        ):
            return self._register_large(request, header, connection)
        topics = read_topics(
            request.body, sender_version=request.version, compressed=header.compressed
        )
        return self._register(request, header, topics, connection)

    async def _register_large(
        self, request: Command, header: RegisterBrokerHeader, connection: Connection
    ) -> Command:
        topics = await asyncio.to_thread(
            read_topics,
            request.body,
            sender_version=request.version,
            compressed=header.compressed,
        )
        if connection.closed:
            # its end has already unregistered this broker; to register it now would outlive it
            raise RegistrationRefused("the connection closed meanwhile")
        return self._register(request, header, topics, connection)

    def _register(
        self,
        request: Command,
        header: RegisterBrokerHeader,
        topics: Topics,
        connection: Connection,
    ) -> Command:
        self._believe(header.broker_name, header.broker_id, header.broker_addr, connection)
        lines = {name: line for name, line in topics.lines.items() if not name_problem("", name)}
        if len(lines) < len(topics.lines):
            _odd_names.warning(
                log,
                "topics with impossible names ignored broker=%s count=%d",
                header.broker_name,
                len(topics.lines) - len(lines),
            )
        asked = Registration(
            cluster=header.cluster_name,
            name=header.broker_name,
            address=header.broker_addr,
            broker_id=header.broker_id,
            ha_address=header.ha_server_addr,
            timeout_ms=header.heartbeat_timeout_millis,
            acting_master=header.enable_acting_master,
            zone=(request.ext or {}).get(ZONE_FIELD),
            version=topics.version,
            topics=lines,
            has_static_topics=topics.has_static_topics,
        )
        is_new = self.routes.version_of(asked.cluster, asked.address) is None
        registered = self.routes.register(asked, connection.id, self._clock.monotonic_ms())
        if is_new:
            log.info(
                "broker registered broker=%s id=%d address=%s cluster=%s topics=%d",
                asked.name,
                asked.broker_id,
                asked.address,
                asked.cluster,
                len(lines),
            )
        ext: dict[str, str] = {}
        if registered.ha_address is not None:
            ext["haServerAddr"] = registered.ha_address
        if registered.master_address is not None:
            ext["masterAddr"] = registered.master_address
        body = None
        if self.config.order_topics_returned:
            order_topics = self.kv.namespace(ORDER_TOPICS)
            body = None if order_topics is None else _encode({"table": order_topics})
        return request.reply(ext=ext, body=body)

    def _believe(self, group: str, broker_id: int, address: str, connection: Connection) -> None:
        """Raises RegistrationRefused."""
        if self.judge is None:
            return
        host = connection.address.rpartition(":")[0].strip("[]")
        problem = self.judge.refuse_route(group, broker_id, address, host)
        if problem is not None:
            _doubts.warning(log, "request not believed peer=%s why=%s", connection.address, problem)
            raise RegistrationRefused(problem)

    def handle_unregister_broker(self, request: Command, connection: Connection) -> Command:
        header = BrokerHeader.of(request)
        self._believe(header.broker_name, UNREGISTERED, header.broker_addr, connection)
        self._unregistered(
            self.routes.unregister(header.cluster_name, header.broker_name, header.broker_addr),
            header.broker_addr,
            "it said goodbye",
        )
        return request.reply()

    def handle_broker_heartbeat(self, request: Command, _: Connection) -> Command:
        header = BrokerHeartbeatHeader.of(request)
        self.routes.touch(header.cluster_name, header.broker_addr, self._clock.monotonic_ms())
        return request.reply()

    def handle_query_data_version(self, request: Command, _: Connection) -> Command:
        header = BrokerHeader.of(request)
        now_ms = self._clock.monotonic_ms()
        self.routes.touch(header.cluster_name, header.broker_addr, now_ms)
        stored = self.routes.version_of(header.cluster_name, header.broker_addr)
        asked = _decoded(request, DataVersion)
        changed = stored is None or stored != asked
        return request.reply(
            ext={"changed": "true" if changed else "false"},
            body=None if stored is None else _encode(stored),
        )

    def connection_closed(self, connection: Connection) -> None:
        """A broker's connection ended: it is gone at once."""
        for address in self.routes.connection_closed(connection.id):
            self._unregistered(True, address, f"connection {connection.close_reason}")

    def expire_brokers(self) -> list[int]:
        """Unregister brokers that went silent; the ids of their connections."""
        expired = self.routes.expire(self._clock.monotonic_ms())
        for address, _ in expired:
            self._unregistered(True, address, "silent for too long")
        return [connection for _, connection in expired]

    @staticmethod
    def _unregistered(was_known: bool, address: str, why: str) -> None:
        if was_known:
            log.info("broker unregistered address=%s why=%s", address, why)

    # ---- routes and lists

    def handle_get_routeinfo_by_topic(self, request: Command, _: Connection) -> Command:
        topic = RouteHeader.of(request).topic
        config = self.config
        if self.waits_ms:
            raise Refused(ResponseCode.SYSTEM_ERROR, "name server not ready")
        order = self.kv.get(ORDER_TOPICS, topic) if config.order_message_enabled else None
        body = self.routes.route_json(topic, order)
        if body is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic[:255]}\n{FAQ}",
            )
        return request.reply(body=body)

    def handle_get_broker_cluster_info(self, request: Command, _: Connection) -> Command:
        return request.reply(body=self.routes.cluster_json())

    def handle_get_broker_member_group(self, request: Command, _: Connection) -> Command:
        header = MemberGroupHeader.of(request)
        body = self.routes.member_group_json(header.cluster_name, header.broker_name)
        return request.reply(body=body)

    def handle_get_all_topic_list(self, request: Command, _: Connection) -> Command:
        if not self.config.all_topic_list_enabled:
            raise Refused(ResponseCode.SYSTEM_ERROR, "disable")
        return _topic_list(request, list(self.routes))

    def handle_get_topics_by_cluster(self, request: Command, _: Connection) -> Command:
        self._check_topic_lists()
        return _topic_list(
            request, self.routes.topics_of_cluster(ClusterHeader.of(request).cluster)
        )

    def handle_get_system_topic_list(self, request: Command, _: Connection) -> Command:
        names = sorted(self.routes.clusters.keys() | self.routes.groups.keys())
        return _topic_list(request, names, self.routes.any_address())

    def handle_get_unit_topic_list(self, request: Command, _: Connection) -> Command:
        self._check_topic_lists()
        return _topic_list(request, self.routes.unit_topics(UNIT_FLAG))

    def handle_get_has_unit_sub_topic_list(self, request: Command, _: Connection) -> Command:
        self._check_topic_lists()
        return _topic_list(request, self.routes.unit_topics(UNIT_SUBSCRIPTION_FLAG))

    def handle_get_has_unit_sub_ununit_topic_list(self, request: Command, _: Connection) -> Command:
        self._check_topic_lists()
        return _topic_list(request, self.routes.unit_topics(UNIT_SUBSCRIPTION_FLAG, UNIT_FLAG))

    def _check_topic_lists(self) -> None:
        if not self.config.topic_list_enabled:
            raise Refused(ResponseCode.SYSTEM_ERROR, "disable")

    # ---- topics and permissions

    def handle_wipe_write_perm_of_broker(self, request: Command, _: Connection) -> Command:
        name = _checked("broker", BrokerNameHeader.of(request).broker_name)
        count = self.routes.wipe_write_perm(name)
        log.info("write permission wiped broker=%s topics=%d", name, count)
        return request.reply(ext=_WipedAnswer(wipe_topic_count=count).to_ext())

    def handle_add_write_perm_of_broker(self, request: Command, _: Connection) -> Command:
        name = _checked("broker", BrokerNameHeader.of(request).broker_name)
        count = self.routes.add_write_perm(name)
        log.info("write permission added broker=%s topics=%d", name, count)
        return request.reply(ext=_AddedAnswer(add_topic_count=count).to_ext())

    def handle_delete_topic_in_namesrv(self, request: Command, _: Connection) -> Command:
        header = TopicHeader.of(request)
        _checked("topic", header.topic)
        self.routes.delete_topic(header.topic, header.cluster_name or None)
        log.info("topic deleted topic=%s cluster=%s", header.topic, header.cluster_name or "")
        return request.reply()

    def handle_register_topic_in_namesrv(self, request: Command, _: Connection) -> Command:
        topic = _checked("topic", TopicHeader.of(request).topic)
        self.routes.register_topic(topic, _decoded(request, _RouteBody).queue_datas)
        return request.reply()

    # ---- KV table

    async def handle_put_kv_config(self, request: Command, _: Connection) -> Command:
        header = KeyHeader.of(request)
        if header.namespace is None or header.key is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        await self.kv.put(header.namespace, header.key, header.value or "")
        log.info("kv entry put namespace=%s key=%s", header.namespace, header.key)
        return request.reply()

    def handle_get_kv_config(self, request: Command, _: Connection) -> Command:
        header = KeyHeader.of(request)
        value = self.kv.get(header.namespace or "", header.key or "")
        if value is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}"[:512],
            )
        return request.reply(ext={"value": value})

    async def handle_delete_kv_config(self, request: Command, _: Connection) -> Command:
        header = KeyHeader.of(request)
        await self.kv.delete(header.namespace or "", header.key or "")
        log.info("kv entry deleted namespace=%s key=%s", header.namespace, header.key)
        return request.reply()

    def handle_get_kvlist_by_namespace(self, request: Command, _: Connection) -> Command:
        namespace = KeyHeader.of(request).namespace or ""
        table = self.kv.namespace(namespace)
        if table is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"[:512]
            )
        return request.reply(body=_encode({"table": table}))

    # ---- settings

    def handle_get_namesrv_config(self, request: Command, _: Connection) -> Command:
        return request.reply(body=format_properties(self.config.to_properties()).encode())

    async def handle_update_namesrv_config(self, request: Command, _: Connection) -> Command:
        """All of it or nothing: every key must be one of CHANGEABLE, every value in range."""
        given = asked_settings(request.body, SETTINGS_BYTES_MAX)
        async with self._updating:
            changed = changed_config(
                self.config, given, CHANGEABLE, f"{self.config.config_blacklist};rocketmqHome"
            )
            if self.config.config_store_path and given:
                await asyncio.to_thread(_store_settings, self.config.config_store_path, given)
            self.config = changed
            self.routes.topics_follow_registration = changed.topics_follow_registration
        log.info("settings changed keys=%s", ",".join(sorted(given)))
        return request.reply()


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Command:
    members: dict[str, object] = {"topicList": topics}
    if address is not None:
        members["brokerAddr"] = address
    return request.reply(body=_encode(members))


def _checked(kind: str, name: str) -> str:
    """The name, if it can be one. Raises Refused."""
    problem = name_problem(kind, name)
    if problem is not None:
        raise Refused(ResponseCode.SYSTEM_ERROR, problem)
    return name


def _decoded(request: Command, kind: type[_Kind]) -> _Kind:
    """A small JSON body, in Java's dialect too. Raises Refused."""
    if len(request.body or b"") > LARGE_BODY_BYTES:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"body above {LARGE_BODY_BYTES} bytes")
    try:
        return bodies.read(kind, request.body or b"{}")
    except bodies.BodyUnreadable as problem:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {problem}"[:256]
        ) from None


def _store_settings(path: str, given: dict[str, str]) -> None:
    """Merge changed settings into the file that the next start reads. Raises OSError."""
    file = Path(path)
    kept = read_properties(file) if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    jsonfile.write_atomically(file, format_properties({**kept, **given}).encode("latin-1"))


Embedded = Callable[[], AbstractAsyncContextManager[ControllerBeside]]
"""Serves on a port of its own while its body runs."""


async def serve_nameserver(
    config: NameServerConfig,
    ready: Callable[[str], None],
    controller: Embedded | None = None,
    rooms: Sequence[Room] = (),
) -> None:
    """Serve until SIGTERM or SIGINT.

    ready       called once with the line that says so; scripts wait for it
    controller  runs beside the name server; it starts first and stops last. What it raises ends the name server
    rooms       what the HTTP port serves besides its own
    Raises ConfigError, CorruptFile (the KV file), OSError (the port), TlsUnusable.
    """
    check_startable(config)
    if config.controller_embedded and controller is None:
        raise ConfigError("enableControllerInNamesrv", "true", "there is no controller to embed")
    if config.http.port:
        # Now, for it takes a while and nobody waits for us yet; only when wanted, for it costs memory.
        import tandemmq.cluster.nameserver.http  # noqa: F401
    raise_open_files_limit()
    kv = await asyncio.to_thread(KvConfig.load, Path(config.kv_config_path))
    clock = SystemClock()
    names = NameServer(config, kv, clock)
    listen = Listen(
        config.bind_address,
        config.listen_port,
        tls=config.tls.mode,
        tls_files=config.tls.own_files,
        tls_test_mode=config.tls.test_mode,
        limits=ConnectionLimits(idle_ms=config.idle_s_max * 1000),
    )
    served, opened = NAME_SERVER_SUPER, NAME_SERVER_OPEN
    server = RemotingServer(
        listen.limited(*connections_affordable(2 if controller else 1)),
        names.table(),
        on_close=names.connection_closed,
        error_reply=reply_to,
        clock=clock,
        gate=super_keeper(config.access, served, opened, clock.monotonic_ms),
    )
    encryption = Encryption(config.tls)
    await asyncio.to_thread(encryption.load)
    encryption.also(server.reload_tls)

    async def scan() -> None:
        while True:
            await asyncio.sleep(config.scan_interval_ms / 1000)
            for connection_id in names.expire_brokers():
                connection = server.connections.get(connection_id)
                if connection is not None:
                    connection.close("its broker was silent for too long")

    jobs = {"scan": scan, "remind": lambda: remind_of_exposure(config), **encryption.jobs()}
    with stop_signals() as stop:
        async with AsyncExitStack() as stack:
            beside = None
            if controller is not None:
                names.judge = beside = await stack.enter_async_context(controller())
            await stack.enter_async_context(running(**jobs))
            await stack.enter_async_context(server)
            if config.http.port:
                from tandemmq.cluster.nameserver.http import serving_names_http  # loaded before

                await stack.enter_async_context(
                    serving_names_http(names, encryption, beside, rooms)
                )
            line = (
                "The Name Server boot success. serializeType=JSON, "
                f"address {config.bind_address}:{server.port}"
            )
            log.info("%s", line)
            ready(line)
            log.info("stop requested signal=%s", await stop)


async def remind_of_exposure(config: NameServerConfig) -> None:
    """Say every hour that strangers may come in, first at the start where nobody has; serves until cancelled."""
    said = not config.insecure
    while True:
        if config.is_exposed and not said:
            log.warning("insecure: %s", exposure(config))
        said = False
        await asyncio.sleep(INSECURE_REMINDER_S)
