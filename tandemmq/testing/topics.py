"""Making a topic so that whoever is told its name can use it at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from tandemmq.cluster.client import Admin, NoRoute

LOOK_S: Final = 0.02
ROUTE_S: Final = 15.0


async def create_topic(namesrv: str, topic: str, queue_count: int) -> None:
    """On every master; returns when the name server's route names all of them. Raises ClientError, TimeoutError."""
    async with Admin(namesrv) as admin:
        masters = await admin.masters()
        await admin.create_topic(topic, queue_count)
        async with asyncio.timeout(ROUTE_S):
            while True:
                with suppress(NoRoute):
                    if set((await admin.route(topic)).addresses) >= set(masters):
                        return
                await asyncio.sleep(LOOK_S)
