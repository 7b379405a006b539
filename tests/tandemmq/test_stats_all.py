"""`tandem admin statsAll`: many topics at once, and no more, in the order of their names."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.admin.topics import TOPICS_AT_ONCE, stats_all
from tandemmq.cluster.client import NoRoute

TOPICS = 100


class Admin:
    """Topics T000 to T099: every third is in use, every tenth has no route any more, each has one group."""

    def __init__(self) -> None:
        self.at_once = self.most = self.routes = self.groups_asked = 0

    async def _asked(self) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1

    async def topics(self) -> list[str]:
        return [f"T{number:03d}" for number in range(TOPICS)] + ["%RETRY%G"]

    async def route(self, topic: str) -> Any:
        self.routes += 1
        await self._asked()
        if int(topic[1:]) % 10 == 9:
            raise NoRoute(topic, "gone")
        return SimpleNamespace(addresses={"b": {0: "1.1.1.1:1"}})

    async def broker_statistic(self, address: str, name: str, key: str) -> Any:
        await self._asked()
        if name == "TOPIC_PUT_NUMS" and int(key[1:]) % 3:
            return None
        return SimpleNamespace(minute=SimpleNamespace(per_second=1.0), longest_sum=7)

    async def topic_groups(self, topic: str, *, route: Any) -> list[str]:
        assert route.addresses
        self.groups_asked += 1
        await self._asked()
        return ["G"]

    async def progress(self, group: str, topic: str) -> Any:
        return SimpleNamespace(behind=5)


@pytest.mark.parametrize("active", [False, True])
async def test_topics_are_asked_about_many_at_once(active: bool) -> None:
    admin = Admin()
    call: Any = SimpleNamespace(admin=admin, arguments=Namespace(topic=None, active=active))
    shown: Any = await stats_all(call)
    wanted = [
        f"T{number:03d}"
        for number in range(TOPICS)
        if number % 10 != 9 and (not active or number % 3 == 0)
    ]
    assert [row["topic"] for row in shown.value] == wanted
    assert admin.groups_asked == len(wanted)
    assert admin.routes == TOPICS
    assert 1 < admin.most <= TOPICS_AT_ONCE


async def test_a_topic_that_was_named_and_is_not_there_is_an_error() -> None:
    call: Any = SimpleNamespace(admin=Admin(), arguments=Namespace(topic="T009", active=False))
    with pytest.raises(NoRoute):
        await stats_all(call)
