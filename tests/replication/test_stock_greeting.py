"""A slave of ours takes no byte of a stock master into a reign that is over (INV-26, apache/rocketmq's greeting)."""

from __future__ import annotations

from tandemmq.replication import slave as s
from tandemmq.replication.config import StreamRules
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.slave import SlaveCore, SlaveState

MASTER = 1


class Stream:
    """A slave that follows a stock master, driven by hand."""

    def __init__(self, *entries: Epoch, end: int = 0) -> None:
        self.core = SlaveCore(
            StreamRules(), EpochHistory(entries), end=end, flushed=end, confirmed=end,
            confirmed_epoch=entries[-1].number if entries else 0,
            epoch=entries[-1].number if entries else 0,
        )  # fmt: skip
        self.connection = 0
        self.now_ms = 0

    def step(self, event: s.Event) -> list[s.Effect]:
        return self.core.step(event, self.now_ms)

    def follow(self, epoch: int) -> None:
        self.step(s.Follow(MASTER, "java:10912", epoch))

    def greeted(self, *entries: Epoch, end: int) -> list[s.Effect]:
        """It connects, and a stock master says its entries: the last of them is all it says of its reign."""
        while self.core.state is not SlaveState.GREETING:
            self.now_ms += 50
            self.step(s.Tick())
            self.connection += 1
            self.step(s.Connected(self.connection))
        last = entries[-1].number if entries else 0
        greeting = s.MasterGreeted(self.connection, last, EpochHistory(entries), 0, end, stock=True)
        return self.step(greeting)

    def frame(self, offset: int, size: int, epoch: Epoch) -> list[s.Effect]:
        return self.step(
            s.FrameReceived(self.connection, offset, size, epoch.number, epoch.start, offset + size)
        )

    @property
    def streams(self) -> bool:
        return self.core.state is SlaveState.STREAMING


ONE, TWO = Epoch(1, 0), Epoch(2, 1000)


def test_no_byte_of_a_new_reign_is_booked_under_the_one_before() -> None:
    """A Java master restarts; we are back in 80 ms, before it has appended its epoch."""
    slave = Stream(ONE, end=1000)
    slave.follow(2)
    slave.greeted(ONE, end=1000)
    closed = slave.frame(1000, 100, ONE)
    assert slave.core.end == 1000 and not slave.streams
    assert "epoch 2" in next(each.reason for each in closed if isinstance(each, s.CloseStream))
    slave.greeted(ONE, TWO, end=1100)
    slave.frame(1000, 100, TWO)
    assert slave.core.history.entries == (ONE, TWO)
    slave.follow(3)
    slave.greeted(ONE, TWO, Epoch(3, 1100), end=1100)
    assert slave.streams, "its bytes are right, and so is who wrote them: nobody must act"


def test_a_replica_that_was_behind_takes_what_the_old_reign_wrote_and_greets_again() -> None:
    """It cannot tell the reign that is over from one that Java did not write down, until bytes come after it."""
    slave = Stream(Epoch(1, 0), end=0)
    slave.follow(2)
    slave.greeted(ONE, end=1000)
    assert slave.streams
    slave.frame(0, 1000, ONE)
    assert slave.core.end == 1000 and slave.streams
    slave.frame(1000, 100, ONE)
    assert slave.core.end == 1000 and not slave.streams, "a byte of the new reign, said to be old"
    slave.greeted(ONE, TWO, end=1100)
    slave.frame(1000, 100, TWO)
    assert (slave.core.end, slave.core.history.entries) == (1100, (ONE, TWO))


def test_a_frame_over_the_end_of_such_a_greeting_is_left_out_as_a_whole() -> None:
    slave = Stream(end=0)
    slave.follow(2)
    slave.greeted(ONE, end=1000)
    slave.frame(0, 1100, ONE)
    assert slave.core.end == 0 and not slave.streams


def test_a_reign_that_java_does_not_write_down_is_followed_after_one_more_greeting() -> None:
    """The reign before it was empty: Java keeps no second entry for one offset, and says the old number for ever."""
    slave = Stream(end=0)
    slave.follow(2)
    slave.greeted(ONE, end=0)
    assert slave.streams
    slave.frame(0, 100, ONE)
    assert not slave.streams
    slave.greeted(ONE, end=100)
    assert slave.streams
    for offset in (0, 100, 200, 300):
        slave.frame(offset, 100, ONE)
    assert slave.core.end == 400 and slave.streams


def test_a_reign_may_begin_whenever_the_master_closes_the_connection() -> None:
    """Elected again without a restart: it goes on in the old reign, closes its connections, and appends its entry."""
    slave = Stream(ONE, end=1000)
    slave.follow(2)
    slave.greeted(ONE, end=1000)
    slave.frame(1000, 100, ONE)
    slave.greeted(ONE, end=1100)
    slave.frame(1000, 100, ONE)
    assert slave.core.end == 1100, "still written in the old reign, as the master's own file says"
    slave.step(s.StreamClosed(slave.connection, "closed by the master"))
    slave.greeted(ONE, end=1100)
    slave.frame(1100, 100, ONE)
    assert slave.core.end == 1100 and not slave.streams
    slave.greeted(ONE, Epoch(2, 1100), end=1200)
    slave.frame(1100, 100, Epoch(2, 1100))
    assert slave.core.history.entries == (ONE, Epoch(2, 1100))


def test_after_a_restart_of_ours_an_unsaid_reign_is_followed_on() -> None:
    slave = Stream(ONE, end=400)
    slave.follow(2)
    slave.greeted(ONE, end=400)
    assert slave.streams, "also while nobody sends"
    slave.frame(400, 100, ONE)
    slave.greeted(ONE, end=500)
    slave.frame(400, 100, ONE)
    assert slave.core.end == 500 and slave.streams


def test_a_stock_master_without_any_entry_has_not_begun() -> None:
    slave = Stream(end=0)
    slave.follow(1)
    slave.greeted(end=0)
    assert not slave.streams


def test_a_master_of_ours_with_an_older_epoch_is_refused_as_ever() -> None:
    slave = Stream(ONE, end=1000)
    slave.follow(2)
    slave.now_ms += 50
    slave.step(s.Connected(7))
    effects = slave.step(s.MasterGreeted(7, 1, EpochHistory((ONE,)), 0, 1000))
    assert [type(each) for each in effects] == [s.CloseStream]
