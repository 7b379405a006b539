"""Messages that a listener failed on, given to a broker: for later, or to the dead letters."""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.cluster.client.errors import BrokerUnreachable, ClientError
from tandemmq.cluster.client.message import RETRY_PREFIX, ReceivedMessage
from tandemmq.cluster.client.namespaces import wrap
from tandemmq.cluster.client.producing.sending import Prepared, send_command, send_result
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.storage import encode_properties

log = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS: Final = 5_000
INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
UNLIMITED_TRIES: Final = (1 << 31) - 1  # of ordered consumers, as Java writes it


class Returns:
    """Sends failed messages of one group back.

    group      as brokers know it
    times_max  tries after the first, None: no limit
    """

    def __init__(
        self, instance: ClientInstance, group: str, times_max: int | None, unit_mode: bool
    ) -> None:
        self._instance = instance
        self._group = group
        self._times_max = UNLIMITED_TRIES if times_max is None else times_max
        self._unit_mode = unit_mode

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have the broker keep a copy for later; False when no broker took it."""
        instance = self._instance
        what = calls.SendBack(
            self._group,
            message.queue,
            message.physical_offset,
            message.offset_message_id,
            wrap(instance.config.namespace, message.topic),
            delay_level=delay_level,
            reconsume_times_max=self._times_max,
            unit_mode=self._unit_mode,
        )
        try:
            address = instance.brokers.master(message.queue.broker_name)
            if address is None:
                raise BrokerUnreachable(message.queue.broker_name, "no master is registered now")
            await calls.send_back(instance.connections, address, what, SEND_BACK_TIMEOUT_MS)
        except ClientError as problem:
            log.warning("send-back failed message_id=%s why=%s", message.message_id, problem)
            return await self.send_to_retry_topic(message)
        return True

    async def send_to_retry_topic(self, message: ReceivedMessage) -> bool:
        """Store a copy in the retry topic on any broker; False when none took it.

        For a message whose broker is away; and of an ordered consumer, whose group holds locks: the
        broker puts it into the dead letters then.
        """
        instance = self._instance
        topic = RETRY_PREFIX + self._group
        properties = {
            **message.properties,
            "RETRY_TOPIC": wrap(instance.config.namespace, message.topic),
            "ORIGIN_MESSAGE_ID": message.properties.get(
                "ORIGIN_MESSAGE_ID", message.offset_message_id
            ),
            "DELAY": str(3 + message.reconsume_times),
        }
        copy = Prepared(
            topic,
            message.body,
            encode_properties(properties).decode(),
            message.message_id,
            message.born_ms,
            message.flag,
            reconsume_times=message.reconsume_times + 1,
            reconsume_times_max=self._times_max,
            unit_mode=self._unit_mode,
        )
        try:
            queue = instance.rng.choice(await instance.publish_queues(topic))
            address = await instance.master_address(queue.broker_name, topic)
            command = send_command(copy, queue, INNER_PRODUCER)
            answer = await instance.connections.request(address, command, SEND_BACK_TIMEOUT_MS)
            send_result(answer, topic, copy.unique_id, queue, address)
        except ClientError as problem:
            log.warning(
                "message not sent to retry topic message_id=%s why=%s", message.message_id, problem
            )
            return False
        return True
