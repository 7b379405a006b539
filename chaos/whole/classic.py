"""A classic pair on a stage: no controller, one master and one slave by their settings, and a person.

The person restarts what died, makes the slave the master as the how-to says (docs/howto/classic-replication.md), and
decides about a slave whose log is another one: cut to the master's, seeded anew, or made the master.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from tandemmq.chaos.survival import Fate, Fault, fate
from tandemmq.chaos.whole import servers
from tandemmq.chaos.whole.book import Sent
from tandemmq.chaos.whole.cluster import WholeCluster
from tandemmq.chaos.whole.faults import Faults
from tandemmq.chaos.whole.judge import Jury, Promise, log_bytes, segments
from tandemmq.chaos.whole.plan import Scenario
from tandemmq.chaos.whole.stage import Host
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.duplicates import NameTaken
from tandemmq.cluster.broker.standing.parting import WORD_NAME
from tandemmq.replication.slave import SlaveState

PERSON_US: Final = (100_000, 900_000)  # until somebody looks at an alarm
#: faults that a pair has not: nobody elects, and the promise table says nothing of a sync that fails
LEFT_OUT: Final = frozenset({"controller", "switch", "sync_error"})
NUMBER: Final = re.compile(rb"KEYS\x01(\d+)\x02")


def classic(scenario: Scenario) -> Scenario:
    """The same for a pair: faults not too close, or it is never whole, and many power cuts, which make two logs of one.

    What slaves copy every 3 s, progress of transactions and timers, is not asked for: who is made the master has it as
    old as that.
    """
    faults = tuple(each for each in scenario.faults if each not in LEFT_OUT)
    return replace(
        scenario, replicas=2, faults=(*faults, "kill", *("power",) * 3, "promote"), classic=True, orderly=False,
        forgetful=True, transacted=0.0, timed=0.0, send_rate=min(scenario.send_rate, 30.0),
        fault_rate=1.2,
    )  # fmt: skip


def numbers(*contents: bytes) -> set[int]:
    """Of the messages in these bytes of a log."""
    return {int(each) for content in contents for each in NUMBER.findall(content)}


@dataclass(frozen=True, slots=True)
class Acked:
    """A message that was answered with SEND_OK, and who held it then."""

    sent: Sent
    hosts: tuple[int, ...]


class PairFaults(Faults):
    """As of any cluster, and somebody who makes the slave the master."""

    _cluster: ClassicPair

    def _power(self, host: Host) -> None:
        if host.powered:
            self._cluster.judge.loses_power(host)
        super()._power(host)

    def _promote(self, host: Host) -> None:
        self._cluster.person.promote()


class PairJury(Jury):
    """Asks of every acknowledgement who holds it, and at the end where the promise table (chaos.survival) has it."""

    _cluster: ClassicPair

    def __init__(self, cluster: ClassicPair) -> None:
        super().__init__(cluster)
        self._acked: list[Acked] = []
        #: (host, message): a person took this copy, or the promise lets a power cut take it
        self._taken: set[tuple[int, int]] = set()
        self._same_to = 0  # both logs were one up to here

    def acknowledged(self, sent: Sent) -> None:
        """INV-36: a slave that counts has the master's log, byte for byte, up to what it is counted for."""
        pair, mode = self._cluster, self._cluster.scenario.mode
        self._stage.note("acked", sent.number, sent.offset, *sent.queue)
        if not sent.level:
            self._place("Orders", *sent.queue, sent.number)
        sender = next(each for each in pair.replica_hosts if each.address == sent.broker)
        hosts = pair.replica_hosts if mode.waits_for_slaves else [sender]
        self._acked.append(Acked(sent, tuple(each.number for each in hosts)))
        if pair.changed_us > sent.asked_us:
            return  # a person, or a power cut, has changed what lies there since
        for host in hosts:
            self._held(host, sent)
        if len(hosts) > 1:
            self._one_log(sent)

    def _one_log(self, sent: Sent) -> None:
        logs = [log_bytes(host) for host in self._cluster.replica_hosts]
        begin = max(self._same_to, *(start for start, _ in logs))
        one, other = (content[begin - start : sent.offset - start] for start, content in logs)
        if one != other:
            self.fail(
                Promise.FORKED,
                f"{sent} is acknowledged, and the logs differ in front of it\n{self._cluster.describe()}",
            )
        self._same_to = sent.offset

    def changes(self) -> None:
        """What a log has now is not what it had."""
        self._cluster.changed_us = self._stage.now_us
        self._same_to = 0

    def loses_power(self, host: Host) -> None:
        """In A0 and S0 what its disk has not may go."""
        self.changes()
        if fate(self._cluster.scenario.mode, Fault.HOSTS) is not Fate.WINDOW:
            return
        for file in segments(host):
            durable = host.durable(file)
            if durable is not None:
                self._take(host, numbers(file.read_bytes()) - numbers(durable))

    def given_up(self, host: Host) -> None:
        """A person has this host give up all that it has."""
        self.changes()
        self._take(host, numbers(*(each.read_bytes() for each in segments(host))))
        self._set_aside(host)

    def _set_aside(self, host: Host) -> None:
        aside = (host.root / "store" / "setaside").glob("*.log")
        self._take(host, numbers(*(each.read_bytes() for each in aside)))

    def _take(self, host: Host, taken: Iterable[int]) -> None:
        before = len(self._taken)
        self._taken.update((host.number, number) for number in taken)
        self._cluster.losses += len(self._taken) > before

    def stopped(self, slave: Host, master: Host) -> None:
        """A slave says that its log is another one. It must be: what is a part of the master's is followed."""
        (start, mine), (begin, theirs) = log_bytes(slave), log_bytes(master)
        at = max(start, begin)
        if begin <= start + len(mine) and theirs[at - begin :].startswith(mine[at - start :]):
            self.fail(Promise.ALARM, f"host {slave.number}\n{self._cluster.describe()}")

    def finish(self) -> None:
        pair = self._cluster
        for host in pair.worded:
            self._set_aside(host)
        start, content = log_bytes(pair.replica_hosts[0])
        final = numbers(content)
        for acked in self._acked:
            number = acked.sent.number
            if number in final or acked.sent.offset < start:
                continue
            if all((host, number) in self._taken for host in acked.hosts):
                self._stage.mark("acknowledged message lost within the promise")
            else:
                self.fail(Promise.LOST, f"{acked}\n{pair.describe()}")
        super().finish()


class Person:
    """Looks whether the slave has stopped, and decides."""

    def __init__(self, pair: ClassicPair) -> None:
        self._pair = pair
        self._stage = pair.stage
        self.seeding = (
            False  # the slave has not had its master's whole log since its store was emptied
        )
        self._stage.after(PERSON_US[0], self._look)

    def _look(self) -> None:
        pair, stage = self._pair, self._stage
        stage.after(stage.draw(*PERSON_US), self._look)
        slave, master = pair.slave_host, pair.leader
        brokers = pair.brokers()
        here, there = brokers.get(slave.number), brokers.get(master.number)
        if here is None:
            return
        core: Any = here.standing.core  # type: ignore[attr-defined]
        if self.seeding and there is not None and core.streaming:
            self.seeding = here.store.end < there.store.end
        if core.state is not SlaveState.STOPPED:
            return
        stage.mark("two logs")
        if there is not None:
            pair.judge.stopped(slave, master)
        choice = stage.chance.choice(("wait", "cut", "cut", "seed", "promote"))
        if choice == "promote":
            self.promote()
        elif choice == "cut" and slave not in pair.worded:
            self._cut(slave)
        elif choice in ("cut", "seed"):
            self._seed(slave)

    def _cut(self, slave: Host) -> None:
        self._stage.mark("log to be cut by the operator's word")
        self._stop(slave)
        (slave.root / "store" / WORD_NAME).touch()
        self._pair.worded.append(slave)
        self._pair.judge.changes()
        self._on_disk(slave)

    def _seed(self, slave: Host) -> None:
        self._stage.mark("slave seeded anew")
        self._stop(slave)
        self._empty(slave)

    def _empty(self, host: Host) -> None:
        self._pair.judge.given_up(host)
        shutil.rmtree(host.root / "store", ignore_errors=True)
        self.seeding = True
        self._on_disk(host)

    def promote(self) -> None:
        """Stop both, change the roles, start them; the store of the old master is emptied, or kept and compared."""
        pair, stage = self._pair, self._stage
        slave, old = pair.slave_host, pair.leader
        if self.seeding or not (slave.powered and old.powered):
            return
        stage.mark("slave made the master")
        stage.note("promote", slave.number)
        for host in (slave, old):
            self._stop(host)
            (host.root / "store" / WORD_NAME).unlink(missing_ok=True)
        pair.leader = slave
        if stage.chance.random() < 0.5:
            self._empty(old)
        else:
            pair.judge.given_up(old)
            self._on_disk(old)
        self._on_disk(slave)

    def _stop(self, host: Host) -> None:
        if host.life is not None:
            host.life.die("a person")

    def _on_disk(self, host: Host) -> None:
        """What a person did with files is there for good; and the broker is started again."""
        if self._pair.scenario.forgetful:
            host.listen_to_disk()
        self._stage.after(self._stage.draw(1_000, 400_000), self._pair.start, host)


class ClassicPair(WholeCluster):
    """leader: the host whose settings say that it is the master. worded: hosts whose log a person has had cut."""

    judge: PairJury
    faults_of = PairFaults
    jury_of = PairJury

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.worded: list[Host] = []
        self.changed_us = -1
        super().__init__(*arguments, **options)
        self.leader = self.replica_hosts[0]
        self.person = Person(self)

    def _group(self, scenario: Scenario) -> Scenario:
        return classic(scenario)

    def _broker_main(self, host: Host) -> Any:
        settings: dict[str, object] = {
            "enableControllerMode": "false",
            "allAckInSyncStateSet": "false",
        }
        settings["brokerId"] = int(host is not self.leader)
        if host is not self.leader:
            settings["brokerRole"] = "SLAVE"
        return servers.broker_main(host, self.names, self.scenario, settings)

    @property
    def slave_host(self) -> Host:
        return next(each for each in self.replica_hosts if each is not self.leader)

    @property
    def epoch(self) -> int:
        return 0

    def _may_end(self, problem: BaseException) -> bool:
        """Also because another broker seems to be the master still."""
        return super()._may_end(problem) or isinstance(problem, NameTaken)

    def _operate(self) -> None:
        """The person looks anyway."""

    @property
    def whole(self) -> bool:
        """Both run, and the slave follows, as both know: nobody may have told it that its master is gone."""
        brokers = self.brokers()
        if len(brokers) != 2:
            return False
        slave: Any = brokers[self.slave_host.number].standing
        master: Any = brokers[self.leader.number].standing
        leads = self.master() is brokers[self.leader.number]
        return leads and slave.core.streaming and master.core.followed

    def _state(self, broker: Broker) -> str:
        core: Any = broker.standing.core  # type: ignore[attr-defined]
        return f"{broker.standing.role.name} {getattr(core, 'state', None)}"
