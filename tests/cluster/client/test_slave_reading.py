"""Consumers of a group with a slave: where they read and commit. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import json

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, settle
from timekit import run

from tandemmq.cluster.client import ClientConfig, PushConsumer, ReceivedMessage, StartFrom
from tandemmq.cluster.client.reaching import instance
from tandemmq.cluster.client.reaching.instance import AWAY_S
from tandemmq.cluster.client.reaching.routes import BrokerTable, parse_route
from tandemmq.cluster.remoting import Command, RequestCode, RequestTimedOut

PULL, COMMIT = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET


class Member(FakeBroker):
    """A member of a group that names a member in its answers to pulls."""

    suggested = 0
    frozen = False

    def _pulled(
        self, command: Command, code: int, following: int, queue: list[bytes], body: bytes = b""
    ) -> Command:
        answer = super()._pulled(command, code, following, queue, body)
        assert answer.ext is not None
        answer.ext["suggestWhichBrokerId"] = str(self.suggested)
        return answer

    def freeze(self) -> None:
        """Connections stand, and nothing is answered."""
        self.frozen = True
        self.trouble = lambda command: RequestTimedOut(self.address, command.code, 1)

    def thaw(self) -> None:
        self.frozen = False
        self.trouble = lambda command: None


class Group(FakeCluster):
    """One broker name with a master and a slave that has every message at once."""

    def __init__(self, channels: bool) -> None:
        super().__init__(channels)
        self.master = self._member("127.0.0.1:10911")
        self.slave = self._member("127.0.0.1:10921")
        self.slave.queues = self.master.queues
        self.topics["T"] = {"a": 1}
        self.registered = {"0": self.master, "1": self.slave}

    def _member(self, address: str) -> Member:
        member = Member(self, "a", address)
        self.brokers[address] = member
        return member

    def route_body(self, counts: dict[str, int]) -> bytes:
        tree = json.loads(super().route_body(counts))
        addresses = {number: each.address for number, each in self.registered.items()}
        tree["brokerDatas"] = [{"cluster": "C", "brokerName": "a", "brokerAddrs": addresses}]
        return json.dumps(tree).encode()

    async def store(self, *bodies: bytes) -> None:
        """Into both; a frozen master does not even answer the pulls that it holds."""
        await self.slave.fill("T", 0, list(bodies))
        if not self.master.frozen:
            async with self.master._arrived:
                self.master._arrived.notify_all()


class Inbox:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._changed = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, *bodies: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.bodies == list(bodies))


@pytest.fixture
def group(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group(cluster.channels)
    monkeypatch.setattr(instance, "open_channel", made.open_channel)
    return made


def consumer(inbox: Inbox, route_interval_ms: int = 600_000) -> PushConsumer:
    return PushConsumer(
        "CG", inbox, subscribe={"T": "*"}, start=StartFrom.FIRST,
        config=ClientConfig(NAME_SERVER, route_interval_ms=route_interval_ms),
    )  # fmt: skip


def served(member: Member, code: int) -> int:
    return sum(
        command.code == code and (command.ext or {})["topic"] == "T" for command in member.requests
    )


def test_a_consumer_goes_where_the_last_answer_sent_it(group: Group) -> None:
    async def main() -> None:
        inbox = Inbox()
        group.master.suggested = group.slave.suggested = 1
        await group.store(b"1")
        async with consumer(inbox):
            await inbox.wait(b"1")
            pulls = served(group.master, PULL)
            await group.store(b"2")
            await inbox.wait(b"1", b"2")
            assert served(group.master, PULL) == pulls
            assert served(group.slave, PULL) >= 1
            group.slave.suggested = 0  # caught up
            await group.store(b"3")
            await inbox.wait(b"1", b"2", b"3")
            await settle()
            assert served(group.master, PULL) == pulls + 1

    run(main())


@pytest.mark.parametrize("end", ["dies", "freezes"])
def test_a_consumer_reads_and_commits_at_the_slave_before_any_route_changes(
    group: Group, end: str
) -> None:
    async def main() -> None:
        inbox = Inbox()
        await group.store(b"1")
        async with consumer(inbox):
            await inbox.wait(b"1")
            if end == "dies":
                group.master.down = True
            else:
                group.master.freeze()
            await group.store(b"2")  # what only the slave can hand out now
            await inbox.wait(b"1", b"2")
            await group.store(b"3")
            await inbox.wait(b"1", b"2", b"3")
        assert group.slave.offsets["CG", "T", 0] == 3

    run(main())


def test_a_master_that_answers_heartbeats_again_is_read_again(group: Group) -> None:
    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox):
            await settle()
            group.master.freeze()
            await group.store(b"1")
            await inbox.wait(b"1")
            group.master.thaw()
            await asyncio.sleep(AWAY_S + 31)  # the next heartbeat
            pulls = served(group.slave, PULL)
            await group.store(b"2")
            await inbox.wait(b"1", b"2")
            await asyncio.sleep(60)
            assert served(group.slave, PULL) <= pulls + 1

    run(main())


def test_alone_a_broker_is_asked_again_though_it_did_not_answer(group: Group) -> None:
    async def main() -> None:
        inbox = Inbox()
        del group.registered["1"]
        async with consumer(inbox):
            await settle()
            group.master.freeze()
            await asyncio.sleep(5)
            group.master.thaw()
            await group.store(b"1")
            await inbox.wait(b"1")

    run(main())


@pytest.mark.parametrize("cluster", ["channels"], indirect=True)  # calls do not end when hung up
def test_a_pull_that_a_deposed_master_holds_is_given_up_with_the_route(group: Group) -> None:
    async def main() -> None:
        inbox = Inbox()
        async with consumer(inbox, route_interval_ms=5_000):
            await settle()
            group.master.freeze()  # it holds a pull, and would for another 30 s
            group.registered = {"0": group.slave}
            began_s = asyncio.get_running_loop().time()
            await group.store(b"1")
            await inbox.wait(b"1")
            assert asyncio.get_running_loop().time() - began_s < 12

    run(main())


ROUTE = (
    b'{"queueDatas":[{"brokerName":"a","readQueueNums":1,"writeQueueNums":1,"perm":6}],'
    b'"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":"m:1","1":"s:1","2":"t:1"}}]}'
)


@pytest.mark.parametrize(
    ("suggested", "away", "expected"),
    [
        (0, {"m:1"}, ("s:1", 1)),
        (1, {"s:1"}, ("t:1", 2)),
        (0, {"m:1", "s:1"}, ("t:1", 2)),
        (0, {"m:1", "s:1", "t:1"}, ("m:1", 0)),
        (2, {"m:1"}, ("t:1", 2)),
    ],
)
def test_who_does_not_answer_is_asked_only_when_nobody_else_is_there(
    suggested: int, away: set[str], expected: tuple[str, int]
) -> None:
    table = BrokerTable()
    table.learn("T", parse_route(ROUTE))
    assert table.reader("a", suggested, away) == expected
