"""What reading and writing topics with Spark raises; Spark shows the text in the driver."""

from __future__ import annotations


class SparkSourceError(Exception):
    """Root of what this package raises on purpose; its text says what to do."""


class OptionRefused(SparkSourceError, ValueError):
    """An option is unknown, misses a part, or has a value that means nothing."""


class UnknownTopic(SparkSourceError):
    """The cluster has no such topic, or none that matches the pattern."""


class OffsetsRefused(SparkSourceError):
    """A position that was asked for lies outside its queue."""


class DataLost(SparkSourceError):
    """Messages that belong to the answer are gone, and failOnDataLoss is not false."""


class ClusterAway(SparkSourceError):
    """Name servers or brokers did not answer within retryTimeoutMs."""


class BodyNotText(SparkSourceError):
    """bodyType=text was asked for, and a body is not UTF-8."""


class RowRefused(SparkSourceError):
    """A row cannot be sent; the text names it and the reason."""
