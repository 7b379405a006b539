"""Kills masters under consumers that consume in order, and looks for a message out of order or in two hands at once.

Members of one group with orderly=True share the queues of a replicated group while its masters are killed. In about
half of the rounds a member joins or leaves at the same moment, so that queues change hands while their locks' broker
is gone. Of each queue

* a message is first handled when all before it were: nothing is skipped, nothing overtakes;
* no message is given to a listener while another one of the queue is in any listener's hands;
* a place always holds the same message, whichever replica showed it;
* messages come again at most: that is counted, not wrong.

What failover.py judges is judged, too. The seed draws faults, members and messages; what was in flight differs.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.deliveries import watchful
from tandemmq.chaos.failover import Failover
from tandemmq.chaos.traffic import TOPIC
from tandemmq.cluster.client import PushConsumer, ReceivedMessage, StartFrom

GROUP: Final = "ChaosInOrder"
QUEUES: Final = 8
MEMBERS: Final = 3
WORK_S_MAX: Final = 0.004  # of a listener
MOVES_SHARE: Final = 0.5  # of the rounds in which a member joins or leaves
STALLED_S: Final = 45.0  # a lock that nobody gave back is trusted for 30 s
PROBLEMS_KEPT: Final = 100


@dataclass(slots=True)
class QueueStory:
    """What was handled of one queue so far. high: the highest queue offset; at_work: who has a message of it now."""

    high: int = -1
    at_work: tuple[str, int] | None = None
    last_member: str = ""
    ids: dict[int, str] = field(default_factory=dict)


class OrderJudge:
    """Told of every begin and end of a listener's work. No I/O."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.handled = self.repeated = self.taken_over = 0
        self._queues: dict[int, QueueStory] = {}

    def began(self, member: str, queue_id: int, offset: int, message_id: str) -> None:
        """A listener of `member` was given the message at this place."""
        story = self._queues.setdefault(queue_id, QueueStory())
        if story.at_work is not None:
            self._problem(
                f"TOGETHER queue {queue_id}: {member} got {offset} while {story.at_work[0]} had "
                f"{story.at_work[1]}"
            )
        if offset > story.high + 1:
            self._problem(f"OVERTOOK queue {queue_id}: {member} got {offset} after {story.high}")
        if story.ids.setdefault(offset, message_id) != message_id:
            self._problem(
                f"REPLACED queue {queue_id}: {offset} was {story.ids[offset]}, now {message_id}"
            )
        self.handled += 1
        self.repeated += offset <= story.high
        self.taken_over += story.last_member not in ("", member)
        story.high = max(story.high, offset)
        story.last_member = member
        story.at_work = (member, offset)

    def ended(self, member: str, queue_id: int, offset: int) -> None:
        """The listener is done with it."""
        story = self._queues[queue_id]
        if story.at_work == (member, offset):
            story.at_work = None

    def highs(self) -> dict[int, int]:
        """Queue id -> the highest queue offset that was handled."""
        return {queue_id: story.high for queue_id, story in self._queues.items()}

    def _problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(text)


class OrderlyMembers:
    """Members of the group, which join and leave."""

    def __init__(self, name_server: str, judge: OrderJudge, rng: random.Random) -> None:
        self._name_server = name_server
        self._judge = judge
        self._rng = rng
        self._numbers = itertools.count(1)
        self._members: list[PushConsumer] = []

    async def join(self) -> None:
        """One more."""
        name = f"orderly-{next(self._numbers)}"
        judge, rng = self._judge, self._rng

        async def work(message: ReceivedMessage) -> None:
            place = message.queue.queue_id, message.queue_offset
            judge.began(name, *place, message.message_id)
            try:
                await asyncio.sleep(rng.uniform(0, WORK_S_MAX))
            finally:
                judge.ended(name, *place)

        config = watchful(self._name_server, name)
        member = PushConsumer(
            GROUP, work, subscribe={TOPIC: "*"}, orderly=True, start=StartFrom.FIRST, config=config
        )
        self._members.append(member)
        await member.start()

    async def leave(self) -> None:
        """One of them, any."""
        member = self._members.pop(self._rng.randrange(len(self._members)))
        await member.stop()

    async def move(self) -> None:
        """One joins or leaves, so that there are always some, and never many."""
        few, many = len(self._members) < MEMBERS, len(self._members) > MEMBERS
        if few or (not many and self._rng.random() < 0.5):
            await self.join()
        else:
            await self.leave()

    async def stop(self) -> None:
        """All leave."""
        await asyncio.gather(*(member.stop() for member in self._members))

    async def going_on(self) -> str | None:
        """Wait until every queue went on; what did not, or None."""
        before, began_s = self._judge.highs(), time.monotonic()
        while time.monotonic() - began_s < STALLED_S:
            now = self._judge.highs()
            still = [each for each in range(QUEUES) if now.get(each, -1) <= before.get(each, -1)]
            if not still:
                return None
            await asyncio.sleep(0.1)
        return f"STOPPED queues {still}: nothing new handled for {STALLED_S:g} s, at {now}"


class Ordering(Failover):
    """Failover's rounds beside a group that consumes in order.

    moves_share  of the rounds in which the master dies: in these a member joins or leaves
    """

    moves_share = MOVES_SHARE

    async def faults(self) -> None:
        self.judge = OrderJudge()
        self.members = OrderlyMembers(self.group.name_server_address, self.judge, self.rng)
        self._moving: set[asyncio.Task[None]] = set()
        try:
            for _ in range(MEMBERS):
                await self.members.join()
            await super().faults()
            await asyncio.gather(*self._moving)
            if (stopped := await self.members.going_on()) is not None:
                self.problem(stopped)
        finally:
            for task in self._moving:
                task.cancel()
            await self.members.stop()
        self.outcome.problems += self.judge.problems
        self.outcome.counts |= {
            "messages handled in order": self.judge.handled,
            "handled again": self.judge.repeated,
            "queues taken over": self.judge.taken_over,
        }

    async def master_dies(self) -> None:
        """As there; perhaps while queues change hands."""
        if self.rng.random() < self.moves_share:
            await asyncio.gather(*self._moving)
            task = asyncio.create_task(self.members.move(), name="member moves")
            self._moving = {task}
            self.outcome.count("members moved")
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        await super().master_dies()


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("ordering", __doc__, "--rounds 50", rounds=50)
    parser.add_argument("--still", action="store_true", help="no member joins or leaves")
    command.add_group_arguments(parser, rate=400)
    arguments = parser.parse_args(argv)
    if arguments.mode != "sync":
        parser.error("an async group may lose what was consumed: its order is not promised")
    run = command.begin(arguments)
    campaign = command.group_campaign(Ordering, run, arguments, QUEUES)
    campaign.rounds = arguments.rounds
    if arguments.still:
        campaign.moves_share = 0.0
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
