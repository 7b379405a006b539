"""Answers that wait: a send is acknowledged when the disk, and the slaves, have its message.

Every answer of a stored send carries the fields `epoch`, `copies` and `durable`, which clients of
RocketMQ ignore: the reign it was stored in, how many replicas are known to hold it, and how many of
them on disk. They say which promise it was given.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from tandemmq.cluster.broker.watching.latencies import Latencies, Timed
from tandemmq.cluster.logs import OncePer, once_per
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.replication import Mode
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

LATE_LOG_S: Final = 10
COPIES_MAX: Final = 9  # of one digit; more say 9
EPOCH_DIGITS: Final = 10
LEARNING_MS: Final = 1_000


class Safety(NamedTuple):
    """How safe a message is: its reign, how many replicas hold it, and how many of them on disk.

    As text all of them are of one width, so that one takes another's place in an encoded answer.
    """

    epoch: int
    copies: int
    durable: int

    def ext(self) -> dict[str, str]:
        """As fields of an answer."""
        copies, durable = self.copies, self.durable
        return {
            "epoch": str(self.epoch).zfill(EPOCH_DIGITS),
            "copies": "?" if copies < 0 else str(min(copies, COPIES_MAX)),
            "durable": "?" if durable < 0 else str(min(durable, COPIES_MAX)),
        }


#: of a message whose answer has to wait
UNKNOWN: Final = Safety(0, -1, -1)
UNSETTLED: Final = UNKNOWN.ext()


def at_once(epoch: int) -> dict[str, str]:
    """The safety of a message whose answer does not wait: it is in our page cache."""
    return {"epoch": str(epoch), "copies": "1", "durable": "0"}


class Overdue(NamedTuple):
    """What an answer says that waited too long: its message is stored, and its safety unknown.

    copies   replicas known to hold it, this one included; durable: on how many disks
    remark   why, in words; without line breaks, quotes and backslashes
    """

    code: ResponseCode
    copies: int
    durable: int
    remark: str = ""


Late = Callable[[int, int], "Overdue | None"]
"""What to tell who has waited for the log up to an end for so many ms; None: let it wait on."""

#: the reign ended before the set was known to have the message: it stays if the next master has it
FATE_UNKNOWN: Final = Overdue(
    ResponseCode.FLUSH_SLAVE_TIMEOUT, 1, 0,
    "stored, fate unknown: the master was deposed before the other replicas were known to have it",
)  # fmt: skip
#: something final happened here: what the disk keeps is for the next start to say
DISK_UNKNOWN: Final = Overdue(
    ResponseCode.FLUSH_DISK_TIMEOUT, 1, 0,
    "stored, fate unknown: this broker failed before the message was known to be safe",
)  # fmt: skip
#: this broker stops, and what was waited for did not come before
STOPPED_WAITING: Final = Overdue(
    ResponseCode.FLUSH_SLAVE_TIMEOUT, 1, 0,
    "stored, fate unknown: this broker stops before other replicas were known to have it",
)  # fmt: skip


Chunk = tuple[Connection, bytes, Safety]
"""Encoded answers for one connection, and the safety that stands in them."""


class _Held(msgspec.Struct):
    """What waits for the same end of the log."""

    end: int
    chunks: list[Chunk]
    size: int
    since_ms: int
    timed: Timed | None
    code: ResponseCode = ResponseCode.SUCCESS


class Acks:
    """Encoded answers in log order, each held until the log is safe up to its exclusive `end`.

    One entry holds all answers of one commit, so the cost per message is near nothing. `end` never
    falls from one hold to the next, so safety is reached in order and one queue is enough. INV-7:
    an answer that leaves through `reached` says nothing that the disk and the slaves do not hold.

    disk_too    what has no slave to wait for waits for on_disk()
    bytes_max   of held answers; beyond it `full` is true and senders are told to try elsewhere
    timeout_ms  after that long an answer may leave with another code in the place of SUCCESS: the
                message is stored, its safety unknown. Measured with clock.monotonic_ms
    expected    what most answers say when they leave. Who encodes many says that at once: then
                nothing is left to be changed in them
    """

    def __init__(
        self,
        clock: Clock,
        timeout_ms: int,
        bytes_max: int = 64 << 20,
        *,
        disk_too: bool = True,
        latencies: Latencies | None = None,
    ) -> None:
        self._clock = clock
        self.latencies = latencies or Latencies(Mode.A1 if disk_too else Mode.A0)
        self.timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._disk_too = disk_too
        self.expected = UNKNOWN
        self._epoch = 0
        self._learned_ms = -LEARNING_MS
        self._held: deque[_Held] = deque()
        self._for_disk: deque[_Held] = deque()
        self.held_bytes = 0
        self.waited = (0, 0)  # bytes of answers that were held, and the same by the ms of each
        self.unsafe: Counter[ResponseCode] = Counter()  # answers that left with such a code
        self._late: defaultdict[ResponseCode, OncePer] = defaultdict(lambda: once_per(LATE_LOG_S))

    @property
    def epoch(self) -> int:
        """Of our reign."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.expected = self.expected._replace(epoch=epoch)

    @property
    def waiting(self) -> bool:
        return bool(self._held or self._for_disk)

    @property
    def held_commits(self) -> int:
        """Commits, or single messages, whose answers wait."""
        return len(self._held) + len(self._for_disk)

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._bytes_max

    @property
    def wanted_end(self) -> int:
        """The log must be safe up to here to let every held answer go; 0 when none waits."""
        ends = [self._held[-1].end] if self._held else [0]
        if self._for_disk:
            ends.append(self._for_disk[-1].end)
        return max(ends)

    @property
    def due_ms(self) -> int | None:
        """When expire() has something to do, by clock.monotonic_ms; None while nobody waits."""
        first = [self._held[0]] if self._held else []
        if self._for_disk:
            first.append(self._for_disk[0])
        return min(held.since_ms for held in first) + self.timeout_ms if first else None

    def hold(
        self, end: int, connection: Connection, answer: bytes | Command, said: Safety = UNKNOWN,
        lost: ResponseCode | None = None, timed: Timed | None = None,
    ) -> None:  # fmt: skip
        """Keep an answer, or a chunk's encoded answers, until the log is safe up to `end`.

        said   the safety that stands in them; they leave with the true one
        """
        answers = answer.encode() if isinstance(answer, Command) else answer
        self.hold_all(end, [(connection, answers, said)], len(answers), lost, timed)

    def hold_all(
        self,
        end: int,
        chunks: list[Chunk],
        size: int,
        lost: ResponseCode | None = None,
        timed: Timed | None = None,
    ) -> None:
        """As hold(), for the answers of everything that one commit made part of the log.

        size   of all of them, in bytes
        lost   the code that they get because there is no slave to wait for
        timed  where this commit is one that is timed
        """
        held = _Held(end, chunks, size, self._clock.monotonic_ms(), timed)
        if lost is None:
            assert not self._held or end >= self._held[-1].end, "answers out of log order"
            self._held.append(held)
        elif self._disk_too:
            held.code = lost
            self._for_disk.append(held)
        else:
            self._leave(held, Overdue(lost, copies=1, durable=0))
            if timed is not None:
                self.latencies.answered(timed)
            return
        self.held_bytes += size

    def reached(self, end: int, copies: int, durable: int) -> None:
        """The log is safe up to `end`: let the answers go that waited for no more than that.

        copies   replicas that hold all of it, this one included; durable: on how many disks
        """
        held = self._held
        if not held or held[0].end > end:
            return
        first = self._pop(held)
        chunks, commits = first.chunks, 1
        while held and held[0].end <= end:
            chunks += self._pop(held).chunks
            commits += 1
        safety = self.expected  # the same object: most chunks say it
        if safety != (self._epoch, copies, durable):
            safety = Safety(self._epoch, copies, durable)
        # in one commit a connection is seldom twice, in several not often
        if commits > 1 and len({chunk[0] for chunk in chunks}) < len(chunks):
            self._write_joined(chunks, safety)
            return
        for connection, answers, said in chunks:
            connection.write_now(
                answers if said is safety else self._settled(answers, said, safety)
            )

    def _write_joined(self, chunks: list[Chunk], safety: Safety) -> None:
        """What each connection gets, in one piece."""
        joined: dict[Connection, bytes] = {}
        for connection, answers, said in chunks:
            if said is not safety:
                answers = self._settled(answers, said, safety)
            joined[connection] = joined[connection] + answers if connection in joined else answers
        for connection, answers in joined.items():
            connection.write_now(answers)

    def _settled(self, answers: bytes, said: Safety, safety: Safety) -> bytes:
        if said == safety:
            return answers
        if said == self.expected:
            self._learn(safety)
        return settled(answers, said, safety)

    def _learn(self, safety: Safety) -> None:
        """Not at each turn: who encodes answers has to begin anew."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._learned_ms >= LEARNING_MS:
            self._learned_ms = now_ms
            self.expected = safety

    def on_disk(self, end: int) -> None:
        """The log is on our disk up to `end`: that is all that answers without a slave waited for."""
        waiting = self._for_disk
        while waiting and waiting[0].end <= end:
            first = self._pop(waiting)
            self._leave(first, Overdue(first.code, copies=1, durable=1))

    def expire(self, now_ms: int, late: Late | None = None) -> None:
        """Answer what waited too long: stored, but not known to be safe.

        late   what an answer says then; without it, that the disk is late
        """
        held, for_disk = self._held, self._for_disk
        expired: Counter[ResponseCode] = Counter()
        while held and now_ms - held[0].since_ms >= self.timeout_ms:
            overdue = (late or _flush_is_late)(held[0].end, now_ms - held[0].since_ms)
            if overdue is None:
                break
            expired[overdue.code] += self._leave(self._pop(held), overdue)
        while for_disk and now_ms - for_disk[0].since_ms >= self.timeout_ms:
            code = for_disk[0].code
            expired[code] += self._leave(self._pop(for_disk), Overdue(code, copies=1, durable=0))
        for code, answers in expired.items():
            self._late[code].warning(
                log, "too slow, answered code=%s answers=%d", code.name, answers
            )

    def give_up(self, overdue: Overdue) -> None:
        """Answer everything that waits: nothing will be known of its safety any more."""
        for waiting in (self._held, self._for_disk):
            while waiting:
                self._leave(self._pop(waiting), overdue)

    def _pop(self, waiting: deque[_Held]) -> _Held:
        first = waiting.popleft()
        self.held_bytes -= first.size
        held, by_ms = self.waited
        waited_ms = self._clock.monotonic_ms() - first.since_ms
        self.waited = held + first.size, by_ms + first.size * waited_ms
        if first.timed is not None:
            latencies = self.latencies
            waits = latencies.held if waiting is self._held else latencies.on_disk
            latencies.answered(first.timed, waits)
        return first

    def _leave(self, held: _Held, overdue: Overdue) -> int:
        """Answer with something else than success; how many answers."""
        safety = Safety(self._epoch, overdue.copies, overdue.durable)
        left = 0
        for connection, answers, said in held.chunks:
            changed, count = with_code(settled(answers, said, safety), overdue.code, overdue.remark)
            connection.write(changed)
            left += count
        self.unsafe[overdue.code] += left
        return left


def _flush_is_late(end: int, waited_ms: int) -> Overdue | None:
    """Where nothing but the disk is waited for."""
    return Overdue(ResponseCode.FLUSH_DISK_TIMEOUT, copies=1, durable=0)


# --- encoded answers -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _encoded(safety: Safety) -> tuple[bytes, bytes]:
    """The fields as they stand in JSON and in binary headers."""
    fields = [(key.encode(), text.encode()) for key, text in safety.ext().items()]
    return (
        b",".join(b'"%b":"%b"' % each for each in fields),
        b"".join(
            struct.pack(">H", len(key)) + key + struct.pack(">I", len(text)) + text
            for key, text in fields
        ),
    )


def settled(answers: bytes, said: Safety, safety: Safety) -> bytes:
    """A chunk's answers with one safety in the place of another; other answers stay as they are."""
    json, binary = _encoded(said)
    true_json, true_binary = _encoded(safety)
    return answers.replace(json, true_json).replace(binary, true_binary)


_SUCCESS: Final = b'{"code":0,'
_REMARK_AT: Final = 13  # of a binary header: code, language, version, opaque, flag, then its size


def with_code(answers: bytes, code: ResponseCode, remark: str = "") -> tuple[bytes, int]:
    """The same answers with `code` in the place of SUCCESS, and how many; refusals stay.

    remark   what they say besides; the answer of a stored send has none of its own
    """
    changed: list[bytes] = []
    said = remark.encode()
    json_head = b'{"code":%d,' % code + (b'"remark":"%b",' % said if said else b"")
    at = count = 0
    while at < len(answers):
        end = at + 4 + int.from_bytes(answers[at : at + 4], "big")
        header = at + 8
        header_end = header + int.from_bytes(answers[at + 5 : at + 8], "big")
        if answers[at + 4] == 1 and answers[header : header + 2] == b"\x00\x00":
            fixed = header + _REMARK_AT
            changed += (
                struct.pack(
                    ">II", end - at - 4 + len(said), 1 << 24 | (header_end - header + len(said))
                ),
                struct.pack(">H", code), answers[header + 2 : fixed],
                struct.pack(">I", len(said)), said, answers[fixed + 4 : end],
            )  # fmt: skip
        elif answers[at + 4] == 0 and answers.startswith(_SUCCESS, header):
            head = json_head + answers[header + len(_SUCCESS) : header_end]
            body = answers[header_end:end]
            changed += (struct.pack(">II", 4 + len(head) + len(body), len(head)), head, body)
        else:
            changed.append(answers[at:end])
            count -= 1
        count += 1
        at = end
    return b"".join(changed), count
