"""Logs made of random records, and seeded damage to them, for the audit's tests."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from tandemmq.storage import Draft, encode, encode_properties, pack_host

TAGS = ("TagA", "TagB", "payment", "", "grün")


@dataclass
class Segment:
    """One segment's bytes, and where its records are."""

    start: int
    data: bytearray
    records: list[tuple[int, int]] = field(default_factory=list)  # (log offset, size)
    blank: int = -1  # log offset of the blank, -1 when the segment is not full

    @property
    def end(self) -> int:
        """Where the written part ends."""
        return self.records[-1][0] + self.records[-1][1] if self.records else self.start


def draft(rng: random.Random, body_bytes_max: int = 2000) -> Draft:
    """A message as any producer might send it."""
    properties = {"UNIQ_KEY": f"{rng.getrandbits(128):032X}", "KEYS": f"k{rng.randrange(50)} x"}
    tag = rng.choice(TAGS)
    if tag:
        properties["TAGS"] = tag
    v6 = rng.random() < 0.1
    return Draft(
        topic=rng.choice(("Orders", "Payments", "T" * 60, "%RETRY%" + "x" * 140)),
        queue_id=rng.randrange(4),
        body=rng.randbytes(int(rng.expovariate(4 / body_bytes_max)) % body_bytes_max),
        properties=encode_properties(properties),
        flag=rng.randrange(3),
        born_ms=1_700_000_000_000 + rng.randrange(10**6),
        born_host=pack_host("2001:db8::1" if v6 else "10.0.0.1", 40_000),
        store_host=pack_host("10.0.0.9", 10_911),
    )


def segment(
    rng: random.Random,
    start: int,
    segment_bytes: int,
    queues: dict[tuple[str, int], int] | None = None,
    *,
    full: bool = True,
    store_ms: int = 1_700_000_000_000,
    body_bytes_max: int = 2000,
) -> Segment:
    """A segment of random records, ended by a blank unless `full` is False (then three quarters)."""
    queues = {} if queues is None else queues
    made = Segment(start, bytearray(segment_bytes))
    at = 0
    while full or at < segment_bytes * 3 // 4:
        message = draft(rng, body_bytes_max)
        key = message.topic, message.queue_id
        record = encode(message, queues.get(key, 0), start + at, store_ms + at // 100)
        if at + len(record) + 8 > segment_bytes:
            struct.pack_into(">iI", made.data, at, segment_bytes - at, 0xCBD43194)
            made.blank = start + at
            break
        queues[key] = queues.get(key, 0) + 1
        made.data[at : at + len(record)] = record
        made.records.append((start + at, len(record)))
        at += len(record)
    return made


def mutate(rng: random.Random, segment: Segment, data: bytearray) -> tuple[int, int]:
    """Change bytes in [segment.start, its end) of `data` in one of several ways; the range touched.

    The range is empty when chance changed nothing that means something.
    """
    limit = segment.blank + 8 if segment.blank >= 0 else segment.end
    size = limit - segment.start
    kind = rng.randrange(7)
    at = rng.randrange(size)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 3))):
            data[at] ^= 1 << rng.randrange(8)
        end = at + 1
    elif kind in (1, 2):
        end = min(size, at + rng.choice((64, 512, 4096, 20_000)))
        data[at:end] = bytes(end - at) if kind == 1 else rng.randbytes(end - at)
    elif kind == 3 and len(segment.records) > 2:  # two neighbours change places, bytes as they are
        first = rng.randrange(len(segment.records) - 1)
        (a, a_size), (_, b_size) = segment.records[first], segment.records[first + 1]
        at, end = a - segment.start, a - segment.start + a_size + b_size
        data[at:end] = data[at + a_size : end] + data[at : at + a_size]
    elif kind == 4:  # a few bytes too many: what follows is shifted
        end = min(size, at + 3000)
        data[at:end] = (rng.randbytes(3) + data[at:end])[: end - at]
    elif kind == 5:  # a field of a header
        offset, _ = rng.choice(segment.records)
        at = offset - segment.start + rng.choice((0, 4, 8, 12, 16, 20, 28, 36, 40, 56, 84))
        end = at + 4
        data[at:end] = rng.randbytes(4)
    else:  # a copy of another record
        (a, a_size), (b, _) = rng.choice(segment.records), rng.choice(segment.records)
        at = b - segment.start
        end = min(size, at + a_size)
        data[at:end] = segment.data[a - segment.start :][: end - at]
    return changed(segment.start + at, segment.data[at:end], data[at:end])


def changed(offset: int, before: bytes, after: bytes) -> tuple[int, int]:
    """The range that holds every difference of two equally long pieces at a log offset."""
    difference = int.from_bytes(before, "big") ^ int.from_bytes(after, "big")
    if not difference:
        return offset, offset
    first = len(before) - (difference.bit_length() + 7) // 8
    last = len(before) - ((difference & -difference).bit_length() + 7) // 8
    return offset + first, offset + last + 1
