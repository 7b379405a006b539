"""An etcd in the simulated network: linearizable, with leases; requests are late, lost, or applied and not answered."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.loop import FASTER, ProcessLoop
from tandemmq.cluster.controller.etcd import Json, KeyValue
from tandemmq.cluster.controller.store import StoreUnreachable
from tandemmq.replication import GroupRecord

if TYPE_CHECKING:
    from tandemmq.chaos.sim.world import World

STUCK_US: Final = (
    20_000  # until a request that does not get through is tried again by its connection
)


@dataclass(slots=True)
class _Key:
    value: bytes
    created: int
    lease: str


class Etcd:
    """The members of one etcd cluster, seen as one: each request takes effect at one moment, or never.

    away        no request gets through; those on their way wait, or are lost
    forgetful   the share of answers that are lost, though the request was done
    slow_us     what requests may take longer than usual
    """

    def __init__(self, world: World, host: int) -> None:
        self.world = world
        self.host = host
        self.away = False
        self.forgetful = 0.0
        self.slow_us = 0
        self.rng = random.Random(world.seed ^ 0xE7CD)  # so that it moves no other draw
        self._keys: dict[str, _Key] = {}
        self._revision = 0
        self._leases: dict[str, tuple[int, int]] = {}  # time to live in microseconds, end

    def heal(self) -> None:
        self.away, self.forgetful, self.slow_us = False, 0.0, 0

    # --- what a judge may look at ---

    def leader(self) -> str:
        """The process that holds the leader key now; "" for none."""
        self._expire()
        for name, key in self._keys.items():
            if name.endswith("/leader"):
                return str(msgspec.json.decode(key.value)["process"])
        return ""

    def record(self) -> GroupRecord | None:
        for name, key in self._keys.items():
            if "/groups/" in name:
                return msgspec.json.decode(key.value, type=GroupRecord)
        return None

    def begin(self, name: str, record: GroupRecord) -> None:
        """What is there before the run."""
        self._revision += 1
        self._keys[name] = _Key(msgspec.json.encode(record), self._revision, "0")

    # --- leases ---

    def grant(self, ttl_s: int) -> tuple[str, int]:
        self._revision += 1
        lease, ttl_us = str(self._revision), int(ttl_s * 1e6 / FASTER)
        self._leases[lease] = (ttl_us, self.world.now_us + ttl_us)
        return lease, ttl_s

    def keep_alive(self, lease: str) -> int:
        self._expire()
        if lease not in self._leases:
            return 0
        ttl_us, _ = self._leases[lease]
        self._leases[lease] = (ttl_us, self.world.now_us + ttl_us)
        return ttl_us * FASTER // 1_000_000

    def revoke(self, lease: str) -> None:
        self._leases.pop(lease, None)
        self._drop_keys()

    def _expire(self) -> None:
        now_us = self.world.now_us
        over = [lease for lease, (_, until_us) in self._leases.items() if until_us <= now_us]
        for lease in over:
            del self._leases[lease]
        if over:
            self._drop_keys()

    def _drop_keys(self) -> None:
        for name, key in list(self._keys.items()):
            if key.lease != "0" and key.lease not in self._leases:
                del self._keys[name]
                self._revision += 1

    # --- keys ---

    def get(self, name: str) -> KeyValue | None:
        self._expire()
        found = self._keys.get(name)
        return KeyValue(name, found.value, found.created) if found else None

    def below(self, prefix: str) -> list[KeyValue]:
        self._expire()
        found = sorted(name for name in self._keys if name.startswith(prefix))
        return [KeyValue(each, self._keys[each].value, self._keys[each].created) for each in found]

    def transact(
        self,
        process: str,
        compare: Sequence[Json],
        success: Sequence[Json],
        failure: Sequence[Json],
    ) -> Json:
        self._expire()
        holds = all(map(self._holds, compare))
        chosen = success if holds else failure
        for each in chosen:
            lease = each.get("request_put", {}).get("lease", "0")
            if lease != "0" and lease not in self._leases:
                raise StoreUnreachable("requested lease not found")
        self._revision += any("request_range" not in each for each in chosen)
        responses = [self._do(process, each) for each in chosen]
        header = {"revision": str(self._revision)}
        return {"succeeded": holds, "responses": responses, "header": header}

    def _holds(self, compare: Json) -> bool:
        found = self._keys.get(_plain(compare["key"]).decode())
        if compare["target"] == "CREATE":
            return (found.created if found else 0) == int(compare["create_revision"])
        return found is not None and found.value == _plain(compare["value"])

    def _do(self, process: str, operation: Json) -> Json:
        [(kind, body)] = operation.items()
        name = _plain(body["key"]).decode()
        before = self._keys.get(name)
        if kind == "request_range":
            if before is None:
                return {"response_range": {}}
            text = base64.b64encode(before.value).decode()
            found = {"key": body["key"], "value": text, "create_revision": str(before.created)}
            return {"response_range": {"kvs": [found]}}
        assert kind == "request_put", operation
        value = _plain(body["value"])
        if "/groups/" in name:
            self._judge(process, before, msgspec.json.decode(value, type=GroupRecord))
        created = before.created if before else self._revision
        self._keys[name] = _Key(value, created, body["lease"])
        return {}

    def _judge(self, process: str, before: _Key | None, after: GroupRecord) -> None:
        """Who writes leads, and takes nothing back."""
        leader = self.leader()
        if leader != process:
            raise Violation(
                Check.FENCED, f"{process} writes epoch {after.epoch}, {leader or 'nobody'} leads"
            )
        if before is not None:
            known = msgspec.json.decode(before.value, type=GroupRecord)
            if (after.epoch, after.set_number) < (known.epoch, known.set_number):
                raise Violation(Check.FENCED, f"{process} writes {after} over {known}")
        self.world.note("record", after)


class Client:
    """One controller process's way to etcd, in the shape of tandemmq.cluster.controller.etcd.Etcd."""

    def __init__(
        self, etcd: Etcd, loop: ProcessLoop, host: int, process: str, timeout_s: float
    ) -> None:
        self._etcd = etcd
        self._loop = loop
        self._hosts = (host, etcd.host)
        self._process = process
        self._timeout_s = timeout_s

    async def grant(self, ttl_s: int) -> tuple[str, int]:
        found: tuple[str, int] = await self._ask(self._etcd.grant, ttl_s)
        return found

    async def keep_alive(self, lease: str) -> int:
        return int(await self._ask(self._etcd.keep_alive, lease))

    async def revoke(self, lease: str) -> None:
        await self._ask(self._etcd.revoke, lease)

    async def get(self, key: str) -> KeyValue | None:
        found: KeyValue | None = await self._ask(self._etcd.get, key)
        return found

    async def below(self, prefix: str) -> list[KeyValue]:
        found: list[KeyValue] = await self._ask(self._etcd.below, prefix)
        return found

    async def transact(
        self, compare: Sequence[Json], success: Sequence[Json], failure: Sequence[Json]
    ) -> Json:
        work = self._etcd.transact
        found: Json = await self._ask(work, self._process, compare, success, failure)
        return found

    async def close(self) -> None:
        return

    async def _ask(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Raises StoreUnreachable: then it was done, or not, or will be."""
        answer = self._loop.create_future()
        self._loop.call_later(self._timeout_s, self._give_up, answer)
        self._etcd.world.after(self._delay_us(), self._arrive, answer, work, arguments)
        return await answer

    def _give_up(self, answer: Any) -> None:
        if not answer.done():
            answer.set_exception(StoreUnreachable("etcd did not answer"))

    def _delay_us(self) -> int:
        etcd = self._etcd
        delay = etcd.world.network.delay()
        return delay + int(etcd.rng.random() * etcd.slow_us)

    def _blocked(self) -> bool:
        there = self._hosts
        blocked = self._etcd.world.network.blocked
        return self._etcd.away or there in blocked or there[::-1] in blocked

    def _arrive(self, answer: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """The request is at etcd, unless nothing gets through: then it is lost, or comes late."""
        etcd = self._etcd
        if self._blocked():
            if etcd.rng.random() < 0.9:
                etcd.world.after(STUCK_US, self._arrive, answer, work, arguments)
            return
        if answer.done():
            etcd.world.mark("etcd took a request late")
        try:
            found = work(*arguments)
        except StoreUnreachable as problem:
            found = problem
        if etcd.rng.random() < etcd.forgetful:
            etcd.world.mark("etcd's answer lost")
            return
        etcd.world.after(self._delay_us(), self._answered, answer, found)

    def _answered(self, answer: Any, found: Any) -> None:
        if self._blocked():
            return
        self._loop.call_soon(self._take, answer, found)

    def _take(self, answer: Any, found: Any) -> None:
        if answer.done():
            return
        if isinstance(found, StoreUnreachable):
            answer.set_exception(found)
        else:
            answer.set_result(found)


def _plain(text: str) -> bytes:
    return base64.b64decode(text)
