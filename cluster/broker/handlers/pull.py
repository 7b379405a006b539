"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): messages to consumers, now or when one comes.

Source: RocketMQ's PullMessageProcessor, PullRequestHoldService.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from time import perf_counter_ns
from typing import Final, NamedTuple

from tandemmq.cluster.broker.errors import (
    BrokerBusy,
    FilterMissing,
    InvalidParameter,
    NoSuchGroup,
    NoSuchTopic,
    NotPermitted,
    SubscriptionMissing,
    SubscriptionOutdated,
    SubscriptionUnparsable,
)
from tandemmq.cluster.broker.reading.fetches import Fetches
from tandemmq.cluster.broker.reading.filters import is_tag_expression, parse_filter, parse_tags
from tandemmq.cluster.broker.reading.foundanswers import ext_of, found_head
from tandemmq.cluster.broker.reading.longpoll import HeldPull, HeldPulls
from tandemmq.cluster.broker.reading.members import ConsumerMembers
from tandemmq.cluster.broker.reading.subscriptions import ALL
from tandemmq.cluster.broker.replies import FAQ, REFUSALS, refusal
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.slavereads import SlaveReads
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.cuts import ASK_MASTER, Cuts
from tandemmq.cluster.broker.tables.groups import GroupConfig, GroupTable
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.histogram import Histogram
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import ONEWAY_FLAG, Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.headers import PullHeader
from tandemmq.storage import (
    EVERYTHING,
    Clock,
    Fetch,
    GetResult,
    GetStatus,
    MessageStore,
    ReadingParts,
    Selector,
    get_property,
)

COMMIT_OFFSET: Final = 1  # bits of a pull's sysFlag
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

FORBIDDEN_BROKER: Final = 1  # values of forbiddenType
FORBIDDEN_GROUP: Final = 2
FORBIDDEN_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4
FORBIDDEN_SUBSCRIPTION: Final = 5

BYTES_MAX: Final = (
    128 << 20
)  # of one answer, before the store's own limits; clients' maxMsgBytes does not count
HELD_PULLS_MAX: Final = 100_000  # RocketMQ's pull queue holds as many
HOLD_MS_MAX: Final = 3_600_000

CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # at offset 0: PULL_NOT_FOUND
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # at offset 0: PULL_NOT_FOUND
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
COPIED_BYTES: Final = 8 << 20  # of answers on one connection that are made before they leave
_BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"
_EMPTY_QUEUE: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


class Parts(NamedTuple):
    """What the compiled short path of pulls looks things up in."""

    reading: ReadingParts
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable


class Terms(NamedTuple):
    """What holds for every pull of a chunk, while none of them is answered by the long way.

    lite            whether code 361 is served; slave_reads: whether readers may be sent to slaves
    log_end, hot_from   log offsets: of the log's end, and from where on the estimate says "in memory"
    bytes_max, count_max   of an answer from memory
    """

    lite: bool
    slave_reads: bool
    near_bytes: int
    log_end: int
    hot_from: int
    bytes_max: int
    count_max: int
    filter_bytes_max: int


class PullHandler:
    """Answers pulls from the store, and keeps the ones that find nothing new in `held`."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        members: ConsumerMembers,
        stats: BrokerStats,
        slave_reads: SlaveReads,
        cuts: Cuts,
        clock: Clock,
        *,
        held_max: int = HELD_PULLS_MAX,
        took: Histogram | None = None,
    ) -> None:
        """took: how long pulls took that brought messages, us."""
        self._took = took or Histogram()
        self._config = config
        self._store = store
        self._get = store.get
        self._fetches = Fetches()
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._stats = stats
        self._slave_reads = slave_reads
        self._cuts = cuts
        self._clock = clock
        self.held = HeldPulls(self._answer_held, store.max_offset, self._look_on, clock, held_max)

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.PULL_MESSAGE: self.handle_pull_message,
            RequestCode.LITE_PULL_MESSAGE: self.handle_lite_pull_message,
        }

    def handle_pull_message(
        self, request: Command, connection: Connection
    ) -> Command | Awaitable[Command | None] | None:
        """Messages from one queue offset on; None when the pull was answered here or is held."""
        try:
            header = PullHeader.of(request)
            found = self._pull(request, header, connection, first=True, patient=True)
        except REFUSALS as error:
            return refusal(request, error, {})
        if isinstance(found, Fetch):
            return self._fetched(found, request, header, connection)
        return found

    handle_lite_pull_message = handle_pull_message

    def _answer_held(self, pull: HeldPull) -> None:
        """The second pass of a held pull: every check again, and an answer whatever is found."""
        try:
            answer = self._pull(pull.request, pull.header, pull.connection, first=False)
        except REFUSALS as error:
            answer = refusal(pull.request, error, {})
        assert not isinstance(answer, Fetch), "only a patient pull is given one"
        if answer is not None:
            pull.connection.send(answer)

    async def _fetched(
        self, fetch: Fetch, request: Command, header: PullHeader, connection: Connection
    ) -> Command | None:
        """The answer of a pull whose messages a thread brings into memory first: every check again, then."""
        await self._fetches.done(fetch)
        await connection.room()  # one read of the disk may end the waiting of a thousand pulls
        if connection.closed:
            return None
        try:
            answer = self._pull(request, header, connection, first=True)
        except REFUSALS as error:
            return refusal(request, error, {})
        assert not isinstance(answer, Fetch), "only a patient pull is given one"
        return answer

    def _look_on(self, pull: HeldPull) -> bool:
        """Whether a held pull with a filter has something to be answered with by now; else it is known up to where."""
        topic, queue_id = pull.queue
        found = self._store.get(topic, queue_id, pull.judged, 1, BYTES_MAX, pull.selector)
        if found.status is not GetStatus.NO_MATCHED_MESSAGE:
            return True
        pull.judged = found.next_offset
        return False

    # -- for the compiled short path: it does what _pull() does where nothing is special

    def parts(self) -> Parts:
        return Parts(self._store.reading_parts, self._topics, self._groups, self._offsets)

    def terms(self) -> Terms | None:
        """None when something is special, and any pull may be."""
        config = self._config
        if (
            self._cuts.active
            or self.held.full
            or config.pull_consumers_rejected
            or not config.permission & names.PERM_READ
            or (config.server_side_reset and self._offsets.resetting)
            or (not config.slave_read_enabled and self._slave_reads.refusal() is not None)
        ):
            return None
        storage = self._store.config
        return Terms(
            config.lite_pull_enabled,
            config.slave_read_enabled,
            self._slave_reads.near_bytes,
            self._store.end,
            self._store.hot_from,
            storage.transfer_bytes_max_hot,
            storage.transfer_count_max_hot,
            storage.filter_bytes_max,
        )

    def subscribed(
        self, name: str, topic: str, sub_version: int, group: GroupConfig
    ) -> Selector | None:
        """What a registered group selects by tag; None where it takes more to say, or is refused: see _registered."""
        members = self._members.group(name)
        if members is None or (members.broadcasting and not group.consume_broadcast_enable):
            return None
        found = members.subscriptions.get(topic)
        if found is None or not found.is_tag or found.sub_version < sub_version:
            return None
        return None if self._groups.read_forbidden(name, topic) else found.selector

    def next_broker(self, group: GroupConfig, reader: Hashable, found: GetResult) -> int:
        return self._slave_reads.next_broker(group, reader, found)

    def took(self, took_us: int, pulls: int) -> None:
        """So many pulls brought messages, each after so long."""
        self._took.add(took_us, pulls)

    def pulled(
        self,
        group: str,
        topic: str,
        messages: int,
        size: int,
        queue_ids: list[int],
        took_ms: int = 0,
    ) -> None:
        """What pulls of these queues brought together; took_ms: each of them."""
        self._stats.pulled_all(group, topic, messages, size, queue_ids, took_ms)

    def pull(
        self, request: Command, header: PullHeader, connection: Connection
    ) -> Command | Fetch | None:
        """As handle_pull_message, of a header that was read already. Where it gives a Fetch, or raises REFUSALS,
        nothing happened."""
        if self.held.full:
            raise BrokerBusy(_BUSY)
        return self._pull(request, header, connection, first=True, patient=True)

    def _pull(
        self,
        request: Command,
        header: PullHeader,
        connection: Connection,
        *,
        first: bool,
        patient: bool = False,
    ) -> Command | Fetch | None:
        """The answer; None when it was written, or the pull waits. A patient one is given what to fetch first."""
        group, topic = self._admitted(request.code, header, connection)
        selector = self._selector(header, group, connection)
        began_ns = perf_counter_ns()
        cut = self._cuts.active
        if cut or (self._config.server_side_reset and self._offsets.resetting):
            found = self._moved_or_stored(header, selector, connection)
        else:
            found = self._stored(header, selector, patient=patient)
            if found.fetch is not None:
                return found.fetch
        if found.status is not GetStatus.FOUND:
            return self._not_found(
                request, header, connection, group, topic, selector, found, first=first
            )
        name, queue_id = header.topic, header.queue_id
        self._offsets.commit_pull(header.consumer_group, name, queue_id, found.next_offset)
        if first and header.sys_flag & COMMIT_OFFSET:
            self._commit(header, connection)
        if cut or found.behind > self._slave_reads.near_bytes:
            suggested = self._suggested(header, connection, group, found)
        else:
            suggested = group.broker_id if self._config.slave_read_enabled else 0
        took_us = (perf_counter_ns() - began_ns) // 1_000
        self._took.add(took_us)
        records = found.records
        size = records.bytes
        self._stats.pulled(
            header.consumer_group, name, len(records), size, queue_id, took_us // 1_000
        )
        if not request.flag & ONEWAY_FLAG:
            head = found_head(
                request, size, suggested, group.group_sys_flag, found.next_offset,
                found.max_offset, found.min_offset, topic.topic_sys_flag,
            )  # fmt: skip
            if connection.queued_bytes > COPIED_BYTES:
                # Hundreds of held pulls woken at once: the connection may be cut off before anything is copied.
                connection.writelines([head, *records])
            else:  # one copy of the records, and one write for all answers of a chunk
                connection.write(records.after(head))
        return None

    def _not_found(
        self,
        request: Command,
        header: PullHeader,
        connection: Connection,
        group: GroupConfig,
        topic: TopicConfig,
        selector: Selector,
        found: GetResult,
        *,
        first: bool,
    ) -> Command | None:
        """The answer of a pull that brings no message: where to go on, or None when it waits for one."""
        reader = (connection.id, header.topic, header.queue_id)
        stays = self._slave_reads.stays(found.status)
        if stays:
            found.next_offset = header.queue_offset
        code = CODES[found.status]
        if found.status in _EMPTY_QUEUE and header.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        elif stays:
            waits = self._slave_reads.waits(reader, header.queue_offset)
            waits = waits or not first
            code = ResponseCode.PULL_NOT_FOUND if waits else ResponseCode.PULL_RETRY_IMMEDIATELY
        self._offsets.commit_pull(
            header.consumer_group, header.topic, header.queue_id, found.next_offset
        )
        if first and header.sys_flag & COMMIT_OFFSET:
            self._commit(header, connection)
        if code == ResponseCode.PULL_NOT_FOUND and first and header.sys_flag & SUSPEND:
            self._hold(request, header, connection, selector)
            return None
        self._stats.missed()
        ext = ext_of(
            self._suggested(header, connection, group, found), group.group_sys_flag,
            found.next_offset, found.max_offset, found.min_offset, topic.topic_sys_flag,
        )  # fmt: skip
        return request.reply(code, found.status.name, ext)

    def _suggested(
        self, header: PullHeader, connection: Connection, group: GroupConfig, found: GetResult
    ) -> int:
        """The id of the broker that the reader should ask next."""
        cuts = self._cuts
        if cuts.active and cuts.stays(header.consumer_group):
            suggested = group.broker_id
        else:
            reader = (connection.id, header.topic, header.queue_id)
            suggested = self._slave_reads.next_broker(group, reader, found)
        if suggested and cuts.concerns(header.topic):
            cuts.sent_away(header.consumer_group, header.topic, header.queue_id, connection)
        return suggested

    # -- checks, in RocketMQ's order
    # --------------------------------------------------------------------------

    def _admitted(
        self, code: int, header: PullHeader, connection: Connection
    ) -> tuple[GroupConfig, TopicConfig]:
        config = self._config
        if not config.slave_read_enabled and (unserved := self._slave_reads.refusal()) is not None:
            raise unserved
        if not config.permission & names.PERM_READ:
            raise NotPermitted(
                f"the broker[{config.advertised_host}] pulling message is forbidden",
                FORBIDDEN_BROKER,
            )
        if not config.lite_pull_enabled and code == RequestCode.LITE_PULL_MESSAGE:
            raise NotPermitted(
                f"the broker[{config.advertised_host}] for lite pull consumer is forbidden",
                FORBIDDEN_BROKER,
            )
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise NoSuchGroup(f"subscription group [{header.consumer_group}] does not exist, {FAQ}")
        if not group.consume_enable:
            raise NotPermitted(
                f"subscription group no permission, {header.consumer_group}", FORBIDDEN_GROUP
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise NoSuchTopic(f"topic[{header.topic}] not exist, apply first please! \n{FAQ}")
        if not topic.perm & names.PERM_READ:
            raise NotPermitted(
                f"the topic[{header.topic}] pulling message is forbidden", FORBIDDEN_TOPIC
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]"
                f" consumer:[/{connection.peer[0]}:{connection.peer[1]}]"
            )
        return group, topic

    def _selector(self, header: PullHeader, group: GroupConfig, connection: Connection) -> Selector:
        """What the pull selects by: its own expression, or what its group registered."""
        if not header.sys_flag & SUBSCRIPTION:
            selector = self._registered(header, group)
        elif header.subscription == ALL and header.expression_type == "TAG":
            selector = EVERYTHING  # most of them
        elif is_tag_expression(header.expression_type):
            selector = parse_tags(header.subscription)
        else:
            selector = self._filter(header, header.expression_type or "", header.subscription)
        if self._config.pull_consumers_rejected:
            self._check_registered(header.consumer_group, connection)
        return selector

    def _registered(self, header: PullHeader, group: GroupConfig) -> Selector:
        members = self._members.group(header.consumer_group)
        if members is None:
            raise SubscriptionMissing(f"the consumer's group info not exist\n{FAQ}")
        if members.broadcasting and not group.consume_broadcast_enable:
            raise NotPermitted(
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
                FORBIDDEN_BROADCAST,
            )
        if self._groups.read_forbidden(header.consumer_group, header.topic):
            raise NotPermitted(
                f"group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
                FORBIDDEN_SUBSCRIPTION,
            )
        subscription = members.subscriptions.get(header.topic)
        if subscription is None:
            raise SubscriptionMissing(f"the consumer's subscription not exist\n{FAQ}")
        if subscription.sub_version < header.sub_version:
            # The heartbeat that says more is on its way, or was skipped: 5.3.3 clients skip one when
            # another is being sent, and the next comes 20 s later. They select by tag themselves
            # too, so nothing is withheld meanwhile and nothing unwanted is consumed.
            if not (subscription.is_tag and is_tag_expression(header.expression_type)):
                raise SubscriptionOutdated("the consumer's subscription not latest")
            return EVERYTHING
        if subscription.is_tag:
            return subscription.selector
        try:
            return self._filter(header, subscription.expression_type, subscription.expression)
        except SubscriptionUnparsable as problem:
            raise FilterMissing(
                f"The broker's consumer filter data is not exist!Your expression may be wrong! {problem}"
            ) from problem

    def _filter(self, header: PullHeader, kind: str, expression: str | None) -> Selector:
        served = self._config.property_filter_enabled
        selector = parse_filter(kind, expression, served=served)
        if self._config.retries_filtered and header.topic.startswith(names.RETRY_PREFIX):
            group = header.topic.removeprefix(names.RETRY_PREFIX)
            return Selector(matches=lambda properties: self._wanted_again(group, properties))
        return selector

    def _wanted_again(self, group: str, properties: bytes) -> bool:
        """Whether a message that comes again is one that its group's filter of the topic it came from takes."""
        topic = (get_property(properties, b"RETRY_TOPIC") or b"").decode(errors="replace")
        members = self._members.group(group)
        wanted = members.subscriptions.get(topic) if members is not None else None
        if wanted is None or wanted.is_tag:
            return True
        try:
            matches = parse_filter(wanted.expression_type, wanted.expression, served=True).matches
        except SubscriptionUnparsable:
            return True  # as in RocketMQ, which has no filter then
        return matches is None or matches(properties)

    def _check_registered(self, group: str, connection: Connection) -> None:
        """With rejectPullConsumerEnable, only members may pull that do not push."""
        if group.startswith(names.SYSTEM_GROUP_PREFIX):
            return
        members = self._members.group(group)
        if members is None or (
            members.actively_pulling and connection.id not in members.connections
        ):
            raise SubscriptionMissing(
                "the consumer's group info not exist, or the pull consumer is rejected by server."
            )

    # -- reading and waiting
    # ----------------------------------------------------------------------------------

    def _moved_or_stored(
        self, header: PullHeader, selector: Selector, connection: Connection
    ) -> GetResult:
        """What the store has; a reset, or a cut, moves the reader instead."""
        place = header.consumer_group, header.topic, header.queue_id
        reset = self._offsets.take_reset(*place) if self._config.server_side_reset else None
        if not (self._cuts.active and self._cuts.concerns(header.topic)):
            return self._stored(header, selector) if reset is None else self._moved(header, reset)
        moved = (
            None
            if reset is not None
            else self._cuts.target(*place, header.queue_offset, connection)
        )
        if moved == ASK_MASTER:
            # as if we had nothing there: it keeps its position (SlaveReads.stays)
            return self._moved(header, header.queue_offset, GetStatus.OFFSET_OVERFLOW_BADLY)
        if reset is not None:
            found = self._moved(header, reset)
        elif moved is None:
            found = self._stored(header, selector)
        elif self._cuts.following:
            found = self._moved(header, moved)  # a slave says nothing else that moves a reader
        else:
            found = self._moved(header, moved, GetStatus.OFFSET_OVERFLOW_BADLY)
        waits = found.status is GetStatus.OFFSET_OVERFLOW_ONE
        # a position that it waits at may be another master's: we do not vouch for it
        if not (waits and self._slave_reads.may_lack_the_end):
            self._cuts.gave(*place, found.next_offset, connection)
        return found

    def _commit(self, header: PullHeader, connection: Connection) -> None:
        place = header.consumer_group, header.topic, header.queue_id
        concerned = self._cuts.active and self._cuts.concerns(header.topic)
        if not (concerned and self._cuts.beyond(*place, header.commit_offset, connection)):
            self._offsets.commit(*place, header.commit_offset)

    def _moved(
        self, header: PullHeader, offset: int, word: GetStatus = GetStatus.OFFSET_RESET
    ) -> GetResult:
        """word: a client that is not told of a reset drops nothing that it has not consumed."""
        return GetResult(
            word,
            offset,
            self._store.min_offset(header.topic, header.queue_id),
            self._store.max_offset(header.topic, header.queue_id),
        )

    def _stored(
        self, header: PullHeader, selector: Selector, *, patient: bool = False
    ) -> GetResult:
        """A reader of what is in the log and not confirmed here yet waits for it: a new master is told how far the
        one before it had shown its log only by its first slave or lease. So does one that comes from beyond the end to
        a master that may have a successor by now. Moved, they would drop what they have (INV-42)."""
        offset = header.queue_offset
        found = self._get(
            header.topic, header.queue_id, offset, header.max_msg_nums, BYTES_MAX, selector,
            patient=patient,
        )  # fmt: skip
        beyond = found.status is GetStatus.OFFSET_OVERFLOW_BADLY
        if (beyond and offset <= self._store.next_offset(header.topic, header.queue_id)) or (
            (beyond or (offset > 0 and found.status in _EMPTY_QUEUE))
            and self._slave_reads.may_lack_the_end
        ):
            found.status, found.next_offset = GetStatus.OFFSET_OVERFLOW_ONE, offset
        return found

    def _hold(
        self, request: Command, header: PullHeader, connection: Connection, selector: Selector
    ) -> None:
        if self.held.full:
            raise BrokerBusy(_BUSY)
        config = self._config
        hold_ms = (
            header.suspend_timeout_millis
            if config.long_polling_enabled
            else config.short_polling_ms
        )
        deadline_ms = self._clock.monotonic_ms() + max(0, min(hold_ms, HOLD_MS_MAX))
        request.ext = None  # the header has what matters, and there may be many of these
        self.held.hold(HeldPull(connection, request, header, selector, deadline_ms))
