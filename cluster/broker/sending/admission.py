"""Which sends may take the short path: judged once per chunk and once per topic, never per message.

The short path (sendpath.py, _sendpath.pyx) stores an ordinary message without asking the tables
again. What could refuse such a message, or make it something else, is asked here; in doubt the
answer is no, and send.py decides.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from tandemmq.cluster.broker.handlers.send import WAIT_MS_MAX
from tandemmq.cluster.broker.sending.acks import Acks
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.storage import Clock, MessageStore, SysFlag


class AdmittedTopic(NamedTuple):
    """What the short path must know of a topic.

    queues         a message may name queues below this
    write_queues   a message that names none gets one below this
    sys_flag_bits  set in every message of the topic
    """

    queues: int
    write_queues: int
    sys_flag_bits: int


class Identities(Protocol):
    """Who clients are, as far as somebody checks it."""

    def vouches(self, connection: Connection) -> bool:
        """Whether sends of this connection may be taken without looking at who signed each of them."""


class Admission:
    """Judge of the short path.

    identities  asked before a chunk is taken: the short path reads no signature (access/signedsends.py does)
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        acks: Acks,
        standing: Standing,
        clock: Clock,
        identities: Identities,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._acks = acks
        self._clock = clock
        self._identities = identities
        self._standing: Final = standing
        self._waits_until_ms = config.accept_sends_from_ms

    def generation(self) -> int:
        """Grows whenever a topic changes or a queue goes: what was learnt of any is void then."""
        return self._topics.version.counter + self._store.tails_dropped

    def open(self, connection: Connection) -> bool:
        """Whether the bytes that just came in on a connection may go the short way at all."""
        if self._waits_until_ms:
            if self._clock.now_ms() < self._waits_until_ms:
                return False
            self._waits_until_ms = 0
        return (
            self._identities.vouches(connection)
            and not self._acks.full
            and self._standing.refusal() is None
            and self._store.refusal() is None
            and self._clock.monotonic_ms() - connection.active_ms < WAIT_MS_MAX
        )

    def topic(self, name: str) -> AdmittedTopic | None:
        """An existing topic that anybody may send to; None sends the message the long way."""
        topic = self._topics.get(name)
        if (
            topic is None
            or topic.order  # brokerPermission matters for these
            or name.startswith(names.RETRY_PREFIX)
            or name in names.SEND_FORBIDDEN_TOPICS
            or len(name) > names.TOPIC_CHARACTERS_MAX
            or self._topics.check_topic_name(name) is not None
        ):
            return None
        multi = topic.topic_filter_type == "MULTI_TAG"
        return AdmittedTopic(
            max(topic.write_queue_nums, topic.read_queue_nums),
            topic.write_queue_nums,
            int(SysFlag.MULTI_TAGS) if multi else 0,
        )
