"""The lines of a history, as they are written and as checkers read them: JSON arrays that begin with their kind's name.

tandemmq.chaos.journal writes sends, readings, deliveries and events while a run goes on; the rest is written by who
knows it, mostly after traffic has stopped. Times are CLOCK_MONOTONIC ns of one machine. Fields at the end have
defaults, so that an older journal is a history, too.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

Queue = tuple[str, int]  # topic, queue id

OK: Final = "ok"  # SEND_OK: a promise
FAIL: Final = "fail"  # refused before the append, or never sent: it must not be there
INFO: Final = "info"  # unknown: it may be there
MESSAGE: Final = "message"
COPY: Final = "copy"
GIVEN_UP: Final = "given up"


class _Line(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One line; its class name in lower case is its first item."""


class Send(_Line, tag="send", frozen=True):
    """One attempt to send, begun and ended.

    unique_id     32 hex digits (tandemmq.chaos.load): running number and the hash of the body
    lane, sequence  a lane sends to one queue, one message after the other; sequences grow within it
    outcome       OK, FAIL or INFO
    queue_offset, offset  entry number and position in the log as acknowledged, else -1
    epoch, copies, durable  as the acknowledgement says, -1 where it says nothing (stock brokers)
    size          of the body, bytes
    due_ns        when a delayed message may be delivered at the earliest, 0: at once
    fate          of a transactional message: "commit" or "rollback", "" for any other
    """

    unique_id: str
    topic: str
    queue_id: int
    lane: int
    sequence: int
    round: int
    began_ns: int
    ended_ns: int
    outcome: str
    code: int
    broker: str
    queue_offset: int = -1
    offset: int = -1
    epoch: int = -1
    copies: int = -1
    durable: int = -1
    size: int = 0
    due_ns: int = 0
    fate: str = ""


class Seen(_Line, tag="seen", frozen=True):
    """What one pull returned: unique ids of consecutive queue offsets. hashes: of the bodies, where they were taken."""

    topic: str
    queue_id: int
    first: int
    unique_ids: tuple[str, ...]
    broker: str
    at_ns: int
    hashes: tuple[str, ...] = ()
    reader: int = 0


class Delivered(_Line, tag="delivered", frozen=True):
    """One message as a member of a group was given it. attempt: 1 and up where it is given again after a failure."""

    topic: str
    queue_id: int
    queue_offset: int
    unique_id: str
    member: int
    at_ns: int
    body_hash: str = ""
    group: str = "ChaosReaders"
    attempt: int = 0


class Event(_Line, tag="event", frozen=True):
    """A fault's phase, a measurement, what the run is ("run"), that consumers had everything ("drained")."""

    fields: dict[str, Any]


class Holding(_Line, tag="final", frozen=True):
    """A stretch of a queue as one replica holds it when all has stopped: log offsets and body hashes beside the ids."""

    topic: str
    queue_id: int
    replica: str
    first: int
    unique_ids: tuple[str, ...]
    offsets: tuple[int, ...] = ()
    hashes: tuple[str, ...] = ()


class Extent(_Line, tag="extent", frozen=True):
    """The bounds of a queue on one replica: what the final read had to read. end is exclusive."""

    topic: str
    queue_id: int
    replica: str
    start: int
    end: int


class Commit(_Line, tag="commit", frozen=True):
    """A group's progress, as stored. how: "commit", or "reset" where somebody set it on purpose."""

    group: str
    topic: str
    queue_id: int
    offset: int
    broker: str
    at_ns: int
    how: str = "commit"


class Taken(_Line, tag="taken", frozen=True):
    """A member of a group begins to read a queue."""

    group: str
    topic: str
    queue_id: int
    member: int
    at_ns: int


class Lookup(_Line, tag="lookup", frozen=True):
    """An acknowledged message was asked for by its key or its id once the index had caught up."""

    topic: str
    queue_id: int
    unique_id: str
    by: str
    found: bool
    broker: str


class Declared(_Line, tag="declared", frozen=True):
    """Messages that may be missing by the promises of the mode. why: what took them.

    what  MESSAGE, or COPY: only a delivered copy of a delayed message, which comes again, or GIVEN_UP: that an old
          master may have gone on for, was set aside, and the final log has not
    """

    unique_ids: tuple[str, ...]
    why: str
    what: str = MESSAGE


class Admin(_Line, tag="admin", frozen=True):
    """One operation on a setting that all agree on. action: "write" or "read"; outcome as of a send."""

    key: str
    action: str
    value: str
    began_ns: int
    ended_ns: int
    outcome: str
    client: int = 0


class Route(_Line, tag="route", frozen=True):
    """What one name server said of a group. epoch: of its master."""

    name_server: str
    group: str
    epoch: int
    at_ns: int


class Block(_Line, tag="block", frozen=True):
    """The digest of [start, start + size) of a replica's log, below the confirm offset."""

    replica: str
    start: int
    size: int
    digest: str


class Derived(_Line, tag="derived", frozen=True):
    """A file of a replica that says something else than its log. problem "": all of them were compared and agree."""

    replica: str
    problem: str


class EpochFile(_Line, tag="epochs", frozen=True):
    """Who wrote what by a replica's epoch file: (epoch, first offset), ascending. end: of its log."""

    replica: str
    reigns: tuple[tuple[int, int], ...]
    end: int


class Audit(_Line, tag="audit", frozen=True):
    """The audit's word on the replicas: whether they differ."""

    differ: bool
    says: str = ""


Line: TypeAlias = (
    Send | Seen | Delivered | Event | Holding | Extent | Commit | Taken | Lookup | Declared
    | Admin | Route | Block | Derived | EpochFile | Audit
)  # fmt: skip

decode_line: Final = msgspec.json.Decoder(Line).decode
encode_line: Final = msgspec.json.Encoder().encode
