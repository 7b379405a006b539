"""This broker's connection to the controller of its group: what the replica core asks, and what it is told.

One connection of its own, to the controller that leads. Nothing of the data path goes over it, and no request waits for
another: each answer becomes an event when it comes, or is given up; the core asks again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tandemmq.cluster import controlanswers, controlplane
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.lineage import Registered
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.channel import Channel, Tls, open_channel, split_address
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.errors import HeaderProblem, RemotingError
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication.registered import KnownReplica
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

CONNECT_MS: Final = 1_000
ASK_MS: Final = 1_000  # the controller makes records durable before it answers
RETRY_MS: Final = (50, 250)  # between rounds over all controllers: well below a lease
STOCK_TIMEOUT_MS: Final = 10_000  # RocketMQ's controllerHeartBeatTimeoutMills
REPLICAS_MS: Final = 250  # so often such a controller is asked for the group's replicas
SAID_AGAIN_MS: Final = 60_000  # so often the same registration is logged
TAKEN_MS_MAX: Final = 5_000  # so long another process may hold our id, then we are one too many


class IdentityTaken(ConfigError):
    """Another process lives under our id: two of us must not write."""


class ControllerLink:
    """Speaks for one replica.

    replica, incarnation  who we are; feed gets events of tandemmq.replication.replica
    lineage               who had this store before us
    registered            gets the group's replicas from a controller that does not name them to their master: a stock
                          one, or one of ours of an older release. They come without incarnations
    leases                whether the controller is one of ours. A stock one grants no leases: what it says about the
                          group right behind a heartbeat stands in for one
    run() serves until cancelled. Raises IdentityTaken.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
        *,
        replica: int,
        incarnation: int,
        lineage: tuple[int, ...] = (),
        feed: Callable[[r.Event], None],
        registered: Callable[[tuple[KnownReplica, ...]], None],
        space: Callable[[], bool] = lambda: True,
        tls: Tls = None,
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self._lineage = lineage
        self._remember = Registered(Path(config.storage.root), incarnation)
        self.leases = True
        self.address = ""  # of the controller we are connected to
        self._config = config
        self._clock = clock
        self._rng = rng
        self._feed = feed
        self._space = space
        self._tls = tls
        self._registered_are = registered
        self._listed_ms = -REPLICAS_MS
        self._channel: Channel | None = None
        self._heard_ms = 0
        self._beat: e.Heartbeat | None = None  # the last one sent
        self._beat_ms = 0
        self._taken_since_ms: int | None = None
        self._said: tuple[str, int, int, bool] | None = None  # of the last registration
        self._said_ms = 0
        self._refused = ""  # why we must end
        self._leader = ""  # as another controller named it
        self._odd = once_per(10)
        self._kick = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._channel is not None and not self._channel.closed

    def table(self) -> Mapping[int, Handler]:
        """What a controller asks of us, over the connection that we opened."""
        return {
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.handle_notify_broker_role_changed,
            RequestCode.ASK_TO_SWITCH: self.handle_ask_to_switch,
        }

    def handle_notify_broker_role_changed(self, command: Command, connection: Connection) -> None:
        self._feed(controlanswers.read_role_notice(command))

    def handle_ask_to_switch(self, command: Command, connection: Connection) -> None:
        self._feed(controlanswers.read_switch_request(command, self._config.name))

    # --- effects of the core ---

    def register(self, effect: r.Register) -> None:
        """1003"""
        config = self._config
        event = e.RegisterBroker(
            0, 0, config.cluster, config.name, self.replica, config.address, config.ha_address,
            self.incarnation, config.mode.value, effect.suspect, effect.epoch, effect.end,
            (*self._lineage, self.incarnation),
        )  # fmt: skip
        command = controlplane.encode_register_broker(event, config.lease, self._clock.now_ms())
        self._ask(command, self._registered)

    def beat(self, effect: r.SendHeartbeat) -> None:
        """904. The answer's lease counts from now, which the core has noted."""
        self._beat = e.Heartbeat(
            0, self._config.name, self.replica, self.incarnation, effect.number, effect.epoch,
            effect.end, effect.confirmed, effect.leading, effect.streaming, effect.resigned,
            self._config.election_priority, 0 if self.leases else STOCK_TIMEOUT_MS, self._space(),
        )  # fmt: skip
        self._send_beat(self._beat)

    def keep_alive(self) -> None:
        """For a core that cannot step just now: repeat its last heartbeat, without any claim to lead.

        Number 0: whatever is answered is no news and no lease.
        """
        waited_ms = self._clock.monotonic_ms() - self._beat_ms
        if self._beat is None or waited_ms < 2 * self._interval_ms:
            return
        last = self._beat
        self._send_beat(
            e.Heartbeat(
                0, last.group, last.replica, last.incarnation, 0, last.epoch, last.end, last.confirmed,
                priority=last.priority, timeout_ms=last.timeout_ms,
            )
        )  # fmt: skip

    @property
    def _interval_ms(self) -> int:
        return self._config.lease.heartbeat_ms

    def _send_beat(self, beat: e.Heartbeat) -> None:
        self._beat_ms = self._clock.monotonic_ms()
        command = controlplane.encode_heartbeat(beat, self._config.cluster, self._config.address)
        if self.leases:
            # One that comes late is worth what is left of its lease: its time counts from the sending.
            self._ask(command, partial(self._beat_answered, beat), self._config.lease.lease_ms)
            return
        if self._channel is not None:
            self._channel.oneway(command)
        question = controlplane.encode_replica_info(e.ReplicaInfo(0, self._config.name))
        self._ask(question, partial(self._stock_beat_answered, beat))

    def propose(self, effect: m.Propose) -> None:
        """1001"""
        asked = e.AlterSyncSet(
            0, self._config.name, self.replica, effect.epoch, effect.members, effect.number,
            effect.incarnations, effect.reaffirm,
        )  # fmt: skip
        command = controlplane.encode_alter_sync_set(asked, self._clock.now_ms())
        self._ask(command, partial(self._altered, asked))

    def ask_for_election(self) -> None:
        """1002 for ourselves."""
        asked = e.ElectMaster(0, self._config.cluster, self._config.name, self.replica)
        command = controlplane.encode_elect_master(asked, self._clock.now_ms())
        self._ask(command, self._elected)

    def hand_over(self, successor: int, *, spacious: bool = False) -> None:
        """1002 for another member of the set, as an operator would ask: this process is to stop, or
        its disk is full, and then it has to be a `spacious` one."""
        asked = e.ElectMaster(
            0, self._config.cluster, self._config.name, successor, True, spacious=spacious
        )
        command = controlplane.encode_elect_master(asked, self._clock.now_ms())
        self._ask(command, partial(self._handed_over, successor))

    # --- answers ---

    def _ask(
        self, command: Command, take: Callable[[Command], None], timeout_ms: int = ASK_MS
    ) -> None:
        """Send a request; without a connection, or without an answer, nothing happens."""
        channel = self._channel
        if channel is not None and not channel.closed:
            future = channel.request_nowait(command, timeout_ms)
            future.add_done_callback(partial(self._answered, channel, take))

    def _answered(
        self, channel: Channel, take: Callable[[Command], None], future: asyncio.Future[Command]
    ) -> None:
        if future.cancelled() or channel is not self._channel:
            return
        problem = future.exception()
        if isinstance(problem, RemotingError):
            return  # the core asks again; a controller that answers nothing is left
        if problem is not None:
            raise problem
        self._heard_ms = self._clock.monotonic_ms()
        answer = future.result()
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = ""
            channel.close("not the leading controller")
            return
        try:
            take(answer)
        except HeaderProblem as unreadable:
            self._odd.warning(log, "odd answer controller=%s why=%s", self.address, unreadable)

    def _registered(self, answer: Command) -> None:
        found = controlanswers.read_register_answer(answer, self._config.lease)
        if isinstance(found.event, r.Registered):
            self._taken_since_ms = None
            self.leases = found.leases
            self._remember.heard()
            said = (self.address, self.replica, found.event.view.epoch, found.leases)
            now_ms = self._clock.monotonic_ms()
            # One that has elected nobody is asked again and again.
            if said != self._said or now_ms - self._said_ms >= SAID_AGAIN_MS:
                self._said, self._said_ms = said, now_ms
                log.info("registered with controller=%s replica=%d epoch=%d leases=%s", *said)
        else:
            why = found.event.why
            self._odd.warning(log, "registration refused controller=%s why=%s", self.address, why)
            if found.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                self._apply_again()
            elif found.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                self._taken(why)
        self._feed(found.event)

    def _apply_again(self) -> None:
        """The controller does not know our id, but may give it: its data of us was cleaned, or lost."""
        config = self._config
        check_code = f"{config.address};{self._clock.now_ms()}"
        asked = e.ApplyBrokerId(0, config.cluster, config.name, self.replica, check_code)
        self._ask(controlplane.encode_apply_broker_id(asked), self._applied_again)

    def _applied_again(self, answer: Command) -> None:
        reply = controlanswers.read_apply_broker_id_answer(answer)
        if reply.succeeded:
            log.warning("controller had forgotten our id, given again id=%d", self.replica)
        else:
            self._odd.warning(
                log, "controller does not know this group: restore its state controller=%s id=%d why=%s",
                self.address, self.replica, reply.remark,
            )  # fmt: skip

    def _taken(self, why: str) -> None:
        """Another process has our id. It may be our predecessor, whose end is not noticed yet: wait a while."""
        now_ms = self._clock.monotonic_ms()
        if self._taken_since_ms is None:
            self._taken_since_ms = now_ms
        elif now_ms - self._taken_since_ms >= TAKEN_MS_MAX:
            self._refused = why
            self._kick.set()

    def _beat_answered(self, beat: e.Heartbeat, answer: Command) -> None:
        found = controlanswers.read_heartbeat_answer(answer)
        if found is not None and found.number:
            if beat.leading and found.known and found.view.registered is None:
                self._ask_for_replicas()  # a controller of an older release
            self._feed(found)

    def _ask_for_replicas(self) -> None:
        """1006: every controller answers it."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._listed_ms >= REPLICAS_MS:
            self._listed_ms = now_ms
            asked = controlplane.encode_sync_state_data(e.SyncStateData(0, (self._config.name,)))
            self._ask(asked, self._replicas_listed)

    def _replicas_listed(self, answer: Command) -> None:
        if answer.code != ResponseCode.SUCCESS:
            self._odd.warning(
                log, "controller does not list the group's replicas controller=%s code=%d why=%s",
                self.address, answer.code, answer.remark,
            )  # fmt: skip
            return
        state = controlanswers.read_sync_state_answer(answer).get(self._config.name)
        if state is not None:
            self._registered_are(controlanswers.registered_in(state))

    def _stock_beat_answered(self, beat: e.Heartbeat, answer: Command) -> None:
        reply = controlanswers.read_replica_info_answer(answer)
        if beat.leading:
            self._ask_for_replicas()
        if beat.number:
            self._feed(
                controlanswers.stock_heartbeat_answer(
                    beat.number, reply, self.replica, beat.epoch, leading=beat.leading
                )
            )

    def _altered(self, asked: e.AlterSyncSet, answer: Command) -> None:
        reply = controlanswers.read_alter_answer(answer, asked)
        if not reply.succeeded:
            log.info(
                "set not changed wanted=%s number=%d code=%d why=%s",
                sorted(asked.members), asked.number, reply.code, reply.remark,
            )  # fmt: skip
        self._told(reply)

    def _elected(self, answer: Command) -> None:
        self._told(controlanswers.read_elect_answer(answer))

    def _handed_over(self, successor: int, answer: Command) -> None:
        reply = controlanswers.read_elect_answer(answer)
        if not reply.succeeded:
            self._odd.warning(log, "not handed over successor=%d why=%s", successor, reply.remark)
        self._told(reply)

    def _told(self, reply: controlanswers.Reply) -> None:
        if reply.view is not None:
            self._feed(r.RoleNotified(reply.view, answer=True))

    # --- the connection ---

    async def run(self) -> None:
        remembering = asyncio.create_task(self._remember.run(), name="remember registration")
        try:
            await self._run()
        finally:
            remembering.cancel()

    async def _run(self) -> None:
        while True:
            found = await self._leading()
            while found is not None:
                self.address, channel = found
                try:
                    found = await self._serve(channel)
                finally:
                    self.address = ""
                    channel.close("leaving this controller")
            await asyncio.sleep(self._rng.uniform(*RETRY_MS) / 1000)

    async def _leading(self) -> tuple[str, Channel] | None:
        """A connection to the controller that leads, and its address; None when none was found in one round."""
        for address in self._addresses():
            channel = await self._connect(address)
            if channel is not None:
                return address, channel
        return None

    def _addresses(self) -> list[str]:
        """Who is said to lead first, then the others in any order."""
        found = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in self._config.controller_addresses
        ]
        self._rng.shuffle(found)
        leader, self._leader = self._leader, ""
        return [leader, *(each for each in found if each != leader)] if leader else found

    async def _connect(self, address: str) -> Channel | None:
        """A connection to a controller that leads; None where there is none."""
        host, port = split_address(address)
        try:
            channel = await open_channel(
                host,
                port,
                tls=self._tls,
                timeout_ms=CONNECT_MS,
                table=self.table(),
                sign=self._config.access.signer,
            )
        except RemotingError as problem:
            self._odd.warning(log, "no controller address=%s why=%s", address, problem)
            return None
        try:
            answer = await channel.request(controlplane.encode_metadata(), ASK_MS)
            leadership = controlanswers.read_metadata_answer(answer)
        except (RemotingError, HeaderProblem) as problem:
            self._odd.warning(log, "odd controller address=%s why=%s", address, problem)
            channel.abort("no controller")
            return None
        if leadership.is_leader:
            return channel
        channel.close("not the leading controller")
        self._leader = leadership.controller_leader_address
        return None

    async def _serve(self, channel: Channel) -> tuple[str, Channel] | None:
        """Until the connection ends; the next one, where the controller was silent and one was found.

        After half a lease of silence another connection is looked for, and this one kept: who is slow under load
        still answers in time for its lease, and whoever left it would throw those answers away and begin anew.
        """
        channel.on_close(lambda _: self._kick.set())
        self._channel = channel
        self._heard_ms = self._clock.monotonic_ms()
        log.info("connected to controller=%s", self.address)
        self._feed(r.ControllerUp())
        silence_ms = max(self._config.lease.lease_ms // 2, 2 * self._interval_ms)
        looking: asyncio.Task[tuple[str, Channel] | None] | None = None
        try:
            while not channel.closed:
                self._kick.clear()
                try:
                    async with asyncio.timeout(self._interval_ms / 1000):
                        await self._kick.wait()
                except TimeoutError:
                    self.keep_alive()
                if self._refused:
                    path = str(self._config.identity_path)
                    raise IdentityTaken("storePathBrokerIdentity", path, self._refused)
                silent = self._clock.monotonic_ms() - self._heard_ms > silence_ms
                if looking is None:
                    looking = asyncio.create_task(self._leading()) if silent else None
                elif looking.done():
                    found, looking = looking.result(), None
                    if found is not None and silent:
                        channel.abort(f"silent for {silence_ms} ms")
                        return found
                    _let_go(found)
            return None
        finally:
            if looking is not None:
                looking.cancel()
                looking.add_done_callback(_let_go_of)
            self._channel = None
            log.warning("lost controller=%s why=%s", self.address, channel.close_reason)
            self._feed(r.ControllerLost())


def _let_go(found: tuple[str, Channel] | None) -> None:
    if found is not None:
        found[1].close("not needed any more")


def _let_go_of(looking: asyncio.Task[tuple[str, Channel] | None]) -> None:
    if not looking.cancelled() and looking.exception() is None:
        _let_go(looking.result())
