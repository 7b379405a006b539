"""Handshake, truncate, follow: what a slave does with its master's stream. Core.

The shell performs effects in order, each to its end, before it feeds the next event; when one fails it leaves out the
rest and feeds AppendFailed. So a report that follows an append in the list is true when it leaves.
Source: RocketMQ's AutoSwitchHAClient, EpochFileCache and, for the classic dialect, DefaultHAClient.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandemmq.replication.comparing import CompareLogs, LogsCompared, ShowPass, Verdict
from tandemmq.replication.config import StreamRules
from tandemmq.replication.epochs import NO_OFFSET, EpochHistory, common_end
from tandemmq.replication.masterevents import Confirmed, Flushed, Tick, Trimmed
from tandemmq.replication.story import Story

RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 2000
ANSWER_MS_MAX: Final = 5000  # for a connect, and for the master's greeting
UNKNOWN_MS_MAX: Final = (
    10_000  # a master that starts cannot be asked at once; later a person must look
)
NO_CONNECTION: Final = 0


class SlaveState(enum.Enum):
    IDLE = "idle"  # nobody to follow
    CONNECTING = "connecting"
    GREETING = "greeting"  # classic HA: our log is held against the master's
    STREAMING = "streaming"
    STOPPED = "stopped"  # following would destroy data, or the log is broken: a person must decide


LEGAL_MOVES: Final = {
    SlaveState.IDLE: {SlaveState.CONNECTING, SlaveState.STOPPED},
    SlaveState.CONNECTING: {
        SlaveState.GREETING,
        SlaveState.STREAMING,
        SlaveState.IDLE,
        SlaveState.STOPPED,
    },
    SlaveState.GREETING: {
        SlaveState.STREAMING,
        SlaveState.CONNECTING,
        SlaveState.IDLE,
        SlaveState.STOPPED,
    },
    SlaveState.STREAMING: {SlaveState.CONNECTING, SlaveState.IDLE, SlaveState.STOPPED},
    SlaveState.STOPPED: {SlaveState.CONNECTING, SlaveState.IDLE},
}

# --- events ---


class Follow(msgspec.Struct, frozen=True):
    """The controller says who the master is. Classic HA: epoch 0.

    lossy_epoch  the last epoch whose election may have lost confirmed data; 0 for none
    counts_disk  this master relies on nothing but what our disk has, for certain
    """

    master: int
    address: str
    epoch: int
    lossy_epoch: int = 0
    counts_disk: bool = False


class Unfollow(msgspec.Struct, frozen=True):
    """Stop following: our own role changes, or there is no master."""

    why: str


class Connected(msgspec.Struct, frozen=True):
    """The connect of the latest Connect succeeded."""

    connection: int


class StreamClosed(msgspec.Struct, frozen=True):
    """A connect failed (NO_CONNECTION), or the stream ended."""

    connection: int
    why: str


class StreamHeard(msgspec.Struct, frozen=True):
    """Bytes came in, of a frame that is not whole yet: the master lives."""

    connection: int


class MasterGreeted(msgspec.Struct, frozen=True):
    """The master's history. Its epoch may be above the history's last when that reign has not begun to write.

    start  of its log; 0 where the dialect does not say
    stock  it says no epoch but its history's last, and that lacks a reign which begins where an empty one did
    """

    connection: int
    epoch: int
    history: EpochHistory
    start: int
    end: int
    stock: bool = False


class FrameReceived(msgspec.Struct, frozen=True):
    """The head of a transfer whose body the shell holds; size 0 is a heartbeat."""

    connection: int
    offset: int
    size: int
    epoch: int = 0
    epoch_start: int = 0
    confirmed: int = 0


class AppendFailed(msgspec.Struct, frozen=True):
    """The log took no more; it ends at `end`. (Disk full, read-only.)"""

    end: int
    why: str


class DispatchBroken(msgspec.Struct, frozen=True):
    """Queues cannot be derived from our log any further: what lies behind is no copy of anything."""

    why: str


Event = (
    Follow
    | Unfollow
    | Connected
    | StreamClosed
    | StreamHeard
    | MasterGreeted
    | FrameReceived
    | AppendFailed
    | LogsCompared
    | DispatchBroken
    | Flushed
    | Trimmed
    | Tick
)

# --- effects ---


class Connect(msgspec.Struct, frozen=True):
    """Open a stream to the master. Ends in Connected or StreamClosed(NO_CONNECTION)."""

    master: int
    address: str


class Greet(msgspec.Struct, frozen=True):
    """Send our handshake; `epoch` is the highest we know."""

    connection: int
    epoch: int


class CloseStream(msgspec.Struct, frozen=True):
    connection: int
    reason: str


class SetAside(msgspec.Struct, frozen=True):
    """Copy log[start:end] to a readable file before it is cut: count the records, log one line."""

    start: int
    end: int
    epoch: int


class Truncate(msgspec.Struct, frozen=True):
    """Cut log, queues, index and queue offsets at `end`; durable when done."""

    end: int


class NoRoom(enum.Enum):
    """What follows where the disk has no room for the epoch file."""

    END = "the process ends"
    LEAVE = "nothing: the older file says more, and what it says is true"
    REFUSE = "what comes next is not appended: AppendFailed"


class PersistHistory(msgspec.Struct, frozen=True):
    """Write the epoch file; durable when done."""

    history: EpochHistory
    no_room: NoRoom = NoRoom.END


class Append(msgspec.Struct, frozen=True):
    """Append the body of the frame that was just received. Of size 0: a log without a byte begins there."""

    offset: int
    size: int


class ReportProgress(msgspec.Struct, frozen=True):
    """Tell the master what we hold. Of several in one tick the last is enough.

    epoch  who wrote our last byte
    """

    connection: int
    received: int
    flushed: int
    epoch: int


class Alarm(msgspec.Struct, frozen=True):
    """A person must act; the text says on what."""

    reason: str


Effect = (
    Connect
    | Greet
    | CompareLogs
    | ShowPass
    | CloseStream
    | SetAside
    | Truncate
    | PersistHistory
    | Append
    | ReportProgress
    | Confirmed
    | Alarm
)


@dataclass(slots=True)
class SlaveCore:
    """A replica's log as its master's stream changes it.

    epoch            the highest we know; INV-26: no frame of a master with an older one is taken
    confirmed        below it consumers may read. INV-27: never cut, unless the controller declared a loss since
    confirmed_epoch  under which master it was learned
    durable          what we report survives a power cut (INV-39): a master that may count what we received is told of
                     flushed bytes only. Before the first report all of our log is flushed: it says where we end
    classic          DefaultHA: no handshake, no epochs
    broken           why queues can no longer be derived from our log: until a restart nobody is followed
    """

    rules: StreamRules
    history: EpochHistory = field(default_factory=EpochHistory)
    start: int = 0
    end: int = 0
    flushed: int = 0
    confirmed: int = 0
    confirmed_epoch: int = 0
    epoch: int = 0
    lossy_epoch: int = 0
    durable: bool = False
    classic: bool = False
    state: SlaveState = SlaveState.IDLE
    connection: int = NO_CONNECTION
    master: int = 0
    stopped_why: str = ""
    broken: str = ""
    story: Story = field(default_factory=Story)
    _address: str = ""
    _heard_ms: int = 0
    _said_ms: int = 0
    _retry_at_ms: int = 0
    _retry_ms: int = RETRY_MS_MIN
    _connecting: bool = False
    _counts_disk: bool = False
    _reported: bool = False  # on this connection
    _unknown_since_ms: int = -1  # the logs could not be compared, time and again
    _unsaid_end: int = (
        NO_OFFSET  # of a stock master's log at its first greeting that lacked our epoch
    )
    _unsaid: bool = False  # the present greeting was that one, or one without a byte more

    @property
    def streaming(self) -> bool:
        return self.state is SlaveState.STREAMING

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; perform the effects in order, each to its end."""
        effects: list[Effect] = []
        getattr(self, HANDLERS[type(event)])(event, now_ms, effects)
        assert self.confirmed <= self.end, (self.confirmed, self.end, str(self.story))
        return effects

    def _move(self, to: SlaveState, why: str, now_ms: int) -> None:
        assert to in LEGAL_MOVES[self.state], (self.state, to, str(self.story))
        self.story.add(now_ms, f"{self.state.value} -> {to.value}: {why}")
        self.state = to

    # --- whom to follow ---

    def _on_follow(self, event: Follow, now_ms: int, effects: list[Effect]) -> None:
        if event.epoch < self.epoch:
            self.story.add(
                now_ms, f"will not follow epoch {event.epoch}, we know {self.epoch}"
            )  # INV-26
            return
        same = event.master == self.master and event.epoch == self.epoch
        if same and event.address == self._address and self.state is not SlaveState.IDLE:
            self.lossy_epoch = max(self.lossy_epoch, event.lossy_epoch)
            self._counts_disk |= event.counts_disk
            return
        self._leave(f"follow replica {event.master} in epoch {event.epoch}", now_ms, effects)
        if not same:
            self._unsaid_end = NO_OFFSET
        self.master, self._address, self.epoch = event.master, event.address, event.epoch
        self.lossy_epoch = max(self.lossy_epoch, event.lossy_epoch)
        self._counts_disk = event.counts_disk
        self._retry_ms = RETRY_MS_MIN
        if self.broken:
            self._stop(self.broken, now_ms, effects)
            return
        self._move(SlaveState.CONNECTING, f"to replica {event.master}, epoch {event.epoch}", now_ms)
        self._connect(now_ms, effects)

    def _on_unfollow(self, event: Unfollow, now_ms: int, effects: list[Effect]) -> None:
        self._leave(event.why, now_ms, effects)

    def _leave(self, why: str, now_ms: int, effects: list[Effect]) -> None:
        """Close the stream of the present master. This comes before whatever led here is done: a master that is being
        left must not hear that we have what the next one may cut."""
        if self.connection != NO_CONNECTION:
            effects.append(CloseStream(self.connection, why))
            self.connection = NO_CONNECTION
        self._connecting = False
        self.stopped_why = ""
        if self.state is not SlaveState.IDLE:
            self._move(SlaveState.IDLE, why, now_ms)

    # --- the connection ---

    def _connect(self, now_ms: int, effects: list[Effect]) -> None:
        self._connecting = True
        self._retry_at_ms = now_ms + ANSWER_MS_MAX
        effects.append(Connect(self.master, self._address))

    def _on_connected(self, event: Connected, now_ms: int, effects: list[Effect]) -> None:
        if self.state is not SlaveState.CONNECTING or not self._connecting:
            effects.append(CloseStream(event.connection, "no longer wanted"))
            return
        self._connecting = False
        self.connection = event.connection
        self._reported = False
        self._heard_ms = now_ms
        if self.classic and not self.end:
            self._move(SlaveState.STREAMING, "connected, with an empty log", now_ms)
            self._report(now_ms, effects)
            return
        self._move(SlaveState.GREETING, "connected", now_ms)
        if self.classic:
            effects.append(CompareLogs(event.connection))  # INV-36: before anything is reported
        else:
            effects.append(Greet(event.connection, self.epoch))

    def _on_stream_closed(self, event: StreamClosed, now_ms: int, effects: list[Effect]) -> None:
        if event.connection in (NO_CONNECTION, self.connection):
            self._unsaid_end = NO_OFFSET  # it was the master that closed it: a reign may begin
        if event.connection == NO_CONNECTION:
            if self.state is SlaveState.CONNECTING and self._connecting:
                self._retry_later(now_ms)
        elif event.connection == self.connection:
            self.connection = NO_CONNECTION
            if self.state is not SlaveState.STOPPED:
                self._move(SlaveState.CONNECTING, event.why, now_ms)
                self._retry_later(now_ms)

    def _on_stream_heard(self, event: StreamHeard, now_ms: int, effects: list[Effect]) -> None:
        if event.connection == self.connection:
            self._heard_ms = now_ms

    def _retry_later(self, now_ms: int) -> None:
        self._connecting = False
        self._retry_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(self._retry_ms * 2, RETRY_MS_MAX)

    def _give_up(self, reason: str, now_ms: int, effects: list[Effect]) -> None:
        """Close the stream and try again later: nothing of what was wrong has changed anything."""
        effects.append(CloseStream(self.connection, reason))
        self.connection = NO_CONNECTION
        self._move(SlaveState.CONNECTING, reason, now_ms)
        self._retry_later(now_ms)

    def _on_tick(self, event: Tick, now_ms: int, effects: list[Effect]) -> None:
        if self.state is SlaveState.CONNECTING:
            if now_ms >= self._retry_at_ms:
                self._connect(now_ms, effects)
        elif self.state is SlaveState.GREETING:
            if self.classic:
                return  # who compares has times of its own
            if now_ms - self._heard_ms >= min(ANSWER_MS_MAX, self.rules.stream_silence_ms):
                self._give_up("no greeting from the master", now_ms, effects)
        elif self.state is SlaveState.STREAMING:
            if now_ms - self._heard_ms >= self.rules.stream_silence_ms:
                self._unsaid_end = NO_OFFSET  # who is silent may have closed it, too
                self._give_up(
                    f"master silent for {self.rules.stream_silence_ms} ms", now_ms, effects
                )
            elif now_ms - self._said_ms >= self._silence_ms_max:
                self._report(now_ms, effects)

    @property
    def _silence_ms_max(self) -> int:
        """How long we may say nothing: a member that its master has not heard of leaves the set."""
        rules = self.rules
        if self.classic:
            return rules.stream_heartbeat_ms
        return min(rules.stream_heartbeat_ms, rules.catch_up_ms_max // 3)

    # --- where the logs part ---

    def _on_logs_compared(self, event: LogsCompared, now_ms: int, effects: list[Effect]) -> None:
        if event.end < self.end:  # half a record was cut, whatever became of the connection
            self.end = event.end
            self.flushed = min(self.flushed, event.end)
            self.confirmed = min(self.confirmed, event.end)
        if event.connection != self.connection or self.state is not SlaveState.GREETING:
            return
        if event.verdict is Verdict.DIFFERS:
            self._stop(event.why, now_ms, effects)
            return
        if event.verdict is Verdict.UNKNOWN:
            if self._unknown_since_ms < 0:
                self._unknown_since_ms = now_ms
            elif now_ms - self._unknown_since_ms >= UNKNOWN_MS_MAX:
                effects.append(Alarm(f"not following, logs not compared: {event.why}"))
            self._give_up(event.why, now_ms, effects)
            return
        self._unknown_since_ms = -1
        self._heard_ms = now_ms
        self._move(SlaveState.STREAMING, f"one log up to {self.end}", now_ms)
        if event.passport:
            effects.append(ShowPass(event.connection, event.passport))
        self._report(now_ms, effects)

    def _on_master_greeted(self, event: MasterGreeted, now_ms: int, effects: list[Effect]) -> None:
        if event.connection != self.connection or self.state is not SlaveState.GREETING:
            return
        self._heard_ms = now_ms
        self._unsaid = False
        if event.epoch < self.epoch and not (event.stock and self._may_be_unsaid(event)):
            self._give_up(
                f"master is of epoch {event.epoch}, we know {self.epoch}", now_ms, effects
            )  # INV-26
            return
        if event.epoch > self.epoch:
            # elected again since the controller told us; whether that lost anything is for the controller to say
            why = f"master is of epoch {event.epoch}, the controller told us {self.epoch}"
            self._give_up(why, now_ms, effects)
            return
        point = self._common_end(event)
        if point is None or point < self.start:
            reason = f"no epoch in common with replica {self.master}: must be seeded anew"
            self._stop(reason, now_ms, effects)
        elif 0 < point < event.start:  # it would refuse us, and we had cut for nothing
            reason = (
                f"one log with replica {self.master} up to {point}, which now starts at {event.start}: "
                "must be seeded anew"
            )
            self._stop(reason, now_ms, effects)
        elif point < self.confirmed and self.lossy_epoch <= self.confirmed_epoch:  # INV-27
            reason = (
                f"following replica {self.master} would cut [{point}, {self.end}), confirmed up to {self.confirmed} "
                f"in epoch {self.confirmed_epoch}"
            )
            self._stop(reason, now_ms, effects)
        else:
            self._cut(point, now_ms, effects)
            if not self.end and 0 < event.start == event.end:
                self._begin_empty(event, effects)
            self._move(SlaveState.STREAMING, f"from {self.end}, epoch {event.epoch}", now_ms)
            self._report(now_ms, effects)

    def _begin_empty(self, greeting: MasterGreeted, effects: list[Effect]) -> None:
        """Let our log, which has no byte, begin where that of the master does, which has none left: so it has all of it

        Otherwise the first frame says where. But a master that needs more copies than its set has takes no message
        before we are of its set, and we are not before we have what it has.
        """
        self.history = greeting.history.drop_before(greeting.start)
        effects.append(PersistHistory(self.history, NoRoom.REFUSE))
        self.start = self.end = self.flushed = greeting.start
        effects.append(Append(greeting.start, 0))

    def _may_be_unsaid(self, greeting: MasterGreeted) -> bool:
        """Whether a stock master that does not say the epoch we know may lead it all the same.

        RocketMQ keeps no second entry for one offset: a reign after an empty one has no entry, and its bytes count to
        the empty one, in frames too. But it greets as well before it has appended the entry of a reign that is to have
        one. In either case what lies below the end of that greeting belongs to the reign that it says (INV-26). A byte
        above it was written after the entry: then the master is asked again, and believed. Not so when the connection
        has ended otherwise meanwhile: a master closes it when a reign begins.
        """
        if not greeting.history.entries:
            return False  # a master's first reign always has one
        if self._unsaid_end == NO_OFFSET:
            self._unsaid_end = greeting.end
        self._unsaid = greeting.end <= self._unsaid_end
        return True

    def _common_end(self, greeting: MasterGreeted) -> int | None:
        if self.end == 0:
            return 0
        if not self.history.entries:
            # a store from before epochs: as far as it lies before the master's first reign it is taken on trust, as
            # RocketMQ does; that is how a classic pair is moved to a controller
            entries = greeting.history.entries
            return self.end if entries and self.end <= entries[0].start else None
        return common_end(self.history, self.end, greeting.history, greeting.end)

    def _stop(self, reason: str, now_ms: int, effects: list[Effect]) -> None:
        self._move(SlaveState.STOPPED, reason, now_ms)
        self.stopped_why = reason
        self._connecting = False
        if self.connection != NO_CONNECTION:
            effects.append(CloseStream(self.connection, reason))
            self.connection = NO_CONNECTION
        effects.append(Alarm(reason))

    def _cut(self, point: int, now_ms: int, effects: list[Effect]) -> None:
        """Make `point` our end and forget the reigns from there on, empty ones too: the master's history goes on."""
        if point < self.end:
            self.story.add(now_ms, f"cut [{point}, {self.end}) of epoch {self.history.last}")
            effects.append(SetAside(point, self.end, self.history.last))
            effects.append(Truncate(point))
            self.end = point
            self.flushed = min(self.flushed, point)
            self.confirmed = min(self.confirmed, point)
        history = self.history.cut(point)
        if history is not self.history:
            self.history = history
            effects.append(PersistHistory(history))

    # --- following ---

    def _on_frame_received(self, event: FrameReceived, now_ms: int, effects: list[Effect]) -> None:
        if event.connection != self.connection or self.state is not SlaveState.STREAMING:
            return
        self._heard_ms = now_ms
        problem = self._out_of_place(event)
        if problem is not None:
            self._give_up(problem, now_ms, effects)
            return
        self._retry_ms = RETRY_MS_MIN  # it speaks to us, and of our log
        if event.size:
            if (
                not self.classic
                and event.epoch > self.history.last
                and event.offset >= event.epoch_start
            ):
                # durable before the first byte: else a restart would count those bytes to the reign before
                self.history = self.history.begin(event.epoch, event.epoch_start)
                effects.append(PersistHistory(self.history, NoRoom.REFUSE))
            if self.end == 0:
                self.start = event.offset
            self.end = event.offset + event.size
            effects.append(Append(event.offset, event.size))
        confirmed = min(event.confirmed, self.end)
        if confirmed > self.confirmed:
            self.confirmed, self.confirmed_epoch = confirmed, self.epoch
            effects.append(Confirmed(confirmed))
        if event.size:
            self._report(now_ms, effects)

    def _out_of_place(self, event: FrameReceived) -> str | None:
        """Why this frame does not continue our log; None when it does. A frame that does not changes nothing."""
        if event.offset == NO_OFFSET and event.size == 0 and self.end == 0:
            return None
        if event.offset != self.end and self.end != 0:
            return f"frame at {event.offset}, our log ends at {self.end}"
        if self.classic or event.size == 0:
            return None
        if self._unsaid and event.offset + event.size > self._unsaid_end:
            return f"the master has written since, and did not say epoch {self.epoch} before"
        last = self.history.last
        if event.epoch < last:
            return f"frame of epoch {event.epoch}, our log ends in epoch {last}"
        if event.epoch > last and self.end > event.epoch_start:
            return f"epoch {event.epoch} from {event.epoch_start}, inside our epoch {last}"
        if event.epoch == last and event.epoch_start != self.history.last_start:
            return (
                f"epoch {event.epoch} from {event.epoch_start}, ours from {self.history.last_start}"
            )
        return None

    def _on_flushed(self, event: Flushed, now_ms: int, effects: list[Effect]) -> None:
        if event.end > self.flushed:
            self.flushed = min(event.end, self.end)
            if self.state is SlaveState.STREAMING:
                self._report(now_ms, effects)

    def _on_trimmed(self, event: Trimmed, now_ms: int, effects: list[Effect]) -> None:
        """Retention: who parted from us before this start has nothing in common with us any more."""
        self.start = max(self.start, min(event.start, self.end))
        history = self.history.drop_before(self.start)
        if history is not self.history:
            self.history = history
            effects.append(PersistHistory(history, NoRoom.LEAVE))

    def _on_append_failed(self, event: AppendFailed, now_ms: int, effects: list[Effect]) -> None:
        assert event.end <= self.end, (event, self.end)
        self.end = event.end
        self.start = min(self.start, event.end)  # of a log that was to begin there
        self.flushed = min(self.flushed, event.end)
        self.confirmed = min(self.confirmed, event.end)
        history = self.history.cut(event.end)
        if history is not self.history:
            self.history = history
            effects.append(PersistHistory(history, NoRoom.LEAVE))
        if self.state is SlaveState.STREAMING:
            self._retry_ms = RETRY_MS_MAX  # a full disk will not be better in 50 ms
            self._give_up(event.why, now_ms, effects)

    def _on_dispatch_broken(
        self, event: DispatchBroken, now_ms: int, effects: list[Effect]
    ) -> None:
        """Nothing is reported from here on: what we hold could not be served, were we the master."""
        self.broken = event.why
        if self.state is SlaveState.IDLE or self.state is SlaveState.STOPPED:
            effects.append(Alarm(event.why))  # whom to follow next is refused (_on_follow)
        else:
            self._stop(event.why, now_ms, effects)

    def _report(self, now_ms: int, effects: list[Effect]) -> None:
        received = self.end
        if self.durable and not self._counts_disk and self.flushed < received:
            if not self._reported:
                return  # the flush that is under way will
            received = self.flushed
        self._reported = True
        self._said_ms = now_ms
        written = received and not self.classic
        writer = self.history.at(received - 1) if written else None
        epoch = writer.number if writer else 0
        effects.append(ReportProgress(self.connection, received, self.flushed, epoch))


HANDLERS: Final = {
    Follow: "_on_follow",
    Unfollow: "_on_unfollow",
    Connected: "_on_connected",
    StreamClosed: "_on_stream_closed",
    StreamHeard: "_on_stream_heard",
    MasterGreeted: "_on_master_greeted",
    FrameReceived: "_on_frame_received",
    AppendFailed: "_on_append_failed",
    LogsCompared: "_on_logs_compared",
    DispatchBroken: "_on_dispatch_broken",
    Flushed: "_on_flushed",
    Trimmed: "_on_trimmed",
    Tick: "_on_tick",
}
