"""How a struct of settings says which key of a settings file each of its fields is read from."""

from __future__ import annotations

from typing import TypeVar

from msgspec import field

Value = TypeVar("Value")


def setting(key: str, default: Value) -> Value:
    """A field that RocketMQ's key sets."""
    return field(default=default, name=key)


def ours(key: str, default: Value) -> Value:
    """A field whose key exists only here."""
    return setting(key, default)
