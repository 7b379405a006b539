"""The name server's key-value table: namespace -> key -> value, kept in one JSON file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Self

import msgspec

from tandemmq.storage import CorruptFile, jsonfile

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""topic -> "broker-a:4;broker-b:4": which queues an ordered topic's producers use."""

ENTRIES_MAX: Final = 100_000
VALUE_LENGTH_MAX: Final = 64 * 1024
TABLE_LENGTH_MAX: Final = 16 * 1024 * 1024  # characters of all keys and values: one file, one write

Table = dict[str, dict[str, str]]


class TableFull(Exception):
    """No more entries, or no longer value, than the limits allow."""


class _File(msgspec.Struct, rename="camel"):
    config_table: Table = msgspec.field(default_factory=dict)


class KvConfig:
    """The table in memory and its file. A change is in memory only once it is on the disk."""

    def __init__(self, path: Path, table: Table | None = None) -> None:
        self._path = path
        self._table: Table = table or {}
        self._writing = asyncio.Lock()

    @classmethod
    def load(cls, path: Path) -> Self:
        """What the file holds, empty when there is none. Reads the disk. Raises CorruptFile."""
        content = jsonfile.load(path)
        if content is None:
            return cls(path)
        try:
            return cls(path, msgspec.convert(content, _File).config_table)
        except msgspec.ValidationError as problem:
            raise CorruptFile(f"{path}: {problem}") from None

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All entries of a namespace; None when there never was one."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set and save. Raises TableFull, OSError; then nothing has changed."""
        if len(value) > VALUE_LENGTH_MAX or len(key) + len(namespace) > VALUE_LENGTH_MAX:
            raise TableFull(f"longer than {VALUE_LENGTH_MAX} characters")
        async with self._writing:
            is_new = self.get(namespace, key) is None
            if is_new and sum(map(len, self._table.values())) >= ENTRIES_MAX:
                raise TableFull(f"the table has {ENTRIES_MAX} entries")
            table = _copied(self._table)
            table.setdefault(namespace, {})[key] = value
            if _length(table) > TABLE_LENGTH_MAX:
                raise TableFull(f"the table would be longer than {TABLE_LENGTH_MAX} characters")
            await self._replace(table)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove and save; nothing happens when it is not there. Raises OSError."""
        async with self._writing:
            if self.get(namespace, key) is None:
                return
            table = _copied(self._table)
            del table[namespace][key]
            await self._replace(table)

    async def _replace(self, table: Table) -> None:
        await asyncio.to_thread(jsonfile.save, self._path, {"configTable": table})
        self._table = table


def _copied(table: Table) -> Table:
    return {namespace: dict(entries) for namespace, entries in table.items()}


def _length(table: Table) -> int:
    return sum(
        len(namespace) + sum(map(len, entries)) + sum(map(len, entries.values()))
        for namespace, entries in table.items()
    )
