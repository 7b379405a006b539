"""A broker from its first look at the disk to its last: what starts before what, and stops after it."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tandemmq.cluster.broker import leftopen
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.duplicates import ASK_MS, Claim, NameTaken
from tandemmq.cluster.broker.leftopen import LeftOpen
from tandemmq.cluster.broker.registration import Registration
from tandemmq.cluster.broker.sending.acks import STOPPED_WAITING
from tandemmq.cluster.broker.settings.config import BrokerConfig, MetricsExporter
from tandemmq.cluster.broker.settings.startable import check_startable
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.suspicion import SuspectMark
from tandemmq.cluster.process import (
    collect_rarely,
    raise_open_files_limit,
    running,
    stop_signals,
)
from tandemmq.cluster.remoting.channel import ChannelPool
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.server import RemotingServer
from tandemmq.storage import FlushFailed, MessageStore, SystemClock, open_store

if TYPE_CHECKING:
    from tandemmq.cluster.httpport import Room

log = logging.getLogger(__name__)
T = TypeVar("T")

DRAIN_MS: Final = 1_000


@asynccontextmanager
async def serving(broker: Broker, rooms: Sequence[Room] = ()) -> AsyncIterator[None]:
    """Everything up inside the body. Top-down is start order, bottom-up is stop order.

    rooms   what the HTTP port serves besides our own
    Raises NameTaken, also in the body's place when that raised it.
    """
    async with AsyncExitStack() as stack:
        with _sends_waiting(broker):
            await stack.enter_async_context(running(**broker.jobs()))
            for server in broker.listening:
                await stack.enter_async_context(_listening(server))
            if broker.config.metrics_exporter is MetricsExporter.PROM:
                # Imported when wanted: an HTTP server would cost every start time and memory.
                from tandemmq.cluster.broker.watching.measures import exposing

                await stack.enter_async_context(exposing(broker))
            if broker.config.http.port:
                from tandemmq.cluster.broker.watching.http import (
                    serving_broker_http,
                )  # loaded before

                await stack.enter_async_context(serving_broker_http(broker, rooms))
            await stack.enter_async_context(_settled(broker))
            if broker.claim is not None:
                await broker.claim.last_look()
            await stack.enter_async_context(_parting(broker.registration))
            await stack.enter_async_context(running(registration=broker.registration.run))
            await broker.registration.first_round()
            if broker.claim is not None:
                await broker.claim.open(broker.registration)
        yield


@contextmanager
def _sends_waiting(broker: Broker) -> Iterator[None]:
    """While the body runs sends wait; then they are taken, or refused if it failed.

    So a broker that must give up its name has acknowledged nothing.
    """
    standing = broker.standing
    if broker.claim is None or not isinstance(standing, ClassicMaster):
        yield
        return
    standing.unproven = True
    try:
        yield
        standing.unproven = False
    finally:
        standing.changes.settle()


@asynccontextmanager
async def _settled(broker: Broker) -> AsyncIterator[None]:
    """Leaving in good order answers everybody who waits; after a failure nobody is promised more."""
    refused: NameTaken | None = None
    try:
        yield
    except NameTaken as problem:
        refused = problem
    await broker.log_flush.settle()
    broker.acks.give_up(STOPPED_WAITING)  # whoever waits for more than our disk is told that much
    broker.pulls.held.release_all()
    broker.table_readers.release_all()
    if refused is not None:
        raise refused


@asynccontextmanager
async def _parting(registration: Registration) -> AsyncIterator[None]:
    """Name servers are told when we leave, but not to forget who has our name."""
    goodbye = True
    try:
        yield
    except NameTaken:
        goodbye = False
        raise
    finally:
        await registration.close(goodbye=goodbye)


@asynccontextmanager
async def _listening(server: RemotingServer) -> AsyncIterator[None]:
    await server.start()
    try:
        yield
    finally:
        await server.close(DRAIN_MS)


async def serve_broker(
    config: BrokerConfig, ready: Callable[[str], None], rooms: Sequence[Room] = ()
) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop within 5 s and leave a clean store.

    ready    called with the start line once clients are served and name servers were told
    rooms    what its HTTP port serves besides its own
    Raises ConfigError, storage errors of a store that cannot be opened, OSError of a port that
    cannot be had, TlsUnusable, and FlushFailed: the disk refused, what it holds is unknown, and the process
    must end.
    """
    check_startable(config)
    if config.http.port:
        # Now, for it takes a while and nobody waits for us yet; only when wanted, for it costs memory.
        import tandemmq.cluster.broker.watching.http  # noqa: F401
    leftopen.check_before_opening(config)
    raise_open_files_limit()
    encryption = Encryption(config.tls)
    await asyncio.to_thread(encryption.load)
    if config.listen_port == 0:
        config = with_free_port(config)
    clock = SystemClock()
    rng = random.SystemRandom()  # a replica is known by a number that nobody may guess: INV-44
    suspect = SuspectMark(config.storage)
    if config.controller_mode:
        suspect.look()
    refused: NameTaken | LeftOpen | None = None
    with open_store(config.storage, clock) as store, stop_signals() as stop:
        try:
            leftopen.check_messages(config, store)
            await _serve_opened(config, store, suspect, encryption, clock, rng, stop, ready, rooms)
        except (NameTaken, LeftOpen) as problem:
            refused = problem  # no harm to the store: it is closed as after any stop
    if refused is not None:
        raise refused
    log.info("broker stopped name=%s", config.name)


async def _serve_opened(
    config: BrokerConfig, store: MessageStore, suspect: SuspectMark, encryption: Encryption, clock: SystemClock,
    rng: random.Random, stop: asyncio.Future[str], ready: Callable[[str], None], rooms: Sequence[Room],
) -> None:  # fmt: skip
    """Find out who we are and whether the name is ours, then serve. Raises NameTaken."""
    membership = None
    if config.controller_mode:
        # Imported when wanted: what speaks with controllers would cost every start time and memory.
        from tandemmq.cluster.broker.standing.membership import find_membership

        finding = find_membership(config, store, suspect, clock, rng, encryption.to_peers)
        membership = await unless(stop, finding)
        if membership is None:
            log.info("stop requested before we had an id signal=%s", stop.result())
            leave_as_found(config, store, suspect)
            return
    claim = None
    if membership is None:
        names = ChannelPool(
            tls=encryption.to_peers, connect_timeout_ms=ASK_MS, sign=config.access.signer
        )
        claim = Claim(config, names, channels_to_rivals(config, encryption))
    try:
        if claim is not None:
            await unless(stop, claim.first_look())
        if stop.done():
            log.info("stop requested before anybody was served signal=%s", stop.result())
            leave_as_found(config, store, suspect)
            return
        broker = Broker(config, store, clock, rng, membership, claim, encryption)
        await _serve(broker, stop, ready, rooms)
    finally:
        if claim is not None:
            await claim.close()


def leave_as_found(config: BrokerConfig, store: MessageStore, suspect: SuspectMark) -> None:
    """Let go of a replica's store before its group was heard of.

    What of its log is confirmed nobody has said yet, and closed cleanly all of it would be taken
    for that. Raises FlushFailed, OSError.
    """
    if not config.controller_mode:
        return
    if store.flush_log() == store.end:
        suspect.stopped()
    store.close(clean=False)


async def _serve(
    broker: Broker, stop: asyncio.Future[str], ready: Callable[[str], None], rooms: Sequence[Room]
) -> None:
    """From loading tables to saving them. Raises NameTaken when that is why it ended."""
    config, claim = broker.config, broker.claim
    broker.load()
    settle_memory()
    refused: NameTaken | None = None
    try:
        async with serving(broker, rooms):
            log.info("broker started name=%s address=%s", config.name, config.address)
            ready(broker.started_text)
            if claim is not None:
                await unless(stop, claim.settle(broker.registration))
            log.info("stop requested signal=%s", await stop)
            await broker.timers.settle()
            await broker.standing.hand_over()
    except NameTaken as problem:
        refused = problem
    except BaseExceptionGroup as failures:
        # Several jobs notice a failing disk at once; which of them first does not matter.
        flush_failures = failures.subgroup(FlushFailed)
        if flush_failures is None:
            raise
        raise first_of(flush_failures) from failures
    broker.standing.closing()
    broker.save()
    if refused is not None:
        raise refused


async def unless(stop: asyncio.Future[str], work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; None when a stop is asked for first. Raises what the work raises."""
    task = asyncio.create_task(work)
    either: set[asyncio.Future[Any]] = {task, stop}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        await asyncio.wait({task})


def channels_to_rivals(config: BrokerConfig, encryption: Encryption) -> ChannelPool:
    """How a broker is asked that may have our name: as its clients have to. Nothing secret is said,
    and it may be we ourselves under a former address, so its certificate is not checked."""
    return ChannelPool(
        tls=encryption.to_anybody, connect_timeout_ms=ASK_MS, sign=config.access.signer
    )


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first single exception in a group of groups."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


def settle_memory() -> None:
    """What was built so far stays.

    Collections need not look at it again, and need not run so often.
    """
    gc.collect()
    gc.freeze()
    collect_rarely()


def with_free_port(config: BrokerConfig) -> BrokerConfig:
    """listenPort=0, for tests: ports that are free just now, the fast one two below it, and the
    one for slaves above."""
    while True:
        with ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(3)]
            probes[0].bind((config.bind_host, 0))
            port = int(probes[0].getsockname()[1])
            try:
                probes[1].bind((config.bind_host, port - 2))
                probes[2].bind((config.bind_host, port + 1))
            except OSError:
                continue
        return msgspec.structs.replace(config, listen_port=port, ha_listen_port=port + 1)
