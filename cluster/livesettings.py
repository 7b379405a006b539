"""Settings that operators change over the wire while a name server or controller runs: all of a request, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from tandemmq.cluster.config import (
    ConfigError,
    Properties,
    convert_setting,
    keys_of,
    parse_properties,
)
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.errors import Refused

Config = TypeVar("Config", bound=msgspec.Struct)


def asked_settings(body: bytes | memoryview | None, bytes_max: int) -> Properties:
    """What a request wants to change. Raises Refused."""
    text = bytes(body or b"")
    if len(text) > bytes_max:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"body above {bytes_max} bytes")
    try:
        return parse_properties(text.decode("utf-8"))
    except (ConfigError, UnicodeDecodeError):
        raise Refused(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None


def changed_config(
    config: Config,
    asked: Mapping[str, str],
    changeable: Collection[str],
    blacklist: str,
) -> Config:
    """The config with every setting that is asked for; raises Refused unless each is changeable, and in range.

    blacklist   keys, with semicolons, that are answered in RocketMQ's words
    """
    black = {key.strip() for key in blacklist.split(";")}
    kind = type(config)
    names = keys_of(kind)
    types = {each.name: each.type for each in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for key, text in asked.items():
        if key in black:
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        if key not in changeable:
            raise Refused(ResponseCode.NO_PERMISSION, f"{key[:64]} cannot be changed while running")
        try:
            values[names[key]] = convert_setting(key, text, types[names[key]])
        except ConfigError as problem:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(problem)[:256]) from None
    return msgspec.structs.replace(config, **values)
