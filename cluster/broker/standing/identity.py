"""Which replica of its group this store is: brokerIdentity on disk, and how a new store gets its id.

A controller gives the id out, once per store. Between asking for it and being told that it is ours, brokerIdentity-temp
keeps what we asked for, so that a crash in between does not cost an id. Source: RocketMQ's ReplicasManager.register.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Final

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.controlanswers import read_apply_broker_id_answer, read_next_broker_id_answer
from tandemmq.cluster.controlplane import encode_apply_broker_id, encode_next_broker_id
from tandemmq.cluster.remoting.channel import Channel, Tls, open_channel
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.errors import HeaderProblem, RemotingError
from tandemmq.replication import CorruptIdentityFile, Identity, decode_identity
from tandemmq.replication import election as e
from tandemmq.storage import Clock, jsonfile

log = logging.getLogger(__name__)

TEMPORARY_SUFFIX: Final = "-temp"
ASK_MS: Final = 3_000
CONNECT_MS: Final = 1_000
RETRY_MS: Final = (200, 1_000)  # between rounds over all controllers
ROUNDS_PER_WARNING: Final = 10


class IdentityFiles:
    """brokerIdentity and brokerIdentity-temp of one store. Methods block: a few bytes, with fsync."""

    def __init__(self, path: Path, cluster: str, group: str) -> None:
        self.path = path
        self.temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._cluster = cluster
        self._group = group

    def load(self) -> Identity | None:
        """Whose store this is; None for a new one.

        Raises ConfigError when it belongs to another cluster or group, CorruptIdentityFile, OSError.
        """
        return self._read(self.path)

    def wanted(self) -> Identity | None:
        """What was applied for, and not yet confirmed. Damage only costs the next id."""
        try:
            found = self._read(self.temporary)
        except CorruptIdentityFile as problem:
            log.warning("file ignored path=%s why=%s", self.temporary, problem)
            return None
        return found if found is not None and found.check_code else None

    def _read(self, path: Path) -> Identity | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        found = decode_identity(content)
        if (found.cluster, found.group) != (self._cluster, self._group):
            raise ConfigError(
                "brokerName",
                f"{self._cluster}#{self._group}",
                f"{path} says that this store belongs to {found.cluster}#{found.group}",
            )
        return found

    def want(self, replica: int, check_code: str) -> Identity:
        """Note what is about to be applied for. Raises OSError."""
        identity = Identity(self._cluster, self._group, replica, check_code)
        jsonfile.write_atomically(self.temporary, identity.encode())
        return identity

    def forget_wanted(self) -> None:
        self.temporary.unlink(missing_ok=True)

    def confirm(self, identity: Identity) -> Identity:
        """The controller knows us by it. Raises OSError."""
        found = Identity(identity.cluster, identity.group, identity.replica)
        jsonfile.write_atomically(self.path, found.encode())
        self.forget_wanted()
        return found


async def obtain_identity(
    config: BrokerConfig, clock: Clock, rng: random.Random, tls: Tls = None
) -> Identity:
    """Whose store this is; a new store is given an id, as soon as a controller answers.

    Raises what IdentityFiles raises.
    """
    files = IdentityFiles(config.identity_path, config.cluster, config.name)
    known = await asyncio.to_thread(files.load)
    if known is not None:
        return known
    rounds = 0
    while True:
        for host, port in config.controller_addresses:
            try:
                channel = await open_channel(
                    host, port, tls=tls, timeout_ms=CONNECT_MS, sign=config.access.signer
                )
                try:
                    identity = await _apply(channel, files, config, clock)
                finally:
                    channel.close()
            except (RemotingError, HeaderProblem) as problem:
                why = str(problem)
                continue
            if identity is not None:
                log.info("replica id given controller=%s:%d id=%d", host, port, identity.replica)
                return identity
            why = f"{host}:{port} gives no id"
        if rounds % ROUNDS_PER_WARNING == 0:
            log.warning("waiting for a controller to give this replica an id why=%s", why)
        rounds += 1
        await asyncio.sleep(rng.uniform(*RETRY_MS) / 1000)


async def _apply(
    channel: Channel, files: IdentityFiles, config: BrokerConfig, clock: Clock
) -> Identity | None:
    """Ask one controller; None when it does not give one now. Raises RemotingError, HeaderProblem."""
    wanted = await asyncio.to_thread(files.wanted)
    if wanted is None:
        question = encode_next_broker_id(e.NextBrokerId(0, config.cluster, config.name))
        replica = read_next_broker_id_answer(await channel.request(question, ASK_MS))
        if replica is None:
            return None
        check_code = f"{config.address};{clock.now_ms()}"
        wanted = await asyncio.to_thread(files.want, replica, check_code)
    asked = e.ApplyBrokerId(0, config.cluster, config.name, wanted.replica, wanted.check_code)
    answer = await channel.request(encode_apply_broker_id(asked), ASK_MS)
    reply = read_apply_broker_id_answer(answer)
    if reply.succeeded:
        return await asyncio.to_thread(files.confirm, wanted)
    if reply.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
        log.info("replica id refused id=%d why=%s", wanted.replica, reply.remark)
        await asyncio.to_thread(files.forget_wanted)  # somebody was faster: ask for another
    return None
