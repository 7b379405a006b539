"""Who a replica is and what its files say of its log, found out before it serves anybody."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from cluster.broker.config import BrokerConfig
from cluster.broker.identity import obtain_identity
from cluster.broker.suspicion import SuspectMark
from cluster.config import ConfigError
from replication import CorruptEpochFile, CorruptIdentityFile, EpochHistory, Identity
from replication.keeping import EpochFile
from storage import Clock, MessageStore

REFILLED: Final = "it gets a new id, and its log from the master"


@dataclass(frozen=True, slots=True)
class Membership:
    """One replica of a group.

    suspect  the mark of a power cut: there, as long as the controller has not heard of it
    history  whose reigns the log has seen
    """

    identity: Identity
    suspect: SuspectMark
    epochs: EpochFile
    history: EpochHistory


async def find_membership(
    config: BrokerConfig,
    store: MessageStore,
    suspect: SuspectMark,
    clock: Clock,
    rng: random.Random,
) -> Membership:
    """Read the files; a new store waits here until a controller gives it an id.

    Raises ConfigError, also for a file that is damaged, and OSError.
    """
    epochs = EpochFile(config.epoch_path)
    recovered = store.recovered
    survived = recovered.clean or (recovered.same_boot and not recovered.dropped_bytes)
    try:
        history = await asyncio.to_thread(epochs.load, store.end, same_boot=survived)
    except CorruptEpochFile as problem:
        why = f"{problem}. Restore it, or start this replica with an empty store: {REFILLED}"
        raise ConfigError("storePathEpochFile", str(config.epoch_path), why) from problem
    if recovered.dropped_bytes and not suspect.there:
        await asyncio.to_thread(suspect.make, f"the log was damaged at {recovered.log_end}")
    try:
        identity = await obtain_identity(config, clock, rng)
    except CorruptIdentityFile as problem:
        why = f"{problem}. Restore it, or start this replica with an empty store: {REFILLED}"
        raise ConfigError("storePathBrokerIdentity", str(config.identity_path), why) from problem
    return Membership(identity, suspect, epochs, history)
