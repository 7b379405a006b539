"""deploy/compose.yaml as it is: who reaches the cluster, what the death of a container costs, what is left of it all.

The tests are one story, in this order: the cluster is started by the first and removed by the last.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from dockers import LOCAL_BASE, ROOT, DockerFailed, Project, base_image, docker, inspected, until

from tandemmq import Message, Producer, java
from tandemmq.cluster.client import Admin, ClientError, ReplicaSet
from tandemmq.java import stock

MEMBERS = 6
HEALTHY_S = 60
STARTS_S = 20  # of a processor, all servers together
PATIENCE_S = 240  # for what is not measured: the machine may have other work
WRITABLE_AGAIN_S = 2.0
FROM_HOST = "127.0.0.1:9876;127.0.0.1:9886"
FROM_CONTAINER = "namesrv-a:9876;namesrv-b:9876"
GROUP = "broker-a"
COUNT = 200
ANONYMOUS_BYTES_MAX = 100_000_000
SINGLY = (
    100_000  # of the million; the others come in batches, which are stored one by one all the same
)

#: run on the host and, as it is, in a container: what was sent is what is consumed, on both groups
CLIENT = """
import asyncio, sys
from tandemmq import Message, Producer, PushConsumer, StartFrom

async def main(namesrv, topic, count):
    wanted, got, whole = set(), set(), asyncio.Event()
    async with Producer("sends-" + topic, namesrv=namesrv) as producer:
        results = [await producer.send(Message(topic, b"%d" % n)) for n in range(count)]
    assert {r.status.name for r in results} == {"SEND_OK"}, results
    wanted = {b"%d" % n for n in range(count)}

    async def handle(message):
        got.add(message.body)
        if got == wanted:
            whole.set()

    async with PushConsumer(
        "reads-" + topic, handle, namesrv=namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
    ):
        await asyncio.wait_for(whole.wait(), 60)
    print(len(got), min(r.copies for r in results), *sorted({r.queue.broker_name for r in results}))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def running(cluster: Project) -> Project:
    """The cluster, with all of its members healthy."""
    cluster.compose("up", "-d")
    until(lambda: cluster.healthy(MEMBERS), PATIENCE_S, "every container is healthy")
    until(lambda: len(in_sync(GROUP)) == 2, PATIENCE_S, "both members of the group are in sync")
    return cluster


def in_container(project: Project, program: str, *words: str) -> str:
    """What our Python client printed in a container of its own, on the cluster's network."""
    return docker(
        "run", "--rm", "--network", f"{project.name}_tandem", "--entrypoint", "/opt/tandemmq/bin/python",
        "tandemmq:test", "-c", program, *words,
    )  # fmt: skip


def group_of(name: str) -> ReplicaSet | None:
    async def ask() -> ReplicaSet | None:
        async with Admin(namesrv=FROM_HOST) as admin:
            return (await admin.replica_sets([name])).get(name)

    try:
        return asyncio.run(ask())
    except ClientError:
        return None  # not known yet


def in_sync(name: str) -> list[str]:
    """Addresses of the members of the sync-state-set."""
    found = group_of(name)
    return [] if found is None else [each.address for each in found.in_sync]


def brokers_of(topic: str, name_server: str) -> set[str]:
    async def ask() -> set[str]:
        async with Producer("looks", namesrv=name_server) as producer:
            return {queue.broker_name for queue in await producer.queues(topic)}

    try:
        return asyncio.run(ask())
    except ClientError:
        return set()  # not known yet


def make_topic(project: Project, topic: str) -> None:
    """On both groups: a topic that its first sends make is on those brokers only that they reached within a second."""
    words = ("updateTopic", "-c", "TandemCluster", "-t", topic)
    assert "success" in project.compose("exec", "-T", "namesrv-a", "tandem", "admin", *words)
    until(
        lambda: all(
            brokers_of(topic, each) == {"broker-a", "broker-b"} for each in FROM_HOST.split(";")
        ),
        PATIENCE_S, "both name servers know the topic",
    )  # fmt: skip


def master_of(name: str) -> str:
    """The service whose container leads."""
    found = group_of(name)
    assert found is not None
    assert found.master_id is not None
    last = found.replicas[found.master_id].address.partition(":")[0].rpartition(".")[2]
    return f"{name}-{int(last) % 10}"


def test_it_is_healthy_within_a_minute(cluster: Project) -> None:
    """On a machine that does nothing else: what others took of its processors meanwhile is not ours."""
    began, waited_s = time.monotonic(), stalled_s()
    cluster.compose("up", "-d")
    until(lambda: cluster.healthy(MEMBERS), PATIENCE_S, "every container is healthy")
    took_s, waited_s = time.monotonic() - began, stalled_s() - waited_s
    worked_s = sum(map(worked_so_far_s, cluster.labelled("ps")))
    print(f"healthy {took_s:.1f} s after up, {waited_s:.1f} s of them somebody waited for a processor; "
          f"the servers took {worked_s:.1f} s of one")  # fmt: skip
    assert took_s - waited_s < HEALTHY_S
    assert worked_s < STARTS_S


def stalled_s() -> float:
    """How long somebody waited for a processor since this machine started; 0 where the kernel does not say."""
    pressure = Path("/proc/pressure/cpu")
    if not pressure.exists():
        return 0.0
    return int(pressure.read_text().splitlines()[0].rpartition("=")[2]) / 1e6


def worked_so_far_s(container: str) -> float:
    """What a container's server has taken of a processor."""
    pid = inspected("container", container)["State"]["Pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_starting_it_twice_changes_nothing(running: Project) -> None:
    before = sorted(running.labelled("ps -a"))
    running.compose("up", "-d")
    assert sorted(running.labelled("ps -a")) == before
    assert running.healthy(MEMBERS)


def test_our_client_on_the_host_sends_and_consumes(running: Project) -> None:
    make_topic(running, "FromHost")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, FROM_HOST, "FromHost", str(COUNT)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == [str(COUNT), "2", "broker-a", "broker-b"], done.stderr[-3000:]


def test_our_client_in_a_container_sends_and_consumes(running: Project) -> None:
    make_topic(running, "FromContainer")
    shown = in_container(running, CLIENT, FROM_CONTAINER, "FromContainer", str(COUNT))
    assert shown.split() == [str(COUNT), "2", "broker-a", "broker-b"]


@pytest.mark.skipif(java.java_missing() is not None, reason=str(java.java_missing()))
def test_the_stock_java_client_on_the_host_sends_and_consumes(
    running: Project, tmp_path: Path
) -> None:
    with java.Driver(java.NEWEST, "json", FROM_HOST, tmp_path) as driver:
        driver.call("producer.start", name="p", group="JavaProducers")
        messages = [java.encoded(b"%d" % n) for n in range(COUNT)]
        sent = driver.call("send.sync", name="p", topic="FromJava", messages=messages)
        assert [each["status"] for each in sent] == ["SEND_OK"] * COUNT
        driver.call("push.start", name="c", group="JavaConsumers", topic="FromJava", expression="*")
        everything = {b"%d" % n for n in range(COUNT)}
        driver.wait_for(  # one that was sent again comes twice
            lambda: {java.body_of(each) for each in driver.messages("c")} == everything,
            60, "every message",
        )  # fmt: skip


@pytest.mark.skipif(java.java_missing() is not None, reason=str(java.java_missing()))
def test_the_stock_java_client_in_a_container_sends_and_consumes(
    running: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's JDK, in a container of the image's base, on the cluster's network."""
    if base_image() != LOCAL_BASE:
        pytest.skip("needs a base image that is like this machine: deploy/base.sh makes one")
    java_home = Path(shutil.which("java") or "").resolve().parents[1]
    mounts = [str(java_home), str(tmp_path), *java.classpath(java.NEWEST).split(":")]
    mounts += map(str, Path("/etc").glob("java-*-openjdk"))  # where Debian's JDK has its settings
    mounts.append(str(stock.compiled(java.NEWEST)))
    shim = tmp_path / "bin" / "java"
    shim.parent.mkdir()
    named = " ".join(f"-v {path}:{path}" for path in mounts)
    shim.write_text(
        f"#!/bin/sh\nexec {shutil.which('docker')} run -i --rm --network {running.name}_tandem {named} -w {tmp_path} "
        f'-e ROCKETMQ_HOME={tmp_path} {LOCAL_BASE} {java_home}/bin/java "$@"\n'
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    with java.Driver(java.NEWEST, "json", FROM_CONTAINER, tmp_path) as driver:
        make_topic(running, "JavaInside")
        driver.call("producer.start", name="p", group="JavaProducersInside")
        messages = [java.encoded(b"%d" % n) for n in range(COUNT)]
        sent = driver.call("send.sync", name="p", topic="JavaInside", messages=messages)
        assert [each["status"] for each in sent] == ["SEND_OK"] * COUNT
        driver.call("push.start", name="c", group="JavaInside", topic="JavaInside", expression="*")
        everything = {b"%d" % n for n in range(COUNT)}
        driver.wait_for(  # one that was sent again comes twice
            lambda: {java.body_of(each) for each in driver.messages("c")} == everything,
            60, "every message",
        )  # fmt: skip


def test_the_published_http_port_says_who_is_ready_and_asks_for_the_token(running: Project) -> None:
    def asked(path: str, token: str = "") -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:9880{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    assert asked("/readyz")[0] == 200
    assert b"tandem_" in asked("/metrics")[1]
    token = running.compose("exec", "-T", "namesrv-a", "cat", "/data/http.token").strip()
    assert len(token) >= 32
    assert asked("/api/nothing")[0] == 401
    assert asked("/api/nothing", "no" + token)[0] == 401
    assert asked("/api/nothing", token)[0] == 404


def test_the_doctor_finds_nothing_wrong_with_the_cluster_from_the_host_and_from_inside(
    running: Project,
) -> None:
    words = ("doctor", "--cluster-only", "--json")
    outside = subprocess.run(
        [sys.executable, "-m", "tandemmq", *words, "-n", FROM_HOST],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    inside = running.compose("exec", "-T", "namesrv-a", "tandem", *words)
    for shown in (outside.stdout, inside):
        assert [
            each for each in json.loads(shown)["findings"] if each["severity"] != "advice"
        ] == []
    # host facts, in a container: its limit is what counts, and its volume is a disk
    checks = running.compose(
        "exec",
        "-T",
        "broker-a-0",
        "sh",
        "-c",
        "tandem doctor --host-only --json --data /data || true",
    )
    assert "disk-container" not in checks and "memory-limit" not in checks


def test_a_servers_first_lines_say_what_it_is_what_it_promises_and_where_its_data_is(
    running: Project,
) -> None:
    container = running.container("broker-a-0")
    first = docker("logs", container, merged=True).splitlines()[:10]
    for words in ("broker is name=broker-a", "promise mode=S0", "data store=/data/store"):
        assert [line for line in first if words in line], first


def test_tools_reach_every_broker_from_the_host_and_from_inside(running: Project) -> None:
    outside = subprocess.run(
        [sys.executable, "-m", "tandemmq", "admin", "clusterList", "--json", "-n", FROM_HOST],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    inside = running.compose("exec", "-T", "namesrv-a", "tandem", "admin", "clusterList", "--json")
    addresses = [{each["address"] for each in json.loads(shown)} for shown in (outside, inside)]
    assert addresses[0] == addresses[1]
    assert len(addresses[0]) == 4


async def _sent_while(
    kill: tuple[str, ...], topic: str, seconds: float
) -> tuple[set[bytes], list[float], float]:
    """What was acknowledged meanwhile, when sends of the group were, and when the container died."""
    acknowledged: set[bytes] = set()
    times: list[float] = []
    numbers = iter(range(10_000_000))
    async with Producer("failover", namesrv=FROM_HOST) as producer:
        end = time.monotonic() + seconds

        async def keep_sending() -> None:
            while time.monotonic() < end:
                body = b"%d" % next(numbers)
                try:
                    result = await producer.send(Message(topic, body))
                except ClientError:
                    await asyncio.sleep(0.01)
                    continue
                if result.status.name != "SEND_OK":
                    continue
                acknowledged.add(body)
                if result.queue.broker_name == GROUP:
                    times.append(time.monotonic())

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(keep_sending())
            await asyncio.sleep(seconds / 3)
            killed = time.monotonic()
            process = await asyncio.create_subprocess_exec(*kill, stdout=asyncio.subprocess.DEVNULL)
            assert await process.wait() == 0
    return acknowledged, times, killed


def bodies(topic: str) -> set[bytes]:
    """All that the topic holds."""
    shown = subprocess.run(
        [sys.executable, "-m", "tandemmq", "tail", topic, "--from", "first", "--until-end",
         "--json", "-n", FROM_HOST],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    return {json.loads(line)["body"].encode() for line in shown.splitlines()}


def test_a_masters_container_dies_and_its_group_goes_on_within_two_seconds(
    running: Project,
) -> None:
    until(lambda: len(in_sync(GROUP)) == 2, PATIENCE_S, "both members are in sync")
    victim = master_of(GROUP)
    container = running.container(victim)
    sent = asyncio.run(_sent_while(("docker", "kill", "-s", "KILL", container), "Failover", 12))
    acknowledged, times, killed = sent
    before = [each for each in times if each < killed]
    after = [each for each in times if each > killed + 0.05]
    assert before
    assert after, "the group took no message any more"
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    print(f"{len(acknowledged):,} acknowledged, the group silent for {max(gaps):.2f} s at most")
    assert max(gaps) < WRITABLE_AGAIN_S
    assert master_of(GROUP) != victim

    docker("start", container)
    until(lambda: len(in_sync(GROUP)) == 2, PATIENCE_S, "the old master is back in the set")
    until(lambda: running.healthy(MEMBERS), PATIENCE_S, "every container is healthy again")
    assert acknowledged - bodies("Failover") == set()


def test_a_rolling_restart_under_load_loses_no_send(running: Project) -> None:
    until(lambda: len(in_sync(GROUP)) == 2, PATIENCE_S, "both members are in sync")
    before = {
        each: inspected("container", each)["State"]["StartedAt"] for each in running.labelled("ps")
    }

    async def restarted() -> tuple[list[bytes], list[str], str]:
        acknowledged: list[bytes] = []
        failed: list[str] = []
        numbers = iter(range(10_000_000))

        async def keep_sending(producer: Producer) -> None:
            while True:
                body = b"%d" % next(numbers)
                try:
                    result = await producer.send(Message("Rolling", body))
                except ClientError as problem:
                    failed.append(str(problem))
                else:
                    if result.status.name == "SEND_OK":
                        acknowledged.append(body)
                    else:
                        failed.append(result.status.name)
                await asyncio.sleep(0.002)

        async with Producer("rolling", namesrv=FROM_HOST) as producer:
            tasks = [asyncio.create_task(keep_sending(producer)) for _ in range(4)]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tandemmq", "rolling-restart", "--name-servers",
                "--with", "deploy/restart/compose.sh {host}", "-n", "172.29.88.2:9876;172.29.88.3:9876",
                cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await process.communicate()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert process.returncode == 0, said.decode()
        return acknowledged, failed, said.decode()

    acknowledged, failed, said = asyncio.run(restarted())
    print(said)
    assert failed == []
    assert len(acknowledged) > 1_000
    after = {
        each: inspected("container", each)["State"]["StartedAt"] for each in running.labelled("ps")
    }
    assert after.keys() == before.keys()
    assert not [each for each in after if after[each] == before[each]], "each was restarted"
    assert set(acknowledged) - bodies("Rolling") == set()


async def _sent_in_batches(topic: str, count: int) -> None:
    batch = [Message(topic, b"x" * 100, keys=f"key-{number}") for number in range(1_000)]
    async with Producer("batches", namesrv=FROM_HOST) as producer:
        for _ in range(count // len(batch)):
            assert (await producer.send_batch(batch)).status.name == "SEND_OK"
    async with Admin(namesrv=FROM_HOST) as admin:
        assert (await admin.topic_stats(topic)).message_count == SINGLY + count


def test_a_broker_needs_less_than_100_mb_of_its_own_after_a_million_messages(
    running: Project,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq", "bench", "--count", str(SINGLY), "--size", "100", "--in-flight", "1000",
         "--no-read", "--json", "--topic", "Million", "-n", FROM_HOST],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    assert (sent["sent"], sent["failed"], sent["not_promised"]) == (SINGLY, 0, 0)
    asyncio.run(_sent_in_batches("Million", 1_000_000 - SINGLY))
    for service in ("broker-a-0", "broker-a-1", "broker-b-0", "broker-b-1"):
        status = running.compose("exec", "-T", service, "cat", "/proc/1/status")
        (line,) = (each for each in status.splitlines() if each.startswith("RssAnon:"))
        anonymous_bytes = int(line.split()[1]) * 1024
        print(f"{service}: {anonymous_bytes / 1e6:.0f} MB anonymous memory")
        assert anonymous_bytes < ANONYMOUS_BYTES_MAX, service


def test_messages_outlive_the_containers(running: Project) -> None:
    before = bodies("FromHost")
    assert len(before) == COUNT
    running.compose("down")
    assert running.labelled("ps -a") == []
    running.compose("up", "-d")
    until(lambda: running.healthy(MEMBERS), PATIENCE_S, "every container is healthy")
    until(lambda: len(in_sync(GROUP)) == 2, PATIENCE_S, "both members are in sync")
    assert bodies("FromHost") == before


def test_down_leaves_nothing(running: Project) -> None:
    assert len(running.labelled("volume ls")) == MEMBERS
    running.compose("down", "-v")
    left = [running.labelled(kind) for kind in ("ps -a", "volume ls", "network ls")]
    assert left == [[], [], []]
    with pytest.raises(DockerFailed):
        docker("network", "inspect", f"{running.name}_tandem")
