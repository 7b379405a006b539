"""The FastStream broker: with FastStream's own test broker, and for acknowledgements with the cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("faststream", reason="pip install 'tandemmq[faststream]'")

from faststream import AckPolicy, BaseMiddleware, Context, FastStream, TestApp
from faststream.exceptions import SetupError, SubscriberNotFound
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from tandemmq import MessageRefused, StartFrom
from tandemmq.faststream import (
    TandemBroker,
    TandemMessage,
    TandemPublisher,
    TandemResponse,
    TandemRoute,
    TandemRouter,
    TestTandemBroker,
)
from tandemmq.testing import MemoryCluster

SOON_S = 20


class Order(BaseModel):
    id: int
    amount: float = 0.0


async def until(holds: Any, memory: MemoryCluster | None = None) -> None:
    async with asyncio.timeout(SOON_S):
        while not holds():
            if memory is not None:
                memory.advance(60)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def started(broker: TandemBroker) -> AsyncIterator[TandemBroker]:
    async with broker:
        await broker.start()
        yield broker


@pytest.fixture
def broker(tandem_memory: MemoryCluster) -> TandemBroker:
    return TandemBroker(tandem_memory.namesrv, logger=None)


# With FastStream's test broker


async def test_a_handler_gets_a_model_and_its_answer_is_published() -> None:
    broker = TandemBroker("127.0.0.1:1")

    @broker.subscriber("Orders", group="billing")
    @broker.publisher("Bills")
    async def bill(order: Order) -> Order:
        return Order(id=order.id, amount=9.99)

    @broker.subscriber("Bills", group="shipping")
    async def ship(order: Order) -> None: ...

    async with TestTandemBroker(broker) as test:
        await test.publish(Order(id=17), "Orders")
        bill.mock.assert_called_once_with({"id": 17, "amount": 0.0})
        ship.mock.assert_called_once_with({"id": 17, "amount": 9.99})


async def test_the_test_broker_chooses_as_a_cluster_does() -> None:
    broker = TandemBroker("127.0.0.1:1")
    seen: list[str] = []

    @broker.subscriber("Orders", group="a", tags="created || paid")
    async def by_tag(body: str) -> None:
        seen.append(f"tag {body}")

    @broker.subscriber("Orders", group="b", sql92="amount > 10")
    async def by_property(body: str) -> None:
        seen.append(f"sql {body}")

    @broker.subscriber("Orders", group="c")
    async def first_of_group(body: str) -> None:
        seen.append(f"all {body}")

    async with TestTandemBroker(broker) as test:
        await test.publish("1", "Orders", tag="created")
        await test.publish("2", "Orders", tag="gone", headers={"amount": "50"})
    # groups go on side by side: each has its own order
    assert sorted(seen) == ["all 1", "all 2", "sql 2", "tag 1"]


async def test_requests_batches_and_routers_in_the_test_broker() -> None:
    broker = TandemBroker("127.0.0.1:1")
    router = TandemRouter(prefix="shop-")
    batches: list[list[int]] = []

    @router.subscriber("Prices", group="prices")
    async def price(item: int) -> dict[str, float]:
        return {"price": item + 0.99}

    async def route(body: str) -> str:
        return body.upper()

    broker.include_router(router)
    broker.include_router(
        TandemRouter(handlers=[TandemRoute(route, "In", publishers=[TandemPublisher("Out")])])
    )

    @broker.subscriber("Many", group="many", batch=True)
    async def many(bodies: list[int]) -> None:
        batches.append(bodies)

    @broker.subscriber("Out", group="out")
    async def out(body: str) -> None: ...

    async with TestTandemBroker(broker) as test:
        reply = await test.request(9, "shop-Prices")
        assert await reply.decode() == {"price": 9.99}
        await test.publish_batch(1, 2, 3, topic="Many")
        await test.publish("x", "In")
        out.mock.assert_called_once_with("X")
        with pytest.raises(SubscriberNotFound):
            await test.request(1, "Nobody")
    assert batches == [[1, 2, 3]]


async def test_asyncapi_names_topics_and_models() -> None:
    broker = TandemBroker("10.0.0.1:9876", description="orders")

    @broker.subscriber("Orders", group="billing", description="bills orders")
    @broker.publisher("Bills", schema=Order)
    async def bill(order: Order) -> Order:
        return order

    schema = AsyncAPI(broker, title="Shop", version="1").to_specification().to_jsonable()
    assert schema["servers"]["development"]["protocol"] == "rocketmq"
    assert {each["address"] for each in schema["channels"].values()} == {"Orders", "Bills"}
    assert "Order" in schema["components"]["schemas"]


# With the client, on the cluster in memory


async def test_messages_headers_and_context_travel(broker: TandemBroker) -> None:
    seen: list[Any] = []

    @broker.subscriber("Orders", group="billing", start=StartFrom.FIRST)
    async def bill(
        order: Order, message: TandemMessage, own: Annotated[str, Context("message.headers.own")]
    ) -> None:
        received = message.raw_message.message
        seen.append((order.id, own, received.tags, received.keys, message.correlation_id))

    async with started(broker):
        sent = await broker.publish(
            Order(id=17),
            "Orders",
            tag="created",
            keys="order-17",
            headers={"own": "x"},
            correlation_id="c-1",
        )
        assert sent is not None and sent.ok
        await until(lambda: seen)
        assert await broker.ping()
    assert seen == [(17, "x", "created", ("order-17",), "c-1")]
    assert not await broker.ping()


async def test_what_a_handler_raises_on_comes_again_and_ends_among_the_dead(
    broker: TandemBroker, tandem_memory: MemoryCluster
) -> None:
    tries: list[int] = []

    @broker.subscriber("Orders", group="billing", start=StartFrom.FIRST, retries_max=2)
    async def bill(order: Order, message: TandemMessage) -> None:
        tries.append(message.raw_message.message.reconsume_times)
        raise ValueError("no such customer")

    async with started(broker):
        await broker.publish(Order(id=17), "Orders")
        await until(lambda: tandem_memory.dead_letters("billing"), tandem_memory)
    assert tries == [0, 1, 2]
    (dead,) = tandem_memory.dead_letters("billing")
    assert dead.body == b'{"id":17,"amount":0.0}'


@pytest.mark.parametrize(
    ("policy", "does", "calls", "dead"),
    [
        (AckPolicy.NACK_ON_ERROR, "raise", 2, 0),
        (AckPolicy.REJECT_ON_ERROR, "raise", 1, 1),
        (AckPolicy.ACK, "raise", 1, 0),
        (AckPolicy.ACK_FIRST, "raise", 1, 0),
        (AckPolicy.MANUAL, "nothing", 2, 0),
        (AckPolicy.MANUAL, "ack", 1, 0),
        (AckPolicy.MANUAL, "nack", 2, 0),
        (AckPolicy.MANUAL, "reject", 1, 1),
    ],
)
async def test_each_policy_decides_what_becomes_of_a_message(
    broker: TandemBroker,
    tandem_memory: MemoryCluster,
    policy: AckPolicy,
    does: str,
    calls: int,
    dead: int,
) -> None:
    seen: list[int] = []
    done = asyncio.Event()

    @broker.subscriber("Orders", group="billing", start=StartFrom.FIRST, ack_policy=policy)
    async def bill(body: str, message: TandemMessage) -> None:
        if body == "last":
            await message.ack()
            done.set()
            return
        seen.append(message.raw_message.message.reconsume_times)
        if len(seen) > 1:
            await message.ack()
        elif does == "raise":
            raise ValueError("no")
        elif does != "nothing":
            await getattr(message, does)()

    async with started(broker):
        await broker.publish("17", "Orders")
        await until(lambda: seen)
        for _ in range(20):
            tandem_memory.advance(60)
            await asyncio.sleep(0.01)
        await until(lambda: len(seen) >= calls, tandem_memory)
        await broker.publish("last", "Orders")
        await asyncio.wait_for(done.wait(), SOON_S)
    assert (len(seen), len(tandem_memory.dead_letters("billing"))) == (calls, dead)


async def test_a_batch_is_one_call(broker: TandemBroker, tandem_memory: MemoryCluster) -> None:
    tandem_memory.create_topic("Orders", 1)
    batches: list[list[int]] = []

    @broker.subscriber("Orders", group="billing", batch=True, batch_count=10, start=StartFrom.FIRST)
    async def bill(orders: list[Order], message: TandemMessage) -> None:
        batches.append([each.id for each in orders])
        assert len(message.batch_headers) == len(orders)

    async with started(broker):
        sent = await broker.publish_batch(
            *(Order(id=number) for number in range(5)), topic="Orders"
        )
        assert sent is not None and len(sent.message_ids) == 5
        await until(lambda: sum(map(len, batches)) == 5)
    assert [each for batch in batches for each in batch] == [0, 1, 2, 3, 4]


async def test_answers_go_to_requests_and_to_reply_topics(
    broker: TandemBroker, tandem_memory: MemoryCluster
) -> None:
    answers: list[str] = []
    tandem_memory.create_topic("Prices")

    @broker.subscriber("Prices", group="prices", start=StartFrom.FIRST)
    async def price(item: int) -> TandemResponse:
        return TandemResponse({"price": item + 0.99}, headers={"currency": "eur"}, tag="answer")

    @broker.subscriber("Answers", group="answers", start=StartFrom.FIRST, tags="answer")
    async def answer(body: dict[str, float]) -> None:
        answers.append(str(body))

    async with started(broker):
        reply = await broker.request(9, "Prices", timeout=20)
        assert await reply.decode() == {"price": 9.99}
        assert reply.headers["currency"] == "eur"
        await broker.publish(8, "Prices", reply_to="Answers")
        await until(lambda: answers)
    assert answers == ["{'price': 8.99}"]


async def test_empty_bodies_and_all_kinds_travel(broker: TandemBroker) -> None:
    seen: list[Any] = []

    @broker.subscriber("Any", group="any", start=StartFrom.FIRST, orderly=True)
    async def take(body: Any) -> None:
        seen.append(body)

    bodies = ["", "text", b"bytes\xff", {"a": 1}, [1, 2], 17, None]
    async with started(broker):
        for body in bodies:
            await broker.publish(body, "Any", ordering_key="one")
        await until(lambda: len(seen) == len(bodies))
    assert seen == [*bodies[:-1], b""]  # nothing is sent as an empty body


async def test_without_a_handler_messages_are_fetched(broker: TandemBroker) -> None:
    alone = broker.subscriber("Orders", group="alone", start=StartFrom.FIRST)
    async with started(broker):
        await broker.publish("17", "Orders")
        message = await alone.get_one(timeout=SOON_S)
        assert message is not None and await message.decode() == "17"
        assert await alone.get_one(timeout=0.05) is None
        await broker.publish("18", "Orders")
        async for each in alone:
            assert await each.decode() == "18"
            break


async def test_middlewares_see_what_comes_and_goes(tandem_memory: MemoryCluster) -> None:
    log: list[str] = []

    class Tell(BaseMiddleware[Any, Any]):
        async def on_receive(self) -> Any:
            log.append("came")
            return await super().on_receive()

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            log.append(f"goes to {cmd.destination}")
            return await call_next(cmd)

    broker = TandemBroker(tandem_memory.namesrv, middlewares=[Tell], logger=None)

    @broker.subscriber("In", group="in", start=StartFrom.FIRST)
    @broker.publisher("Out", tag="t")
    async def handle(body: str) -> str:
        return body

    async with started(broker):
        await broker.publish("x", "In")
        await until(lambda: tandem_memory.messages("Out"))
    assert log == ["goes to In", "came", "goes to Out"]
    (out,) = tandem_memory.messages("Out")
    assert (out.body, out.tags) == (b"x", "t")


async def test_an_application_runs_with_it(broker: TandemBroker) -> None:
    app, seen = FastStream(broker), MagicMock()

    @broker.subscriber("Orders", group="billing", start=StartFrom.FIRST)
    async def bill(body: str) -> None:
        seen(body)

    @app.after_startup
    async def send() -> None:
        await broker.publish("17", "Orders")

    async with TestApp(app):
        await until(lambda: seen.called)
    seen.assert_called_once_with("17")


async def test_mistakes_are_told(broker: TandemBroker) -> None:
    with pytest.raises(MessageRefused):
        broker.subscriber("no topic!")
    with pytest.raises(SetupError, match="tags or sql92"):
        broker.subscriber("Orders", tags="a", sql92="a > 1")
    with pytest.raises(MessageRefused, match="refused"):
        broker.subscriber("Orders", sql92="a >")
    for tags in ("a", "b"):

        @broker.subscriber("Orders", group="same", tags=tags)
        async def handle(body: str) -> None: ...

    with pytest.raises(SetupError, match="all members of a group must want the same"):
        await broker.start()
    with pytest.raises(TypeError, match="TandemRouter"):
        broker.include_router(object())
