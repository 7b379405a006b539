"""The options of the format `tandemmq`, read and checked once. No I/O, and nothing of Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from tandemmq.spark.errors import OptionRefused
from tandemmq.spark.positions import EARLIEST, LATEST, At, Positions, parse_positions
from tandemmq.spark.shapes import COLUMNS

RETRY_TIMEOUT_MS: Final = 60_000
PIECE_BYTES: Final = 256 << 20
DEFAULT_GROUP: Final = "tandemmq-spark"

#: of both directions: option -> what it says, for messages and the how-to
CLUSTER_OPTIONS: Final[Mapping[str, str]] = {
    "namesrv": "name servers, host:9876;host:9876; else the environment's NAMESRV_ADDR",
    "accessKey": "name of the account, with secretKey",
    "secretKey": "its key; Spark hides it in plans",
    "credentialsFile": "a file with accessKey and secretKey, at the same place on every executor",
    "tls": "true: encrypted; the certificate is checked where caFile is given",
    "caFile": "PEM of who is believed, at the same place on every executor",
    "certFile": "PEM to show to servers that ask for one",
    "keyFile": "its key, where it is not in certFile",
    "retryTimeoutMs": "how long to try again while brokers or name servers are away, 60000",
}
READ_OPTIONS: Final[Mapping[str, str]] = {
    **CLUSTER_OPTIONS,
    "topics": "topics, comma separated",
    "topicPattern": "instead of it: a regular expression that whole topic names match",
    "tags": "only these: TagA || TagB",
    "sql92": "only what this SQL92 expression over the properties is true of",
    "startingOffsets": 'earliest, latest, or JSON: {"Orders": {"broker-a:0": 17}}; -2 earliest, -1 latest',
    "startingTimestamp": "instead of it: messages stored then or later, ms since 1970 or ISO 8601 with a zone",
    "endingOffsets": "as startingOffsets, exclusive; batch only",
    "endingTimestamp": "instead of it, exclusive; batch only",
    "maxOffsetsPerTrigger": "at most so many messages in a micro-batch",
    "minPartitions": "at least so many input partitions; default one for each queue, small ones of a broker together",
    "failOnDataLoss": "false: tell of messages that are gone in the log, and go on; default true",
    "group": "consumer group that the pulls name, and that progress is committed to; tandemmq-spark",
    "commitOffsets": "true: commit a stream's progress to the group",
    "columns": "only these columns, comma separated",
    "bodyType": "binary or text (UTF-8); default binary",
    "pushdown": "true: use Spark's filters on topic, broker, queue_id and queue_offset to read less; "
    "batch only, and needs spark.sql.python.filterPushdown.enabled=true",
    "via": "pull (default) or log: read the brokers' logs instead of pulling",
    "places": 'for via=log: JSON, broker name -> store directory or HTTP port: {"broker-a": "http://host:10913"}',
    "token": "for via=log: the brokers' httpToken",
    "tokenFile": "a file that holds it, at the same place on every executor",
    "pieceBytes": "for via=log: log bytes of an input partition, 268435456",
}
WRITE_OPTIONS: Final[Mapping[str, str]] = {
    **CLUSTER_OPTIONS,
    "topic": "where rows without a column topic go",
    "group": "producer group; tandemmq-spark",
    "inFlight": "messages of one task under way at once, 1024",
    "reservedProperties": "fail (default) or drop: RocketMQ's own names among a row's properties",
}
#: what Spark itself puts among the options
_SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
Value = TypeVar("Value")


@dataclass(frozen=True)
class ClusterOptions:
    """How the cluster is reached; "" for what was not given."""

    namesrv: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    credentials_file: str = ""
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    retry_timeout_ms: int = RETRY_TIMEOUT_MS


@dataclass(frozen=True)
class LogOptions:
    """Where logs are read: broker name -> place."""

    places: Mapping[str, str]
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    piece_bytes: int = PIECE_BYTES


@dataclass(frozen=True)
class ReadOptions:
    """What is read, from where to where. log: None for the pull path."""

    cluster: ClusterOptions
    topics: tuple[str, ...]
    pattern: str
    tags: str
    sql92: str
    start: Positions
    end: Positions
    columns: tuple[str, ...]
    text: bool
    offsets_per_trigger: int | None
    partitions_min: int
    fails_on_loss: bool
    group: str
    commits: bool
    pushdown: bool
    log: LogOptions | None

    @property
    def filtered(self) -> bool:
        """Whether not every message is wanted."""
        return bool(self.tags or self.sql92)


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go, and how."""

    cluster: ClusterOptions
    topic: str
    group: str
    in_flight: int
    drops_reserved: bool


class _Given:
    """Options by name, whatever their case, each taken with its check."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._values = {name.lower(): value.strip() for name, value in options.items()}
        names = {name.lower() for name in known}
        unknown = sorted(set(self._values) - names - _SPARKS)
        if self._values.get("path"):
            raise OptionRefused("load() and save() take no path here: name topics in the options")
        if unknown:
            listed = "".join(f"\n  {name}: {meaning}" for name, meaning in known.items())
            raise OptionRefused(f"no such option: {', '.join(unknown)}; there are{listed}")

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), "") or default

    def given(self, name: str) -> bool:
        return bool(self.text(name))

    def checked(self, name: str, read: Callable[[str], Value], default: Value) -> Value:
        text = self.text(name)
        if not text:
            return default
        try:
            return read(text)
        except OptionRefused as problem:
            raise OptionRefused(f"option {name}: {problem}") from None
        except ValueError:
            meaning = {**READ_OPTIONS, **WRITE_OPTIONS}[name]
            raise OptionRefused(f"option {name} cannot be {text!r}; {name}: {meaning}") from None

    def one_of(self, *names: str) -> None:
        if len(found := [name for name in names if self.given(name)]) > 1:
            raise OptionRefused(f"give one of the options {' and '.join(found)}, not both")


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise OptionRefused(f"{text!r} is no regular expression: {problem}") from None
    return text


def _columns(text: str) -> tuple[str, ...]:
    if unknown := sorted(set(_words(text)) - set(COLUMNS)):
        raise OptionRefused(f"no such column: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    return _words(text)


def _choice(*allowed: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower()

    return choose


def _places(text: str) -> dict[str, str]:
    found = json.loads(text)  # its error is a ValueError
    if not isinstance(found, dict) or not found:
        raise ValueError(text)
    return {str(name): str(place) for name, place in found.items()}


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of them, or of ISO 8601 with a zone. Raises ValueError."""
    if text.lstrip("-").isdigit():
        return int(text)
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise OptionRefused(f"{text!r} has no time zone: write {text}Z for UTC")
    return round(at.timestamp() * 1000)


def _cluster(given: _Given, *, needed: bool = True) -> ClusterOptions:
    if given.given("accessKey") != given.given("secretKey"):
        raise OptionRefused("give both accessKey and secretKey, or neither")
    given.one_of("accessKey", "credentialsFile")
    if given.given("keyFile") and not given.given("certFile"):
        raise OptionRefused("keyFile needs certFile, the certificate of that key")
    files = any(given.given(name) for name in ("caFile", "certFile"))
    return ClusterOptions(
        given.text("namesrv"),
        given.text("accessKey"),
        given.text("secretKey"),
        given.text("credentialsFile"),
        given.checked("tls", _flag, files and needed),
        given.text("caFile"),
        given.text("certFile"),
        given.text("keyFile"),
        given.checked("retryTimeoutMs", _count, RETRY_TIMEOUT_MS),
    )


def _bound(given: _Given, offsets: str, timestamp: str, default: int) -> Positions:
    given.one_of(offsets, timestamp)
    if given.given(timestamp):
        return Positions(At.time(given.checked(timestamp, time_ms, 0)))
    return given.checked(offsets, parse_positions, Positions(At.named(default)))


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """What `options` ask for. streaming: for readStream, whose start is latest by default.

    Raises OptionRefused.
    """
    given = _Given(options, READ_OPTIONS)
    given.one_of("topics", "topicPattern")
    given.one_of("tags", "sql92")
    if not given.given("topics") and not given.given("topicPattern"):
        raise OptionRefused('say what to read: option("topics", "Orders") or topicPattern')
    if streaming:
        _refuse(given, ("endingOffsets", "endingTimestamp"), "a stream has no end: read a batch")
        _refuse(given, ("pushdown",), "Spark gives no filters to streams")
    else:
        _refuse(given, ("maxOffsetsPerTrigger", "commitOffsets"), "that is for streams")
    if given.checked("commitOffsets", _flag, False) and not given.given("group"):
        raise OptionRefused("commitOffsets needs group: whose progress is it?")
    log = _log(given)
    return ReadOptions(
        cluster=_cluster(given, needed=log is None),
        topics=_words(given.text("topics")),
        pattern=given.checked("topicPattern", _pattern, ""),
        tags="" if given.text("tags") == "*" else given.text("tags"),
        sql92=given.text("sql92"),
        start=_bound(
            given, "startingOffsets", "startingTimestamp", LATEST if streaming else EARLIEST
        ),
        end=_bound(given, "endingOffsets", "endingTimestamp", LATEST),
        columns=given.checked("columns", _columns, tuple(COLUMNS)),
        text=given.checked("bodyType", _choice("binary", "text"), "binary") == "text",
        offsets_per_trigger=given.checked("maxOffsetsPerTrigger", _count, 0) or None,
        partitions_min=given.checked("minPartitions", _count, 1),
        fails_on_loss=given.checked("failOnDataLoss", _flag, True),
        group=given.text("group", DEFAULT_GROUP),
        commits=given.checked("commitOffsets", _flag, False),
        pushdown=given.checked("pushdown", _flag, False),
        log=log,
    )


def _refuse(given: _Given, names: Iterable[str], why: str) -> None:
    if found := [name for name in names if given.given(name)]:
        raise OptionRefused(f"option {', '.join(found)}: {why}")


def _log(given: _Given) -> LogOptions | None:
    if given.checked("via", _choice("pull", "log"), "pull") == "pull":
        _refuse(given, ("places", "token", "tokenFile", "pieceBytes"), "that is for via=log")
        return None
    _refuse(given, ("commitOffsets",), "only what is pulled can be committed")
    given.one_of("token", "tokenFile")
    places = given.checked("places", _places, dict[str, str]())
    if not places:
        raise OptionRefused(f"via=log needs places, {READ_OPTIONS['places']}")
    return LogOptions(
        places,
        given.text("token"),
        given.text("tokenFile"),
        given.text("caFile"),
        given.checked("pieceBytes", _count, PIECE_BYTES),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """What `options` of a write say. Raises OptionRefused."""
    given = _Given(options, WRITE_OPTIONS)
    kept = given.checked("reservedProperties", _choice("fail", "drop"), "fail")
    return WriteOptions(
        _cluster(given),
        given.text("topic"),
        given.text("group", DEFAULT_GROUP),
        given.checked("inFlight", _count, 1_024),
        kept == "drop",
    )
