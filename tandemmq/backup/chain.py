"""Which increments belong together, what the next one must hold, and which of them a restore needs.

A chain is one history of one log, without a gap. INV-70: an increment continues a chain only where the log that it is
taken from holds, byte for byte, what the chain ends with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandemmq.backup.errors import BackupDamaged, NoBackup
from tandemmq.backup.manifest import Manifest, seal_of
from tandemmq.replication.epochs import EpochHistory, common_end


@dataclass(frozen=True, slots=True)
class Seen:
    """What a source holds now: log[start, end), whose end is a record's end."""

    cluster: str
    group: str
    segment_bytes: int
    start: int
    end: int
    epochs: EpochHistory


@dataclass(frozen=True, slots=True)
class Continue:
    """Copy from the end of the chain on."""


@dataclass(frozen=True, slots=True)
class Anew:
    """Begin another chain: copy everything."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Copy nothing; the text says what to do."""

    why: str


Decision = Continue | Anew | Refuse


def decide(last: Manifest | None, now: Seen, tail_sha256: str | None) -> Decision:
    """What to do with a source, where the newest chain ends with `last`.

    tail_sha256  of the source's bytes where last.tail is; None where the source does not have them all
    """
    if last is None:
        return Anew("there is no backup of it yet")
    if (now.cluster, now.group) != (last.cluster, last.group):
        return Refuse(
            f"the backup is of {last.cluster}#{last.group}, this is {now.cluster}#{now.group}:"
            " give another --to, or name the group it belongs to with --group"
        )
    if now.segment_bytes != last.layout.segment_bytes:
        return Anew(
            f"segments have {now.segment_bytes} bytes now, they had {last.layout.segment_bytes}"
        )
    if now.start > last.end:
        return Anew(
            f"retention took log[{last.end}, {now.start}) before it was copied:"
            " take increments more often than fileReservedTime"
        )
    if parted := _parted(last, now):
        return Anew(parted)
    if now.end < last.end:
        return Refuse(
            f"its log ends at {now.end}, the backup at {last.end}: it is a replica that lags, so take"
            " the backup from its master or later. If a power cut took the end of the log for good:"
            " --full begins another chain"
        )
    if last.tail is None:
        return Continue()
    if tail_sha256 is None:
        return (
            Continue()
            if last.epochs and now.epochs.entries
            else Anew("its log has nothing any more to compare the end of the backup with")
        )
    if tail_sha256 != last.tail.sha256:
        return Anew(
            f"its log has other bytes in [{last.tail.start}, {last.tail.end}) than the backup:"
            " it lost its end and went on, or it is another broker's"
        )
    return Continue()


def _parted(last: Manifest, now: Seen) -> str:
    """Whether epochs say that what the backup ends with was cut off; "" when they do not."""
    if not last.epochs or not now.epochs.entries:
        return ""
    common = common_end(last.history, last.end, now.epochs, now.end)
    if common is None:
        return "its log and the backup share no epoch"
    if common < min(last.end, now.end):
        return f"its log parted from the backup at {common}: an election lost what came behind"
    return ""


def check_chain(found: Sequence[tuple[str, Manifest]]) -> list[Manifest]:
    """The increments of one chain in order. found: where each was read, and what it says.

    Raises BackupDamaged: one is missing, was exchanged or belongs elsewhere.
    """
    ordered = sorted(found, key=lambda each: each[1].number)
    before: Manifest | None = None
    for where, manifest in ordered:
        expected = before.number + 1 if before is not None else 1
        if manifest.number != expected:
            raise BackupDamaged(
                f"{where}: increment {expected} of chain {manifest.chain} is missing; what came before it"
                f" can be restored with --until {before.end if before else 0}"
            )
        if before is not None:
            if manifest.previous != seal_of(before) or manifest.chain != before.chain:
                raise BackupDamaged(f"{where} does not follow increment {before.number}")
            if manifest.start != before.end:
                raise BackupDamaged(
                    f"{where} begins at {manifest.start}, the one before ends at {before.end}"
                )
        _check_pieces(where, manifest)
        before = manifest
    return [manifest for _, manifest in ordered]


def _check_pieces(where: str, manifest: Manifest) -> None:
    at = manifest.start
    for piece in manifest.pieces:
        if piece.start != at or piece.end <= piece.start:
            raise BackupDamaged(
                f"{where}: a piece begins at {piece.start}, where {at} should be next"
            )
        at = piece.end
    if at != manifest.end:
        raise BackupDamaged(f"{where}: its pieces end at {at}, not at {manifest.end}")


def chain_of(
    chains: Mapping[str, Sequence[Manifest]], name: str = "", until_ms: int | None = None
) -> list[Manifest]:
    """The chain to restore from. chains: by name, each in order, none empty.

    name      this one
    until_ms  the first chain that was still being written then: its log reaches that far
    Without either it is the newest. Raises NoBackup.
    """
    if name:
        if name not in chains:
            raise NoBackup(f"there is no chain {name}; there is {', '.join(sorted(chains))}")
        return list(chains[name])
    ordered = [chains[each] for each in sorted(chains)]  # they are called by when they began
    if not ordered:
        raise NoBackup("there is no whole backup")
    if until_ms is not None:
        for chain in ordered:
            if chain[-1].began_ms >= until_ms:
                return list(chain)
    return list(ordered[-1])


def increments_for(chain: Sequence[Manifest], end: int) -> tuple[Manifest, Manifest | None]:
    """(the increment whose log reaches `end`, the last one that was taken at or before it). Raises NoBackup."""
    start = chain[0].start
    if not start <= end <= chain[-1].end:
        raise NoBackup(
            f"offset {end} is not in chain {chain[0].chain}, which holds [{start}, {chain[-1].end})"
        )
    before = next((each for each in reversed(chain) if each.end <= end), None)
    if before is not None and before.end == end:
        return before, before
    return next(each for each in chain if each.end > end), before
