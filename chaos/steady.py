"""Full load on a replicated group with pauses sprinkled in: nothing may change master, and a slow slave stalls once.

    python -m tandemmq.chaos.steady --minutes 30

A sender and a reader that know no pause keep every core busy. Every few seconds one process of the group,
controller included, is frozen for a second: no other master may come of it. Now and then a slave is frozen
for longer, or its stream slowed down: producers may wait once, for slaveTimeout at most, then the slave has
left the set; it comes back by itself. What must hold at the end is what tandemmq.chaos.failover asks for.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.campaign import Campaign
from tandemmq.chaos.groups import ReplicaProcess
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.proxied import ProxiedGroup, proxied
from tandemmq.chaos.servers import python_env
from tandemmq.chaos.traffic import Stall, longest_stall_ms, stalls_between
from tandemmq.cluster.client import ClientError, Message, Producer, PullConsumer, SendFuture

NOISE_TOPIC: Final = "ChaosNoise"
NOISE_BYTES: Final = 16
NOISE: Final = (
    "sender",
    "reader",
)  # a log of twenty million messages is enough: the other one reads
READ_AGAIN_S: Final = 20.0
IN_FLIGHT: Final = 256
PAUSE_S: Final = 1.0
BETWEEN_S: Final = (2.0, 6.0)
SLOW_EVERY: Final = 5  # rounds
SLOW_S: Final = (3.0, 6.0)
SLOW_BYTES_PER_S: Final = 50_000
SLAVE_TIMEOUT_MS: Final = 2000  # the default of slaveTimeout
STALL_SLACK_MS: Final = 500  # what a busy machine may add to it
PIECES_MS: Final = 250  # stalls with less between them are pieces of one
REJOIN_S: Final = 3.0


def longest_ms(stalls: Iterable[Stall], since_ns: int) -> float:
    """The longest stall since then, from first to last: the little that a slow stream passes may break one into
    pieces."""
    longest_ns = began_ns = ended_ns = 0
    for each in sorted(stalls):
        if each.began_ns - ended_ns > PIECES_MS * 1_000_000:
            began_ns = max(each.began_ns, since_ns)
        ended_ns = max(ended_ns, each.ended_ns)
        longest_ns = max(longest_ns, ended_ns - began_ns)
    return longest_ns / 1e6


class Steady(Campaign):
    """Pauses until the time is up; every few of them the slave is slow."""

    seconds = 60.0

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ProxiedGroup]:
        async with proxied(self._directory, self.plan) as self.links:
            yield self.links

    async def faults(self) -> None:
        await self.group.create_topic(NOISE_TOPIC, 8)
        clients = [self._client(role) for role in NOISE]
        for client in clients:
            client.launch()
        try:
            await self._rounds(clients)
        finally:
            for client in clients:
                client.abandon()

    async def _rounds(self, clients: Sequence[AsyncProcess]) -> None:
        reign = await self.group.whole()
        deadline = time.monotonic() + self.seconds
        number = self._slowed = 0
        while time.monotonic() < deadline and self.outcome.good:
            number += 1
            self.traffic.round = number
            before = self.journal.counts["ok"]
            await asyncio.sleep(self.rng.uniform(*BETWEEN_S))
            self.traffic.check()
            for client in clients:
                if not client.alive:
                    raise client.broken("ended by itself")
            if self.journal.counts["ok"] == before:
                self.problem("EVIDENCE nothing was acknowledged between two pauses")
            await (self._slow_slave() if number % SLOW_EVERY == 0 else self._pause())
            view = await self.group.whole()
            if (view.master, view.epoch) != (reign.master, reign.epoch):
                self.problem(
                    f"CHANGED master without cause: {reign.master} of epoch {reign.epoch} to "
                    f"{view.master} of {view.epoch}"
                )
            self.outcome.rounds = number
            left_s = max(0.0, deadline - time.monotonic())
            self.say(
                f"{number} pauses, {self.journal.counts['ok']} acknowledged, {left_s:.0f} s left"
            )

    async def _pause(self) -> None:
        """Freeze one process, any, for a second."""
        victim = self.rng.choice(self.group.processes)
        master, _ = await self.master()
        kind = "slave" if isinstance(victim, ReplicaProcess) else "controller"
        if victim is master:
            kind = "master"
        began_ns = time.monotonic_ns()
        await victim.pause()
        self.event("froze", victim)
        await asyncio.sleep(PAUSE_S)
        await victim.resume()
        self.event("thawed", victim)
        await self.writable(f"1 s pause of the {kind}", began_ns)
        self.outcome.count(f"pauses of the {kind}")

    async def _slow_slave(self) -> None:
        """Freeze a slave, or slow its stream down, until it has left the set; one stall, then none."""
        master, _ = await self.master()
        slave = self.rng.choice(self.others(master))
        self._slowed += 1
        frozen = self._slowed % 2 == 1
        began_ns = time.monotonic_ns()
        if frozen:
            await slave.pause()
        else:
            self.links.stream_link(master).slow(SLOW_BYTES_PER_S)
        what = "frozen slave" if frozen else "slow stream"
        self.event(what, slave)
        await self._left(slave)
        await asyncio.sleep(self.rng.uniform(*SLOW_S))
        self._check_stalls(what, began_ns)
        began_ns = time.monotonic_ns()
        if frozen:
            await slave.resume()
        else:
            self.links.heal()
        self.event("healed", slave)
        await self.group.whole()
        self.outcome.sample(f"{what} back in the set", (time.monotonic_ns() - began_ns) / 1e6)
        await asyncio.sleep(REJOIN_S)
        self.outcome.sample(
            "stall when it comes back", longest_stall_ms(self.traffic.stalls, began_ns)
        )
        self.outcome.count(f"{what}s")

    async def _left(self, slave: ReplicaProcess) -> None:
        deadline = time.monotonic() + 4 * SLAVE_TIMEOUT_MS / 1000
        while True:
            view = await self.group.view()
            if view is not None and slave.address not in view.in_sync:
                return
            if time.monotonic() > deadline:
                self.problem(f"STUCK {slave.name} is slow and still in the set: {view}")
                return
            await asyncio.sleep(0.02)

    def _check_stalls(self, what: str, began_ns: int) -> None:
        stalls = stalls_between(self.traffic.stalls, began_ns, time.monotonic_ns())
        span_ms = longest_ms(stalls, began_ns)
        self.outcome.sample(f"stall, {what}", span_ms)
        if span_ms > SLAVE_TIMEOUT_MS + STALL_SLACK_MS:
            self.problem(
                f"STALL by a {what} of {span_ms:.0f} ms from first to last, slaveTimeout is "
                f"{SLAVE_TIMEOUT_MS}: {[round(each.ms) for each in stalls]} ms"
            )

    def _client(self, role: str) -> AsyncProcess:
        arguments = ["-m", "tandemmq.chaos.steady", f"--{role}", self.group.name_server_address]
        log = self._directory / f"{role}.log"
        return AsyncProcess(role, [sys.executable, *arguments], log, python_env())


async def send_noise(namesrv: str) -> None:
    """Send as fast as the group takes it, until killed; failures are the group's business."""
    body = bytes(NOISE_BYTES)
    async with Producer("ChaosNoise", namesrv=namesrv, in_flight_max=IN_FLIGHT) as producer:
        while True:
            await producer.room()
            producer.send(Message(NOISE_TOPIC, body)).add_done_callback(_ignore)


async def read_noise(namesrv: str) -> None:
    """Read all that was sent, from the beginning again and again, until killed."""
    async with PullConsumer("ChaosNoiseReader", namesrv=namesrv, auto_commit=False) as consumer:
        queues = await consumer.queues(NOISE_TOPIC)
        await consumer.assign(queues)
        while True:
            for queue in queues:
                await consumer.seek(queue, 0)
            began_s = time.monotonic()
            while time.monotonic() - began_s < READ_AGAIN_S:
                with contextlib.suppress(ClientError):  # the group's business
                    await consumer.poll(1000, timeout_ms=1000)


def _ignore(result: SendFuture) -> None:
    if not result.cancelled():
        result.exception()


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("steady", __doc__, "--minutes 30")
    parser.add_argument("--minutes", type=command.amount, default=30)
    for role in NOISE:
        parser.add_argument(f"--{role}", help=argparse.SUPPRESS)
    command.add_group_arguments(
        parser,
        rate=400,
        rate_help="messages/s of the senders that are counted, beside the sender and the reader that know no "
        "pause; 0: as many as go (%(default)g)",
    )
    arguments = parser.parse_args(argv)
    if arguments.sender is not None:
        asyncio.run(send_noise(arguments.sender))
    if arguments.reader is not None:
        asyncio.run(read_noise(arguments.reader))
    run = command.begin(arguments)
    campaign = command.group_campaign(Steady, run, arguments)
    campaign.seconds = 60 * arguments.minutes
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
