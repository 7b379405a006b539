"""The memory cluster and a real one keep the same promises to the same client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from clientpromises import PROMISES, Ground

from tandemmq.testing import MemoryCluster, TandemCluster

pytestmark = pytest.mark.system

SOME_S = 0.05


@pytest.fixture(scope="module")
def real() -> Iterator[TandemCluster]:
    with TandemCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("name", PROMISES)
async def test_a_real_cluster_keeps(name: str, real: TandemCluster) -> None:
    async def wait(seconds: float) -> None:
        """Its delay levels are one second each, and whoever looks waits until something comes."""

    await PROMISES[name](Ground(real.namesrv, wait))


@pytest.mark.parametrize("name", PROMISES)
async def test_the_memory_cluster_keeps(name: str) -> None:
    with MemoryCluster() as cluster:

        async def pass_time(seconds: float) -> None:
            await asyncio.sleep(SOME_S)  # what a listener just failed on is sent back first
            cluster.advance(seconds)

        await PROMISES[name](Ground(cluster.namesrv, pass_time))
