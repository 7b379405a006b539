"""Whether a place in a queue that a broker's end left us with is still worth something."""

from __future__ import annotations

from msgspec.structs import replace

from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance

CALL_TIMEOUT_MS = 5_000


async def still_there(instance: ClientInstance, queue: MessageQueue, last: ReceivedMessage) -> bool:
    """Whether the queue's broker has the last message that we finished, where it was: then it has all before it, too.

    A broker that lost the end of its log has other messages at these offsets by now, which nobody here has seen.
    Raises BrokerRefused, BrokerUnreachable, CallTimedOut, BrokerAnswerBroken, NoRoute.
    """
    address, _ = await instance.reader_address(queue.broker_name, queue.topic)
    found = await calls.view_record(
        instance.connections, address, queue.broker_name, last.physical_offset, CALL_TIMEOUT_MS
    )
    # the same in all that two messages share, for not every producer gives ids
    return found is not None and replace(found, queue=last.queue, max_offset=0) == replace(
        last, max_offset=0
    )
