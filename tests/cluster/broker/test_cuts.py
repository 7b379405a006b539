"""cluster/broker/tables/cuts.py: readers that stand beyond what a loss left are moved to it, once (INV-42)."""

from __future__ import annotations

from typing import Any

import pytest
from brokerkit import Asker, MakeBroker, TwoClocks

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.replicagroup import ControlledReplica
from tandemmq.cluster.broker.tables.cuts import KEEP_MS
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Owner

PULL, COMMIT, QUERY, MAX = 11, 15, 14, 30
MOVED, FOUND, NOT_FOUND = 21, 0, 19
BROADCASTING = "BROADCASTING"


class Cut:
    """A broker whose queue T-0 lost everything from offset 10 on, and got 10 to 19 anew."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.broker = asker.broker
        self.broker.topics.create_for_send("T", "TBW102", 1)

    async def put(self, count: int) -> None:
        for _ in range(count):
            self.asker.put("T")
        while self.broker.store.dispatch(10_000):
            pass

    async def lose(self) -> None:
        await self.put(10)
        self.broker.lost("for this test")
        await self.put(10)

    async def pull(self, offset: int, group: str = "G", **ext: Any) -> Command:
        fields = {
            "consumerGroup": group, "topic": "T", "queueId": 0, "queueOffset": offset,
            "maxMsgNums": 4, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG", **ext,
        }  # fmt: skip
        request = Command(PULL, {key: str(value) for key, value in fields.items()}, opaque=7)
        peer: Any = self.asker.connection
        answer = self.broker.table[PULL](request, peer)
        if answer is None:  # it was written with its records
            answer = Command.decode(memoryview(peer.written.pop()))
        assert isinstance(answer, Command)
        return answer

    async def commit(self, offset: int, group: str = "G") -> Command:
        return await self.asker.ask(
            COMMIT, consumerGroup=group, topic="T", queueId=0, commitOffset=offset
        )

    def committed(self, group: str = "G") -> int:
        return self.broker.offsets.committed(group, "T", 0)


def next_of(answer: Command) -> int:
    return int((answer.ext or {})["nextBeginOffset"])


@pytest.fixture
async def cut(asker: Asker) -> Cut:
    made = Cut(asker)
    await made.lose()
    return made


async def test_a_reader_beyond_the_cut_is_moved_to_it_and_reads_on(cut: Cut) -> None:
    """INV-42. It had been given 10 to 14 of the old history: the new ones at these offsets are others."""
    answer = await cut.pull(15)
    assert (answer.code, next_of(answer)) == (MOVED, 10)
    assert answer.remark == "OFFSET_OVERFLOW_BADLY"  # and no reset: a reader drops nothing below it
    answer = await cut.pull(10)
    assert (answer.code, next_of(answer)) == (FOUND, 14)
    answer = await cut.pull(14)
    assert (answer.code, next_of(answer)) == (FOUND, 18)
    assert cut.broker.cuts.moved == 1


async def test_readers_that_are_not_beyond_notice_nothing(cut: Cut) -> None:
    for offset in (0, 4, 8, 12, 16):
        answer = await cut.pull(offset)
        assert answer.code == FOUND
    assert cut.broker.cuts.moved == 0


async def test_a_queue_of_which_nothing_was_left_is_read_from_its_start(asker: Asker) -> None:
    cut = Cut(asker)
    cut.broker.lost("for this test")
    await cut.put(10)
    answer = await cut.pull(3)
    assert (answer.code, next_of(answer)) == (MOVED, 0)


async def test_a_position_of_the_old_history_is_not_committed(cut: Cut) -> None:
    """What was consumed before the loss must not pass over what came after it."""
    await cut.asker.heartbeat("G", "T")
    await cut.commit(8)
    assert (await cut.commit(13)).code == 0
    assert cut.committed() == 8
    await cut.pull(8, sysFlag=5, commitOffset=15)
    assert cut.committed() == 8
    await cut.pull(12)
    await cut.commit(13)
    assert cut.committed() == 13, "which this history gave out"


async def test_what_a_slave_kept_of_before_a_loss_is_not_committed(cut: Cut) -> None:
    """Though the group was given as much since: it may not have consumed it."""
    assert (await cut.pull(10)).code == FOUND
    assert (await cut.commit(12)).code == 0
    kept = {"consumerGroup": "G", "topic": "T", "queueId": 0, "onlyForward": True}
    assert (await cut.asker.ask(COMMIT, **kept, commitOffset=14)).code == 0, "it need not ask again"
    assert cut.committed() == 12
    await cut.commit(13)
    assert cut.committed() == 13, "who was given it may commit it"


async def test_what_was_committed_beyond_the_cut_is_taken_back(asker: Asker) -> None:
    cut = Cut(asker)
    await cut.put(10)
    cut.broker.offsets.commit("G", "T", 0, 15)
    cut.broker.lost("for this test")
    assert cut.committed() == 10


async def test_a_group_that_has_settled_is_not_sent_back_beyond_its_progress(cut: Cut) -> None:
    """Its queue is another member's now, or its broker was restarted."""
    for offset in (10, 14):
        await cut.pull(offset)
    await cut.commit(16)
    cut.asker = Asker(cut.broker, cut.asker.clock)
    answer = await cut.pull(19)
    assert (answer.code, next_of(answer)) == (MOVED, 16)
    assert (await cut.pull(18)).code == FOUND


async def test_what_a_reader_was_given_and_has_not_consumed_comes_again(cut: Cut) -> None:
    """Clients drop all that they have of a queue that is moved, also what lies below the cut."""
    cut.broker.offsets.commit("G", "T", 0, 4)
    answer = await cut.pull(15)
    assert (answer.code, next_of(answer)) == (MOVED, 4)
    assert (await cut.pull(4)).code == FOUND


async def test_each_member_of_a_broadcasting_group_stands_for_itself(cut: Cut) -> None:
    await cut.asker.heartbeat("B", "T", client_id="c1", messageModel=BROADCASTING)
    other = Asker(cut.broker, cut.asker.clock)
    await other.heartbeat("B", "T", client_id="c2", messageModel=BROADCASTING)
    for offset in (10, 14):
        await cut.pull(offset, "B", sysFlag=0)
    mine, cut.asker = cut.asker, other
    answer = await cut.pull(15, "B", sysFlag=0)
    assert (answer.code, next_of(answer)) == (MOVED, 10), "c1's reading says nothing of c2"
    cut.asker = mine
    assert (await cut.pull(18, "B", sysFlag=0)).code == FOUND


@pytest.mark.parametrize(("model", "where"), [(BROADCASTING, "0"), ("CLUSTERING", "1")])
async def test_a_broadcasting_reader_is_sent_to_no_slave_that_would_lead_it_beyond_the_cut(
    cut: Cut, monkeypatch: pytest.MonkeyPatch, model: str, where: str
) -> None:
    """Each return from there would be another move: of a group that shares its queues only to its progress."""
    await cut.asker.heartbeat("B", "T", messageModel=model)
    monkeypatch.setattr(cut.broker.slave_reads, "next_broker", lambda *_: 1)
    answer = await cut.pull(3, "B", sysFlag=0)
    assert (answer.ext or {})["suggestWhichBrokerId"] == where


async def test_a_position_that_was_asked_for_now_is_good(cut: Cut) -> None:
    """A group that begins at the end, or at a time."""
    answer = await cut.asker.ask(MAX, topic="T", queueId=0)
    end = int((answer.ext or {})["offset"])
    assert end == 20
    await cut.put(1)
    assert (await cut.pull(end, "New")).code == FOUND


async def test_tools_look_where_they_want(cut: Cut) -> None:
    assert (await cut.pull(13, "TOOLS_CONSUMER")).code == FOUND


async def test_a_reset_by_an_administrator_is_good(cut: Cut) -> None:
    cut.broker.offsets.assign_reset("G", "T", 0, 17)
    answer = await cut.pull(12)
    assert answer.code == MOVED
    if next_of(answer) == 10:  # moved to the cut first, and then by the reset
        answer = await cut.pull(10)
    assert next_of(answer) == 17
    assert (await cut.pull(17)).code == FOUND


async def test_a_cut_is_remembered_over_a_restart_and_forgotten_in_time(
    cut: Cut, make_broker: MakeBroker, clock: TwoClocks
) -> None:
    cuts = cut.broker.cuts
    cuts.file.save()
    cuts.load()
    assert (await cut.pull(15)).code == MOVED
    clock.advance(KEEP_MS)
    assert (await cut.pull(15)).code == FOUND
    assert not cuts.active
    cuts.load()
    assert not cuts.active


async def test_who_slept_through_two_losses_is_moved_to_the_lower_cut(cut: Cut) -> None:
    for offset in (10, 14):
        await cut.pull(offset, "Awake")
    await cut.put(10)
    cut.broker.lost("again")
    answer = await cut.pull(15)
    assert (answer.code, next_of(answer)) == (MOVED, 10)
    assert (await cut.pull(18, "Awake")).code == FOUND, "it had been given that in between"


async def test_a_group_that_slept_through_an_earlier_cut_does_not_vouch_for_itself_at_a_slave(
    cut: Cut,
) -> None:
    """INV-42. It had 15 before the first loss, and told the slave so that leads now. The simulator found it, seed
    74928."""
    offsets = cut.broker.offsets
    offsets.start_following()
    offsets.commit("G", "T", 0, 15)
    offsets.stop_following()
    offsets.commit("Awake", "T", 0, 15)
    cut.broker.lost("again")
    assert (cut.committed(), cut.committed("Awake")) == (10, 15)
    answer = await cut.pull(15)
    assert (answer.code, next_of(answer)) == (MOVED, 10)


async def test_a_loss_is_on_the_disk_before_more_of_the_log_comes(asker: Asker) -> None:
    """Else who is killed and starts again believes positions of before at what are other messages by then. The
    simulator found it, seed 72589."""
    cut = Cut(asker)
    await cut.put(10)
    cut.broker.offsets.commit("G", "T", 0, 15)
    cut.broker.offsets.file.save()
    cut.broker.lost("for this test")
    for file in (cut.broker.offsets.file, cut.broker.cuts.file):
        assert not file.unsaved
    offsets = (cut.broker.offsets.file.load() or {})["offsetTable"]
    cuts = (cut.broker.cuts.file.load() or {})["queueEnds"]
    assert (offsets, cuts) == ({"T@G": {"0": 10}}, {"T": {"0": 10}})


async def test_a_slave_moves_nobody(cut: Cut) -> None:
    await cut.broker.standing.changes.tell(Role.SLAVE)
    assert not cut.broker.cuts.active


class Reign(ControlledReplica):
    """A replica as far as its broker asks it about its reign."""

    epoch = 3  # type: ignore[assignment]
    may_have_lost = False  # type: ignore[assignment]
    agreed = 1 << 40

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("lost", [True, False])
async def test_a_reign_that_began_with_a_loss_is_a_cut(asker: Asker, lost: bool) -> None:
    cut = Cut(asker)
    await cut.put(10)
    reign = Reign()
    reign.may_have_lost = lost  # type: ignore[misc]
    before, cut.broker.standing = cut.broker.standing, reign
    cut.broker._role_changed(Role.ASYNC_MASTER)
    cut.broker.standing = before
    await cut.put(10)
    assert (await cut.pull(15)).code == (MOVED if lost else FOUND)


async def test_what_the_new_master_had_alone_is_beyond_the_cut(asker: Asker) -> None:
    """INV-42. Its last two messages were never confirmed; in their place readers had others of a reign that is lost."""
    cut = Cut(asker)
    await cut.put(8)
    reign = Reign()
    reign.may_have_lost = True  # type: ignore[misc]
    reign.agreed = cut.broker.store.end
    await cut.put(2)
    cut.broker.offsets.commit("elsewhere", "T", 0, 9)
    before, cut.broker.standing = cut.broker.standing, reign
    cut.broker._role_changed(Role.ASYNC_MASTER)
    cut.broker.standing = before
    assert next_of(await cut.pull(9)) == 8
    assert (await cut.pull(8, "another")).code == FOUND
    assert cut.committed("elsewhere") == 8


async def test_who_has_read_what_a_new_master_holds_and_may_not_show_yet_waits(
    asker: Asker,
) -> None:
    """Its predecessor had shown it. A reader that is moved drops what it has cached, and passes over it (INV-42)."""
    cut, store = Cut(asker), asker.broker.store
    await cut.put(8)
    confirmed = store.end
    store.belong_to(Owner(confirmed=lambda: confirmed))
    await cut.put(2)
    assert store.max_offset("T", 0) == 8
    answer = await cut.pull(10)
    assert (answer.code, next_of(answer)) == (NOT_FOUND, 10)
    assert (await cut.pull(11)).code == MOVED


async def test_a_slave_that_is_started_as_a_master_is_a_cut(asker: Asker) -> None:
    asker.broker.store.recovered.received = True
    asker.broker.load()
    assert asker.broker.cuts.active


@pytest.mark.parametrize(
    ("clean", "same_boot", "dropped", "lost"),
    [
        (True, False, 0, False),
        (False, True, 0, False),
        (False, False, 0, True),
        (True, True, 9, True),
    ],
)
async def test_a_start_after_which_the_log_may_be_shorter_is_a_cut(
    asker: Asker, clean: bool, same_boot: bool, dropped: int, lost: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    recovered = asker.broker.store.recovered
    recovered.clean, recovered.same_boot, recovered.dropped_bytes = clean, same_boot, dropped
    asker.broker.load()
    assert asker.broker.cuts.active is lost
    assert "the machine went down" not in caplog.text  # after a kill of RocketMQ nobody knows


async def test_progress_beyond_the_end_at_a_start_is_a_witness_of_a_loss(asker: Asker) -> None:
    cut = Cut(asker)
    await cut.put(10)
    cut.broker.save()
    cut.broker.offsets.commit("G", "T", 0, 15)
    cut.broker.offsets.file.save()
    cut.broker.load()
    assert cut.broker.cuts.active
    assert cut.committed() == 10


async def test_a_reader_that_a_slave_served_is_moved_once(
    cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This broker does not hear what a slave gives to a reader; moved again and again, it would never end."""
    await cut.asker.heartbeat("G", "T")
    assert next_of(await cut.pull(15)) == 10
    monkeypatch.setattr(cut.broker.slave_reads, "next_broker", lambda *_: 1)
    await cut.put(40)
    await cut.pull(10)
    await cut.commit(40)
    assert cut.committed() == 40, "what a slave gave"
    assert (await cut.pull(50)).code == FOUND
    assert cut.broker.cuts.moved == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_reader_that_went_to_a_slave_with_what_it_was_told_is_moved_once(
    cut: Cut, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    monkeypatch.setattr(cut.broker.slave_reads, "next_broker", lambda *_: 1)
    await cut.asker.heartbeat("G", "T")
    assert next_of(await cut.pull(15)) == 10
    assert next_of(await cut.pull(15)) == 10, "it had not heard of it"
    if commits:
        await cut.commit(10)
        await cut.commit(17)
        assert cut.committed() == 17, "what the slave gave"
    assert (await cut.pull(18)).code == FOUND
    assert cut.broker.cuts.moved == 2


@pytest.mark.parametrize("with_pull", [True, False])
async def test_a_reader_that_repeats_its_commit_has_not_heard_that_it_is_moved(
    cut: Cut, monkeypatch: pytest.MonkeyPatch, with_pull: bool
) -> None:
    """INV-42. The answers are lost. Clients commit every 5 s, and with each pull, how far they are, which is where they
    are moved to; it was sent to a slave, which it did not hear either."""
    monkeypatch.setattr(cut.broker.slave_reads, "next_broker", lambda *_: 1)
    await cut.asker.heartbeat("G", "T")
    await cut.commit(8)
    for _ in range(3):
        fields = {"sysFlag": 5, "commitOffset": 8} if with_pull else {}
        answer = await cut.pull(15, **fields)
        assert (answer.code, next_of(answer)) == (MOVED, 8)
        await cut.commit(8)
        await cut.commit(15)
        assert cut.committed() == 8
    await cut.commit(17)
    assert cut.committed() == 17, "more than it had: the slave gave it"
    assert (await cut.pull(18)).code == FOUND


@pytest.mark.parametrize("offset", [13, 18])
async def test_a_reader_that_did_not_hear_that_it_is_moved_and_comes_from_elsewhere_is_moved_again(
    cut: Cut, offset: int
) -> None:
    """INV-42. The answer was lost, and a former master led it on; or it began anew where it had been before. It was
    sent to no slave. The simulator found it, seed 92557."""
    await cut.asker.heartbeat("B", "T", messageModel=BROADCASTING)
    assert next_of(await cut.pull(15, "B", sysFlag=0)) == 10
    answer = await cut.pull(offset, "B", sysFlag=0)
    assert (answer.code, next_of(answer)) == (MOVED, 10)
    assert (await cut.pull(10, "B", sysFlag=0)).code == FOUND


async def test_a_reader_that_read_on_at_a_former_master_is_moved_again(cut: Cut) -> None:
    """INV-42. It stood in the new history, found the former master by an old route, and comes back with its offsets."""
    assert next_of(await cut.pull(10)) == 14
    await cut.commit(12)
    answer = await cut.pull(18)
    assert (answer.code, next_of(answer)) == (MOVED, 12)
    assert (await cut.pull(12)).code == FOUND


async def test_a_position_is_logged_once_for_each_reader_and_cut(
    cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    cut.broker.cuts._moving = once_per(0)
    for _ in range(5):
        assert (await cut.pull(15)).code == MOVED
    assert sum("reader moved" in each.message for each in caplog.records) == 1
    cut.asker = Asker(cut.broker, cut.asker.clock)
    await cut.pull(15)
    assert sum("reader moved" in each.message for each in caplog.records) == 2


async def test_a_reader_that_is_moved_goes_on_where_its_group_is(cut: Cut) -> None:
    """Clients drop all that they have of a queue that is moved, also what lies below the cut and was not consumed."""
    cut.broker.offsets.commit("G", "T", 0, 4)
    answer = await cut.pull(15)
    assert (answer.code, next_of(answer)) == (MOVED, 4)
    assert (await cut.pull(4)).code == FOUND
