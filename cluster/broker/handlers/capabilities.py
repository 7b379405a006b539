"""Which requests a broker answers: a function per capability, which makes its handlers of the broker's parts.

A new capability is one more function, and its place in CAPABILITIES.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from tandemmq.cluster.broker.access.unguarded import Unguarded
from tandemmq.cluster.broker.duplicates import Claim
from tandemmq.cluster.broker.handlers.admin_config import ConfigAdminHandlers
from tandemmq.cluster.broker.handlers.admin_groups import GroupAdminHandlers
from tandemmq.cluster.broker.handlers.admin_offsets import OffsetAdminHandlers
from tandemmq.cluster.broker.handlers.admin_state import StateAdminHandlers
from tandemmq.cluster.broker.handlers.admin_topics import TopicAdminHandlers
from tandemmq.cluster.broker.handlers.client import ClientHandlers
from tandemmq.cluster.broker.handlers.locks import LockHandlers
from tandemmq.cluster.broker.handlers.masteronly import guarded
from tandemmq.cluster.broker.handlers.nousers import NoUserHandlers
from tandemmq.cluster.broker.handlers.offsets import OffsetHandlers
from tandemmq.cluster.broker.handlers.pull import PullHandler
from tandemmq.cluster.broker.handlers.query import QueryHandler
from tandemmq.cluster.broker.handlers.reply import ReplyHandler
from tandemmq.cluster.broker.handlers.send import SendHandler
from tandemmq.cluster.broker.handlers.sendback import SendBackHandler
from tandemmq.cluster.broker.handlers.tables import TableHandlers
from tandemmq.cluster.broker.handlers.timers import TimerHandlers
from tandemmq.cluster.broker.handlers.transaction import TransactionHandler
from tandemmq.cluster.broker.jobs import Retention
from tandemmq.cluster.broker.reading.locks import QueueLocks
from tandemmq.cluster.broker.reading.members import ConsumerMembers, ProducerMembers
from tandemmq.cluster.broker.sending.delay import DelaySchedule
from tandemmq.cluster.broker.sending.messages import UniqueIds
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables.cuts import Cuts
from tandemmq.cluster.broker.tables.groups import GroupTable
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.resting import Resting
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.broker.timers.door import TimerDoor
from tandemmq.cluster.broker.timers.schedule import TimerSchedule
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.storage import Clock, MessageStore

if TYPE_CHECKING:
    from tandemmq.cluster.broker.access.guarding import Guarding


class Handlers(Protocol):
    """Who answers some requests."""

    def table(self) -> Mapping[int, Handler]:
        """request code -> its handler"""


class Parts(Protocol):
    """What handlers are made of: a Broker, as far as they ask."""

    config: BrokerConfig
    store: MessageStore
    clock: Clock
    rng: random.Random
    store_host: bytes
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    cuts: Cuts
    deletions: SavedFile
    consumers: ConsumerMembers
    producers: ProducerMembers
    locks: QueueLocks
    release: Release
    standing: Standing
    stats: BrokerStats
    schedule: DelaySchedule
    timers: TimerSchedule
    timer_door: TimerDoor
    transactions: Transactions
    pulls: PullHandler
    resting: Resting
    retention: Retention
    table_readers: TableReaders
    guarding: Guarding | Unguarded
    claim: Claim | None

    def permission_changed(self) -> None:
        """brokerPermission has another value."""


def sending(parts: Parts) -> Iterator[Handlers]:
    """What producers ask, and consumers that give a message back."""
    config, clock, host = parts.config, parts.clock, parts.store_host
    sends = SendHandler(
        config,
        parts.store,
        parts.topics,
        parts.groups,
        parts.locks,
        parts.release,
        parts.standing,
        UniqueIds(host, clock, parts.rng),
        parts.transactions,
        store_host=host,
        clock=clock,
        rng=parts.rng,
        timers=parts.timer_door,
    )
    yield sends
    yield ReplyHandler(config, sends, parts.producers, parts.standing, store_host=host, clock=clock)
    yield SendBackHandler(
        config,
        parts.store,
        parts.topics,
        parts.groups,
        parts.release,
        parts.standing,
        parts.stats,
        store_host=host,
        rng=parts.rng,
    )


def transactions(parts: Parts) -> Iterator[Handlers]:
    """The second half of a transaction."""
    yield TransactionHandler(parts.transactions, parts.release, parts.standing)


def timers(parts: Parts) -> Iterator[Handlers]:
    """Timed messages, besides sending them."""
    yield TimerHandlers(
        parts.config,
        parts.clock,
        parts.store,
        parts.topics,
        parts.release,
        parts.standing,
        parts.timer_door,
        parts.timers.pending,
        store_host=parts.store_host,
    )


def reading(parts: Parts) -> Iterator[Handlers]:
    """What consumers ask: messages, progress, queues of their own."""
    yield parts.pulls
    yield QueryHandler(parts.config, parts.store)
    yield OffsetHandlers(parts.store, parts.topics, parts.groups, parts.offsets, parts.cuts)
    yield LockHandlers(parts.locks, parts.standing, parts.table_readers, parts.clock)


def membership(parts: Parts) -> Iterator[Handlers]:
    """Who the clients are: heartbeats, and the members of a group."""
    yield ClientHandlers(
        parts.config, parts.clock, parts.topics, parts.groups, parts.consumers, parts.producers
    )


def replication(parts: Parts) -> Iterator[Handlers]:
    """What the other brokers of the group ask."""
    yield parts.standing
    yield TableHandlers(
        parts.topics,
        parts.groups,
        parts.offsets,
        parts.schedule,
        parts.store,
        parts.table_readers,
        parts.resting,
        parts.guarding.shared_tree,
        parts.locks.told,
    )


def administration(parts: Parts) -> Iterator[Handlers]:
    """What operators' tools ask."""
    config, clock, store = parts.config, parts.clock, parts.store
    topics, groups, offsets = parts.topics, parts.groups, parts.offsets
    yield TopicAdminHandlers(
        config,
        store,
        parts.release,
        topics,
        offsets,
        parts.stats,
        parts.deletions,
        parts.table_readers,
    )
    yield GroupAdminHandlers(
        config, store, groups, offsets, parts.consumers, parts.producers, parts.table_readers
    )
    yield OffsetAdminHandlers(
        config,
        clock,
        store,
        topics,
        groups,
        offsets,
        parts.consumers,
        parts.stats,
        parts.pulls.held.sent_elsewhere,
    )
    yield StateAdminHandlers(
        config,
        clock,
        store,
        parts.release,
        topics,
        parts.stats,
        parts.schedule,
        parts.retention,
        parts.standing,
        parts.timers,
        parts.transactions,
    )
    yield ConfigAdminHandlers(config, clock, parts.permission_changed)


def access(parts: Parts) -> Iterator[Handlers]:
    """Users and rules, and accounts of ACL 1.0: where these are not asked for, requests about them are not known."""
    guarding, config = parts.guarding, parts.config
    if isinstance(guarding, Unguarded) or not config.access.authentication:
        yield NoUserHandlers()
    else:  # imported when wanted, as Guarding is
        from tandemmq.cluster.broker.handlers.admin_users import UserHandlers

        yield UserHandlers(guarding, parts.standing, parts.table_readers)
    if isinstance(guarding, Unguarded) or not config.rights.plain:
        return
    from tandemmq.cluster.broker.handlers.admin_accounts import AccountHandlers

    assert guarding.plain_files is not None
    yield AccountHandlers(config, guarding.plain_files)


#: POP has its codes and no function yet: the server answers REQUEST_CODE_NOT_SUPPORTED
CAPABILITIES: Final[tuple[Callable[[Parts], Iterator[Handlers]], ...]] = (
    sending,
    transactions,
    timers,
    reading,
    membership,
    replication,
    administration,
    access,
)


def table_of(parts: Parts) -> dict[int, Handler]:
    """request code -> its handler, of every capability."""
    table: dict[int, Handler] = {}
    for capability in CAPABILITIES:
        for handlers in capability(parts):
            for code, handler in handlers.table().items():
                assert code not in table, f"two handlers for request {code}"
                table[code] = handler
    if parts.claim is not None:
        asked = RequestCode.GET_BROKER_CONFIG
        table[asked] = parts.claim.answering(table[asked])
    return guarded(table, parts.standing)
