"""The columns of a topic as a table, and those that a table may have to be sent. No I/O, and nothing of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

#: what is read: column -> its type in Spark's SQL
COLUMNS: Final[Mapping[str, str]] = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "key": "string",
    "tags": "string",
    "properties": "map<string,string>",
    "body": "binary",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "unique_id": "string",
    "epoch": "bigint",
}

#: what is sent: column -> (types that it may have, what it means)
SENT: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "body": (("binary", "string"), "needed: text is sent as UTF-8"),
    "topic": (("string",), "instead of the option topic"),
    "key": (("string",), "business keys for look-ups, blanks between them"),
    "tags": (("string",), "one word to filter by"),
    "properties": (("map<string,string>",), "names and values of your own"),
    "delay_ms": (("bigint", "int"), "deliver so long after the broker has it"),
    "deliver_at": (("timestamp",), "deliver then, instead of delay_ms"),
    "hash_key": (("string",), "rows of one hash_key go to one queue, in their order"),
    "broker": (("string",), "with queue_id: exactly this queue, instead of hash_key"),
    "queue_id": (("int",), "with broker"),
    "unique_id": (("string",), "instead of one made of query, micro-batch, partition and row"),
}


def read_ddl(columns: Iterable[str], *, text: bool) -> str:
    """The schema of a read, as Spark parses it. text: bodies as text."""
    types = {**COLUMNS, "body": "string" if text else COLUMNS["body"]}
    return ", ".join(f"{name} {types[name]}" for name in columns)


def check_sent(columns: Mapping[str, str], *, has_topic: bool) -> None:
    """Raise ValueError unless a table with these columns (name -> SQL type) can be sent."""
    if unknown := sorted(set(columns) - set(SENT)):
        listed = "".join(f"\n  {name} {types[0]}: {why}" for name, (types, why) in SENT.items())
        raise ValueError(
            f"no such column to send: {', '.join(unknown)}; select what is to be sent of{listed}"
        )
    for name, kind in columns.items():
        if kind not in SENT[name][0]:
            raise ValueError(f"column {name} must be {' or '.join(SENT[name][0])}, not {kind}")
    if "body" not in columns:
        raise ValueError("a column body is needed: binary, or a string that is sent as UTF-8")
    if not has_topic and "topic" not in columns:
        raise ValueError('where to: give option("topic", "Orders") or a column topic')
    if ("broker" in columns) != ("queue_id" in columns):
        raise ValueError("broker and queue_id name a queue together: give both columns or neither")
