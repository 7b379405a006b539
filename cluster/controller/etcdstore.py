"""Records in etcd, and leadership among several controllers: whoever holds a lease's key leads.

    PREFIX/GROUP/leader         {"id","address","process"}, kept by a lease; its create_revision is the reign's number
    PREFIX/GROUP/writes         PROCESS:NUMBER of the last write
    PREFIX/GROUP/groups/NAME    a GroupRecord

Every write is one transaction that holds only while our leader key has its create_revision and while `writes` is what
we wrote last. The first keeps a controller out that lost the lease without knowing; the second keeps our own writes in
order, when one that seemed lost arrives late.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from tandemmq.cluster.controller.config import ControllerConfig
from tandemmq.cluster.controller.etcd import Etcd, Json, KeyValue, client_tls, encoded, key_value
from tandemmq.cluster.controller.store import (
    Changes,
    CorruptControllerFile,
    Leader,
    LeadershipLost,
    StoreUnreachable,
    check,
)
from tandemmq.cluster.logs import once_per
from tandemmq.replication import GroupRecord
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

POLL_S: Final = 0.3  # of those who do not lead
CHANGES_MAX: Final = 100  # of one transaction; etcd takes 128 operations
SAFE_PERCENT: Final = 80  # of the lease that we count on: clocks drift, and etcd's began after ours
BEATS: Final = 5  # the lease is renewed so often in its time
PAST: Final = -(1 << 60)


class _LeaderValue(msgspec.Struct, frozen=True):
    id: str
    address: str
    process: str


class EtcdStore:
    """One controller's view of etcd.

    leading() counts the lease from when its renewal was *sent*, and only SAFE_PERCENT of it: it is false before etcd
    can let another one lead.
    """

    def __init__(self, config: ControllerConfig, me: Leader, clock: Clock) -> None:
        self._config = config
        self._me = me
        self._clock = clock
        self._process = secrets.token_hex(8)
        self._prefix = f"{config.etcd_prefix.rstrip('/')}/{config.group}/"
        self._etcd: Etcd | None = None
        self._lease = ""
        self._ttl_s = config.etcd_lease_s
        self._revision = 0  # of our leader key
        self._leads_until_ms = PAST
        self._leader = Leader()
        self._written: bytes | None = None  # what `writes` holds
        self._number = 0
        self._failures = once_per(10)

    # --- the store ---

    async def open(self) -> None:
        config = self._config
        tls = None
        if any(endpoint.startswith("https:") for endpoint in config.endpoints):
            tls = await asyncio.to_thread(
                client_tls, config.etcd_ca_path, config.etcd_certificate_path, config.etcd_key_path
            )
        self._etcd = Etcd(
            config.endpoints,
            timeout_ms=config.etcd_lease_s * 1000 // 3,
            user=config.etcd_user,
            password=config.etcd_password,
            tls=tls,
        )

    def leading(self) -> bool:
        return self._clock.monotonic_ms() < self._leads_until_ms

    def leader(self) -> Leader:
        return self._me if self.leading() else self._leader

    async def lead(self) -> list[GroupRecord]:
        while True:
            try:
                records = await self._try_to_lead()
            except StoreUnreachable as problem:
                self._leader = Leader()
                self._failures.warning(log, "no controller can lead: %s", problem)
                records = None
            if records is not None:
                return records
            await asyncio.sleep(POLL_S)

    async def write(self, changes: Changes) -> None:
        items = iter(changes.items())
        while chunk := dict(islice(items, CHANGES_MAX)):
            await self._write(chunk)

    async def run(self) -> None:
        """Renew the lease as long as there is one."""
        while True:
            await asyncio.sleep(self._ttl_s / BEATS)
            if not self._lease or not self.leading():
                continue
            sent_ms = self._clock.monotonic_ms()
            lease = self._lease
            try:
                left_s = await self._open_etcd.keep_alive(lease)
            except StoreUnreachable as problem:
                self._failures.warning(log, "lease not renewed: %s", problem)
                continue
            if lease == self._lease:
                self._lead_until(sent_ms, left_s)

    async def close(self) -> None:
        self._leads_until_ms = PAST
        if self._etcd is not None:
            await self._resign()
            await self._etcd.close()

    # --- leadership ---

    @property
    def _open_etcd(self) -> Etcd:
        assert self._etcd is not None, "open() first"
        return self._etcd

    @property
    def _leader_key(self) -> str:
        return self._prefix + "leader"

    @property
    def _writes_key(self) -> str:
        return self._prefix + "writes"

    def _lead_until(self, sent_ms: int, left_s: int) -> None:
        if left_s > 0:
            self._leads_until_ms = sent_ms + left_s * 10 * SAFE_PERCENT
        else:
            self._leads_until_ms = PAST

    async def _resign(self) -> None:
        """Give an old lease back, so that nobody waits for its end."""
        lease, self._lease = self._lease, ""
        if lease:
            try:
                await self._open_etcd.revoke(lease)
            except StoreUnreachable as problem:
                log.info("lease not given back, it runs out by itself: %s", problem)

    async def _try_to_lead(self) -> list[GroupRecord] | None:
        """The records when we lead now; None when somebody else does. Raises StoreUnreachable."""
        etcd = self._open_etcd
        await self._resign()
        if self._follow(await etcd.get(self._leader_key)):
            return None
        sent_ms = self._clock.monotonic_ms()
        self._lease, self._ttl_s = await etcd.grant(self._config.etcd_lease_s)
        value = _LeaderValue(self._me.id, self._me.address, self._process)
        answer = await etcd.transact(
            [_created(self._leader_key, 0)],
            [_put(self._leader_key, msgspec.json.encode(value), self._lease)],
            [_get(self._leader_key)],
        )
        if not answer.get("succeeded"):
            self._follow(next(_found(answer), None))
            return None
        self._revision = int(answer["header"]["revision"])
        records, written = await self._read()
        self._written = written
        self._lead_until(sent_ms, self._ttl_s)
        return records

    def _follow(self, found: KeyValue | None) -> bool:
        """Whether somebody leads, and who."""
        if found is None:
            self._leader = Leader()
            return False
        try:
            value = msgspec.json.decode(found.value, type=_LeaderValue)
        except (msgspec.DecodeError, msgspec.ValidationError) as problem:
            raise CorruptControllerFile(f"{found.key} in etcd cannot be read: {problem}") from None
        self._leader = Leader(value.id, value.address)
        return True

    async def _read(self) -> tuple[list[GroupRecord], bytes | None]:
        """Every record, and what `writes` holds. Raises CorruptControllerFile, StoreUnreachable."""
        records: list[GroupRecord] = []
        written: bytes | None = None
        groups = self._prefix + "groups/"
        for found in await self._open_etcd.below(self._prefix):
            if found.key == self._writes_key:
                written = found.value
            elif found.key.startswith(groups):
                try:
                    record = msgspec.json.decode(found.value, type=GroupRecord)
                    check(record)
                except ValueError as problem:
                    raise CorruptControllerFile(
                        f"{found.key} in etcd cannot be read: {problem}. Restore it from a backup taken since its "
                        "last change; see docs/operations.md"
                    ) from None
                records.append(record)
        return records, written

    # --- writing ---

    async def _write(self, changes: Changes) -> None:
        """One transaction. Raises StoreUnreachable (it may have been done), LeadershipLost."""
        for _ in range(2):
            if not self.leading():
                raise LeadershipLost("the lease in etcd was not renewed in time")
            self._number += 1
            token = f"{self._process}:{self._number}".encode()
            unchanged = (
                _equals(self._writes_key, self._written)
                if self._written is not None
                else _created(self._writes_key, 0)
            )
            answer = await self._open_etcd.transact(
                [_created(self._leader_key, self._revision), unchanged],
                [_put(self._writes_key, token), *self._operations(changes)],
                [_get(self._leader_key), _get(self._writes_key)],
            )
            if answer.get("succeeded"):
                self._written = token
                return
            self._find_late_write(answer)
        raise StoreUnreachable("an earlier write arrived late, twice")

    def _operations(self, changes: Changes) -> Iterator[Json]:
        for name, record in changes.items():
            key = f"{self._prefix}groups/{name}"
            if record is None:
                yield {"request_delete_range": {"key": encoded(key)}}
            else:
                yield _put(key, msgspec.json.encode(record))

    def _find_late_write(self, answer: Json) -> None:
        """Why a comparison failed: an earlier write of ours has arrived after all, or another controller leads."""
        found = {each.key: each for each in _found(answer)}
        leader, writes = found.get(self._leader_key), found.get(self._writes_key)
        ours = leader is not None and leader.create_revision == self._revision
        if ours and writes is not None and writes.value.startswith(f"{self._process}:".encode()):
            self._written = writes.value
            return
        self._leads_until_ms = PAST
        self._follow(leader)
        raise LeadershipLost(f"another controller leads: {self._leader.id or 'not known which'}")


# --- parts of a transaction ---


def _created(key: str, revision: int) -> Json:
    """Holds when the key was created by this revision; 0: when there is none."""
    return {
        "key": encoded(key),
        "target": "CREATE",
        "result": "EQUAL",
        "create_revision": str(revision),
    }


def _equals(key: str, value: bytes) -> Json:
    return {"key": encoded(key), "target": "VALUE", "result": "EQUAL", "value": encoded(value)}


def _put(key: str, value: bytes, lease: str = "0") -> Json:
    return {"request_put": {"key": encoded(key), "value": encoded(value), "lease": lease}}


def _get(key: str) -> Json:
    return {"request_range": {"key": encoded(key)}}


def _found(answer: Json) -> Iterator[KeyValue]:
    """The keys that a transaction's ranges found."""
    for response in answer.get("responses", []):
        for found in response.get("response_range", {}).get("kvs", []):
            yield key_value(found)
