"""A service of FastStream on our broker."""

from faststream import FastStream

from tandemmq import StartFrom
from tandemmq.faststream import TandemBroker, TandemMessage, TandemResponse, TestTandemBroker

broker = TandemBroker("127.0.0.1:9876", logger=None)
app = FastStream(broker)


@broker.subscriber("Orders", group="billing", tags="created", start=StartFrom.FIRST, retries_max=3)
async def bill(order: str, message: TandemMessage) -> TandemResponse:
    await message.ack()
    return TandemResponse(order, keys="order-17")


async def tried() -> None:
    async with TestTandemBroker(broker) as tested:
        await tested.publish("17", "Orders", tag="created")
