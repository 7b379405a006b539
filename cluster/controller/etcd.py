"""As much of etcd's v3 JSON gateway as a controller needs: leases, ranges, transactions.

Keys and values travel as base64, 64-bit numbers as text. Source: etcd's documentation "gRPC gateway", api v3.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.controller.store import StoreUnreachable

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 32 << 20
PAGE: Final = 500  # keys of one answer: below the size that gRPC takes

Json = dict[str, Any]


class KeyValue(NamedTuple):
    """One key; create_revision tells this key from an earlier one of the same name."""

    key: str
    value: bytes
    create_revision: int


class Etcd:
    """One connection pool to the members of an etcd cluster; asks the next one when one does not answer.

    Every method raises StoreUnreachable when no member answered in time or the answer was an error.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_ms: int,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_ms / 1000
        self._user = user
        self._password = password
        self._tls = tls
        self._token = ""
        self._session: aiohttp.ClientSession | None = None

    async def grant(self, ttl_s: int) -> tuple[str, int]:
        """A new lease: (id, time to live in seconds, perhaps longer than asked for)."""
        answer = await self._post("lease/grant", {"TTL": str(ttl_s)})
        return str(answer["ID"]), int(answer["TTL"])

    async def keep_alive(self, lease: str) -> int:
        """Seconds that the lease lives on; 0: it is gone."""
        answer = await self._post("lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0))

    async def revoke(self, lease: str) -> None:
        """End a lease and remove its keys; also when it is gone already."""
        await self._post("lease/revoke", {"ID": lease})

    async def get(self, key: str) -> KeyValue | None:
        found = (await self._post("kv/range", {"key": encoded(key)})).get("kvs")
        return key_value(found[0]) if found else None

    async def below(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with `prefix`, all as of one moment."""
        found: list[KeyValue] = []
        question: Json = {
            "key": encoded(prefix),
            "range_end": encoded(_behind(prefix)),
            "limit": str(PAGE),
        }
        while True:
            answer = await self._post("kv/range", question)
            found += map(key_value, answer.get("kvs", []))
            if not answer.get("more"):
                return found
            question["key"] = encoded(found[-1].key + "\0")
            question.setdefault("revision", answer["header"]["revision"])

    async def transact(
        self, compare: Sequence[Json], success: Sequence[Json], failure: Sequence[Json]
    ) -> Json:
        """The answer, with "succeeded" when every comparison held."""
        question = {"compare": compare, "success": success, "failure": failure}
        return await self._post("kv/txn", question)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- one question ---

    async def _post(self, path: str, question: Json) -> Json:
        problem: Exception | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in self._endpoints:
                    try:
                        return await self._ask(path, question)
                    except (aiohttp.ClientError, OSError, StoreUnreachable, ValueError) as each:
                        problem = each
                        self._endpoints.append(self._endpoints.pop(0))
        except TimeoutError:
            self._endpoints.append(self._endpoints.pop(0))
            raise StoreUnreachable(
                f"etcd did not answer {path} in {self._timeout_s:g} s at {', '.join(self._endpoints)}"
            ) from None
        raise StoreUnreachable(f"etcd {path}: {problem}") from problem

    async def _ask(self, path: str, question: Json) -> Json:
        if self._user and not self._token:
            self._token = await self._authenticate()
        try:
            return await self._exchange(path, question)
        except _TokenInvalid:
            self._token = await self._authenticate()
            return await self._exchange(path, question)

    async def _authenticate(self) -> str:
        self._token = ""
        question = {"name": self._user, "password": self._password}
        return str((await self._exchange("auth/authenticate", question))["token"])

    async def _exchange(self, path: str, question: Json) -> Json:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {"Authorization": self._token} if self._token else {}
        body = msgspec.json.encode(question)
        url = f"{self._endpoints[0]}/v3/{path}"
        async with self._session.post(
            url, data=body, headers=headers, ssl=self._tls if self._tls is not None else True
        ) as response:
            content = await response.content.read(ANSWER_BYTES_MAX)
            if response.status == 200:
                answer = msgspec.json.decode(content)
                if not isinstance(answer, dict) or "error" in answer:
                    raise StoreUnreachable(f"{url} answered {content[:200]!r}")
                return answer
        if b"invalid auth token" in content and self._token:
            raise _TokenInvalid(path)
        raise StoreUnreachable(f"{url} answered {response.status} {content[:200]!r}")


class _TokenInvalid(Exception):
    """The token that names us has run out."""


def encoded(text: str | bytes) -> str:
    """A key or a value as the gateway takes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def key_value(found: Json) -> KeyValue:
    """One item of an answer's kvs."""
    value = base64.b64decode(found.get("value", ""))
    return KeyValue(base64.b64decode(found["key"]).decode(), value, int(found["create_revision"]))


def _behind(prefix: str) -> bytes:
    """The first key behind all that begin with `prefix`."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def client_tls(ca_path: str, certificate_path: str, key_path: str) -> ssl.SSLContext:
    """How we meet an https endpoint. Blocks. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=ca_path or None)
        if certificate_path:
            context.load_cert_chain(certificate_path, key_path or None)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError("etcdCertPath", certificate_path or ca_path, str(problem)) from problem
    return context
