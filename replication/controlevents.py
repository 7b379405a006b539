"""What a controller is told and asked, and what it answers and does: events and effects of election.ControllerCore."""

from __future__ import annotations

import enum

import msgspec

from tandemmq.replication.group import Code, GroupRecord, GroupView

# --- events: requests (by code) ---


class NextBrokerId(msgspec.Struct, frozen=True):
    """1012"""

    request: int
    cluster: str
    group: str


class ApplyBrokerId(msgspec.Struct, frozen=True):
    """1013"""

    request: int
    cluster: str
    group: str
    replica: int
    check_code: str


class RegisterBroker(msgspec.Struct, frozen=True):
    """1003, with our extension: which process, in which mode, and whether it lost power with unflushed data.

    lineage  the processes that had this store, as far as it remembers, this one last; () where it does not say
    host     where the request comes from, an IP address; "" where nobody looked
    """

    request: int
    session: int
    cluster: str
    group: str
    replica: int
    address: str
    ha_address: str = ""
    incarnation: int = 0
    mode: str = ""
    suspect: bool = False
    epoch: int = 0
    end: int = 0
    lineage: tuple[int, ...] = ()
    host: str = ""


class AlterSyncSet(msgspec.Struct, frozen=True):
    """1001, with our extension: which processes the master vouches for.

    session, host  where it comes from, if that is known
    """

    request: int
    group: str
    master: int
    epoch: int
    members: frozenset[int]
    number: int
    incarnations: tuple[tuple[int, int], ...] = ()
    reaffirm: bool = False
    session: int = 0
    host: str = ""


class ElectMaster(msgspec.Struct, frozen=True):
    """1002. replica -1: nobody in particular; designated: an operator wants this one; unclean: at any price;
    spacious: only if it says that its disk has space (a master whose own is full asks so)."""

    request: int
    cluster: str
    group: str
    replica: int = -1
    designated: bool = False
    unclean: bool = False
    spacious: bool = False


class ReplicaInfo(msgspec.Struct, frozen=True):
    """1004"""

    request: int
    group: str


class SyncStateData(msgspec.Struct, frozen=True):
    """1006"""

    request: int
    groups: tuple[str, ...]


class CleanBrokerData(msgspec.Struct, frozen=True):
    """1011. No replicas: the whole group."""

    request: int
    cluster: str
    group: str
    replicas: tuple[int, ...] = ()
    living_too: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """904, answered where the broker is ours.

    number     chosen by the broker, echoed
    epoch      leading: of the reign; else of the last byte of its log
    leading    it has made itself ready to be master of `epoch`, or is it
    streaming  it follows the master's stream
    resigned   it is the master of `epoch` and acknowledges nothing any more
    timeout_ms how long it wants to be thought alive; 0: ours, the lease says it
    space      its disk has room for messages; a stock broker does not say
    host       where it comes from; "" where nobody looked
    """

    session: int
    group: str
    replica: int
    incarnation: int = 0
    number: int = 0
    epoch: int = 0
    end: int = 0
    confirmed: int = 0
    leading: bool = False
    streaming: bool = False
    resigned: bool = False
    priority: int = (1 << 31) - 1
    timeout_ms: int = 0
    space: bool = False
    host: str = ""


class SessionClosed(msgspec.Struct, frozen=True):
    """A broker's connection to us ended."""

    session: int


class ProbeAnswered(msgspec.Struct, frozen=True):
    """A connect to a silent master's address: refused means that no process listens there."""

    group: str
    replica: int
    incarnation: int
    refused: bool


class AllowUnclean(msgspec.Struct, frozen=True):
    """The operator's switch enableElectUncleanMaster."""

    allowed: bool


class Tick(msgspec.Struct, frozen=True):
    """Time passed."""


Event = (
    NextBrokerId
    | ApplyBrokerId
    | RegisterBroker
    | AlterSyncSet
    | ElectMaster
    | ReplicaInfo
    | SyncStateData
    | CleanBrokerData
    | Heartbeat
    | SessionClosed
    | ProbeAnswered
    | AllowUnclean
    | Tick
)

# --- effects ---


class Persist(msgspec.Struct, frozen=True):
    """Make this record durable before anything that follows leaves. None: the group is forgotten."""

    group: str
    record: GroupRecord | None


class Answer(msgspec.Struct, frozen=True):
    """The response to a request. `records` is what it asked for; alive: (group, replica) of those who are."""

    request: int
    code: Code = Code.SUCCESS
    remark: str = ""
    next_id: int = 0
    records: tuple[GroupRecord, ...] = ()
    alive: frozenset[tuple[str, int]] = frozenset()


class AnswerHeartbeat(msgspec.Struct, frozen=True):
    """known False: register first. lease: the sender may acknowledge until its lease time after it sent `number`."""

    session: int
    group: str
    replica: int
    number: int
    known: bool
    lease: bool
    view: GroupView


class NotifyRole(msgspec.Struct, frozen=True):
    """1008 to one broker."""

    session: int
    group: str
    replica: int
    view: GroupView


class AskToSwitch(msgspec.Struct, frozen=True):
    """Ask the master to hand over: Resign(successor) for its core."""

    session: int
    group: str
    replica: int
    epoch: int
    successor: int


class Probe(msgspec.Struct, frozen=True):
    """Connect to this address once; answer ProbeAnswered."""

    group: str
    replica: int
    incarnation: int
    address: str


class Kind(enum.Enum):
    ELECTED = "elected"
    LOSS_POSSIBLE = "elected, confirmed data may be lost"
    WAITING = "nobody can be elected"
    UNCLEAN_ALLOWED = "elections outside the set are allowed"
    SET_CHANGED = "set changed"
    ONE_COPY = "one copy is left"
    WHOLE = "every replica is in the set"
    DOUBTED = "a request was not believed"
    MODE_DIFFERS = "a replica is configured otherwise than its group"
    CAME_BACK_SHORT = "a store came back with less than it had"
    CLEANED = "what is known of replicas was deleted on request"


class Announce(msgspec.Struct, frozen=True):
    """An event for log, metric and audit line. LOSS_POSSIBLE and WAITING are never silent.

    group   "" when it concerns all of them
    """

    group: str
    kind: Kind
    epoch: int
    text: str


Effect = Persist | Answer | AnswerHeartbeat | NotifyRole | AskToSwitch | Probe | Announce
