"""cluster/broker/duplicates.py: who may not start beside whom."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from messagekit import FakeConnection, open_kit, send_ext

from tandemmq.cluster.broker.duplicates import LOOKS_MS, STAGE, Claim, NameTaken, Stage
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.errors import ConnectFailed, RequestTimedOut

NAMES = "10.0.0.9:9876"
OTHER = "10.0.0.2:10911"


class Network:
    """A name server's table, and what brokers answer when they are asked who they are."""

    def __init__(self, **members: Any) -> None:
        self.table: dict[str, Any] = members
        self.brokers: dict[str, Command | Exception] = {}

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        if address == NAMES:
            assert command.code == 106
            body = ",".join(
                f'"{name}":{{"brokerAddrs":{{{broker_id}:"{at}"}},"brokerName":"{name}","cluster":"{cluster}"}}'
                for name, (cluster, broker_id, at) in self.table.items()
            )
            return Command(
                0, body=f'{{"brokerAddrTable":{{{body}}},"clusterAddrTable":{{}}}}'.encode()
            )
        assert command.code == 26
        assert timeout_ms <= 1_000
        answer = self.brokers.get(address, ConnectFailed(address, "refused"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.table = {}


async def refuse_second(config: BrokerConfig, network: Network) -> None:
    """What a start does before anybody can reach it."""
    await Claim(config, network, network).first_look()


def says(name: str = "broker-a", broker_id: int = 0, cluster: str = "C") -> Command:
    text = f"brokerName={name}\nbrokerId={broker_id}\nbrokerClusterName={cluster}\n"
    return Command(0, body=text.encode())


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "storePathRootDir": str(tmp_path), "brokerName": "broker-a", "brokerClusterName": "C",
            "brokerIP1": "10.0.0.1", "listenPort": "10911", "namesrvAddr": NAMES,
        },
        environment={},
    )  # fmt: skip


def network(cluster: str = "C", broker_id: int = 0, at: str = OTHER) -> Network:
    return Network(**{"broker-a": (cluster, broker_id, at), "broker-b": ("C", 0, "10.0.0.3:10911")})


async def test_second_broker_of_one_name_and_id_does_not_start(config: BrokerConfig) -> None:
    found = network()
    found.brokers[OTHER] = says()
    with pytest.raises(ConfigError, match=f"already, at {OTHER}") as refused:
        await refuse_second(config, found)
    assert refused.value.key == "brokerId"


@pytest.mark.parametrize("answer", [RequestTimedOut(OTHER, 26, 1000), Command(16, remark="no")])
async def test_who_lives_there_and_does_not_say_who_it_is_may_be_the_one(
    config: BrokerConfig, answer: Command | Exception
) -> None:
    found = network()
    found.brokers[OTHER] = answer
    with pytest.raises(ConfigError, match="already"):
        await refuse_second(config, found)


@pytest.mark.parametrize(
    "answer",
    [None, says(name="broker-z"), says(broker_id=1), Command(0, body=b"nonsense")],
    ids=["dead", "another", "a slave by now", "no broker"],
)
async def test_place_of_a_dead_or_renamed_broker_is_taken(
    config: BrokerConfig, answer: Command | None
) -> None:
    found = network()
    if answer is not None:
        found.brokers[OTHER] = answer
    await refuse_second(config, found)


async def test_own_registration_and_other_members_are_no_reason(config: BrokerConfig) -> None:
    await refuse_second(config, network(at="10.0.0.1:10911"))
    slave = network(broker_id=1)
    slave.brokers[OTHER] = says(broker_id=1)
    await refuse_second(config, slave)
    await refuse_second(config, Network())


async def test_name_of_another_cluster_is_refused(config: BrokerConfig) -> None:
    found = network(cluster="D", broker_id=1)
    found.brokers[OTHER] = says(broker_id=1, cluster="D")
    with pytest.raises(ConfigError, match="belongs to cluster D") as refused:
        await refuse_second(config, found)
    assert refused.value.key == "brokerClusterName"


async def test_name_server_that_is_away_or_talks_nonsense_knows_nobody(
    config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Network):
        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            if self.table:
                raise ConnectFailed(address, "refused")
            return Command(0, body=b'{"brokerAddrTable":{"broker-a":7}}')

    await refuse_second(config, Odd(any=1))
    await refuse_second(config, Odd())


# -- two that start at once


class VirtualTime:
    """Seconds that pass when nobody has anything else to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def sleep(self, duration_s: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + duration_s, next(self._numbers), future))
        await future

    async def run(self, *tasks: asyncio.Task[Any]) -> None:
        while not all(task.done() for task in tasks):
            for _ in range(12):  # more turns than any chain of callbacks takes
                await asyncio.sleep(0)
            if self._waiting:
                self.now, _, future = heapq.heappop(self._waiting)
                if not future.done():
                    future.set_result(None)


class Names:
    """A name server: the last registration of an id wins, and a lost connection takes its own away."""

    def __init__(self, *, up_at: float = 0.0) -> None:
        self.up_at = up_at
        self.master: str | None = None

    def answer(self) -> Command:
        addresses = f'0:"{self.master}"' if self.master else ""
        group = f'{{"brokerAddrs":{{{addresses}}},"brokerName":"broker-a","cluster":"C"}}'
        return Command(0, body=f'{{"brokerAddrTable":{{"broker-a":{group}}}}}'.encode())


class World:
    """Name servers and brokers of one name and id, between which everything takes its time."""

    def __init__(self, rng: random.Random, names: dict[str, Names], *, lost: float = 0.0) -> None:
        self.rng = rng
        self.time = VirtualTime()
        self.names = names
        self.brokers: dict[str, Starting] = {}
        self.lost = lost

    async def pass_on(self) -> None:
        await self.time.sleep(self.rng.uniform(0.0005, 0.02))

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        await self.pass_on()
        if address in self.names:
            if self.time.now < self.names[address].up_at:
                raise ConnectFailed(address, "refused")
            answer = self.names[address].answer()
        else:
            broker = self.brokers.get(address)
            if broker is None or not broker.listening:
                raise ConnectFailed(address, "refused")
            if self.rng.random() < self.lost:
                await self.time.sleep(timeout_ms / 1000)
                raise RequestTimedOut(address, 26, timeout_ms)
            made: Any = broker.handle(command, None)
            answer = made
            if self.rng.random() < self.lost:
                await self.time.sleep(timeout_ms / 1000)
                raise RequestTimedOut(address, 26, timeout_ms)
        await self.pass_on()
        return answer

    async def close(self) -> None:
        """Nothing is kept."""


class Starting:
    """One broker from its start on; what its name servers know of it."""

    def __init__(self, world: World, config: BrokerConfig) -> None:
        self.world = world
        self.config = config
        self.claim = Claim(config, world, world, world.time.sleep)
        self.handle = self.claim.answering(lambda command, connection: says())
        self.listening = False
        self.served = False
        self.left: NameTaken | None = None
        self.known: set[str] = set()
        world.brokers[config.address] = self

    def reached(self) -> list[str]:
        return sorted(self.known)

    def all_changed(self) -> None:
        for name in self.known:
            self.world.names[name].master = self.config.address

    async def register(self, name: str, tried: asyncio.Event) -> None:
        while self.listening and name not in self.known:
            await self.world.pass_on()
            if self.world.time.now >= self.world.names[name].up_at:
                self.world.names[name].master = self.config.address
                await self.world.pass_on()
                self.known.add(name)
                tried.set()
            else:
                tried.set()
                await self.world.time.sleep(self.world.rng.uniform(0.5, 0.75))

    async def run(self) -> None:
        world, claim = self.world, self.claim
        await world.time.sleep(world.rng.choice([0.0, 0.003, 0.05, 0.3]) * world.rng.random())
        links: list[asyncio.Task[None]] = []
        try:
            await claim.first_look()
            await world.time.sleep(world.rng.choice([0.01, 0.3, 1.0]) * world.rng.random())
            self.listening = True
            await claim.last_look()
            tried = {name: asyncio.Event() for name in world.names}
            links = [asyncio.create_task(self.register(*each)) for each in tried.items()]
            await asyncio.gather(*(each.wait() for each in tried.values()))
            await claim.open(self)
            self.served = True
            await claim.settle(self)
        except NameTaken as taken:
            self.left = taken
            await world.time.sleep(world.rng.uniform(0, 1))  # it drains, and answers meanwhile
            self.listening = False
        await asyncio.gather(*links)
        if self.left is not None:
            for name in world.names.values():
                if name.master == self.config.address:
                    name.master = None


def configs(config: BrokerConfig, count: int) -> Iterable[BrokerConfig]:
    for number in range(1, count + 1):
        yield msgspec.structs.replace(config, advertised_ip=f"10.0.0.{number}", namesrv="n1:1;n2:1")


async def start_together(world: World, config: BrokerConfig, count: int = 2) -> list[Starting]:
    """Those that stayed, when all of them have come to their end."""
    brokers = [Starting(world, each) for each in configs(config, count)]
    world.rng.shuffle(brokers)
    await world.time.run(*[asyncio.create_task(broker.run()) for broker in brokers])
    return [broker for broker in brokers if broker.left is None]


@pytest.mark.parametrize("seed", range(60))
async def test_exactly_one_of_those_that_start_at_once_stays(
    config: BrokerConfig, seed: int
) -> None:
    """Two name servers, which may disagree about who came last, and one of which may be down."""
    for number in range(5):
        rng = random.Random(seed * 5 + number)
        up_at = [rng.choice([0.0, rng.uniform(0, 0.8)]), rng.choice([0.0, 0.0, 6.0])]
        world = World(rng, {"n1:1": Names(up_at=up_at[0]), "n2:1": Names(up_at=up_at[1])})
        stayed = await start_together(world, config, rng.choice([2, 2, 3]))
        assert len(stayed) == 1, [each.config.address for each in stayed]
        assert stayed[0].claim.stage is Stage.SETTLED
        shown = {each.master for each in world.names.values() if each.up_at < 1}
        assert shown == {stayed[0].config.address}
        if up_at[0] == 0:  # nobody took a send that had to leave
            assert not any(each.served for each in world.brokers.values() if each.left)


@pytest.mark.parametrize("seed", range(30))
async def test_never_all_leave_when_answers_are_lost(config: BrokerConfig, seed: int) -> None:
    for number in range(5):
        rng = random.Random(seed * 5 + number)
        world = World(rng, {"n1:1": Names(), "n2:1": Names()}, lost=0.3)
        assert await start_together(world, config, rng.choice([2, 3]))


class At:
    """Name servers that know us."""

    def __init__(self, *known: str) -> None:
        self.known = list(known)
        self.registered_again = 0

    def reached(self) -> list[str]:
        return self.known

    def all_changed(self) -> None:
        self.registered_again += 1


class Sleeps:
    """Sleeps that take no time, and are noted."""

    def __init__(self) -> None:
        self.ms: list[int] = []

    async def __call__(self, duration_s: float) -> None:
        self.ms.append(round(duration_s * 1000))


def of_stage(stage: Stage | str | None) -> Command:
    answer = says()
    if stage is not None:
        answer.ext = {STAGE: str(int(stage)) if isinstance(stage, Stage) else stage}
    return answer


SMALLER, LARGER = "10.0.0.0:10911", OTHER
SILENT = RequestTimedOut(OTHER, 26, 1000)


@pytest.mark.parametrize(
    ("ours", "theirs", "at", "leaves"),
    [
        (Stage.STARTING, of_stage(Stage.STARTING), SMALLER, True),
        (Stage.STARTING, of_stage(Stage.STARTING), LARGER, False),
        (Stage.STARTING, of_stage(Stage.OPEN), LARGER, True),
        (Stage.STARTING, of_stage(Stage.SETTLED), LARGER, True),
        (Stage.OPEN, of_stage(Stage.STARTING), SMALLER, False),
        (Stage.OPEN, of_stage(Stage.OPEN), SMALLER, True),
        (Stage.OPEN, of_stage(Stage.OPEN), LARGER, False),
        (Stage.OPEN, of_stage(Stage.SETTLED), LARGER, True),
        (Stage.OPEN, of_stage(None), LARGER, True),  # a stock broker: it does not leave
        (Stage.OPEN, of_stage("x"), LARGER, True),
        (Stage.OPEN, Command(16, remark="no"), LARGER, True),
        (Stage.STARTING, SILENT, SMALLER, True),
        (Stage.STARTING, SILENT, LARGER, False),
        (Stage.OPEN, SILENT, SMALLER, False),
        (Stage.OPEN, says(name="broker-z"), SMALLER, False),  # somebody has its port
        (Stage.OPEN, Command(0, body=b"nonsense"), SMALLER, False),
        (Stage.OPEN, ConnectFailed(OTHER, "refused"), SMALLER, False),  # dead
    ],
)
async def test_later_stage_stays_and_then_the_smaller_address(
    config: BrokerConfig, ours: Stage, theirs: Command | Exception, at: str, leaves: bool
) -> None:
    found = Network()
    claim, names = Claim(config, found, found, Sleeps()), At(NAMES)
    if ours is Stage.OPEN:
        found.table["broker-a"] = ("C", 0, config.address)
        await claim.open(names)
    found.table["broker-a"] = ("C", 0, at)
    found.brokers[at] = theirs
    going_on = claim.settle(names) if ours is Stage.OPEN else claim.open(names)
    if leaves:
        with pytest.raises(NameTaken, match=f"already, at {at}"):
            await going_on
        assert claim.stage is ours
    else:
        await going_on
        assert claim.stage > ours
        assert names.registered_again


async def test_healthy_start_looks_three_times_and_never_again(config: BrokerConfig) -> None:
    found, sleeps = network(at=config.address), Sleeps()
    claim, names = Claim(config, found, found, sleeps), At(NAMES)
    await claim.first_look()
    await claim.last_look()
    await claim.open(names)
    assert (claim.stage, sleeps.ms) == (Stage.OPEN, [LOOKS_MS[0]])
    await claim.settle(names)
    assert (claim.stage, sum(sleeps.ms)) == (Stage.SETTLED, LOOKS_MS[-1])
    assert not names.registered_again


async def test_start_without_name_servers_waits_for_nothing(config: BrokerConfig) -> None:
    sleeps = Sleeps()
    claim = Claim(config, Network(), Network(), sleeps)
    await claim.open(At())
    assert (claim.stage, sleeps.ms) == (Stage.OPEN, [])


async def test_name_server_that_was_silent_is_not_asked_right_before_registering(
    config: BrokerConfig,
) -> None:
    class Silent(Network):
        asked = 0

        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            self.asked += 1
            raise RequestTimedOut(address, 106, timeout_ms)

    silent = Silent()
    claim = Claim(config, silent, silent)
    await claim.first_look()
    await claim.last_look()
    assert silent.asked == 1


def tell(claim: Claim, **told: str) -> Command:
    asked = {
        "clusterName": "C", "brokerName": "broker-a", "brokerId": "0", "brokerAddr": SMALLER,
        STAGE: "0", **told,
    }  # fmt: skip
    answer: Any = claim.answering(lambda command, connection: says())(Command(26, asked), None)
    assert isinstance(answer, Command)
    return answer


async def test_told_of_a_rival_that_no_name_server_shows_it_is_judged(
    config: BrokerConfig,
) -> None:
    found = network(at=config.address)
    found.brokers[SMALLER] = of_stage(Stage.STARTING)
    claim = Claim(config, found, found, Sleeps())
    assert (tell(claim).ext or {})[STAGE] == "0"
    with pytest.raises(NameTaken, match=f"already, at {SMALLER}"):
        await claim.open(At())


@pytest.mark.parametrize(
    "told",
    [
        {"brokerName": "broker-z"},
        {"brokerId": "1"},
        {"brokerId": "x"},
    ],
)
async def test_who_tells_of_something_else_is_answered_and_not_judged(
    config: BrokerConfig, told: dict[str, str]
) -> None:
    found = network(at=config.address)
    found.brokers[SMALLER] = of_stage(Stage.SETTLED)
    claim = Claim(config, found, found, Sleeps())
    assert STAGE in (tell(claim, **told).ext or {})
    await claim.open(At(NAMES))
    assert claim.stage is Stage.OPEN


async def test_own_former_address_that_still_leads_here_is_no_rival(config: BrokerConfig) -> None:
    """brokerIP1 has changed, and a name server remembers the former one."""

    class Mirror(Network):
        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            if address != SMALLER:
                return await super().request(address, command, timeout_ms)
            answer: Any = claim.answering(lambda command, connection: says())(command, None)
            assert isinstance(answer, Command)
            return answer

    found = Mirror(**{"broker-a": ("C", 0, SMALLER)})
    claim = Claim(config, found, found, Sleeps())
    await claim.open(At(NAMES))
    assert claim.stage is Stage.OPEN


async def test_liar_on_another_address_makes_nobody_leave(config: BrokerConfig) -> None:
    """What it says is asked for where it says to live; and only so many are listened to."""
    found = network(at=config.address)
    claim = Claim(config, found, found, Sleeps())
    for number in range(100):
        tell(claim, brokerAddr=f"10.9.9.9:{number + 1}")
    await claim.open(At(NAMES))
    await claim.settle(At(NAMES))
    assert claim.stage is Stage.SETTLED
    found.brokers[SMALLER] = of_stage(Stage.SETTLED)
    assert (tell(claim).ext or {})[STAGE] == "2"


def test_who_only_asks_for_settings_is_answered_as_before(config: BrokerConfig) -> None:
    claim = Claim(config, Network(), Network())
    answer: Any = claim.answering(lambda command, connection: says())(Command(26), None)
    assert answer == says()


async def test_master_whose_name_is_not_sure_stores_nothing(tmp_path: Path) -> None:
    """On neither path: the short one leaves every send to the one that waits, and refuses if it stays unsure."""
    with open_kit(tmp_path) as kit:
        kit.topic("T")
        assert isinstance(kit.standing, ClassicMaster)
        kit.standing.unproven = True
        request = Command(310, send_ext(), b"hello", opaque=3)
        waiting = kit.sends.handle_send_message(request, cast(Connection, FakeConnection()))
        assert isinstance(waiting, Awaitable)
        kit.standing.changes.settle()  # before whoever waits had a turn of the loop
        refused = await asyncio.wait_for(asyncio.ensure_future(waiting), 5)
        assert refused is not None and (refused.code, kit.store.end) == (1, 0)
        assert "broker unable to service" in (refused.remark or "")
        connection: Any = kit.connection
        connection.active_ms = kit.clock.monotonic_ms()
        assert not kit.admission.open(connection)
        kit.standing.unproven = False
        assert kit.admission.open(connection)
        taken = kit.send()
        assert taken is not None and taken.code == 0
