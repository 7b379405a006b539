"""One broker on several disks: master, slaves, epochs and failover.

    frames    bytes <-> events of the replication stream, three dialects; proofs: of a shared secret
    epochs    which master wrote which range; where two logs part
    replica   the one object a broker's shell feeds: role, lease, and the master or slave half inside it
    master    progress of each slave, sync-state-set, what may be acknowledged
    slave     handshake, truncate, follow
    election  the controller: epochs, sets, elections; in group what it keeps, in controlevents what it is told and does
    identity  brokerIdentity; story: why a core is where it is; config: modes, times, rules
    feed      steps a core and performs its effects; the shells register theirs with it:
              sender (stream, wire, readahead), receiver (link), keeping (cut, set aside, epoch file)

The cores' events and effects are used as `master.Appended`, `slave.Append`, ... by the shells of this package and of
tandemmq.cluster.controller; what others need is listed here. Controllers alone load `election`: it is not listed, for
a broker's start would wait for it.
"""

from tandemmq.replication.config import LeaseTimes, Mode, StreamRules
from tandemmq.replication.epochs import Epoch, EpochHistory, common_end, encode_epochs, read_epochs
from tandemmq.replication.errors import (
    CorruptEpochFile,
    CorruptIdentityFile,
    PeerBrokeProtocol,
    ReplicationError,
)
from tandemmq.replication.group import Code, GroupRecord, GroupView
from tandemmq.replication.identity import Identity, decode_identity
from tandemmq.replication.master import MasterCore, Refusal
from tandemmq.replication.replica import ReplicaCore, ReplicaRole
from tandemmq.replication.slave import SlaveCore
from tandemmq.replication.story import Story

__all__ = [
    "Code",
    "CorruptEpochFile",
    "CorruptIdentityFile",
    "Epoch",
    "EpochHistory",
    "GroupRecord",
    "GroupView",
    "Identity",
    "LeaseTimes",
    "MasterCore",
    "Mode",
    "PeerBrokeProtocol",
    "Refusal",
    "ReplicaCore",
    "ReplicaRole",
    "ReplicationError",
    "SlaveCore",
    "Story",
    "StreamRules",
    "common_end",
    "decode_identity",
    "encode_epochs",
    "read_epochs",
]
