"""The walk of a read over the entries of a queue, and the records that it takes: the readable form.

_reading.pyx is the same, compiled; reading.py picks. Held to each other by tests/storage/test_reading_twins.py.
"""

from __future__ import annotations

import struct
from typing import Final

from tandemmq.storage.config import QUEUE_ENTRY_BYTES
from tandemmq.storage.derivation import QUEUE_ENTRY
from tandemmq.storage.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

_SIZE_MAGIC: Final = struct.Struct(">ii")


class Records(list[memoryview]):
    """What a read took, in order: views of the log, or of copies. They pin what they show: let go of them soon.

    bytes  of all of them
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def add(self, record: memoryview) -> None:
        """Take one more."""
        self.append(record)
        self.bytes += len(record)

    def clear(self) -> None:
        super().clear()
        self.bytes = 0

    def after(self, head: bytes) -> bytes:
        """A copy of them all behind `head`: one piece for a socket."""
        return b"".join([head, *self])


def gather(
    entries: memoryview,
    at: int,
    stop: int,
    view: memoryview,
    start: int,
    first: int,
    end: int,
    bytes_max: int,
    count_max: int,
    tag_codes: frozenset[int] | None,
    records: Records,
) -> tuple[int, int, bool]:
    """Add the records that entries[at:stop] name, as far as the entries are ordinary ones and limits allow.

    entries      a queue's file; `at` and `stop` are positions in it, whole entries apart
    view, start  one segment, and the log offset of its first byte
    first, end   log offsets: records within may be read here
    tag_codes    of the wanted ones; None for all
    records      gets them; it may have some. The first is taken whatever bytes_max says
    Returns (position behind the last entry examined, log offset that it names or -1, whether all was examined or a
    limit met). When not, the entry there is for the caller to judge.
    Raises ValueError where `view` or `entries` is shorter than it should be.
    """
    if not (start <= first and end - start <= len(view) and at >= 0 and stop <= len(entries)):
        raise ValueError(f"[{first}, {end}) of a segment at {start}, [{at}, {stop}) of a queue")
    last = -1
    while at + QUEUE_ENTRY_BYTES <= stop:
        physical, size, tags_code = QUEUE_ENTRY.unpack_from(entries, at)
        if physical < first or size < RECORD_BYTES_MIN or physical + size > end:
            return at, last, False
        if records and (len(records) >= count_max or records.bytes + size > bytes_max):
            break
        if tag_codes is None or signed_int(tags_code) in tag_codes:
            position = physical - start
            found_size, magic = _SIZE_MAGIC.unpack_from(view, position)
            # An entry that does not point at a record: never serve what lies there.
            if found_size != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                return at, last, False
            records.add(view[position : position + size])
        last = physical
        at += QUEUE_ENTRY_BYTES
    return at, last, True


def signed_int(code: int) -> int:
    """Java's (int) cast; delivery times in the delay topic are longer than 32 bits."""
    code &= 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code
