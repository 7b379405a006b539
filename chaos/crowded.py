"""A controller and its groups on a machine that has far more to do than it can: do leases run out, and for how long?

    python -m tandemmq.chaos.crowded --busy 25 --seconds 60

Starts two pairs under a controller each: S0, whose slaves fence it, and A1, which acknowledges only with a
lease. Producers send one message after the other to each; then come so many processes that do nothing but
compute, each in a session of its own, as daemons are (with autogroups the kernel shares the cores out between
sessions). --nice -10 puts the cluster's processes before them, which takes root. Who measures goes before
everybody, if it may.

--cgroup DIRECTORY puts the cluster and what is busy, not who measures, into a control group that exists: its quota
(cpu.max, or cpu.cfs_quota_us) says how much machine there is, and whoever else works on it is left alone. There the
cores are shared out between processes, not sessions.

Printed are numbers, per group before and under load: acknowledged messages, the longest times without one,
refusals by their remark, how often and how long the master had no lease, and elections; and how many cores
the cluster and what is busy had in that time.

Exit code 0: measured. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tandemmq.chaos import command
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.requests import send_command
from tandemmq.cluster.remoting import Command, RemotingError, RequestCode, ResponseCode
from tandemmq.storage import fastjson

TOPIC: Final = "Crowded"
LANES: Final = 4
LOOK_S: Final = 0.05
ANSWER_MS: Final = 30_000
CALM_S: Final = 10.0
QUANTUM_S: Final = 0.001
PLANS: Final = {
    "S0": GroupPlan(name="crowded-s0"),
    "A1": GroupPlan(name="crowded-a1", synchronous=False, sync_flush=True),
}
FIRST: Final = -20


class Watched:
    """One group, its producers, and what they and its master said."""

    def __init__(self, mode: str, group: ReplicaGroup) -> None:
        self.mode = mode
        self.group = group
        self.answered: list[float] = []  # when, seconds; of what was acknowledged
        self.refused: Counter[str] = Counter()
        self.leases: list[tuple[float, int]] = []  # when, what was left in ms

    async def send(self, queue: int) -> None:
        """One message after the other to whoever leads, for ever."""
        request = send_command("CrowdedProducer", TOPIC, queue, {}, b"x" * 200)
        while True:
            try:
                address = self.group.last_master
                assert address is not None
                answer = await self.group.pool.request(address, request, ANSWER_MS)
            except RemotingError as problem:
                self.refused[type(problem).__name__] += 1
                await self.group.view()
                continue
            if answer.code == ResponseCode.SUCCESS:
                self.answered.append(time.monotonic())
                await asyncio.sleep(QUANTUM_S)
            else:
                self.refused[f"{answer.code} {(answer.remark or '')[:70]}"] += 1
                await self.group.view()

    async def look(self) -> None:
        """What is left of the lease, for ever; a master that does not answer says nothing."""
        ask = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        while True:
            address = self.group.last_master
            assert address is not None
            with contextlib.suppress(RemotingError):
                answer = await self.group.pool.request(address, ask, ANSWER_MS)
                table = fastjson.loads(bytes(answer.body or b"{}"))["table"]
                if table["replicaState"] == "master":
                    self.leases.append((time.monotonic(), int(table["leaseMillis"])))
            await asyncio.sleep(LOOK_S)

    async def measured(self, seconds: float) -> dict[str, Any]:
        """What happened in the next `seconds`."""
        before = await self.group.view()
        began = time.monotonic()
        self.refused.clear()
        await asyncio.sleep(seconds)
        ended = time.monotonic()
        after = await self.group.view()
        while after is None:  # a controller that is late is asked again
            after = await self.group.view()
        times = [began, *(at for at in self.answered if began < at < ended), ended]
        pauses = sorted((b - a for a, b in itertools.pairwise(times)), reverse=True)
        seen = [(at, left) for at, left in self.leases if began < at < ended]
        without, longest = without_lease(seen)
        return {
            "acknowledged": len(times) - 2,
            "longest_pauses_ms": [round(1000 * each) for each in pauses[:3]],
            "refused": dict(self.refused),
            "lease_looks": len(seen),
            "lease_ms_min": min((left for _, left in seen), default=None),
            "leases_run_out": without,
            "longest_without_lease_ms": round(1000 * longest),
            "elections": after.epoch - (before.epoch if before else after.epoch),
            "in_sync": len(after.in_sync),
        }


def without_lease(seen: Sequence[tuple[float, int]]) -> tuple[int, float]:
    """How often a lease was found run out, and the longest time, in seconds, until one was seen again."""
    times, longest = 0, 0.0
    since: float | None = None
    for at, left in seen:
        if left <= 0:
            if since is None:
                since, times = at, times + 1
            longest = max(longest, at - since)
        elif since is not None:
            longest = max(longest, at - since)
            since = None
    return times, longest


def prefer(processes: Sequence[AsyncProcess], nice: int) -> None:
    """Give these a larger share of the cores. Raises OSError where we may not.

    Niceness counts between processes of one session or control group only, where the kernel makes autogroups;
    between sessions counts that of the autogroup.
    """
    for process in processes:
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        autogroup = Path(f"/proc/{process.pid}/autogroup")
        if autogroup.exists():
            autogroup.write_text(str(nice))


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time that these have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def first() -> Iterator[None]:
    """Our own session before all others: who measures is not to be late itself. Not for everybody to do."""
    ours = Path("/proc/self/autogroup")
    with contextlib.suppress(OSError):
        ours.write_text(str(FIRST))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            ours.write_text("0")


def confine(pids: Iterable[int], cgroup: Path | None) -> None:
    """Put processes into a control group. Raises OSError where there is none, or we may not."""
    for pid in pids if cgroup is not None else ():
        assert cgroup is not None
        (cgroup / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def busy(count: int, cgroup: Path | None) -> Iterator[list[int]]:
    """So many processes that compute for as long as the body lasts; their ids."""
    code = "while True: pass"
    began = [
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(count)
    ]
    try:
        pids = [each.pid for each in began]
        confine(pids, cgroup)
        yield pids
    finally:
        for each in began:
            each.kill()
        for each in began:
            each.wait()


async def measure(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Calm and under load; the figures of both."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "busy": arguments.busy}
    async with contextlib.AsyncExitStack() as stack:
        watched = []
        for mode, plan in PLANS.items():
            group = await stack.enter_async_context(ReplicaGroup(directory / mode, plan))
            await group.start()
            await group.create_topic(TOPIC, LANES)
            watched.append(Watched(mode, group))
        processes = [process for each in watched for process in each.group.processes]
        if arguments.nice:
            prefer(processes, arguments.nice)
        confine([each.pid for each in processes], arguments.cgroup)
        stack.enter_context(first())
        jobs = [asyncio.create_task(each.look()) for each in watched]
        jobs += [asyncio.create_task(each.send(n)) for each in watched for n in range(LANES)]
        try:
            found["load before"] = os.getloadavg()[0]
            calm = await asyncio.gather(*(each.measured(CALM_S) for each in watched))
            with busy(arguments.busy, arguments.cgroup) as others:
                pids = [each.pid for each in processes]
                before_s = cpu_s(pids)
                crowded = await asyncio.gather(
                    *(each.measured(arguments.seconds) for each in watched)
                )
                found["load after"] = os.getloadavg()[0]
                found["cores of the cluster"] = round(
                    (cpu_s(pids) - before_s) / arguments.seconds, 2
                )
                found["cores of the busy"] = round(cpu_s(others) / arguments.seconds, 2)
            for job in jobs:
                if job.done():
                    job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
    for each, before, under in zip(watched, calm, crowded, strict=True):
        found[each.mode] = {"calm": before, "crowded": under}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    parser = command.parser("crowded", __doc__)
    parser.add_argument("--busy", type=int, default=25, help="processes that compute (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="under load (%(default)s)")
    parser.add_argument("--nice", type=int, default=0, help="of the cluster (%(default)s)")
    parser.add_argument("--cgroup", type=Path, help="of the cluster and what is busy")
    given = parser.parse_args(arguments)
    begun = command.begin(given)
    found = asyncio.run(measure(begun.directory, given))
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
