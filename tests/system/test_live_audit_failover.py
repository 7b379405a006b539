"""Audits while groups fail over and hand over: equal, or no result; never an alarm."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Done, run

from tandemmq import ClientError, Message, Producer
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import python_command, python_env

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


class Replicated:
    """`tandem local up --mode sync`: two groups of a master and a slave with a controller."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name_server = ""

    def tandem(self, *words: object) -> Done:
        done = run(*words, "--dir", self.directory)
        assert done.code == 0, (words, done)
        return done

    def up(self) -> None:
        found = json.loads(self.tandem("local", "up", "--mode", "sync", "--json").out)
        self.name_server = found["name_server"]

    def audit(self, *words: str) -> Done:
        """In a process of its own: what this one prints is captured for one command at a time."""
        token = str(self.directory / "http.token")
        command = ["audit", "run", "--namesrv", self.name_server, "--token-file", token, *words]
        done = subprocess.run(
            python_command(*command), capture_output=True, text=True, env=os.environ | python_env(),
            timeout=120, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    made = Replicated(tmp_path_factory.mktemp("failover"))
    made.up()
    try:
        yield made
    finally:
        run("local", "down", "--kill", "--dir", made.directory)


@contextmanager
def load(name_server: str) -> Iterator[list[int]]:
    """A producer that sends until the body ends; [acknowledged]."""
    acknowledged = [0]
    stop = threading.Event()

    async def produce() -> None:
        rng = random.Random(5)
        async with Producer("audited", namesrv=name_server) as producer:
            while not stop.is_set():
                messages = [
                    Message(f"Load{rng.randrange(3)}", rng.randbytes(rng.randrange(1, 2000)))
                    for _ in range(16)
                ]
                sent = await asyncio.gather(*map(producer.send, messages), return_exceptions=True)
                for each in sent:
                    if isinstance(each, BaseException) and not isinstance(each, ClientError):
                        raise each
                    acknowledged[0] += not isinstance(each, BaseException)

    thread = threading.Thread(target=lambda: asyncio.run(produce()), name="load")
    thread.start()
    try:
        wait_until(lambda: acknowledged[0] > 500 or not thread.is_alive(), 30, "messages flow")
        yield acknowledged
    finally:
        stop.set()
        thread.join()


def wait_until_more(acknowledged: list[int]) -> None:
    goal = acknowledged[0] + 300
    wait_until(lambda: acknowledged[0] > goal, 30, "messages flow again")


def assert_equal_or_no_result(done: Done) -> None:
    assert done.code in (0, 3), done.out + done.err
    for line in done.out.splitlines():
        summary = json.loads(line)
        assert summary["verdict"] in ("equal", "void"), summary
        if summary["verdict"] == "equal":
            rows = [*summary["divergence_rows"], *summary["finding_rows"]]
            assert [row for row in rows if row["severity"] != "info"] == []
    if done.code == 3:
        assert done.err or '"verdict": "void"' in done.out


def test_groups_that_hand_over_and_fail_over_raise_no_alarm(cluster: Replicated) -> None:
    done: list[Done] = []
    with load(cluster.name_server) as acknowledged:
        ended = threading.Event()

        def audits() -> None:
            while not ended.is_set():
                done.append(cluster.audit("--json"))

        # in a thread of its own: audits begin at any moment of what happens below
        auditor = threading.Thread(target=audits, name="auditor")
        auditor.start()
        try:
            for name in ("broker-b-0", "broker-b-1", "broker-b-0"):
                seen = len(done)
                while len(done) < seen + 2:
                    run("admin", "switchover", "-n", cluster.name_server, "-bn", "broker-a")
                    wait_until_more(acknowledged)
                cluster.tandem("local", "kill", name)
                wait_until_more(acknowledged)
                cluster.tandem("local", "start", name)
        finally:
            ended.set()
            auditor.join()
    assert len(done) >= 5
    for each in done:
        assert_equal_or_no_result(each)
    assert any(each.code == 0 for each in done)


def test_after_all_of_it_both_groups_are_equal_and_their_epochs_known(cluster: Replicated) -> None:
    found: list[Done] = []

    def settled() -> bool:
        """Slaves hear a little later what their master has confirmed: until then they lag."""
        found.append(cluster.audit("--json"))
        return found[-1].code == 0 and '"class": "LAG"' not in found[-1].out

    wait_until(settled, 60, "replicas have caught up")
    summaries = [json.loads(line) for line in found[-1].out.splitlines()]
    assert [summary["reference"] for summary in summaries] == ["broker-a-0", "broker-b-0"]
    for summary in summaries:
        assert summary["divergence_rows"] == []
        assert summary["records_checked"] > 500
