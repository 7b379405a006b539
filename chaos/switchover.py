"""Hands a replicated group over from one master to the next, again and again, under load: no send may fail.

    python -m tandemmq.chaos.switchover --rounds 50

Producers of our client send all the time, as applications do, with their default settings; a send that
fails is a problem. Measured: how long the group took no message, from the order on, and how long until
the name server sends clients to the new master. What must hold at the end is what tandemmq.chaos.failover asks for.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.campaign import Campaign
from tandemmq.chaos.traffic import longest_stall_ms
from tandemmq.cluster.client import Admin, ClientError, Message, Producer, SendStatus

CLIENT_TOPIC: Final = "ChaosClients"
PRODUCERS: Final = 3
OUTSTANDING: Final = 4
BODY_BYTES: Final = 300
SEND_PAUSE_S: Final = 0.005
WATCHED_S: Final = 2.0  # after the hand-over: what it broke shows by then
STALL_MS_MAX: Final = 500
FAILURES_SHOWN: Final = 5
REFUSALS_MAX: Final = 2  # in a row


class Switchovers(Campaign):
    """Rounds of planned hand-overs to a random other member of the set."""

    rounds = 1
    stall_ms_max: float = STALL_MS_MAX

    async def faults(self) -> None:
        await self.group.create_topic(CLIENT_TOPIC, 4)
        self._slowest_ms = 0.0
        self._refusals = 0
        async with Admin(self.group.name_server_address) as admin:
            clients = [asyncio.create_task(self._client(number)) for number in range(PRODUCERS)]
            try:
                for number in range(1, self.rounds + 1):
                    await self._round(number, admin)
                    if not self.outcome.good:
                        return
            finally:
                for client in clients:
                    client.cancel()
                results = await asyncio.gather(*clients, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result

    async def _round(self, number: int, admin: Admin) -> None:
        before = await self.group.whole()
        self.traffic.round = number
        sent = self.outcome.counts.get("client sends", 0)
        self._slowest_ms = 0.0  # of this round
        await asyncio.sleep(self.rng.uniform(0.3, 1.5))
        self.traffic.check()
        if self.outcome.counts.get("client sends", 0) == sent:
            self.problem(f"EVIDENCE round {number}: no client sent anything before")
        heir = self.rng.choice([each for each in before.members if each.address != before.master])
        self.journal.event("switchover", number=number, to=heir.broker_id)
        began_ns = time.monotonic_ns()
        try:
            done = await admin.switchover(
                self.plan.name, heir.broker_id, controllers=self.group.controller_address
            )
        except ClientError as problem:  # abandoned in time, for the heir was slow: no send failed
            self._refusals += 1
            self.outcome.count("refused")
            self.say(f"switchover {number}/{self.rounds} refused: {problem}")
            if self._refusals > REFUSALS_MAX:
                self.problem(f"REFUSED switchover {number} to {heir}, like the last: {problem}")
            return
        self._refusals = 0
        self.outcome.sample("elected", done.elected_ms)
        if done.announced_ms is None:
            self.problem(f"SLOW switchover {number}: the name server does not show {heir.address}")
            return
        self.outcome.sample("announced", done.announced_ms)
        await asyncio.sleep(WATCHED_S)
        await self._check(number, began_ns, before.epoch, heir.address)

    async def _check(self, number: int, began_ns: int, epoch: int, heir: str) -> None:
        view = await self.group.whole()
        if view.master != heir or view.epoch <= epoch:
            self.problem(f"CHANGED back after switchover {number} to {heir}: {view}")
        longest_ms = longest_stall_ms(self.traffic.stalls, began_ns)
        self.outcome.sample("without an acknowledgement", longest_ms)
        self.outcome.sample("slowest send of a client", self._slowest_ms)
        if longest_ms > self.stall_ms_max:
            self.problem(f"SLOW switchover {number}: {longest_ms:.0f} ms without acknowledgement")
        self.outcome.rounds = number
        self.say(
            f"switchover {number}/{self.rounds}: {longest_ms:.0f} ms without acknowledgement, "
            f"{self.outcome.counts.get('client sends', 0)} sends of clients, "
            f"{self.outcome.counts.get('client sends failed', 0)} failed"
        )

    async def _client(self, number: int) -> None:
        """A producer with default settings; several sends under way."""
        numbers = itertools.count()
        namesrv = self.group.name_server_address
        async with (
            Producer(f"ChaosClient{number}", namesrv=namesrv) as producer,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(OUTSTANDING):
                group.create_task(self._sends(producer, numbers))

    async def _sends(self, producer: Producer, numbers: itertools.count[int]) -> None:
        while True:
            body = next(numbers).to_bytes(8, "big") + bytes(BODY_BYTES)
            began_ns = time.monotonic_ns()
            try:
                result = await producer.send(Message(CLIENT_TOPIC, body))
            except ClientError as problem:
                self._failed(str(problem))
            else:
                self.outcome.count("client sends")
                if result.status is not SendStatus.SEND_OK:
                    self._failed(result.status.name)
            self._slowest_ms = max(self._slowest_ms, (time.monotonic_ns() - began_ns) / 1e6)
            await asyncio.sleep(SEND_PAUSE_S)

    def _failed(self, why: str) -> None:
        if self.outcome.counts.get("client sends failed", 0) < FAILURES_SHOWN:
            self.problem(f"FAILED send of a client: {why}")
        self.outcome.count("client sends failed")


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("switchover", __doc__, "--rounds 50", rounds=50)
    parser.add_argument(
        "--stall-ms-max",
        type=float,
        default=STALL_MS_MAX,
        help="longest without an acknowledgement",
    )
    command.add_group_arguments(parser, rate=400)
    arguments = parser.parse_args(argv)
    run = command.begin(arguments)
    campaign = command.group_campaign(Switchovers, run, arguments)
    campaign.rounds, campaign.stall_ms_max = arguments.rounds, arguments.stall_ms_max
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
