"""A range of a queue is read exactly, or what is missing of it is named. No sockets; time jumps."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster
from timekit import run

from tandemmq.cluster.client import BrokerRefused, BrokerUnreachable, ClientConfig, MessageQueue
from tandemmq.cluster.client.consuming.ranges import MessagesGone, QueueRangeReader
from tandemmq.cluster.client.consuming.subscriptions import parse_subscription
from tandemmq.cluster.client.reaching import instance
from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode

QUEUE = MessageQueue("T", "a", 0)
BODIES = [b"%d" % number for number in range(100)]
PULL = RequestCode.PULL_MESSAGE
Reads = Callable[[QueueRangeReader], Awaitable[None]]


class Group(FakeCluster):
    """One broker name with a master and a slave."""

    def __init__(self, channels: bool) -> None:
        super().__init__(channels)
        self.master, self.slave = self._member("127.0.0.1:10911"), self._member("127.0.0.1:10921")
        self.topics["T"] = {"a": 1}
        self.registered = {"0": self.master, "1": self.slave}

    def _member(self, address: str) -> FakeBroker:
        member = self.brokers[address] = FakeBroker(self, "a", address)
        return member

    def route_body(self, counts: dict[str, int]) -> bytes:
        tree = json.loads(super().route_body(counts))
        addresses = {number: each.address for number, each in self.registered.items()}
        tree["brokerDatas"] = [{"cluster": "C", "brokerName": "a", "brokerAddrs": addresses}]
        return json.dumps(tree).encode()


@pytest.fixture
def group(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    made = Group(cluster.channels)
    monkeypatch.setattr(instance, "open_channel", made.open_channel)
    yield made


def with_reader(
    group: Group,
    start: int,
    end: int,
    reads: Reads,
    tags: str = "*",
    patience_ms: int = 5_000,
    decoded: bool = True,
) -> None:
    async def main() -> None:
        await group.master.fill("T", 0, BODIES, TAGS="even")
        await group.slave.fill("T", 0, BODIES[:60], TAGS="even")
        leased = await instance.lease(ClientConfig(NAME_SERVER))
        try:
            wanted = parse_subscription("T", tags, 0)
            reader = QueueRangeReader(
                leased, "G", QUEUE, start, end, wanted, patience_ms, decoded=decoded
            )
            await reads(reader)
        finally:
            await instance.release(leased)

    run(main())


async def rest(reader: QueueRangeReader) -> list[bytes]:
    found: list[bytes] = []
    while messages := await reader.read():
        found += [each.body for each in messages]
    return found


def pulls(broker: FakeBroker) -> list[int]:
    return [int((each.ext or {})["queueOffset"]) for each in broker.requests if each.code == PULL]


def answering(
    code: int, following: int, min_offset: int, max_offset: int
) -> Callable[[Command], Command | None]:
    """Every pull is answered so."""

    def trouble(command: Command) -> Command | None:
        if command.code != PULL:
            return None
        fields = {
            "nextBeginOffset": str(following), "minOffset": str(min_offset), "maxOffset": str(max_offset),
            "suggestWhichBrokerId": "0",
        }  # fmt: skip
        return command.reply(code, ext=fields)

    return trouble


def test_range_is_read_from_its_start_to_its_end_and_no_further(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        assert await rest(reader) == BODIES[10:20]
        assert await reader.read() == ()

    with_reader(group, 10, 20, reads)


def test_empty_range_asks_nobody(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        assert await rest(reader) == []
        assert pulls(group.master) == []

    with_reader(group, 20, 20, reads)


def test_tags_leave_out_and_the_range_still_ends(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        assert await rest(reader) == []
        assert reader.at == 100

    with_reader(group, 0, 100, reads, tags="odd")


def test_slave_is_read_where_the_master_says_so_and_the_rest_of_its_master(group: Group) -> None:
    pulled = type(group.master)._pulled

    def suggest(
        command: Command, code: int, following: int, queue: list[bytes], body: bytes = b""
    ) -> Command:
        answer = pulled(group.master, command, code, following, queue, body)
        assert answer.ext is not None
        answer.ext["suggestWhichBrokerId"] = "1"
        return answer

    async def reads(reader: QueueRangeReader) -> None:
        group.master._pulled = suggest  # type: ignore[method-assign]
        group.master.trouble = first_pull_gets(30)
        assert await rest(reader) == BODIES
        assert pulls(group.slave)[0] == 30  # where the master's first answer ended
        assert pulls(group.master)[1:] == [60]  # the slave has no more

    def first_pull_gets(count: int) -> Callable[[Command], None]:
        def trouble(command: Command) -> None:
            if command.code == PULL and command.ext is not None and len(pulls(group.master)) == 1:
                command.ext["maxMsgNums"] = str(count)

        return trouble

    with_reader(group, 0, 100, reads)


def test_master_that_is_away_is_waited_for(group: Group) -> None:
    failures = iter(range(3))

    def trouble(command: Command) -> Command | None:
        if command.code == PULL and next(failures, None) is not None:
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "not the master yet")
        return None

    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = trouble
        assert await rest(reader) == BODIES

    with_reader(group, 0, 100, reads)


def test_slave_stands_in_for_a_master_that_is_gone(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        group.master.down = True
        del group.registered["0"]
        assert await rest(reader) == BODIES[:60]

    with_reader(group, 0, 60, reads)


def test_group_that_stays_away_is_an_error_in_time(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        group.master.down = group.slave.down = True
        with pytest.raises(BrokerUnreachable):
            await reader.read()

    with_reader(group, 0, 10, reads)


def test_refusal_that_does_not_pass_is_raised_at_once(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = lambda command: (
            command.reply(ResponseCode.NO_PERMISSION, "no") if command.code == PULL else None
        )
        with pytest.raises(BrokerRefused, match="CODE: 16"):
            await reader.read()
        assert len(pulls(group.master)) == 1

    with_reader(group, 0, 10, reads)


def test_messages_that_retention_took_are_named_and_can_be_skipped(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = answering(ResponseCode.PULL_OFFSET_MOVED, 40, 40, 100)
        with pytest.raises(MessagesGone) as gone:
            await reader.read()
        assert (gone.value.start, gone.value.end) == (10, 40)
        reader.skip_to(gone.value.end)
        group.master.trouble = lambda command: None
        assert await rest(reader) == BODIES[40:]

    with_reader(group, 10, 100, reads)


def test_a_range_behind_a_loss_is_refused_with_its_reason(group: Group) -> None:
    """INV-42. What is there at these offsets may be others than the plan meant."""

    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = answering(ResponseCode.PULL_OFFSET_MOVED, 5, 0, 100)
        with pytest.raises(MessagesGone, match="from here to 5: after a loss") as gone:
            await reader.read()
        assert (gone.value.start, gone.value.end) == (10, 100)

    with_reader(group, 10, 100, reads)


def test_hole_inside_a_queue_is_named(group: Group) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        del group.master.queues["T", 0][20:25]  # a pull from 20 on brings 25 first
        found: list[bytes] = []
        with pytest.raises(MessagesGone) as gone:
            while True:
                found += [each.body for each in await reader.read()]
        assert found == BODIES[:20]
        assert (gone.value.start, gone.value.end) == (20, 25)

    with_reader(group, 0, 100, reads)


@pytest.mark.parametrize("tags", ["*", "even"])
def test_what_was_never_written_is_an_error_after_some_patience(group: Group, tags: str) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        with pytest.raises(MessagesGone, match="the queue ends at 100") as gone:
            await rest(reader)
        assert (gone.value.start, gone.value.end) == (100, 120)

    with_reader(group, 90, 120, reads, tags=tags)


def test_what_comes_late_is_waited_for(group: Group) -> None:
    late = iter([[], [], [b"late"]])

    async def reads(reader: QueueRangeReader) -> None:
        seen: list[bytes] = list(await rest_of(reader))
        assert seen == [b"late"]

    async def rest_of(reader: QueueRangeReader) -> list[bytes]:
        def trouble(command: Command) -> None:
            if command.code == PULL:
                for body in next(late, []):
                    group.master.queues["T", 0].append(stored(group, body))

        group.master.trouble = trouble
        return await rest(reader)

    with_reader(group, 100, 101, reads)


def limited(sizes: Callable[[int], int]) -> Callable[[Command], None]:
    """A broker that ends the answer to a pull of an offset after so many messages."""

    def trouble(command: Command) -> None:
        if command.code == PULL and command.ext is not None:
            command.ext["maxMsgNums"] = str(sizes(int(command.ext["queueOffset"])))

    return trouble


@pytest.mark.parametrize("decoded", [True, False])
def test_pulls_go_ahead_while_answers_are_of_one_length(group: Group, decoded: bool) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = limited(lambda offset: 5)
        assert await rest(reader) == BODIES
        assert pulls(group.master) == list(range(0, 100, 5))  # each once
        if group.channels:
            assert ahead > 4

    ahead = 0

    async def watched(reader: QueueRangeReader) -> None:
        nonlocal ahead
        take = reader._ahead.take

        def taken(channel: Any, offset: int, end: int) -> Any:
            nonlocal ahead
            found = take(channel, offset, end)
            ahead = max(ahead, len(reader._ahead._under_way))
            return found

        reader._ahead.take = taken  # type: ignore[method-assign]
        await reads(reader)

    with_reader(group, 0, 100, watched, decoded=decoded)


@pytest.mark.parametrize("sizes", [lambda n: 5 if n < 50 else 3, lambda n: 1 + n * 7 % 5])
def test_wrong_guesses_ahead_change_nothing(group: Group, sizes: Callable[[int], int]) -> None:
    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = limited(sizes)
        assert await rest(reader) == BODIES

    with_reader(group, 0, 100, reads)


def test_pulls_ahead_of_a_master_that_goes_away_are_asked_again(group: Group) -> None:
    failures = iter(range(4))

    def trouble(command: Command) -> Command | None:
        limited(lambda offset: 5)(command)
        late = command.code == PULL and int((command.ext or {})["queueOffset"]) >= 40
        if late and next(failures, None) is not None:
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "not the master any more")
        return None

    async def reads(reader: QueueRangeReader) -> None:
        group.master.trouble = trouble
        assert await rest(reader) == BODIES

    with_reader(group, 0, 100, reads)


def stored(group: Group, body: bytes) -> bytes:
    """A record as the master would have it next."""
    from clientkit import HOST

    from tandemmq.storage import Draft, encode, encode_properties

    queue = group.master.queues["T", 0]
    draft = Draft("T", 0, body, encode_properties({"TAGS": "even"}), 0, 0, 1, HOST, HOST)
    return encode(draft, len(queue), group.master.log_end, 1_000)
