"""A cluster on a stage: a name server with its controller, replicas, clients, and what befalls them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from random import Random as Chance  # as it was before calls.py replaced it
from typing import Any, Final

from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.whole import calls, servers
from tandemmq.chaos.whole.faults import Faults
from tandemmq.chaos.whole.judge import Jury, Promise
from tandemmq.chaos.whole.load import ClientLoad
from tandemmq.chaos.whole.plan import Scenario, drawn
from tandemmq.chaos.whole.scheduled import ScheduledFaults, scenario_of
from tandemmq.chaos.whole.stage import Finding, Host, Life, Stage
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.client import ClientError
from tandemmq.replication import election as e
from tandemmq.replication.config import Mode
from tandemmq.storage import FlushFailed, StoreIsFull

QUIET_EVENTS_MAX: Final = 60_000
OPERATOR_US: Final = 3_000_000  # until a person looks
LOOK_EVENTS: Final = 50
RESTART_US: Final = (50_000, 900_000)


class WholeCluster:
    """Everything of one seed: of a group with a controller, unless a kind of cluster says otherwise."""

    faults_of: type[Faults] = Faults
    jury_of: type[Jury] = Jury

    def __init__(
        self,
        seed: int,
        root: Path,
        *,
        mode: Mode | None = None,
        left_out: frozenset[int] = frozenset(),
        schedule: Schedule | None = None,
    ) -> None:
        """left_out: faults that do not happen, by their number in the seed. schedule: its faults, and no others."""
        self.left_out = left_out
        self.held: set[int] = set()  # hosts that stay down, whoever starts them
        self.stage = Stage(seed, root)
        scenario = drawn(self.stage.chance, mode, Chance(seed))
        self.scenario = scenario = (
            scenario_of(schedule, scenario) if schedule else self._group(scenario)
        )
        stage = self.stage
        calls.install(stage)
        stage.wires.delay_us = scenario.delay_us
        servers.install(stage, self._announced, self._asked)
        self.names = stage.add_host("127.0.0.10", scenario.drifts[0])
        self.replica_hosts = [
            stage.add_host(f"127.0.0.{11 + number}", scenario.drifts[1 + number])
            for number in range(scenario.replicas)
        ]
        self.client_hosts = [
            stage.add_host(f"127.0.0.{20 + number}", scenario.drifts[5 + number])
            for number in range(scenario.producers + 1)
        ]
        self.operator = stage.add_host("127.0.0.30", 0.0)
        self.faulty = True
        self.silent = False
        self.healed_us = 0
        self.losses = 0
        self.judge = self.jury_of(self)
        self.load = ClientLoad(self)
        self.mains: dict[int, tuple[str, Callable[[], Any]]] = {
            self.names.number: (
                "names",
                partial(
                    servers.names_main,
                    self.names,
                    dict(servers.TIMES),
                    controlled=not scenario.classic,
                ),
            )
        }
        for number, host in enumerate(self.replica_hosts, 1):
            self.mains[host.number] = (f"broker-{number}", partial(self._broker_main, host))
        *producers, consumer = self.client_hosts
        for number, host in enumerate(producers, 1):
            self.mains[host.number] = (
                f"producer-{number}",
                partial(self.load.producer_main, number),
            )
        self.mains[consumer.number] = ("consumer", self.load.consumer_main)
        if scenario.forgetful:
            for host in (self.names, *self.replica_hosts):
                host.listen_to_disk()
        for host in stage.hosts[:-1]:
            stage.after(1000 * host.number + 1, self.start, host)
        self.faults = ScheduledFaults(self, schedule) if schedule else self.faults_of(self)

    # --- what kinds of clusters differ in ---

    def _group(self, scenario: Scenario) -> Scenario:
        """What this kind of group makes of a seed's scenario."""
        return scenario

    def _broker_main(self, host: Host) -> Coroutine[Any, Any, None]:
        return servers.broker_main(host, self.names, self.scenario, dict(servers.TIMES))

    def _may_end(self, problem: BaseException) -> bool:
        """Whether a process may end by itself for this."""
        return isinstance(problem, FlushFailed | StoreIsFull | OSError | ClientError)

    def _state(self, broker: Broker) -> str:
        core: Any = broker.standing.core  # type: ignore[attr-defined]
        granted = f" set {sorted(core.master.granted)}" if core.master is not None else ""
        return f"{core.role.value} epoch {core.epoch}{granted}"

    # --- processes ---

    def start(self, host: Host) -> None:
        """What runs on this host, unless it does."""
        if host.life is None and host.powered and host.number not in self.held:
            name, main = self.mains[host.number]
            self.stage.note("starts", name)
            Life(host, name, main, self._ended)

    def _ended(self, life: Life, problem: BaseException | None) -> None:
        """By itself: after SIGTERM, or because it must."""
        if problem is not None and not self._may_end(problem):
            self.stage.fail(Promise.DIED.name, f"{life.name}: {problem!r}", problem)
            return
        self.start_later(life.host)

    def start_later(self, host: Host) -> None:
        """As a supervisor does."""
        if not host.powered:
            self.stage.after(self.stage.draw(*RESTART_US), self._boot, host)
        else:
            self.stage.after(self.stage.draw(*RESTART_US), self.start, host)

    def _boot(self, host: Host) -> None:
        if host.number in self.held:
            return
        if not host.powered:
            host.boot()
        self.start(host)

    def _announced(self, said: e.Announce) -> None:
        """By the controller."""
        self.stage.note("announced", said.kind.name, said.epoch)
        if said.kind is e.Kind.ELECTED:
            self.stage.mark("reign")
        elif said.kind is e.Kind.LOSS_POSSIBLE:
            self.losses += 1
            self.stage.mark("loss declared")
        elif said.kind is e.Kind.WAITING:
            self.stage.mark("nobody can be elected")

    def _asked(self, body: bytes) -> None:
        """By a broker, about the transaction with this body."""
        self.judge.asked(self.load.book.by_body(body))

    @property
    def epoch(self) -> int:
        """The latest that any replica knows."""
        cores: list[Any] = [each.standing.core for each in self.brokers().values()]  # type: ignore[attr-defined]
        return max((each.epoch for each in cores), default=0)

    def _operate(self) -> None:
        """Everything is well but that nobody leads: a person says who shall, the one with the longest log."""
        brokers = self.brokers()
        if len(brokers) < len(self.replica_hosts) or self.operator.life is not None:
            return
        if any(each.standing.core.master for each in brokers.values()):  # type: ignore[attr-defined]
            return
        best: Any = max(brokers.values(), key=lambda each: each.store.end)
        self.stage.mark("operator elects")
        self.stage.note("operator elects", best.standing.core.replica)
        Life(
            self.operator,
            "operator",
            lambda: servers.elect(self.names, best.standing.core.replica),
            lambda life, problem: None,
        )

    def brokers(self) -> dict[int, Broker]:
        """By host number: those whose process has got so far."""
        found: dict[int, Broker] = {}
        for host in self.replica_hosts:
            if host.life is not None and "broker" in host.life.parts:
                found[host.number] = host.life.parts["broker"]
        return found

    def master(self) -> Broker | None:
        """The one that takes messages, when it is one."""
        leading = [
            each for number, each in self.brokers().items() if not self._refuses(number, each)
        ]
        return leading[0] if len(leading) == 1 else None

    def _refuses(self, number: int, broker: Broker) -> str:
        """Why this broker takes no message now, by its own clock; "" when it does."""
        life = self.stage.hosts[number].life
        assert life is not None
        with life.running():
            refused = broker.standing.refusal()
        return str(refused) if refused is not None else ""

    @property
    def master_host(self) -> int:
        """The number of the host whose broker takes messages; -1 without one."""
        leading = self.master()
        return next((number for number, each in self.brokers().items() if each is leading), -1)

    def members(self, epoch: int) -> list[Host]:
        """Hosts of the sync-state-set, as the master of the latest epoch has it.

        Nobody when that is before `epoch`: whose set it was has ended, and an older master's says nothing of it.
        """
        best: Any = None
        for broker in self.brokers().values():
            core = broker.standing.core  # type: ignore[attr-defined]
            if core.master is not None and (best is None or core.epoch > best.epoch):
                best = core
        if best is None or best.epoch < epoch:
            return []
        numbers = {
            broker.standing.core.replica: host  # type: ignore[attr-defined]
            for host, broker in self.brokers().items()
        }
        hosts = {each.number: each for each in self.replica_hosts}
        return [hosts[numbers[each]] for each in best.master.granted if each in numbers]

    # --- a run ---

    def run(self, events: int) -> None:
        """Faults for so many turns, or those of the schedule, then heal, and on until all is quiet. Raises Finding."""
        stage = self.stage
        if isinstance(self.faults, ScheduledFaults):
            while not self.faults.done:
                stage.run_until(stage.events + LOOK_EVENTS)
        else:
            stage.run_until(events)
        self.faulty = False
        stage.note("heal")
        self.healed_us = stage.now_us
        self.faults.heal()
        limit = stage.events + QUIET_EVENTS_MAX
        while not self._quiet():
            if stage.events > limit:
                missing = [each.number for each in self.judge.missing]
                promise = Promise.LOST if self.silent and missing else Promise.STUCK
                raise Finding(promise.name, f"undelivered {missing}\n{self.describe()}")
            stage.run_until(stage.events + LOOK_EVENTS)
            if stage.now_us - self.healed_us > OPERATOR_US:
                self._operate()
        self.judge.finish()
        if stage.finding is not None:
            raise stage.finding

    @property
    def whole(self) -> bool:
        """Everybody runs, and is in the set of the one master."""
        brokers, master = self.brokers(), self.master()
        if len(brokers) != len(self.replica_hosts) or master is None:
            return False
        core: Any = master.standing.core  # type: ignore[attr-defined]
        return len(core.master.granted) == len(brokers)

    def _quiet(self) -> bool:
        """One master, everybody in its set with the same log, and everything acknowledged was delivered."""
        brokers, master = self.brokers(), self.master()
        if not self.whole or master is None:
            return False
        if self.load.book.acked_us <= self.healed_us:
            return False
        self.silent = True  # it works; nothing new, so that all comes to rest
        if self.judge.missing and not self.judge.may_lose:
            return False
        return all(
            each.store.end == master.store.end and each.store.confirmed == master.store.end
            for each in brokers.values()
        )

    def describe(self) -> str:
        """Where everybody is."""
        lines = [f"{self.scenario}"]
        brokers = self.brokers()
        for host in self.stage.hosts:
            life = host.life
            text = "dark" if not host.powered else "down" if life is None else life.name
            if life is not None and life.paused:
                text += " paused"
            broker = brokers.get(host.number)
            if broker is not None:
                store = broker.store
                text += (
                    f" {self._state(broker)} end {store.end} flushed {store.flushed} "
                    f"confirmed {store.confirmed} refuses {self._refuses(host.number, broker)!r}"
                )
            lines.append(f"  host {host.number}: {text}")
        return "\n".join(lines)
