"""The pull consumer: polls, iteration, seeks, and what counts as consumed. No sockets; time jumps."""

from __future__ import annotations

import asyncio

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, FakeWire
from timekit import run

from tandemmq.cluster.client import (
    MessageQueue,
    NoRoute,
    NotRunning,
    OffsetUnknown,
    PullConsumer,
    QueueNotAssigned,
    StartFrom,
)
from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode

QUEUE = MessageQueue("T", "broker-a", 0)


def consumer(**options: object) -> PullConsumer:
    options.setdefault("start", StartFrom.FIRST)
    return PullConsumer("CG", namesrv=NAME_SERVER, **options)  # type: ignore[arg-type]


def committed(broker: FakeBroker) -> int | None:
    return broker.offsets.get(("CG", "T", 0))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def broker(cluster: FakeCluster) -> FakeBroker:
    return cluster.add("broker-a", "T", 1)


def test_poll_returns_messages_in_queue_order_and_nothing_when_there_is_nothing(
    broker: FakeBroker,
) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(50))
        async with consumer(subscribe={"T": "*"}) as pulling:
            bodies: list[bytes] = []
            while len(bodies) < 50:
                batch = await pulling.poll(10)
                assert 1 <= len(batch) <= 10
                bodies += [message.body for message in batch]
            assert bodies == numbered(50)
            assert await pulling.poll(timeout_ms=2_000) == []

    run(main())


def test_polled_messages_count_as_consumed_when_the_next_are_asked_for(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(20))
        async with consumer(subscribe={"T": "*"}) as pulling:
            await pulling.poll(5)
            await asyncio.sleep(6)
            assert committed(broker) is None
            await pulling.poll(5)
            await asyncio.sleep(6)
            assert committed(broker) == 5
        assert committed(broker) == 10

    run(main())


def test_error_in_the_block_leaves_the_last_poll_uncommitted(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(20))
        async with consumer(subscribe={"T": "*"}) as pulling:
            await pulling.poll(5)
            await pulling.poll(5)
            raise KeyError("the application failed on it")

    with pytest.raises(KeyError):
        run(main())
    assert committed(broker) == 5


def test_iteration_gives_one_message_after_the_other_and_commits_the_finished(
    broker: FakeBroker,
) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(60))
        seen = []
        async with consumer(subscribe={"T": "*"}) as pulling:
            async for message in pulling:
                seen.append(message.body)
                if len(seen) == 40:
                    break
        assert seen == numbered(40)
        assert committed(broker) == 40

    run(main())


def test_without_auto_commit_only_commit_commits(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(20))
        async with consumer(subscribe={"T": "*"}, auto_commit=False) as pulling:
            await pulling.poll(5)
            await pulling.poll(5)
            await asyncio.sleep(20)
            assert committed(broker) is None
            await pulling.commit()
            assert committed(broker) == 10
            await pulling.poll(5)
        assert committed(broker) == 10

    run(main())


def test_commit_that_the_broker_refuses_is_an_error(broker: FakeBroker) -> None:
    broker.trouble = lambda command: (
        command.reply(1, "no") if command.code == RequestCode.UPDATE_CONSUMER_OFFSET else None
    )

    async def main() -> None:
        await broker.fill("T", 0, numbered(5))
        async with consumer(subscribe={"T": "*"}, auto_commit=False) as pulling:
            await pulling.poll(5)
            with pytest.raises(OffsetUnknown, match="T@broker-a:0"):
                await pulling.commit()

    run(main())


def test_assigned_queues_need_no_group_membership(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(3))
        async with consumer() as pulling:
            await pulling.assign(await pulling.queues("T"))
            assert pulling.assignment == (QUEUE,)
            assert [m.body for m in await pulling.poll()] == numbered(3)

    run(main())
    assert RequestCode.HEART_BEAT not in broker.codes()
    assert RequestCode.GET_CONSUMER_LIST_BY_GROUP not in broker.codes()
    assert committed(broker) == 3


def test_seek_moves_both_ways_and_forgets_what_was_fetched(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(50))
        async with consumer() as pulling:
            await pulling.assign([QUEUE])
            await pulling.poll(5)
            await pulling.seek(QUEUE, 40)
            assert pulling.position(QUEUE) == 40
            assert (await pulling.poll(1))[0].body == b"40"
            await pulling.seek(QUEUE, 2)
            assert (await pulling.poll(1))[0].body == b"2"
            assert pulling.position(QUEUE) == 3

    run(main())
    assert committed(broker) == 3


def test_iteration_after_a_seek_does_not_show_what_was_fetched_before(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(50))
        async with consumer() as pulling:
            await pulling.assign([QUEUE])
            assert (await anext(pulling)).body == b"0"
            await pulling.seek(QUEUE, 30)
            assert (await anext(pulling)).body == b"30"

    run(main())


def test_seek_outside_the_queue_or_to_a_queue_of_others_is_refused(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(5))
        async with consumer() as pulling:
            with pytest.raises(QueueNotAssigned):
                await pulling.seek(QUEUE, 0)
            with pytest.raises(QueueNotAssigned):
                pulling.position(QUEUE)
            await pulling.assign([QUEUE])
            with pytest.raises(ValueError, match=r"not in 0\.\.5"):
                await pulling.seek(QUEUE, 6)
            await pulling.seek(QUEUE, 5)

    run(main())


def test_offsets_by_place_and_time(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(5))  # stored at 1000, 1001, ...
        async with consumer() as pulling:
            assert await pulling.min_offset(QUEUE) == 0
            assert await pulling.max_offset(QUEUE) == 5
            assert await pulling.offset_for_time(QUEUE, 1_003) == 3
            assert await pulling.committed(QUEUE) is None
            broker.offsets["CG", "T", 0] = 4
            assert await pulling.committed(QUEUE) == 4

    run(main())


def test_new_assignment_replaces_the_old_one(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    second = MessageQueue("T", "broker-a", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"zero"])
        await broker.fill("T", 1, [b"one"])
        async with consumer() as pulling:
            await pulling.assign([QUEUE])
            await pulling.assign([second])
            assert pulling.assignment == (second,)
            assert [m.body for m in await pulling.poll()] == [b"one"]
            assert await pulling.poll(timeout_ms=1_000) == []

    run(main())


def test_subscribe_and_assign_exclude_each_other(broker: FakeBroker) -> None:
    async def main() -> None:
        async with consumer() as pulling:
            await pulling.assign([QUEUE])
            with pytest.raises(ValueError, match="exclude each other"):
                pulling.subscribe("T")
        async with consumer(subscribe={"T": "*"}) as pulling:
            with pytest.raises(ValueError, match="exclude each other"):
                await pulling.assign([QUEUE])

    run(main())


def test_subscription_made_while_running_joins_the_group(broker: FakeBroker) -> None:
    async def main() -> None:
        await broker.fill("T", 0, numbered(3))
        async with consumer() as pulling:
            pulling.subscribe("T")
            assert [m.body for m in await pulling.poll()] == numbered(3)

    run(main())
    entry = broker.heartbeats[0]["consumerDataSet"][0]
    assert entry["consumeType"] == "CONSUME_ACTIVELY"
    assert entry["groupName"] == "CG"


def test_two_members_poll_disjoint_queues(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def main() -> None:
        async with (
            consumer(subscribe={"T": "*"}) as first,
            consumer(subscribe={"T": "*"}) as second,
        ):
            await asyncio.sleep(2)
            for queue_id in range(2):
                await broker.fill("T", queue_id, [b"%d" % queue_id])
            polled = [(await each.poll())[0].body for each in (first, second)]
            assert sorted(polled) == [b"0", b"1"]

    run(main())


def test_unknown_topic_is_said_at_once_when_assigning(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with consumer() as pulling:
            with pytest.raises(NoRoute, match="Nope"):
                await pulling.queues("Nope")

    run(main())


def test_consumer_that_does_not_run_says_so(broker: FakeBroker) -> None:
    async def main() -> None:
        pulling = consumer(subscribe={"T": "*"})
        with pytest.raises(NotRunning, match="async with"):
            await pulling.poll()
        async with pulling:
            waiting = asyncio.create_task(pulling.poll(timeout_ms=60_000))
            await asyncio.sleep(1)
        with pytest.raises(NotRunning):
            await waiting

    run(main())


@pytest.mark.parametrize("count", [0, -1])
def test_poll_for_less_than_one_message_is_refused(broker: FakeBroker, count: int) -> None:
    async def main() -> None:
        async with consumer() as pulling:
            with pytest.raises(ValueError, match="at least 1"):
                await pulling.poll(count)

    run(main())


@pytest.mark.parametrize(("version", "code"), [(479, 361), (407, 11)], ids=["5.3.3", "4.9.7"])
def test_pulls_are_lite_pulls_in_the_code_that_the_broker_knows(
    broker: FakeBroker, version: int, code: int
) -> None:
    async def main() -> None:
        broker.version = version
        await broker.fill("T", 0, numbered(3))
        async with consumer(subscribe={"T": "*"}) as pulling:
            assert len(await pulling.poll(3)) == 3

    run(main())
    pulls = [each for each in broker.requests if each.ext and "maxMsgNums" in each.ext]
    assert {each.code for each in pulls if each.ext["topic"] == "T"} == {code}
    assert all(int(each.ext["sysFlag"]) & 16 for each in pulls)


def test_position_that_an_operator_moves_is_no_warning_and_a_bad_one_is(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    moves = iter([0])

    def reset(command: Command) -> Command | None:
        if (command.ext or {}).get("queueOffset") != "3":
            return None
        moved_to = next(moves, None)
        if moved_to is None:
            return None
        fields = {
            "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "3", "suggestWhichBrokerId": "0"
        }  # fmt: skip
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext=fields)

    async def main() -> None:
        await broker.fill("T", 0, numbered(3))
        broker.trouble = reset
        async with consumer(subscribe={"T": "*"}) as pulling:
            read: list[bytes] = []
            while len(read) < 6:
                read += [message.body for message in await pulling.poll()]
        assert read == 2 * numbered(3)
        assert "position reset" in caplog.text
        assert "offset not valid" not in caplog.text
        broker.offsets["CG", "T", 0] = 9
        async with consumer(subscribe={"T": "*"}) as pulling:
            assert await pulling.poll(timeout_ms=1_000) == []
        assert "offset not valid" in caplog.text

    with caplog.at_level("INFO"):
        run(main())


def test_first_position_of_a_topic_is_stored_before_the_others_are_sent(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stock broker that makes its table for two first positions at once keeps only one of them."""
    broker = cluster.add("broker-a", "T", 4)
    tables: list[int] = []

    async def racing(command: Command, wire: FakeWire) -> Command:
        first = not tables
        await asyncio.sleep(0.01)
        if first:
            tables.append(1)
            broker.offsets.clear()  # a new table in place of what another request may have made
        return await FakeBroker.handle_update_consumer_offset(broker, command, wire)

    monkeypatch.setattr(broker, "handle_update_consumer_offset", racing)

    async def main() -> None:
        for queue_id in range(4):
            await broker.fill("T", queue_id, numbered(5))
        async with consumer(subscribe={"T": "*"}) as pulling:
            read = 0
            while read < 20:
                read += len(await pulling.poll())

    run(main())
    assert broker.offsets == {("CG", "T", queue_id): 5 for queue_id in range(4)}


def test_a_topic_that_is_not_made_yet_is_said_once_and_read_when_it_is(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker = cluster.add("broker-a", "T", 4)

    def absent(command: Command) -> Command | None:
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")
        return None

    async def main() -> None:
        await broker.fill("T", 0, numbered(3))
        broker.trouble = absent
        async with consumer(subscribe={"T": "*"}) as pulling:
            assert await pulling.poll(timeout_ms=5_000) == []
            broker.trouble = lambda command: None
            assert [m.body for m in await pulling.poll(timeout_ms=5_000)] == numbered(3)
            await asyncio.sleep(2)
            broker.trouble = absent  # deleted
            await broker.fill("T", 1, numbered(1))
            await asyncio.sleep(40)

    run(main())
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    waits = "waiting until the topic is made group=CG topic=T broker="
    assert [line[: len(waits)] for line in said] == [waits] * 2, said
