"""Names of spans, attributes and metrics: OpenTelemetry's messaging conventions, all in one table.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/ and its page for RocketMQ. A test holds these against the
package of the conventions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SYSTEM: Final = "rocketmq"

# Attributes
MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
ROCKETMQ_TAG: Final = "messaging.rocketmq.message.tag"
ROCKETMQ_KEYS: Final = "messaging.rocketmq.message.keys"
ROCKETMQ_GROUP: Final = "messaging.rocketmq.message.group"
ROCKETMQ_DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
ROCKETMQ_TYPE: Final = "messaging.rocketmq.message.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

#: ours: the conventions have no word for it
BROKER_NAME: Final = "tandemmq.broker.name"
QUEUE_OFFSET: Final = "tandemmq.queue.offset"
RECONSUME_TIMES: Final = "tandemmq.message.reconsume_times"
OUR_ATTRIBUTES: Final = (BROKER_NAME, QUEUE_OFFSET, RECONSUME_TIMES)


class Operation(NamedTuple):
    """What is done: the first word of a span's name, and its kind among the conventions' few."""

    name: str
    type: str


SEND: Final = Operation("send", "send")
REQUEST: Final = Operation("request", "send")
CREATE: Final = Operation("create", "create")
RECEIVE: Final = Operation("receive", "receive")
PROCESS: Final = Operation("process", "process")


class Metric(NamedTuple):
    """A metric. kind: counter or histogram."""

    name: str
    kind: str
    unit: str
    description: str


OPERATION_DURATION: Final = Metric(
    "messaging.client.operation.duration", "histogram", "s",
    "How long a send took until its answer, or a receive until it had messages.",
)  # fmt: skip
SENT_MESSAGES: Final = Metric(
    "messaging.client.sent.messages", "counter", "{message}",
    "Messages that were tried to be sent; error.type where that failed.",
)  # fmt: skip
CONSUMED_MESSAGES: Final = Metric(
    "messaging.client.consumed.messages", "counter", "{message}",
    "Messages that were handed to the application.",
)  # fmt: skip
PROCESS_DURATION: Final = Metric(
    "messaging.process.duration", "histogram", "s",
    "How long the application's handler took.",
)  # fmt: skip
METRICS: Final = (OPERATION_DURATION, SENT_MESSAGES, CONSUMED_MESSAGES, PROCESS_DURATION)

#: what OpenTelemetry advises for durations of messaging, in seconds
BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
