"""Turns: never too many inside, nobody forgotten, whoever gives up."""

from __future__ import annotations

import asyncio
import random

import pytest
from clientkit import settle
from timekit import run

from cluster.client.turns import Turns


def test_at_most_so_many_are_inside_and_all_get_in_in_order() -> None:
    async def main() -> None:
        turns, inside, most, order = Turns(3), 0, 0, []

        async def work(number: int) -> None:
            nonlocal inside, most
            async with turns:
                inside += 1
                most = max(most, inside)
                order.append(number)
                await asyncio.sleep(1)
                inside -= 1

        await asyncio.gather(*(work(number) for number in range(20)))
        assert most == 3
        assert order == list(range(20))

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_tasks_neither_keep_nor_lose_a_place(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        turns = Turns(2)

        async def work() -> None:
            async with turns:
                await asyncio.sleep(rng.random())

        tasks = [asyncio.create_task(work()) for _ in range(30)]
        for task in rng.sample(tasks, 15):
            await asyncio.sleep(rng.random() / 4)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(1), turns, turns:
            pass  # both places are free again
        third = asyncio.create_task(work())
        await third

    run(main())


def test_place_handed_to_a_task_that_is_cancelled_at_once_goes_on_to_the_next() -> None:
    async def main() -> None:
        turns = Turns(1)
        entered: list[str] = []

        async def work(name: str) -> None:
            async with turns:
                entered.append(name)

        async with turns:
            first, second = (asyncio.create_task(work(name)) for name in ("first", "second"))
            await settle()
        first.cancel()  # it has been given the place, but has not run since
        await asyncio.gather(first, second, return_exceptions=True)
        assert entered == ["second"]

    run(main())
