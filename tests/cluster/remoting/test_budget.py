"""cluster/remoting/budget.py: many peers that read nothing, and what they cost together."""

from __future__ import annotations

import asyncio

from tandemmq.cluster.remoting.budget import OutputBudget


class Peer:
    def __init__(self, output_bytes: int) -> None:
        self.output_bytes = output_bytes
        self.closed = False
        self.address = f"peer-{output_bytes}"

    def abort(self, reason: str) -> None:
        self.closed = True


def test_below_the_limit_nobody_is_cut_off_and_above_it_who_holds_most() -> None:
    # INV-46
    budget = OutputBudget(1_000)
    first, second = [Peer(100 * n) for n in range(5)], [Peer(50)]
    budget.watch(lambda: first)
    budget.watch(lambda: second)
    budget.look()
    assert [each.closed for each in first] == [False, False, False, False, True]
    assert not second[0].closed
    assert budget.unread == 650 and budget.cut == 1
    first[1].output_bytes += 200
    budget.look()
    assert budget.unread == 850 and budget.cut == 1


def test_stuck_connections_are_counted_at_once_and_no_more_when_they_move() -> None:
    # INV-46
    async def main() -> None:
        budget = OutputBudget(10_000)
        peers = [Peer(1_000) for _ in range(12)]
        budget.watch(lambda: peers)
        for each in peers[:10]:
            budget.stuck(each)
            budget.stuck(each)  # said twice, counted once
        for each in peers[:2]:
            budget.moving(each)
            budget.moving(each)
            each.output_bytes = 0
        budget.stuck(peers[10])
        await asyncio.sleep(0)
        assert not any(each.closed for each in peers)
        for each in (*peers[:2], peers[11]):
            each.output_bytes = 1_000
            budget.stuck(each)
        await asyncio.sleep(0)
        assert sum(each.closed for each in peers) == 5
        assert budget.unread == 7_000 <= budget.bytes_max * 3 // 4

    asyncio.run(main())
