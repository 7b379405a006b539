"""The push consumer: delivery, commits, failures, rebalance. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, FakeWire, MemoryTransport
from timekit import run

from tandemmq.cluster.client import (
    BrokerRefused,
    CacheLimits,
    ConsumeResult,
    MessageModel,
    MessageQueue,
    MessageRefused,
    NoNameServer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sql92,
    StartFrom,
)
from tandemmq.cluster.client.consuming.rebalance import Allocation
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.cluster.remoting.codes import ResponseCode

Handler = Callable[[ReceivedMessage], Awaitable[ConsumeResult | None]]


class Inbox:
    """Collects messages and lets tests wait for them."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, count: int) -> list[bytes]:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)
        return [message.body for message in self.messages]


def consumer(handler: object, **options: object) -> PushConsumer:
    options.setdefault("subscribe", {"T": "*"})
    return PushConsumer("CG", handler, namesrv=NAME_SERVER, **options)  # type: ignore[arg-type]


def committed(broker: FakeBroker, topic: str = "T") -> dict[int, int]:
    return {
        queue_id: offset
        for (group, of_topic, queue_id), offset in sorted(broker.offsets.items())
        if group == "CG" and of_topic == topic
    }


def test_every_message_is_delivered_and_committed_at_stop(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def main() -> None:
        inbox = Inbox()
        for queue_id in range(2):
            await broker.fill("T", queue_id, [b"%d-%d" % (queue_id, n) for n in range(40)])
        async with consumer(inbox, start=StartFrom.FIRST) as running:
            assert [str(queue) for queue in running.assignment][-2:] == [
                "T@broker-a:0", "T@broker-a:1"
            ]  # fmt: skip
            assert len(set(await inbox.wait(80))) == 80
        assert committed(broker) == {0: 40, 1: 40}

    run(main())


def test_messages_sent_later_arrive_through_the_held_pull(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox):
            await asyncio.sleep(40)
            await broker.fill("T", 0, [b"late"])
            assert await inbox.wait(1) == [b"late"]
        pulls = broker.codes().count(RequestCode.PULL_MESSAGE)
        assert pulls < 20

    run(main())


@pytest.mark.parametrize(
    ("start", "expected"),
    [(StartFrom.FIRST, [b"0", b"1", b"2"]), (StartFrom.LAST, []), (StartFrom.TIMESTAMP, [b"2"])],
)
def test_new_group_starts_where_it_was_told(
    cluster: FakeCluster, start: StartFrom, expected: list[bytes]
) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> list[bytes]:
        inbox = Inbox()
        await broker.fill("T", 0, [b"0", b"1", b"2"])  # stored at 1000, 1001, 1002
        async with consumer(inbox, start=start, start_ms=1_002):
            await asyncio.sleep(5)
        return [message.body for message in inbox.messages]

    assert run(main()) == expected


def test_first_message_of_a_topic_that_comes_while_a_group_asks_where_to_begin_is_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue was empty when its position was asked for, and one message long when its end was."""
    broker = cluster.add("broker-a", "T", 1)
    answer_max = broker.handle_get_max_offset

    async def first_comes_now(command: Command, wire: FakeWire) -> Command:
        if not broker.young_topic_rule:
            await broker.fill("T", 0, [b"first"])
            broker.young_topic_rule = True
        return await answer_max(command, wire)

    monkeypatch.setattr(broker, "handle_get_max_offset", first_comes_now)

    async def main() -> list[bytes]:
        inbox = Inbox()
        async with consumer(inbox):
            return await inbox.wait(1)

    assert run(main()) == [b"first"]


def test_committed_position_wins_over_the_start_policy(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    broker.offsets["CG", "T", 0] = 2

    async def main() -> list[bytes]:
        inbox = Inbox()
        await broker.fill("T", 0, [b"0", b"1", b"2"])
        async with consumer(inbox, start=StartFrom.FIRST):
            return await inbox.wait(1)

    assert run(main()) == [b"2"]


def test_tag_expression_filters_and_the_position_passes_what_it_left_out(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> list[bytes]:
        inbox = Inbox()
        await broker.fill("T", 0, [b"a"], TAGS="A")
        await broker.fill("T", 0, [b"b"], TAGS="B")
        await broker.fill("T", 0, [b"c"], TAGS="C")
        async with consumer(inbox, subscribe={"T": "A || B"}, start=StartFrom.FIRST):
            await asyncio.sleep(7)
            assert committed(broker) == {0: 3}
        return [message.body for message in inbox.messages]

    assert run(main()) == [b"a", b"b"]


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_failed_message_is_sent_back_and_counts_as_consumed(cluster: FakeCluster, how: str) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def fail(message: ReceivedMessage) -> ConsumeResult:
        if how == "raises":
            raise KeyError("not today")
        return ConsumeResult.RECONSUME_LATER

    async def main() -> None:
        await broker.fill("T", 0, [b"x"])
        async with consumer(fail, start=StartFrom.FIRST, reconsume_times_max=5):
            await asyncio.sleep(6)
            assert committed(broker) == {0: 1}

    run(main())
    (back,) = broker.sent_back
    assert back["group"] == "CG"
    assert back["offset"] == "0"
    assert back["delayLevel"] == "0"
    assert back["originTopic"] == "T"
    assert back["maxReconsumeTimes"] == "5"


def test_message_that_cannot_be_sent_back_goes_to_the_retry_topic_of_another_broker(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    broker.trouble = lambda command: (
        command.reply(1, "no") if command.code == RequestCode.CONSUMER_SEND_MSG_BACK else None
    )
    tries: list[int] = []

    async def fail_once(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if len(tries) == 1:
            raise ValueError("first time")

    async def main() -> None:
        await broker.fill("T", 0, [b"x"], UNIQ_KEY="U1")
        async with consumer(fail_once, start=StartFrom.FIRST):
            await asyncio.sleep(30)

    run(main())
    sends = [each for each in broker.requests if each.code == RequestCode.SEND_MESSAGE_V2]
    fields = sends[0].ext or {}
    assert fields["b"] == "%RETRY%CG"
    assert (fields["j"], fields["l"]) == ("1", "16")
    for part in ("RETRY_TOPIC\x01T", "DELAY\x013", "UNIQ_KEY\x01U1", "ORIGIN_MESSAGE_ID\x01"):
        assert part in fields["i"]
    assert len(tries) == 2  # once from T, once from the retry topic


def test_message_that_no_broker_takes_back_is_tried_again_here(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    refused = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
    broker.trouble = lambda command: command.reply(1, "no") if command.code in refused else None
    tries: list[int] = []

    async def fail_twice(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if len(tries) < 3:
            raise ValueError("again")

    async def main() -> None:
        await broker.fill("T", 0, [b"x"])
        async with consumer(fail_twice, start=StartFrom.FIRST):
            await asyncio.sleep(4)
            assert committed(broker) == {}  # nothing consumed yet, nothing to commit
            await asyncio.sleep(20)
        assert committed(broker) == {0: 1}

    run(main())
    assert tries == [0, 1, 2]


def test_position_waits_for_the_oldest_unfinished_message(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        release = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.queue_offset == 1:
                await release.wait()

        await broker.fill("T", 0, [b"x"] * 10)
        async with consumer(handle, start=StartFrom.FIRST):
            await asyncio.sleep(11)
            assert committed(broker) == {0: 1}
            release.set()
            await asyncio.sleep(11)
            assert committed(broker) == {0: 10}

    run(main())


def test_pulling_stops_while_the_cache_is_full(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        release = asyncio.Event()
        inbox = Inbox()

        async def handle(message: ReceivedMessage) -> None:
            await release.wait()
            await inbox(message)

        await broker.fill("T", 0, [b"%d" % number for number in range(100)])
        limits = CacheLimits(messages_max=10)
        async with consumer(handle, start=StartFrom.FIRST, limits=limits, pull_count=5):
            await asyncio.sleep(30)
            pulls = broker.codes().count(RequestCode.PULL_MESSAGE)
            await asyncio.sleep(1_000)
            retry_pulls = 1_030 // 15 + 2  # the retry topic's queue is polled all the time
            assert broker.codes().count(RequestCode.PULL_MESSAGE) - pulls <= retry_pulls
            release.set()
            assert len(await inbox.wait(100)) == 100

    run(main())


def test_two_members_share_the_queues_and_the_rest_takes_over(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 4)

    def own(running: PushConsumer) -> set[int]:
        return {queue.queue_id for queue in running.assignment if queue.topic == "T"}

    async def main() -> None:
        async with consumer(Inbox()) as first:
            assert own(first) == {0, 1, 2, 3}
            async with consumer(Inbox()) as second:
                await asyncio.sleep(1)
                assert len(own(first)) == len(own(second)) == 2
                assert own(first) | own(second) == {0, 1, 2, 3}
            await asyncio.sleep(1)
            assert own(first) == {0, 1, 2, 3}

    run(main())


def test_queue_that_moves_is_committed_before_the_new_owner_reads_it(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def main() -> None:
        first, second = Inbox(), Inbox()
        for queue_id in range(2):
            await broker.fill("T", queue_id, [b"%d-%d" % (queue_id, n) for n in range(10)])
        async with consumer(first, start=StartFrom.FIRST):
            await first.wait(20)
            async with consumer(second, start=StartFrom.FIRST):
                await asyncio.sleep(10)
                for queue_id in range(2):
                    await broker.fill("T", queue_id, [b"%d-new" % queue_id])
                await asyncio.sleep(10)
        bodies = [message.body for message in first.messages + second.messages]
        assert sorted(bodies) == sorted(set(bodies))
        assert len(bodies) == 22
        assert len(second.messages) == 1

    run(main())


def test_stop_waits_for_the_listener_at_work_and_commits_its_message(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        started = asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            started.set()
            await asyncio.sleep(3)

        await broker.fill("T", 0, [b"x"])
        running = consumer(slow, start=StartFrom.FIRST)
        await running.start()
        await started.wait()
        await running.stop()

    run(main())
    assert committed(broker) == {0: 1}
    assert broker.codes()[-1] == RequestCode.UNREGISTER_CLIENT


def test_stop_gives_up_on_a_listener_that_hangs_and_does_not_commit_it(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> float:
        loop = asyncio.get_running_loop()

        async def hang(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        await broker.fill("T", 0, [b"x"])
        running = consumer(hang, start=StartFrom.FIRST, stop_timeout_ms=2_000)
        await running.start()
        await asyncio.sleep(1)
        began = loop.time()
        await running.stop()
        return loop.time() - began

    assert 1.9 < run(main()) < 2.5
    assert committed(broker) == {}


def test_broker_that_was_away_is_read_again_when_it_is_back(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox, start=StartFrom.FIRST):
            await broker.fill("T", 0, [b"before"])
            await inbox.wait(1)
            broker.down = True
            for wire in cluster.wires:
                wire.closed = True
            broker.members.clear()
            await asyncio.sleep(60)
            broker.down = False
            await broker.fill("T", 0, [b"after"])
            assert await inbox.wait(2) == [b"before", b"after"]
            await asyncio.sleep(31)
            assert broker.members["CG"]  # a heartbeat told it who we are

    run(main())


def goes_away(cluster: FakeCluster, broker: FakeBroker) -> None:
    """As with kill -9: the name server takes it out of the routes, others stay."""
    broker.down = True
    broker.members.clear()
    for wire in cluster.wires:
        if wire._address != broker.address:
            continue
        if isinstance(wire, MemoryTransport):
            wire.lose()
        else:
            wire.closed = True
    del cluster.topics["T"][broker.name]


@pytest.mark.parametrize("orderly", [False, True])
def test_what_was_finished_is_not_read_again_when_its_broker_comes_back_with_an_older_position(
    cluster: FakeCluster, orderly: bool
) -> None:
    one, two = cluster.add("broker-a", "T", 1), cluster.add("broker-b", "T", 1)

    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox, start=StartFrom.FIRST, orderly=orderly) as running:
            await one.fill("T", 0, [b"a%d" % n for n in range(100)])
            await two.fill("T", 0, [b"b%d" % n for n in range(100)])
            await inbox.wait(200)
            await asyncio.sleep(60)
            await one.fill("T", 0, [b"late%d" % n for n in range(10)])
            await inbox.wait(210)
            goes_away(cluster, one)  # before the position of the ten was committed
            await asyncio.sleep(60)
            assert {each.broker_name for each in running.assignment if each.topic == "T"} == {
                "broker-b"
            }
            one.offsets["CG", "T", 0] = 30
            one.locks.clear()
            cluster.topics["T"]["broker-a"] = 1
            one.down = False
            await one.fill("T", 0, [b"after"])
            await inbox.wait(211)
            await asyncio.sleep(60)
        bodies = [message.body for message in inbox.messages]
        assert len(bodies) == len(set(bodies)) == 211
        assert committed(one) == {0: 111}

    run(main())


def test_a_place_in_a_log_that_was_cut_meanwhile_is_not_believed(cluster: FakeCluster) -> None:
    one = cluster.add("broker-a", "T", 1)
    cluster.add("broker-b", "T", 1)

    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox, start=StartFrom.FIRST):
            await one.fill("T", 0, [b"a%d" % n for n in range(100)])
            await inbox.wait(100)
            goes_away(cluster, one)
            await asyncio.sleep(60)
            del one.queues["T", 0][50:]  # a power cut
            one.log_end = 100 * 50
            one.offsets["CG", "T", 0] = 40
            await one.fill("T", 0, [b"new%d" % n for n in range(80)])
            cluster.topics["T"]["broker-a"] = 1
            one.down = False
            await asyncio.sleep(60)
        bodies = [message.body for message in inbox.messages]
        assert bodies[100:] == [
            *(b"a%d" % n for n in range(40, 50)),
            *(b"new%d" % n for n in range(80)),
        ]

    run(main())


def test_a_queue_that_another_member_had_meanwhile_begins_where_that_one_left_it(
    cluster: FakeCluster,
) -> None:
    one = cluster.add("broker-a", "T", 1)
    cluster.add("broker-b", "T", 1)

    def of_broker(name: str, alone: bool) -> Allocation:
        def allocate(
            queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
        ) -> Sequence[MessageQueue]:
            if alone and len(client_ids) == 1:
                return queues
            return [queue for queue in queues if queue.broker_name == name]

        return allocate

    def keeps_no_position(command: Command) -> Command | None:
        if command.code != RequestCode.UPDATE_CONSUMER_OFFSET:
            return None
        return command.reply()

    async def main() -> None:
        first, second = Inbox(), Inbox()
        keeper = consumer(
            first, start=StartFrom.FIRST, allocation=of_broker("broker-b", alone=True)
        )
        other = consumer(
            second, start=StartFrom.FIRST, allocation=of_broker("broker-a", alone=False)
        )
        async with keeper:
            await one.fill("T", 0, [b"a%d" % n for n in range(10)])
            await first.wait(10)
            goes_away(cluster, one)
            await asyncio.sleep(60)
            async with other:
                cluster.topics["T"]["broker-a"] = 1
                one.down = False
                one.offsets["CG", "T", 0] = 5
                assert await second.wait(5) == [b"a%d" % n for n in range(5, 10)]
                await asyncio.sleep(60)
                one.offsets["CG", "T", 0] = 7  # the group was set back
                one.trouble = keeps_no_position
            await asyncio.sleep(60)
        assert [each.body for each in first.messages[10:]] == [b"a7", b"a8", b"a9"]

    run(main())


def test_position_that_the_broker_refuses_is_replaced_by_its_own(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    broker.offsets["CG", "T", 0] = 500

    async def main() -> None:
        inbox = Inbox()
        await broker.fill("T", 0, [b"x"] * 3)
        async with consumer(inbox):
            await asyncio.sleep(1)
            await broker.fill("T", 0, [b"new"])
            assert await inbox.wait(1) == [b"new"]
        assert committed(broker) == {0: 4}

    run(main())


def test_topic_that_appears_later_is_read_when_it_does(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a")

    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox, start=StartFrom.FIRST) as running:
            assert running.assignment == ()
            await asyncio.sleep(100)
            cluster.topics["T"] = {"broker-a": 1}
            await broker.fill("T", 0, [b"x"])
            assert await inbox.wait(1) == [b"x"]

    run(main())


def test_new_queues_of_a_topic_are_taken_after_the_route_is_refreshed(
    cluster: FakeCluster,
) -> None:
    cluster.add("broker-a", "T", 1)
    cluster.add("broker-b")

    async def main() -> None:
        async with consumer(Inbox()) as running:
            cluster.topics["T"] = {"broker-a": 2, "broker-b": 1}
            await asyncio.sleep(40)
            names = [str(queue) for queue in running.assignment if queue.topic == "T"]
            assert names == ["T@broker-a:0", "T@broker-a:1", "T@broker-b:0"]

    run(main())


def test_topic_that_is_just_being_created_is_complete_within_seconds(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 1)
    cluster.add("broker-b")

    async def main() -> None:
        async with consumer(Inbox()) as running:
            await asyncio.sleep(2)
            cluster.topics["T"]["broker-b"] = 1
            await asyncio.sleep(4)
            names = [str(queue) for queue in running.assignment if queue.topic == "T"]
            assert names == ["T@broker-a:0", "T@broker-b:0"]
            looks = cluster.route_requests.count("T")
            await asyncio.sleep(600)
            assert cluster.route_requests.count("T") - looks < 600 / 30 + 6

    run(main())


def test_subscription_added_and_removed_while_running_takes_effect(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics["U"] = {"broker-a": 1}

    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox, start=StartFrom.FIRST) as running:
            running.subscribe("U")
            running.unsubscribe("T")
            await broker.fill("U", 0, [b"u"])
            assert await inbox.wait(1) == [b"u"]
            await asyncio.sleep(5)
            assert {queue.topic for queue in running.assignment} == {"U", "%RETRY%CG"}
            topics = [
                each["topic"]
                for each in broker.heartbeats[-1]["consumerDataSet"][0]["subscriptionDataSet"]
            ]
            assert topics == ["%RETRY%CG", "U"]

    run(main())


def test_retried_message_shows_its_own_topic_again(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics["%RETRY%CG"] = {"broker-a": 1}

    async def main() -> None:
        inbox = Inbox()
        await broker.fill("%RETRY%CG", 0, [b"again"], RETRY_TOPIC="T")
        async with consumer(inbox):
            await inbox.wait(1)
        (message,) = inbox.messages
        assert message.topic == "T"
        assert message.queue.topic == "%RETRY%CG"

    run(main())


def test_broadcasting_reads_every_queue_and_keeps_positions_in_a_file(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    broker = cluster.add("broker-a", "T", 2)
    broadcasting = {"model": MessageModel.BROADCASTING, "offsets_dir": tmp_path}

    async def main() -> None:
        first, second, third = Inbox(), Inbox(), Inbox()
        await broker.fill("T", 0, [b"0"])
        await broker.fill("T", 1, [b"1"])
        first_start = {**broadcasting, "start": StartFrom.FIRST}
        async with (
            consumer(first, **first_start),
            consumer(second, instance_name="other", **first_start),
        ):
            assert sorted(await first.wait(2)) == sorted(await second.wait(2)) == [b"0", b"1"]
        await broker.fill("T", 1, [b"2"])
        async with consumer(third, **first_start):
            assert await third.wait(1) == [b"2"]

    run(main())
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in broker.codes()
    stored = json.loads((tmp_path / "10.0.0.9@DEFAULT" / "CG" / "offsets.json").read_text())
    key = '{"brokerName":"broker-a","queueId":1,"topic":"T"}'
    assert stored["offsetTable"][key] == 2


@pytest.mark.parametrize("model", MessageModel)
@pytest.mark.parametrize("word", ["OFFSET_OVERFLOW_BADLY", "OFFSET_RESET"])
def test_reader_that_is_moved_back_drops_nothing_that_it_has_not_consumed_unless_an_operator_says_so(
    cluster: FakeCluster, tmp_path: Path, model: MessageModel, word: str
) -> None:
    """The broker knows how far it read, and may not know how far it came (INV-42): in the last 5 s it may have died."""
    broker = cluster.add("broker-a", "T", 1)
    moved: list[str] = []

    def behind_a_loss(command: Command) -> Command | None:
        if command.code != RequestCode.PULL_MESSAGE or (command.ext or {})["queueOffset"] != "3":
            return None
        if moved:
            return None
        moved.append("once")
        fields = {
            "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "3", "suggestWhichBrokerId": "0"
        }  # fmt: skip
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, word, ext=fields)

    async def main() -> None:
        consumed: list[bytes] = []
        may_go_on = asyncio.Event()

        async def slowly(message: ReceivedMessage) -> None:
            await may_go_on.wait()
            consumed.append(message.body)

        expected = {b"2"} if word == "OFFSET_RESET" else {b"0", b"1", b"2"}
        await broker.fill("T", 0, [b"0", b"1", b"2"])
        broker.trouble = behind_a_loss
        async with consumer(
            slowly, model=model, offsets_dir=tmp_path, start=StartFrom.FIRST, concurrency=1
        ):
            async with asyncio.timeout(10):
                while not moved:  # noqa: ASYNC110 - the broker's side of it
                    await asyncio.sleep(0.01)
                may_go_on.set()
                while not expected <= set(consumed):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1)
        # the first was with the listener when its queue was moved
        assert set(consumed) | {b"0"} == expected | {b"0"}

    run(main())


def test_a_move_to_where_the_reader_stands_is_no_busy_loop(cluster: FakeCluster) -> None:
    """So answers RocketMQ with a tiered store while a queue is not there yet: pulls and log lines would know no end."""
    broker = cluster.add("broker-a", "T", 1)
    asked: list[str] = []

    def stand_still(command: Command) -> Command | None:
        if command.code != RequestCode.PULL_MESSAGE or (command.ext or {})["queueOffset"] != "1":
            return None
        asked.append("again")
        if len(asked) > 100:
            raise AssertionError("a busy loop")
        if len(broker.queues["T", 0]) > 1:
            return None
        fields = {
            "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"
        }  # fmt: skip
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, ext=fields)

    async def main() -> None:
        await broker.fill("T", 0, [b"0"])
        broker.trouble = stand_still
        inbox = Inbox()
        async with consumer(inbox, start=StartFrom.FIRST):
            await inbox.wait(1)
            await asyncio.sleep(10)
            await broker.fill("T", 0, [b"1"])
            assert await inbox.wait(2) == [b"0", b"1"]
        assert 5 <= len(asked) <= 20

    run(main())


def test_failed_message_of_a_broadcasting_group_is_skipped(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    tries: list[bytes] = []

    async def fail(message: ReceivedMessage) -> None:
        tries.append(message.body)
        raise ValueError("no")

    async def main() -> None:
        await broker.fill("T", 0, [b"x"])
        async with consumer(
            fail, model=MessageModel.BROADCASTING, offsets_dir=tmp_path, start=StartFrom.FIRST
        ):
            await asyncio.sleep(30)

    run(main())
    assert tries == [b"x"]
    assert broker.sent_back == []


async def test_plain_listener_runs_in_threads_and_does_not_block_the_loop(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    await broker.fill("T", 0, [b"x"] * 4)
    loop = asyncio.get_running_loop()
    together, all_there = [], asyncio.Event()
    release = asyncio.Event()

    def handle(message: ReceivedMessage) -> None:
        together.append(message)
        if len(together) == 4:
            loop.call_soon_threadsafe(all_there.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)

    async with asyncio.timeout(20):
        async with consumer(handle, start=StartFrom.FIRST):
            await all_there.wait()  # four threads wait at once and the loop is free to notice
            release.set()
    assert committed(broker) == {0: 4}


def test_start_without_a_name_server_fails_and_leaves_nothing_behind(cluster: FakeCluster) -> None:
    cluster.name_server_down = True

    async def main() -> None:
        running = consumer(Inbox())
        with pytest.raises(NoNameServer):
            await running.start()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert [task.get_name() for task in others if not task.get_name().startswith("Task-")] == []

    run(main())


def test_group_and_subscription_are_checked_when_the_consumer_is_made() -> None:
    with pytest.raises(MessageRefused, match="DEFAULT_CONSUMER"):
        PushConsumer("DEFAULT_CONSUMER", Inbox(), namesrv=NAME_SERVER)
    with pytest.raises(MessageRefused, match="names no tag"):
        consumer(Inbox(), subscribe={"T": "||"})
    with pytest.raises(ValueError, match="concurrency"):
        consumer(Inbox(), concurrency=0)


def test_a_filter_is_checked_here_and_by_the_brokers_before_the_first_pull(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    with pytest.raises(MessageRefused, match="refused at character 8: expected a property"):
        Sql92("price >")

    def refuse(command: Command) -> Command | None:
        if command.code != RequestCode.CHECK_CLIENT_CONFIG:
            return None
        wanted = json.loads(bytes(command.body or b""))["subscriptionData"]
        assert (wanted["subString"], wanted["expressionType"]) == ("price > 5", "SQL92")
        assert (wanted["tagsSet"], wanted["codeSet"]) == ([], [])
        return command.reply(1, "The broker does not support consumer to filter message by SQL92")

    broker.trouble = refuse

    async def main() -> None:
        with pytest.raises(BrokerRefused, match="Set enablePropertyFilter=true"):
            await consumer(Inbox(), subscribe={"T": Sql92("price > 5")}).start()
        with pytest.raises(BrokerRefused, match="filter message by SQL92"):
            await PullConsumer(
                "G", namesrv=NAME_SERVER, subscribe={"T": Sql92("price > 5")}
            ).start()
        async with PullConsumer("G", namesrv=NAME_SERVER) as running:
            with pytest.raises(BrokerRefused, match="filter message by SQL92"):
                await running.assign(await running.queues("T"), Sql92("price > 5"))

    run(main())
    assert RequestCode.PULL_MESSAGE not in broker.codes()


def test_pulls_and_heartbeats_carry_the_filter(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    broker.trouble = lambda command: (
        command.reply() if command.code == RequestCode.CHECK_CLIENT_CONFIG else None
    )

    async def main() -> None:
        async with consumer(Inbox(), subscribe={"T": Sql92("price > 5")}) as running:
            await asyncio.sleep(1)
            running.subscribe("T", Sql92("price > 7"))
            await asyncio.sleep(40)

    run(main())
    pulls = [c.ext or {} for c in broker.requests if c.code == RequestCode.PULL_MESSAGE]
    told = [(pull["subscription"], pull["expressionType"], pull["sysFlag"]) for pull in pulls]
    assert {(text, kind, int(flags) & 4) for text, kind, flags in told if "price" in text} == {
        ("price > 5", "SQL92", 4),
        ("price > 7", "SQL92", 4),
    }
    assert {kind for text, kind, _ in told if "price" not in text} <= {"TAG"}
    assert '"expressionType":"SQL92"' in json.dumps(broker.heartbeats, separators=(",", ":"))


def test_consumer_without_a_subscription_does_not_start(cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match="subscribes to nothing"):
        run(consumer(Inbox(), subscribe={}).start())


def test_wait_returns_after_stop_and_raises_what_broke(cluster: FakeCluster) -> None:
    cluster.channels = False  # a call can raise here what a connection never brings
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with consumer(Inbox()) as running:
            waiting = asyncio.create_task(running.wait())
            await asyncio.sleep(1)
            assert not waiting.done()
        await waiting

        async with consumer(Inbox()) as running:
            broker.trouble = lambda command: RuntimeError("a bug in the client")
            with pytest.raises(RuntimeError, match="a bug in the client"):
                await running.wait()
            broker.trouble = lambda command: None

    run(main())
