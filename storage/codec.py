"""Picks the compiled record codec, or the readable one where no compiler was at hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tandemmq.storage.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    PROPERTIES_BYTES_MAX,
    BatchItem,
    Draft,
    Head,
    Record,
    SysFlag,
    encode_properties,
    index_hash,
    join_properties,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    queue_tags_code,
    record_size,
    unpack_host,
)

if TYPE_CHECKING or os.environ.get("TANDEM_PURE_PYTHON"):
    from tandemmq.storage.record import (
        decode,
        decode_properties,
        encode,
        get_property,
        java_hash,
        scan,
        split_batch,
        tags_code,
    )
    from tandemmq.storage.tail import LogTail, QueueTail
else:
    try:
        from tandemmq.storage._record import (
            LogTail,
            QueueTail,
            decode,
            decode_properties,
            encode,
            get_property,
            java_hash,
            scan,
            split_batch,
            tags_code,
        )
    except ImportError:  # built without a compiler: slower, never different
        from tandemmq.storage.record import (
            decode,
            decode_properties,
            encode,
            get_property,
            java_hash,
            scan,
            split_batch,
            tags_code,
        )
        from tandemmq.storage.tail import LogTail, QueueTail

COMPILED = scan.__module__ == "tandemmq.storage._record"

__all__ = [
    "BLANK_BYTES",
    "COMPILED",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "NO_HOST",
    "PROPERTIES_BYTES_MAX",
    "BatchItem",
    "Draft",
    "Head",
    "LogTail",
    "QueueTail",
    "Record",
    "SysFlag",
    "decode",
    "decode_properties",
    "encode",
    "encode_properties",
    "get_property",
    "index_hash",
    "java_hash",
    "join_properties",
    "offset_message_id",
    "pack_host",
    "parse_offset_message_id",
    "queue_tags_code",
    "record_size",
    "scan",
    "split_batch",
    "tags_code",
    "unpack_host",
]
