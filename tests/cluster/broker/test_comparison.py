"""INV-36: whether two classic logs are one, over real stores, with remoting replaced by calls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from brokerkit import FakeConnection, MakeBroker
from messagekit import Kit, open_kit
from msgspec.structs import replace
from test_classicgroup import FakeWire

import tandemmq.cluster.broker.standing.comparison as comparison
import tandemmq.cluster.broker.standing.parting as parting
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.classicslave import ClassicSlave, beside
from tandemmq.cluster.broker.standing.comparison import (
    AskingSlave,
    ComparingMaster,
    ExaminingMaster,
)
from tandemmq.cluster.broker.standing.parting import word_of
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectFailed
from tandemmq.replication.classicgate import encode_pass
from tandemmq.replication.comparing import (
    Finding,
    Verdict,
)
from tandemmq.replication.frames import Dialect, Report, encode_slave_frame
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import CompareSlave, SlaveCompared
from tandemmq.storage import Owner, begins_entry, entry_before, setaside, stretch_digest
from tandemmq.storage.flags import StoreFlags

SEGMENT = 16384
MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


class Pair:
    """A master's and a slave's store, and requests that reach them. `stock`: who does not know COMPARE_LOGS."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        storage = {"segment_bytes": SEGMENT}
        self.master: Kit = stack.enter_context(
            open_kit(
                root / "master",
                role=Role.SYNC_MASTER,
                namesrv="10.0.0.9:9876",
                storage=storage,
            )
        )
        self.slave: Kit = stack.enter_context(
            open_kit(root / "slave", role=Role.SLAVE, broker_id=1, storage=storage)
        )
        self.master.topic("T")
        self.stock = False
        self.silent: set[str] = set()
        self.registered = {0: MASTER, 1: SLAVE}
        self.asked: list[tuple[str, int]] = []
        self.passes: list[int] = []
        self.sent: list[tuple[str, int]] = []
        group = (self.master.config.cluster, self.master.config.name)
        give = lambda end: self.give(end)  # noqa: E731, PLW0108 - some replace it
        self.comparing = ComparingMaster(self.master.store, give, group)

    def give(self, end: int) -> int:
        self.passes.append(end)
        return 42

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.asked.append((address, int(command.code)))
        if address in self.silent:
            raise ConnectFailed(address, "refused")
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            name = self.master.config.name
            group = {"cluster": self.master.config.cluster, "brokerAddrs": self.registered}
            return command.reply(body=json.dumps({"brokerAddrTable": {name: group}}).encode())
        kit = {MASTER: self.master, SLAVE: self.slave}[address]
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"commitLogMaxOffset": str(kit.store.end)}
            return command.reply(body=json.dumps({"table": table}).encode())
        if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
            return kit.queries.handle_view_message_by_id(command, None)  # type: ignore[arg-type]
        assert command.code == RequestCode.COMPARE_LOGS
        if self.stock:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")
        return await self.comparing.handle(command, FakeConnection())

    async def close(self) -> None:
        pass

    # --- logs ---

    def put(self, count: int, size: int = 300) -> None:
        """Messages at the master, and at nobody else."""
        for number in range(count):
            self.master.clock.pass_ms(1)
            self.master.send(body=f"{number}".encode().ljust(size, b"."))
        self.master.store.log.commit()

    def ship(self, end: int | None = None) -> None:
        """The slave gets what it lacks, up to `end`."""
        source, target = self.master.store, self.slave.store
        end = source.end if end is None else end
        while target.end < end:
            stop = min(end, target.end - target.end % SEGMENT + SEGMENT)
            with source.log.read(target.end, stop - target.end) as data:  # type: ignore[union-attr]
                target.append_raw(bytes(data), target.end)
        while target.dispatch():
            pass

    def lose_power(self, kept: int) -> None:
        self.master.store.truncate(kept)

    # --- asking ---

    def asks(self) -> Finding:
        """The slave asks its master."""
        return asyncio.run(AskingSlave(self.slave.store, self).compare(MASTER))

    def examines(self, host: str = "10.0.0.2", end: int | None = None) -> Finding:
        """The master asks a slave that reports `end`."""
        master = ExaminingMaster(
            self.master.config, self.master.store, self, self, lambda *where: where in self.sent
        )
        end = self.slave.store.end if end is None else end
        return asyncio.run(master.examine(host, end))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def forked(pair: Pair) -> None:
    """The slave keeps ten messages that its master lost, and the master has grown past them."""
    pair.put(10)
    kept = pair.master.store.end
    pair.put(10)
    pair.ship()
    pair.lose_power(kept)
    pair.put(30)
    assert pair.master.store.end > pair.slave.store.end


# -- our slave -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_a_slave_with_its_masters_log_may_follow(pair: Pair, stock: bool) -> None:
    pair.stock = stock
    pair.put(10)
    pair.ship()
    pair.put(100)  # and the master's goes on, in other files
    found = pair.asks()
    assert found.verdict is Verdict.SAME, found
    assert found.passport == (0 if stock else 42)
    assert pair.passes == ([] if stock else [pair.slave.store.end])


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_a_slave_that_kept_what_its_master_lost_may_not_follow_however_long_the_master_grows(
    pair: Pair, stock: bool
) -> None:
    pair.stock = stock
    pair.put(10)
    kept = pair.master.store.end
    pair.put(10)
    pair.ship()
    pair.lose_power(kept)
    first = pair.asks()
    assert first.verdict is (Verdict.UNKNOWN if stock else Verdict.DIFFERS)
    pair.put(30)
    found = pair.asks()
    assert found.verdict is Verdict.DIFFERS and "two logs" in found.why
    assert pair.passes == []


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_logs_are_told_apart_where_the_slaves_ends_with_a_file(pair: Pair, stock: bool) -> None:
    """The master's message that fits no more begins the next file: both logs end there, the fork is before."""
    pair.stock = stock
    while (kept := pair.master.store.end) < SEGMENT - 1_000:
        pair.put(1)
    pair.put(1, size=10)
    pair.put(1, size=2_000)
    pair.ship(SEGMENT)
    assert entry_before(pair.slave.store.log, SEGMENT).blank  # type: ignore[union-attr]
    found = pair.asks()
    assert found.verdict is (Verdict.UNKNOWN if stock else Verdict.SAME)  # ours shows no blanks
    pair.lose_power(kept)
    pair.put(3, size=2_000)
    assert pair.asks().verdict is not Verdict.SAME


def test_half_a_message_is_compared_with_our_master_and_cut_before_a_stock_one_is_asked(
    pair: Pair,
) -> None:
    pair.put(10)
    whole = pair.master.store.end
    pair.put(10)
    pair.ship(whole + 100)
    assert pair.slave.store.end == whole + 100
    assert pair.asks().verdict is Verdict.SAME
    assert pair.slave.store.end == whole + 100
    pair.stock = True
    assert pair.asks().verdict is Verdict.SAME
    assert pair.slave.store.end == whole
    # half of a message that the master lost is no half of the one that it has there now: it is cut as well
    pair.ship(whole + 200)
    pair.lose_power(whole)
    pair.put(10, size=500)
    pair.stock = False
    assert pair.asks().verdict is Verdict.SAME
    assert pair.slave.store.end == pair.passes[-1] == whole


def test_half_a_message_of_a_former_master_keeps_no_slave_from_a_promoted_one(pair: Pair) -> None:
    """Two slaves got as much of it. The one that was made the master cut its half when it stopped."""
    pair.put(100)
    pair.ship(pair.master.store.end - 100)
    pair.ship()
    pair.put(1)
    whole = pair.slave.store.end
    pair.ship(whole + 100)
    pair.lose_power(whole)
    assert pair.asks().verdict is Verdict.SAME
    assert pair.slave.store.end == pair.passes[-1] == whole
    # but whole messages are for a person to give up, with half a one behind them or not
    pair.put(2)
    pair.ship(pair.master.store.end - 100)
    before = pair.slave.store.end
    pair.lose_power(whole)
    assert pair.asks().verdict is Verdict.DIFFERS and pair.slave.store.end == before


def test_a_slave_that_began_with_a_later_file_is_compared_from_there(
    pair: Pair, tmp_path: Path
) -> None:
    pair.put(100)
    start = pair.master.store.end - pair.master.store.end % SEGMENT
    assert start > 0
    with pair.master.store.log.read(start, pair.master.store.end - start) as data:  # type: ignore[union-attr]
        pair.slave.store.append_raw(bytes(data), start)
    assert pair.slave.store.log.start == start
    assert pair.asks().verdict is Verdict.SAME
    pair.stock = True
    assert pair.asks().verdict is Verdict.SAME


def test_bytes_that_the_master_deleted_are_not_asked_for_and_without_any_left_a_slave_is_seeded(
    pair: Pair,
) -> None:
    pair.put(30)
    pair.ship()
    near = pair.slave.store.end
    pair.put(40)
    log = pair.master.store.log
    assert near < SEGMENT < log.end
    retired = log.run.segments.pop(0)
    try:
        found = pair.asks()
        assert found.verdict is Verdict.DIFFERS and "must be seeded anew" in found.why
        assert pair.examines().verdict is Verdict.DIFFERS
        log.run.segments.insert(0, retired)
        pair.ship()
        log.run.segments.pop(0)
        assert pair.asks().verdict is Verdict.SAME  # by what both have
    finally:
        if log.run.segments[0] is not retired:
            log.run.segments.insert(0, retired)


def test_a_master_that_cannot_be_asked_says_neither(pair: Pair) -> None:
    pair.put(3)
    pair.ship()
    pair.silent.add(MASTER)
    assert pair.asks().verdict is Verdict.UNKNOWN
    nobody = asyncio.run(AskingSlave(pair.slave.store, pair).compare(None))
    assert nobody.verdict is Verdict.UNKNOWN
    assert beside("10.0.0.1:10912") == "10.0.0.1:10911" and beside("nowhere") is None


def test_a_master_is_asked_beside_its_stream_when_it_registers_an_address_for_clients_alone(
    pair: Pair,
) -> None:
    pair.put(3)
    pair.ship()
    outside = "203.0.113.1:10911"
    pair.silent.add(outside)
    slave = pair.slave.standing
    assert isinstance(slave, ClassicSlave)
    slave._asking = AskingSlave(pair.slave.store, pair)
    slave.heard(outside, "10.0.0.1:10912")
    assert asyncio.run(slave._compare()).verdict is Verdict.SAME
    pair.silent.add(MASTER)
    found = asyncio.run(slave._compare())
    assert found.verdict is Verdict.UNKNOWN and outside in found.why


@pytest.mark.parametrize(
    "ext",
    [
        {"logStart": "9", "logEnd": "5"},
        {"logStart": "-1"},
        {"logStart": "x"},
        {},
        {"logEnd": str(1 << 62)},
    ],
)
def test_strangers_questions_get_no_pass(pair: Pair, ext: dict[str, str]) -> None:
    pair.put(3)
    given = {"logStart": "0", "logEnd": "5", "boundary": "0", "digest": "00"} if ext else {}
    command = Command(RequestCode.COMPARE_LOGS, {**given, **ext})
    answer = asyncio.run(pair.comparing.handle(command, FakeConnection()))
    assert pair.passes == []
    assert answer.code != 0 or (answer.ext or {})["verdict"] == "differs"


def question(pair: Pair, **changed: object) -> Command:
    """What a slave with all of the master's log asks."""
    log_, end = pair.master.store.log, pair.master.store.end
    digest = stretch_digest(log_, 0, end)
    assert digest is not None
    fields = {"logStart": 0, "logEnd": end, "boundary": end, "digest": digest.hex(), **changed}
    return Command(RequestCode.COMPARE_LOGS, {key: str(each) for key, each in fields.items()})


def test_strangers_neither_fill_the_masters_log_nor_keep_its_threads(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put(3)
    busy, most = 0, 0

    def slow(log_: Any, start: int, end: int) -> bytes:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        time.sleep(0.01)
        busy -= 1
        return b"another"

    monkeypatch.setattr(comparison, "stretch_digest", slow)

    async def main() -> list[Command]:
        asked = []
        for number in range(40):
            stranger: Any = FakeConnection()
            stranger.peer = (f"10.0.1.{number // 2}", 40000)
            asked.append(pair.comparing.handle(question(pair), stranger))
        return await asyncio.gather(*asked)

    answers = asyncio.run(main())
    refused = [each for each in answers if each.code == ResponseCode.SYSTEM_BUSY]
    assert len(refused) == 40 - comparison.WAITING_MAX
    assert most == 1
    assert pair.passes == []
    assert sum("a slave asked" in each.message for each in caplog.records) == 1


def test_no_pass_is_given_for_nothing_that_was_shown(pair: Pair) -> None:
    """INV-36: where a log is said to be empty at an offset that ours passed long ago, nothing was compared."""
    pair.put(10)
    end, nothing = pair.master.store.end, hashlib.sha256().hexdigest()
    command = question(pair, logStart=end, digest=nothing)
    answer = asyncio.run(pair.comparing.handle(command, FakeConnection()))
    assert (answer.ext or {})["verdict"] == "differs"
    assert pair.passes == []
    command = question(pair, logEnd=0, boundary=0, digest=nothing)
    answer = asyncio.run(pair.comparing.handle(command, FakeConnection()))
    assert (answer.ext or {})["verdict"] == "same", "one that really has nothing yet"


def test_a_master_of_another_group_says_nothing_of_a_log(pair: Pair) -> None:
    """It may be what answers beside the HA port of a master that nobody knows the address of."""
    pair.put(10)
    pair.ship()
    other = AskingSlave(pair.slave.store, pair, ("GoldCluster", "broker-b"))
    found = asyncio.run(other.compare(MASTER))
    assert found.verdict is Verdict.UNKNOWN and "this is GoldCluster/broker-a" in found.why
    assert pair.passes == []
    ours = AskingSlave(pair.slave.store, pair, ("GoldCluster", "broker-a"))
    assert asyncio.run(ours.compare(MASTER)).verdict is Verdict.SAME


def test_a_slave_asks_where_it_is_told_to_and_says_that_it_guesses(
    pair: Pair, tmp_path: Path
) -> None:
    pair.put(3)
    pair.ship()
    slave = pair.slave.standing
    assert isinstance(slave, ClassicSlave)
    slave._asking = AskingSlave(pair.slave.store, pair)
    slave._followed = "10.0.0.1:11912"
    pair.silent |= {"10.0.0.1:11911", "10.0.0.3:10911"}
    found = asyncio.run(slave._compare())
    assert found.verdict is Verdict.UNKNOWN and "haMasterBrokerAddress" in found.why
    slave.master = "10.0.0.3:10911"
    object.__setattr__(slave, "_config", replace(slave._config, ha_master_broker_address=MASTER))
    assert asyncio.run(slave._compare()).verdict is Verdict.SAME


# -- a stock slave ---------------------------------------------------------------------------------


def test_a_master_asks_a_slave_that_shows_no_pass(pair: Pair) -> None:
    pair.put(10)
    pair.ship()
    pair.put(10)
    assert pair.examines().verdict is Verdict.SAME
    assert {code for address, code in pair.asked if address == SLAVE} == {
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.VIEW_MESSAGE_BY_ID,
    }


def test_a_master_refuses_a_slave_that_kept_what_it_lost(pair: Pair) -> None:
    forked(pair)
    assert pair.examines().verdict is not Verdict.SAME


def test_a_slave_that_nobody_knows_or_that_stands_elsewhere_is_not_compared(pair: Pair) -> None:
    pair.put(10)
    pair.ship()
    assert pair.examines(end=pair.slave.store.end - 50).verdict is Verdict.UNKNOWN
    pair.registered = {0: MASTER}
    found = pair.examines()
    assert found.verdict is Verdict.UNKNOWN and "no name server knows a slave" in found.why
    pair.registered = {0: MASTER, 1: SLAVE, 2: "10.0.0.3:10911"}
    assert pair.examines(host="10.0.0.77").verdict is Verdict.UNKNOWN  # which of the two?
    pair.registered = {0: MASTER, 1: SLAVE}
    assert pair.examines(host="10.0.0.77").verdict is Verdict.SAME  # it has two addresses
    pair.silent.add(SLAVE)
    assert pair.examines().verdict is Verdict.UNKNOWN


def test_half_a_message_of_a_stock_slave_counts_only_when_this_process_sent_it(pair: Pair) -> None:
    pair.put(10)
    whole = pair.master.store.end
    pair.put(10)
    pair.ship(whole + 100)
    found = pair.examines()
    assert found.verdict is Verdict.UNKNOWN and "inside a message" in found.why
    pair.sent.append(("10.0.0.2", whole + 100))
    assert pair.examines().verdict is Verdict.SAME


# -- entries ---------------------------------------------------------------------------------------


def test_the_entry_before_any_offset_is_found(pair: Pair) -> None:
    pair.put(80)
    log, found = pair.master.store.log, []
    offset = 0
    while offset < log.end:
        record = log.record_at(offset)
        stop = offset + len(record) if record is not None else offset - offset % SEGMENT + SEGMENT
        found.append((offset, stop, record is None))
        if record is not None:
            record.release()
        offset = stop
    assert any(blank for _, _, blank in found) and log.end > 2 * SEGMENT
    for (start, stop, blank), following in zip(
        found, [*found[1:], (log.end, 0, False)], strict=True
    ):
        entry = entry_before(log, stop)
        assert entry is not None and (entry.start, entry.stop, entry.blank) == (start, stop, blank)
        assert begins_entry(log, start) and begins_entry(log, stop)
        assert not begins_entry(log, start + 1)
        if following[1] and not blank:
            inside = entry_before(log, stop + 3)
            assert inside is not None and (inside.start, inside.stop) == (start, stop)
    assert entry_before(log, 0) is None and entry_before(log, 5) is None
    assert stretch_digest(log, 0, log.end + 1) is None


# -- passes ----------------------------------------------------------------------------------------


def a_slave(master: ClassicMaster, first: bytes, received: int) -> FakeWire:
    wire = FakeWire()
    number = master.sender.attach(wire, "10.0.0.2:50000")
    wire.inbox.append(first + encode_slave_frame(Report(received), Dialect.CLASSIC))
    master.sender.readable(number)
    return wire


def test_a_pass_is_good_once_for_one_place_for_a_while(pair: Pair) -> None:
    pair.put(3)
    master, end = pair.master.standing, pair.master.store.end
    assert isinstance(master, ClassicMaster)
    asked: list[CompareSlave] = []
    master.feed._handlers[CompareSlave] = [asked.append]
    gate = master.sender.gate
    assert gate is not None
    number = gate.give(end)
    wire = a_slave(master, encode_pass(number), end)
    assert wire.sent is not None and not wire.closed and len(master.core.slaves) == 1
    assert a_slave(master, encode_pass(number), end).closed  # used up
    late = gate.give(end)
    pair.master.clock.pass_ms(60_000)
    assert a_slave(master, encode_pass(late), end).closed
    assert not asked
    a_slave(master, encode_pass(gate.give(end - 1)), end)  # for another place: as if without
    a_slave(master, b"", end)
    assert len(asked) == 2 and len(master.core.slaves) == 1
    assert a_slave(master, b"", end + 1).closed
    assert any("beyond our end" in each for each in master.alarms_now())


# -- planted bugs: the story of the fork, and what each hole in the comparison makes of it -------------


def counted_after_fork(pair: Pair) -> bool:
    """Whether a slave that kept what its master lost counts as a copy once the master has grown past it."""
    forked(pair)
    master, end = pair.master.standing, pair.slave.store.end
    assert isinstance(master, ClassicMaster) and master.sender.gate is not None
    asked: list[CompareSlave] = []
    master.feed._handlers[CompareSlave] = [asked.append]
    pair.give = master.sender.gate.give  # type: ignore[method-assign]
    finding = pair.asks()
    if finding.verdict is Verdict.SAME:
        a_slave(master, encode_pass(finding.passport) if finding.passport else b"", end)
    a_slave(master, b"", end)  # one that reports without having asked
    for effect in asked:
        found = pair.examines(end=effect.end)
        master.feed.feed(SlaveCompared(effect.connection, effect.end, found.verdict, found.why))
    return bool(master.core.slaves)


def lengths_alone(core: Any, slave: Any, event: Any, effects: list[Any]) -> bool:
    """MasterCore._admit_classic as it was."""
    core.slaves[slave.replica] = slave
    return True


async def any_record_will_do(*arguments: Any) -> Finding:
    return Finding(Verdict.SAME)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "only lengths are compared": (MasterCore, "_admit_classic", lengths_alone),
    "checksums are not compared": (comparison, "stretch_digest", lambda *where: b"the same"),
    "a stock slave's record is not compared": (comparison, "compare_entry", any_record_will_do),
}


def test_a_fork_never_counts(pair: Pair) -> None:
    assert not counted_after_fork(pair)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_makes_a_fork_count(
    pair: Pair, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*PLANTED[name])
    assert counted_after_fork(pair)


# -- a log that cannot be dispatched -----------------------------------------------------------------


def test_a_slave_whose_dispatch_breaks_reports_nothing_more(pair: Pair) -> None:
    pair.put(3)
    pair.ship()
    slave = pair.slave.standing
    assert isinstance(slave, ClassicSlave)
    pair.slave.store.belong_to(Owner(broken=slave.dispatch_broken))
    pair.slave.store.append_raw(b"\x00\x00\x01\x00" + b"\x55" * 400, pair.slave.store.end)
    pair.slave.store.dispatch()
    assert slave.core.broken and "no sound record" in slave.core.broken
    (alarm,) = slave.alarms_now()
    assert "our log is broken" in alarm
    slave.heard(MASTER, "10.0.0.1:10912")
    assert not slave.core.streaming
    assert slave.core.state.value == "stopped"


def test_a_slave_that_is_started_with_broken_queues_follows_nobody(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreFlags, "queue_writable", False)
    broker = make_broker(brokerRole="SLAVE", brokerId="1").broker
    slave = broker.standing
    assert isinstance(slave, ClassicSlave)
    slave.heard(MASTER, "10.0.0.1:10912")
    assert slave.core.state.value == "stopped" and len(slave.alarms_now()) == 1
    assert broker.store.owner.broken == slave.dispatch_broken


# -- the operator's word -----------------------------------------------------------------------------


@pytest.mark.parametrize("common", [1, 10, 60])
def test_a_slave_is_cut_where_the_logs_part_once_and_only_when_told_so(
    pair: Pair, common: int
) -> None:
    pair.put(common)
    kept = pair.master.store.end
    pair.put(80)
    pair.ship()
    pair.lose_power(kept)
    pair.put(90)
    before = pair.slave.store.end
    assert pair.asks().verdict is Verdict.DIFFERS and pair.slave.store.end == before
    word_of(pair.slave.store).touch()
    found = pair.asks()
    assert found.verdict is Verdict.SAME and found.passport
    assert pair.slave.store.end == kept and pair.passes[-1] == kept
    assert not word_of(pair.slave.store).exists()
    (aside,) = setaside.listed(Path(pair.slave.config.storage.root))
    assert (aside.start, aside.end, aside.records) == (kept, before, 80)
    pair.ship()
    assert pair.asks().verdict is Verdict.SAME
    logs = [each.store.log for each in (pair.master, pair.slave)]
    assert stretch_digest(logs[0], 0, logs[0].end) == stretch_digest(logs[1], 0, logs[0].end)


def test_the_word_is_not_kept_for_a_later_fork(pair: Pair) -> None:
    """It was given for logs that were one after all; what the slave alone has later is not given up by it."""
    pair.put(10)
    pair.ship()
    word_of(pair.slave.store).touch()
    assert pair.asks().verdict is Verdict.SAME
    assert not word_of(pair.slave.store).exists()
    forked(pair)
    before = pair.slave.store.end
    assert pair.asks().verdict is Verdict.DIFFERS and pair.slave.store.end == before


def test_the_word_is_used_up_before_the_log_is_cut(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked(pair)
    word_of(pair.slave.store).touch()

    async def dies(*arguments: Any) -> None:
        raise OSError("the process died here")

    monkeypatch.setattr(parting, "cut_log", dies)
    with pytest.raises(OSError, match="died here"):
        pair.asks()
    assert not word_of(pair.slave.store).exists()


def test_a_slave_whose_log_starts_before_its_masters_is_cut_too(pair: Pair) -> None:
    pair.put(400)
    kept = pair.master.store.end
    pair.put(5)
    pair.ship()
    pair.lose_power(kept)
    pair.put(20)
    run = pair.master.store.log.run
    retired = [run.segments.pop(0) for _ in range(len(run.segments) - 2)]
    assert len(retired) > 4
    try:
        word_of(pair.slave.store).touch()
        assert pair.asks().verdict is Verdict.SAME
        assert pair.slave.store.end == kept
        # nothing in common with what the master has left: what it had before tells nothing
        word_of(pair.slave.store).touch()
        pair.lose_power(run.segments[0].start)
        pair.put(100, size=200)
        assert pair.asks().verdict is Verdict.DIFFERS and pair.slave.store.end == kept
    finally:
        run.segments[:0] = retired


def test_a_slave_with_nothing_in_common_is_not_cut_and_its_operator_hears_it(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """It was said of this fork. Armed for ever, it would cut one that its operator never saw."""
    pair.put(10)
    pair.ship()
    pair.lose_power(0)
    pair.put(20, size=200)
    word_of(pair.slave.store).touch()
    before = pair.slave.store.end
    found = pair.asks()
    assert found.verdict is Verdict.DIFFERS
    assert "seed it anew; cut-to-master is used up" in found.why
    assert pair.slave.store.end == before
    assert not word_of(pair.slave.store).exists()
    assert "not cut" in caplog.text
