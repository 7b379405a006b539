"""Settings of replication and failover, and the relations between times that make a lease safe."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tandemmq.storage.settings import ours, setting

Positive = Annotated[int, Meta(gt=0)]
Natural = Annotated[int, Meta(ge=0)]

FRAME_BODY_BYTES_MAX: Final = 4 * 1024 * 1024 - 12
"""The largest transfer body a stock slave's receive buffer takes."""


class Mode(enum.Enum):
    """What an acknowledgement promises: "S" waits for the sync-state-set, "1" for the disk (decision 0004)."""

    A0 = "A0"
    A1 = "A1"
    S0 = "S0"
    S1 = "S1"

    def __init__(self, name: str) -> None:
        # asked for with every batch: attributes, no properties
        self.waits_for_slaves = name[0] == "S"
        self.waits_for_disk = name[1] == "1"

    @classmethod
    def of(cls, *, synchronous: bool, flushed: bool) -> Mode:
        """The mode of a SYNC_MASTER (or not) with SYNC_FLUSH (or not)."""
        if synchronous:
            return cls.S1 if flushed else cls.S0
        return cls.A1 if flushed else cls.A0

    @property
    def meaning(self) -> str:
        """Where a message is when it is acknowledged, in words."""
        return _MEANINGS[self.value]


_MEANINGS: Final = {
    "A0": "in the master's page cache",
    "A1": "on the master's disk",
    "S0": "in the page cache of every member of the sync-state-set",
    "S1": "on the disk of every member of the sync-state-set",
}


class LeasePolicy(enum.Enum):
    """What a master does that has no slave to ask and no word from the controller: one of two dangers must be taken.

    It is the only copy, or acknowledges by its own log: nobody but the lease tells it that no other is master.
    STRICT     it stands still until the controller is back: nothing is acknowledged beside another master
    AVAILABLE  it goes on, as RocketMQ's masters do; what it acknowledges beside another master is cut and kept aside
    AUTO       AVAILABLE in A0, whose acknowledgements promise least, STRICT in the others
    """

    AUTO = "auto"
    STRICT = "strict"
    AVAILABLE = "available"

    def goes_on(self, mode: Mode) -> bool:
        """Whether a master of this mode acknowledges by itself when its lease is over."""
        return self is LeasePolicy.AVAILABLE or (self is LeasePolicy.AUTO and mode is Mode.A0)


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a master may still believe in itself, and when the controller may stop believing in it.

    heartbeat_ms      how often a broker tells the controller that it lives
    lease_ms          how long a master acknowledges after the *sending* of the last answered heartbeat
    election_wait_ms  how long the controller waits after granting a lease before it elects without other witnesses
    drift_percent     how much faster or slower than another's a machine's clock may run
    Raises ValueError when the relations do not hold: then a lease would fence nothing.
    """

    heartbeat_ms: Positive = setting("brokerHeartbeatInterval", 300)
    lease_ms: Positive = ours("haLeaseMillis", 2000)
    election_wait_ms: Positive = ours("controllerElectionWaitMillis", 2300)
    drift_percent: Annotated[int, Meta(ge=0, le=20)] = ours("haClockDriftPercent", 5)

    def __post_init__(self) -> None:
        if self.heartbeat_ms * 3 >= self.lease_ms:
            raise ValueError(
                f"lease of {self.lease_ms} ms is not above three heartbeats of {self.heartbeat_ms} ms"
            )
        if self.lease_ms * (100 + 2 * self.drift_percent) >= self.election_wait_ms * 100:
            raise ValueError(
                f"election wait of {self.election_wait_ms} ms is not above the lease of {self.lease_ms} ms "
                f"with clocks that drift {self.drift_percent} %"
            )


class StreamRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a master and its slaves treat each other. Times are monotonic and count a suspended machine."""

    # below: sends are refused before the append. The master counts
    copies_min: Positive = setting("minInSyncReplicas", 1)
    # classic HA, or not all of the set: this many, the master included
    copies_wanted: Positive = setting("inSyncReplicas", 1)
    # synchronous modes: wait for every member. RocketMQ's default is false, which loses
    all_in_set: bool = setting("allAckInSyncStateSet", True)
    # below the clients' 3000: they see FLUSH_SLAVE_TIMEOUT before they give up
    slave_timeout_ms: Positive = setting("slaveTimeout", 2000)
    # a member further behind leaves the set: below slave_timeout_ms, one stall
    catch_up_ms_max: Positive = setting("haMaxTimeSlaveNotCatchup", 1500)
    # a member whose stream broke may come back this long
    lost_grace_ms: Natural = ours("haLostGraceMillis", 200)
    # a switchover that takes longer is abandoned: no send has failed by then
    drain_ms_max: Positive = ours("haDrainMillis", 400)
    # where acknowledgements wait for disks: a flush that takes longer makes a master hand over. 0: never
    disk_stall_ms: Natural = ours("haDiskStallMillis", 1500)
    # a proposal without an answer is repeated
    proposal_retry_ms: Positive = ours("haProposalRetryMillis", 500)
    gap_bytes_max: Positive = setting("haMaxGapNotInSync", 256 << 20)
    stream_heartbeat_ms: Positive = setting("haSendHeartbeatInterval", 5000)
    stream_silence_ms: Positive = setting("haHousekeepingInterval", 20000)
    # RocketMQ's 32 KiB costs twice the CPU
    batch_bytes: Annotated[int, Meta(gt=0, le=FRAME_BODY_BYTES_MAX)] = setting(
        "haTransferBatchSize", 256 << 10
    )
    learner: bool = setting("asyncLearner", False)
    from_last_file: bool = setting("syncFromLastFile", False)
    # auto, strict or available: a master left alone
    lease_policy: LeasePolicy = ours("haLeasePolicy", LeasePolicy.AUTO)
    # a stock replica must connect from the host it registered
    replica_host_check: bool = ours("haReplicaHostCheck", True)
    # classic HA: a slave that cannot be compared gets the log; it never counts as a copy
    uncompared_followed: bool = ours("haUncomparedSlavesFollow", False)

    def __post_init__(self) -> None:
        if self.stream_heartbeat_ms * 2 >= self.stream_silence_ms:
            raise ValueError(
                f"a stream is given up after {self.stream_silence_ms} ms of silence, "
                f"too soon for a heartbeat every {self.stream_heartbeat_ms} ms"
            )
