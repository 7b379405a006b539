"""A controller's process: requests to the core of the present reign, and its effects back to brokers and tools."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tandemmq.cluster import controlanswers as answers
from tandemmq.cluster import controlplane as plane
from tandemmq.cluster.config import (
    edit_properties_file,
    format_properties,
)
from tandemmq.cluster.controller.config import CHANGEABLE, ControllerConfig
from tandemmq.cluster.controller.notices import refuses
from tandemmq.cluster.controller.reign import Reign
from tandemmq.cluster.controller.store import Changes, LeadershipLost, Store
from tandemmq.cluster.livesettings import asked_settings, changed_config
from tandemmq.cluster.logs import OncePer, once_per
from tandemmq.cluster.process import running
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.errors import HeaderProblem, Refused
from tandemmq.replication import GroupRecord
from tandemmq.replication import election as e
from tandemmq.replication.credence import at_home
from tandemmq.replication.door import is_within, networks
from tandemmq.replication.evidence import GroupEvidence
from tandemmq.replication.group import NOBODY
from tandemmq.replication.registered import host_of, is_local
from tandemmq.storage import Clock, jsonfile

log = logging.getLogger(__name__)

TICK_MS: Final = 100
REFUSED_SET_S: Final = 10
SETTINGS_BYTES_MAX: Final = 64 * 1024
FOLLOW_AFTER_S: Final = 1.0  # so long a start waits to know whether it leads

Answering = Callable[[Command, e.Answer], Command]

#: how loudly each kind of announcement is said, and its first words
LINES: Final = {
    e.Kind.ELECTED: (logging.INFO, "master elected"),
    e.Kind.LOSS_POSSIBLE: (logging.ERROR, "confirmed messages may be lost"),
    e.Kind.WAITING: (logging.ERROR, "nobody can be elected"),
    e.Kind.UNCLEAN_ALLOWED: (logging.WARNING, "enableElectUncleanMaster is on"),
    e.Kind.SET_CHANGED: (logging.INFO, "sync-state-set changed"),
    e.Kind.ONE_COPY: (logging.WARNING, "one copy is left"),
    e.Kind.WHOLE: (logging.INFO, "every replica is in the sync-state-set"),
    e.Kind.CAME_BACK_SHORT: (logging.ERROR, "store came back with less than it had"),
    e.Kind.DOUBTED: (logging.WARNING, "request not believed"),
    e.Kind.MODE_DIFFERS: (logging.WARNING, "replica in another mode than its group"),
    e.Kind.CLEANED: (logging.WARNING, "replicas forgotten on request"),
}


def reply_to(problem: Exception) -> tuple[int, str] | None:
    """Code and remark for what handlers raise on purpose."""
    if isinstance(problem, Refused):
        return problem.code, problem.remark
    if isinstance(problem, HeaderProblem):
        return ResponseCode.CONTROLLER_INVALID_REQUEST, str(problem)
    return None


@dataclass(slots=True)
class ControllerStats:
    """Counted since the start, by group; read by metrics. A lossy election is an election too."""

    elections: Counter[str] = field(default_factory=Counter)
    lossy_elections: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    reigns: int = 0
    records_written: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose answer the core has not given yet."""

    connection: Connection
    command: Command
    answering: Answering


class Controller:
    """Handlers of all requests; feeds the reign, if there is one. Owns no sockets.

    notify       sends a oneway command to a broker's own port
    probe        whether an address refuses a connection
    connections  of the server, by session number
    settled      set when it is known whether this controller leads
    """

    def __init__(
        self,
        config: ControllerConfig,
        store: Store,
        clock: Clock,
        *,
        notify: Callable[[str, Command], None],
        probe: Callable[[str], Awaitable[bool]] = refuses,
    ) -> None:
        self.config = config
        self.store = store
        self.stats = ControllerStats()
        self.reign: Reign | None = None
        self.connections: Mapping[int, Connection] = {}
        self.settled = asyncio.Event()
        self._clock = clock
        self._notify_address = notify
        self._refuses = probe
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._beats: dict[tuple[int, str, int, int], tuple[Connection, Command]] = {}
        self._updating = asyncio.Lock()
        self._probes: set[asyncio.Task[None]] = set()
        self._late = once_per(10)
        self._refused_sets: dict[str, OncePer] = {}  # by group: as many as there are
        self._doubts = once_per(1)
        self._allowed = networks(config.allowed)

    def table(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self.handle_alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self.handle_elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self.handle_register_broker,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self.handle_get_replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.handle_get_metadata_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.handle_get_sync_state_data,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self.handle_update_controller_config,
            RequestCode.GET_CONTROLLER_CONFIG: self.handle_get_controller_config,
            RequestCode.CLEAN_BROKER_DATA: self.handle_clean_broker_data,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self.handle_get_next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self.handle_apply_broker_id,
            RequestCode.BROKER_HEARTBEAT: self.handle_broker_heartbeat,
        }

    # --- who is believed ---

    def _believe(self, connection: Connection) -> None:
        """Where brokers and operators must be named, nobody else changes anything. Raises Refused."""
        host, allowed = host_of(connection.address), self._allowed
        if allowed and not is_local(host) and not is_within(host, allowed):
            raise Refused(
                ResponseCode.NO_PERMISSION, f"{host} is not in controllerAllowedAddresses"
            )

    def _believe_operator(self, connection: Connection, what: str) -> None:
        """A group is stopped or given another master only from here, from its replicas' hosts and
        connections, and from where we were told. INV-44. Raises Refused."""
        host = host_of(connection.address)
        if is_local(host) or is_within(host, self._allowed):
            return
        if self.reign is not None:
            core = self.reign.core
            members = (
                each for group in core.groups.values() for each in group.record.members.values()
            )
            if core.speaks_for(connection.id) or any(
                each.address and at_home(each, host) for each in members
            ):
                return
        log.warning("%s was not believed peer=%s", what, connection.address)
        remark = f"{what} from {host} is not believed: name it in controllerAllowedAddresses"
        raise Refused(ResponseCode.NO_PERMISSION, remark)

    def refuse_route(self, group: str, broker_id: int, address: str, host: str) -> str | None:
        """For the name server in this process: why routes of this group do not follow a request from `host`.

        Only the master that the group has may be its id 0. Who else is in a group is not looked at:
        a replica tells name servers before it is registered here.
        """
        known = self.reign.core.groups.get(group) if self.reign is not None else None
        if known is None:
            return None
        record = known.record
        member = next((each for each in record.members.values() if each.address == address), None)
        if member is not None and self.config.replica_host_check and not at_home(member, host):
            return f"{address} of {group} is not at {host}"
        master = record.members.get(record.master)
        if broker_id == 0 and (member is None or (master is not None and member is not master)):
            return f"{address} is not the master of {group} that its controller knows"
        return None

    # --- requests ---

    def _leading(self) -> Reign:
        """The reign that takes requests. Raises Refused when there is none, or it is too busy."""
        reign = self.reign
        if reign is None or not self.store.leading():
            raise Refused(ResponseCode.CONTROLLER_NOT_LEADER, self._who_leads())
        if reign.overloaded:
            raise Refused(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]the controller's store does not answer"
            )
        return reign

    def _who_leads(self) -> str:
        leader = self.store.leader()
        if leader.address and leader.id != self.config.self_id:
            return f"the leading controller is {leader.id} at {leader.address}"
        return "no controller leads at the moment"

    def _ask(
        self,
        command: Command,
        connection: Connection,
        read: Callable[[Command, int], e.Event],
        answering: Answering,
    ) -> None:
        """Feed the request; its answer goes out when the core has given it and what it rests on is durable."""
        reign = self._leading()
        number = self._number + 1
        event = read(command, number)
        self._number = number
        self._asked[number] = _Asked(connection, command, answering)
        reign.feed(event)

    def handle_get_next_broker_id(self, command: Command, connection: Connection) -> None:
        self._ask(command, connection, plane.read_next_broker_id, answers.answer_next_broker_id)

    def handle_apply_broker_id(self, command: Command, connection: Connection) -> None:
        self._believe(connection)
        event = plane.read_apply_broker_id(command, 0)
        self._check_room(event.group, event.replica)
        self._ask(command, connection, plane.read_apply_broker_id, answers.answer_apply_broker_id)

    def _check_room(self, name: str, replica: int) -> None:
        """Anybody may apply: keep what they can make us remember within bounds. Raises Refused."""
        groups = self._leading().core.groups
        group = groups.get(name)
        if group is None:
            if len(groups) >= plane.GROUPS_MAX:
                remark = f"{plane.GROUPS_MAX} groups are known"
                raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
            return
        record = group.record
        if replica in record.members:
            return
        if len(record.members) >= plane.MEMBERS_MAX:
            remark = f"{name} has {plane.MEMBERS_MAX} replicas: clean the ones that are gone"
            raise Refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)
        if replica > record.next_id + plane.MEMBERS_MAX:
            remark = f"the next id of {name} is {record.next_id}, not {replica}"
            raise Refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)

    def handle_register_broker(self, command: Command, connection: Connection) -> None:
        times = self.config.times
        self._believe(connection)

        def read(command: Command, request: int) -> e.RegisterBroker:
            host = host_of(connection.address)
            return plane.read_register_broker(command, request, connection.id, times, host)

        def answering(command: Command, answer: e.Answer) -> Command:
            return answers.answer_register_broker(command, answer, times)

        self._ask(command, connection, read, answering)

    def handle_alter_sync_state_set(self, command: Command, connection: Connection) -> None:
        def read(command: Command, request: int) -> e.AlterSyncSet:
            host = host_of(connection.address)
            return plane.read_alter_sync_set(command, request, connection.id, host)

        self._believe(connection)
        self._ask(command, connection, read, self._answer_alter_sync_set)

    def _answer_alter_sync_set(self, command: Command, answer: e.Answer) -> Command:
        """A master that is refused asks again with every report of a slave: one line in a while is enough."""
        if answer.code is not e.Code.SUCCESS and answer.records:
            record = answer.records[0]
            said = self._refused_sets.setdefault(record.name, once_per(REFUSED_SET_S))
            said.warning(
                log, "sync-state-set not changed broker=%s master=%s code=%d why=%s",
                record.name, (command.ext or {}).get("masterBrokerId"), answer.code, answer.remark,
            )  # fmt: skip
        return answers.answer_alter_sync_set(command, answer)

    def handle_elect_master(self, command: Command, connection: Connection) -> None:
        self._believe(connection)
        if plane.read_elect_master(command, 0).designated:
            self._believe_operator(connection, "electMaster")
        self._ask(command, connection, plane.read_elect_master, answers.answer_elect_master)

    def handle_get_replica_info(self, command: Command, connection: Connection) -> None:
        self._ask(command, connection, plane.read_replica_info, answers.answer_replica_info)

    def handle_get_sync_state_data(self, command: Command, connection: Connection) -> None:
        self._ask(command, connection, plane.read_sync_state_data, answers.answer_sync_state_data)

    def handle_clean_broker_data(self, command: Command, connection: Connection) -> None:
        self._believe_operator(connection, "cleanBrokerMetadata")
        self._ask(
            command, connection, plane.read_clean_broker_data, answers.answer_clean_broker_data
        )

    def handle_broker_heartbeat(self, command: Command, connection: Connection) -> None:
        reign = self._leading()
        event = plane.read_heartbeat(command, connection.id, host_of(connection.address))
        if not command.oneway:
            key = (event.session, event.group, event.replica, event.number)
            self._beats[key] = (connection, command)
        reign.feed(event)

    def handle_get_metadata_info(self, command: Command, _: Connection) -> Command:
        """Answered by every controller: it is how the leading one is found."""
        leader = self.store.leader()
        leadership = answers.Leadership(
            self.config.group,
            leader.id,
            leader.address,
            self.reign is not None and self.store.leading(),
            "".join(f"{peer.id}:{peer.address};" for peer in self.config.all_peers),
        )
        return answers.answer_metadata(command, leadership)

    # --- settings ---

    def handle_get_controller_config(self, command: Command, _: Connection) -> Command:
        return command.reply(body=format_properties(self.config.to_properties()).encode())

    async def handle_update_controller_config(
        self, command: Command, connection: Connection
    ) -> Command:
        """All of it or nothing: every key must be one of CHANGEABLE, every value in range."""
        self._believe_operator(connection, "updateControllerConfig")
        given = asked_settings(command.body, SETTINGS_BYTES_MAX)
        async with self._updating:
            changed = changed_config(self.config, given, CHANGEABLE, self.config.config_blacklist)
            if self.config.config_store_path and given:
                await asyncio.to_thread(_store_settings, self.config.config_store_path, given)
            before, self.config = self.config, changed
            if before.unclean != changed.unclean and self.reign is not None:
                self.reign.feed(e.AllowUnclean(changed.unclean))
        log.info("settings changed keys=%s", ",".join(sorted(given)))
        return command.reply()

    # --- connections ---

    def connection_closed(self, connection: Connection) -> None:
        """Called at once when a connection has ended."""
        for number in [n for n, asked in self._asked.items() if asked.connection is connection]:
            del self._asked[number]
        for key in [key for key in self._beats if key[0] == connection.id]:
            del self._beats[key]
        if self.reign is not None:
            self.reign.feed(e.SessionClosed(connection.id))

    # --- effects ---

    def perform(self, effect: e.Effect) -> None:
        """Do one effect, now: nothing before it is still to be made durable."""
        match effect:
            case e.Answer():
                asked = self._asked.pop(effect.request, None)
                if asked is not None:
                    asked.connection.send(asked.answering(asked.command, effect))
            case e.AnswerHeartbeat():
                key = (effect.session, effect.group, effect.replica, effect.number)
                beat = self._beats.pop(key, None)
                if beat is not None:
                    beat[0].send(answers.answer_heartbeat(beat[1], effect))
            case e.NotifyRole():
                self._notify(effect)
            case e.AskToSwitch():
                connection = self.connections.get(effect.session)
                if connection is not None:
                    connection.oneway(answers.encode_switch_request(effect))
            case e.Probe():
                self._start(self._probe(effect, self.reign), f"probe {effect.address}")
            case e.Announce():
                self._announce(effect)
            case e.Persist():
                raise AssertionError(effect)

    def _notify(self, effect: e.NotifyRole) -> None:
        """A broker of ours hears it on the connection that it opened, a stock one on its own port."""
        assert self.reign is not None
        group = self.reign.core.groups.get(effect.group)
        member = group.record.members.get(effect.replica) if group else None
        if member is not None and not member.incarnation:
            self._notify_address(member.address, answers.encode_role_notice(effect.view))
            return
        connection = self.connections.get(effect.session)
        if connection is not None:
            leads = effect.replica == effect.view.master
            connection.oneway(answers.encode_role_notice(effect.view, for_master=leads))

    async def _probe(self, effect: e.Probe, reign: Reign | None) -> None:
        refused = await self._refuses(effect.address)
        if reign is not None and self.reign is reign:
            reign.feed(e.ProbeAnswered(effect.group, effect.replica, effect.incarnation, refused))

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._probes.add(task)
        task.add_done_callback(self._probe_done)

    def _probe_done(self, task: asyncio.Task[None]) -> None:
        self._probes.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            context = {"message": f"{task.get_name()} failed", "exception": problem, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    def _announce(self, effect: e.Announce) -> None:
        stats, kind, name = self.stats, effect.kind, effect.group
        level, said = LINES[kind]
        if not name:
            log.log(level, "%s: %s", said, effect.text)
            return
        if kind is e.Kind.DOUBTED:  # whoever is not believed may ask as often as it likes
            self._doubts.warning(log, "%s broker=%s why=%s", said, name, effect.text)
            return
        log.log(level, "%s broker=%s epoch=%d why=%s", said, name, effect.epoch, effect.text)
        if kind in (e.Kind.ELECTED, e.Kind.LOSS_POSSIBLE):
            stats.elections[name] += 1
        if kind is e.Kind.LOSS_POSSIBLE:
            stats.lossy_elections[name] += 1
        if kind is e.Kind.WAITING:
            stats.waits[name] += 1

    def why_not_ready(self) -> list[str]:
        """What this controller does not do now of what it is there for; nothing: it decides, or knows who does."""
        reign = self.reign
        if reign is not None and self.store.leading():
            if reign.failing_since_ms is not None:
                return ["its store does not answer: nothing can be decided"]
            return []
        leader = self.store.leader()
        if leader.address and leader.id != self.config.self_id:
            return []
        return ["no controller leads at the moment"]

    def alive(self, group: GroupEvidence) -> int:
        """How many of a group's replicas are alive, for metrics."""
        if self.reign is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        alive = self.reign.core.judge.alive
        return sum(alive(group, each, now_ms) for each in group.record.members)

    def led(self, group: GroupEvidence) -> bool:
        """Whether a group has a master that is alive, for metrics: the record keeps a dead one."""
        record = group.record
        if self.reign is None or record.master == NOBODY or record.electing_from:
            return False
        return self.reign.core.judge.alive(group, record.master, self._clock.monotonic_ms())

    # --- leading ---

    async def _write(self, changes: Changes) -> None:
        await self.store.write(changes)
        self.stats.records_written += len(changes)

    async def run(self) -> None:
        """Lead whenever the store lets us; serves until cancelled. Raises StorageError, OSError."""
        if not self.store.leading():
            self._settle_soon()
        while True:
            reign = self.begin(await self.store.lead())
            why = "the right to lead ran out"
            try:
                async with running(tick=partial(self._tick, reign)):
                    await reign.run()
            except LeadershipLost as problem:
                why = str(problem)
            finally:
                await self.end()
            log.warning("leading no more id=%s why=%s", self.config.self_id, why)

    def begin(self, records: Iterable[GroupRecord]) -> Reign:
        """From now on requests go to a core that continues from these records."""
        core = e.ControllerCore(
            times=self.config.times,
            start_ms=self._clock.monotonic_ms(),
            fast=self.config.fast,
            by_host=self.config.replica_host_check,
        )
        core.load(records)
        self.reign = Reign(
            core, self._write, self.perform, self._clock.monotonic_ms, self.store.leading
        )
        self.stats.reigns += 1
        self.settled.set()
        log.info("leading the controllers id=%s groups=%d", self.config.self_id, len(core.groups))
        if self.config.unclean:
            self.reign.feed(e.AllowUnclean(True))
        return self.reign

    def _settle_soon(self) -> None:
        """Without leadership at once, start all the same: brokers are told who leads."""
        asyncio.get_running_loop().call_later(FOLLOW_AFTER_S, self.settled.set)

    async def _tick(self, reign: Reign) -> None:
        """Time passes. After a standstill of our own, what arrived meanwhile counts first."""
        interval_ms = min(TICK_MS, self.config.times.heartbeat_ms)
        before_ms = self._clock.monotonic_ms()
        resume_ms = before_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            late_ms, before_ms = now_ms - before_ms - interval_ms, now_ms
            if late_ms > self.config.times.heartbeat_ms:
                resume_ms = now_ms + self.config.times.heartbeat_ms
                self._late.warning(log, "controller stood still late_ms=%d", late_ms)
            if now_ms >= resume_ms:
                reign.feed(e.Tick())

    async def end(self) -> None:
        """The reign is over: whoever waits for an answer is sent on."""
        self.reign = None
        probes = list(self._probes)
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        asked, self._asked = self._asked, {}
        beats, self._beats = self._beats, {}
        remark = self._who_leads()
        waiting = [(each.connection, each.command) for each in asked.values()]
        for connection, command in (*waiting, *beats.values()):
            refusal = answers.refusal(command, ResponseCode.CONTROLLER_NOT_LEADER, remark)
            connection.send(refusal)


def _store_settings(path: str, given: dict[str, str]) -> None:
    """Change settings in the file that the next start reads; its other lines stay. Blocks. Raises OSError."""
    file = Path(path)
    if file.exists():
        edit_properties_file(file, given)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    jsonfile.write_atomically(file, format_properties(given).encode("latin-1"))
