"""Writes to etcd that are lost, late or doubled, and controllers that lost the lead: against etcd's rules in memory."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from timekit import HandClock

from tandemmq.cluster.controller.config import ControllerConfig
from tandemmq.cluster.controller.etcd import KeyValue
from tandemmq.cluster.controller.etcdstore import SAFE_PERCENT, EtcdStore
from tandemmq.cluster.controller.store import (
    CorruptControllerFile,
    Leader,
    LeadershipLost,
    StoreUnreachable,
)
from tandemmq.replication import GroupRecord

Json = dict[str, Any]
RECORD = GroupRecord("c", "a")


def plain(text: str) -> str:
    return base64.b64decode(text).decode()


class Etcds:
    """The keys of one etcd, with its leases."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.keys: dict[str, tuple[bytes, int, str]] = {}  # value, create_revision, lease
        self.revision = 0
        self.leases: dict[str, tuple[int, int]] = {}  # ttl_s, until_ms
        self.late: list[Callable[[], object]] = []  # transactions on their way

    def expire(self) -> None:
        for lease, (_, until_ms) in list(self.leases.items()):
            if self.clock.ms >= until_ms:
                self.end(lease)

    def end(self, lease: str) -> None:
        self.leases.pop(lease, None)
        for key in [key for key, (_, _, of) in self.keys.items() if of == lease and lease != "0"]:
            del self.keys[key]

    def apply(
        self, compare: Sequence[Json], success: Sequence[Json], failure: Sequence[Json]
    ) -> Json:
        self.expire()
        holds = all(map(self._holds, compare))
        responses = []
        for operation in success if holds else failure:
            responses.append(self._do(operation))
        return {
            "succeeded": holds, "responses": responses, "header": {"revision": str(self.revision)},
        }  # fmt: skip

    def _holds(self, compare: Json) -> bool:
        found = self.keys.get(plain(compare["key"]))
        if compare["target"] == "CREATE":
            return (found[1] if found else 0) == int(compare["create_revision"])
        assert compare["target"] == "VALUE"
        return found is not None and found[0] == base64.b64decode(compare["value"])

    def _do(self, operation: Json) -> Json:
        [(kind, body)] = operation.items()
        key = plain(body["key"])
        if kind == "request_range":
            found = self.keys.get(key)
            kvs = [{"key": body["key"], "value": base64.b64encode(found[0]).decode(),
                    "create_revision": str(found[1])}] if found else []  # fmt: skip
            return {"response_range": {"kvs": kvs}}
        self.revision += 1
        if kind == "request_put":
            created = self.keys[key][1] if key in self.keys else self.revision
            self.keys[key] = (base64.b64decode(body["value"]), created, body["lease"])
        else:
            assert kind == "request_delete_range"
            self.keys.pop(key, None)
        return {}


class Link:
    """One controller's way to etcd, in the shape of cluster.controller.etcd.Etcd; `mood` is what happens next."""

    def __init__(self, etcds: Etcds) -> None:
        self.etcds = etcds
        self.mood: Callable[[], str] = lambda: "well"

    def _broken(self) -> None:
        if self.mood() == "cut":
            raise StoreUnreachable("cut")

    async def grant(self, ttl_s: int) -> tuple[str, int]:
        self._broken()
        lease = str(len(self.etcds.leases) + random.randrange(1, 1 << 40))
        self.etcds.leases[lease] = (ttl_s, self.etcds.clock.ms + ttl_s * 1000)
        return lease, ttl_s

    async def keep_alive(self, lease: str) -> int:
        self._broken()
        self.etcds.expire()
        if lease not in self.etcds.leases:
            return 0
        ttl_s = self.etcds.leases[lease][0]
        self.etcds.leases[lease] = (ttl_s, self.etcds.clock.ms + ttl_s * 1000)
        return ttl_s

    async def revoke(self, lease: str) -> None:
        self._broken()
        self.etcds.end(lease)

    async def get(self, key: str) -> KeyValue | None:
        self._broken()
        self.etcds.expire()
        found = self.etcds.keys.get(key)
        return KeyValue(key, found[0], found[1]) if found else None

    async def below(self, prefix: str) -> list[KeyValue]:
        self._broken()
        items = sorted(self.etcds.keys.items())
        return [
            KeyValue(key, value, made) for key, (value, made, _) in items if key.startswith(prefix)
        ]

    async def transact(self, *parts: Sequence[Json]) -> Json:
        def apply() -> Json:
            return self.etcds.apply(*parts)

        mood = self.mood()
        if mood == "late":
            self.etcds.late.append(apply)
            raise StoreUnreachable("no answer")
        if mood == "cut":
            raise StoreUnreachable("cut")
        answer = apply()
        if mood == "lost":
            raise StoreUnreachable("the answer is lost")
        return answer

    async def close(self) -> None: ...


def store_on(etcds: Etcds, name: str = "n0") -> tuple[EtcdStore, Link]:
    config = ControllerConfig.from_properties(
        {
            "controllerDLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2", "controllerDLegerSelfId": name,
            "controllerStore": "etcd", "etcdEndpoints": "http://127.0.0.1:2379",
        }
    )  # fmt: skip
    store = EtcdStore(config, Leader(*config.me), etcds.clock)
    link = Link(etcds)
    store._etcd = link  # type: ignore[assignment]
    return store, link


def kept(etcds: Etcds) -> GroupRecord | None:
    found = etcds.keys.get("/tandemmq/controller/tandem/groups/a")
    return msgspec.json.decode(found[0], type=GroupRecord) if found else None


def numbered(number: int) -> GroupRecord:
    return msgspec.structs.replace(RECORD, set_number=number)


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_durable_is_what_was_written_last_whatever_gets_lost_or_late(
    seed: int,
) -> None:
    rng = random.Random(seed)
    etcds = Etcds(HandClock())
    store, link = store_on(etcds)
    await store.lead()
    for number in range(1, 60):
        while True:
            link.mood = lambda: rng.choices(["well", "lost", "late", "cut"], [4, 1, 2, 1])[0]
            try:
                await store.write({"a": numbered(number)})
            except StoreUnreachable:
                continue
            finally:
                while etcds.late and rng.random() < 0.6:
                    etcds.late.pop(rng.randrange(len(etcds.late)))()
            break
        # Acknowledged means durable, also after every late one has arrived.
        for late in list(etcds.late) if rng.random() < 0.3 else []:
            late()
        found = kept(etcds)
        assert found is not None and found.set_number == number, f"after write {number}"


async def test_a_write_of_the_former_leader_arrives_too_late() -> None:
    etcds = Etcds(HandClock())
    (old, link), (new, _) = store_on(etcds, "n0"), store_on(etcds, "n1")
    await old.lead()
    await old.write({"a": numbered(1)})
    link.mood = lambda: "late"
    with pytest.raises(StoreUnreachable):
        await old.write({"a": numbered(2)})
    etcds.clock.ms += 10_000
    assert not old.leading()
    records = await new.lead()
    assert [record.set_number for record in records] == [1]
    for late in etcds.late:
        late()
    link.mood = lambda: "well"
    with pytest.raises(LeadershipLost):
        await old.write({"a": numbered(3)})
    await new.write({"a": numbered(7)})
    assert kept(etcds) == numbered(7)


async def test_a_leader_whose_clock_stood_still_is_kept_out_by_etcd() -> None:
    """It believes in its lease; the transaction does not."""
    etcds = Etcds(HandClock())
    (old, _), (new, _) = store_on(etcds, "n0"), store_on(etcds, "n1")
    slow = HandClock()
    slow.ms = etcds.clock.ms
    old._clock = slow
    await old.lead()
    etcds.clock.ms += 10_000
    await new.lead()
    assert old.leading() and new.leading()
    with pytest.raises(LeadershipLost, match="another controller leads: n1"):
        await old.write({"a": numbered(2)})
    assert not old.leading() and kept(etcds) is None
    assert old.leader() == Leader("n1", "127.0.0.1:2")


async def test_the_lead_is_over_before_etcd_gives_it_away() -> None:
    etcds = Etcds(HandClock())
    store, _ = store_on(etcds)
    await store.lead()
    lease_ms = 3000
    etcds.clock.ms += lease_ms * SAFE_PERCENT // 100 - 1
    assert store.leading()
    etcds.clock.ms += 1
    assert not store.leading() and etcds.keys, "etcd has it still"
    etcds.expire()
    assert "/tandemmq/controller/tandem/leader" in etcds.keys
    # It may lead again at once: it gives its old lease back first.
    assert await store.lead() == []
    assert store.leading()


async def test_more_changes_than_a_transaction_takes_go_in_several() -> None:
    etcds = Etcds(HandClock())
    store, _ = store_on(etcds)
    await store.lead()
    records = {f"g{number}": GroupRecord("c", f"g{number}") for number in range(250)}
    await store.write(records)
    await store.write({"g3": None})
    await store.close()
    other, _ = store_on(etcds, "n1")
    assert {record.name for record in await other.lead()} == records.keys() - {"g3"}


async def test_a_damaged_record_stops_the_start() -> None:
    etcds = Etcds(HandClock())
    etcds.keys["/tandemmq/controller/tandem/groups/a"] = (b"{", 1, "0")
    store, _ = store_on(etcds)
    with pytest.raises(CorruptControllerFile, match="groups/a in etcd cannot be read"):
        await store.lead()
