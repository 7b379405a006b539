"""Who a replica is and what its files say of its log, found out before it serves anybody."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.identity import obtain_identity
from tandemmq.cluster.broker.standing.lineage import succeed
from tandemmq.cluster.broker.standing.suspicion import SuspectMark
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.remoting.channel import Tls
from tandemmq.replication import CorruptEpochFile, CorruptIdentityFile, EpochHistory, Identity
from tandemmq.replication.keeping import EpochFile
from tandemmq.storage import Clock, MessageStore

REFILLED: Final = "it gets a new id, and its log from the master"


@dataclass(frozen=True, slots=True)
class Membership:
    """One replica of a group.

    suspect  the mark of a power cut: there, as long as the controller has not heard of it
    history  whose reigns the log has seen
    incarnation  of this process
    lineage      the processes that had this store before us, () where that is not known
    """

    identity: Identity
    suspect: SuspectMark
    epochs: EpochFile
    history: EpochHistory
    incarnation: int
    lineage: tuple[int, ...]


async def find_membership(
    config: BrokerConfig,
    store: MessageStore,
    suspect: SuspectMark,
    clock: Clock,
    rng: random.Random,
    tls: Tls = None,
) -> Membership:
    """Read the files; a new store waits here until a controller gives it an id.

    Raises ConfigError, also for a file that is damaged, and OSError.
    """
    epochs = EpochFile(config.epoch_path)
    recovered = store.recovered
    survived = recovered.clean or (recovered.same_boot and not recovered.dropped_bytes)
    try:
        short = await asyncio.to_thread(_came_back_short, store, epochs, survived=survived)
        if short and not suspect.there:
            await asyncio.to_thread(suspect.make, short)
        history = await asyncio.to_thread(epochs.load, store.end, same_boot=survived)
    except CorruptEpochFile as problem:
        why = f"{problem}. Restore it, or start this replica with an empty store: {REFILLED}"
        raise ConfigError("storePathEpochFile", str(config.epoch_path), why) from problem
    if recovered.dropped_bytes and not suspect.there:
        await asyncio.to_thread(suspect.make, f"the log was damaged at {recovered.log_end}")
    try:
        identity = await obtain_identity(config, clock, rng, tls)
    except CorruptIdentityFile as problem:
        why = f"{problem}. Restore it, or start this replica with an empty store: {REFILLED}"
        raise ConfigError("storePathBrokerIdentity", str(config.identity_path), why) from problem
    incarnation = rng.getrandbits(62) | 1
    lineage = await asyncio.to_thread(succeed, Path(config.storage.root), incarnation)
    return Membership(identity, suspect, epochs, history, incarnation, lineage)


def _came_back_short(store: MessageStore, epochs: EpochFile, *, survived: bool) -> str:
    """What this store's own files say that its log has lost, "" when nothing. Blocking.

    INV-37. A cut lowers the checkpoint first and announces itself in the epoch file's directory, so neither is left
    behind a log by a crash. After a power cut the last reign may lack its first bytes, which nobody was told of.
    Raises CorruptEpochFile, OSError.
    """
    if store.checkpoint.confirmed > store.end:
        return f"the log ends at {store.end}, {store.checkpoint.confirmed} of it was confirmed"
    beyond = epochs.beyond(store.end) if survived else None
    if beyond is not None:
        return f"the log ends at {store.end}, epoch {beyond.number} begins at {beyond.start}"
    return ""
