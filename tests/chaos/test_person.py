"""Where a power cut left a classic group two logs, the campaign's person does what the how-to says for the mode."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from tandemmq.chaos import person as module
from tandemmq.chaos.classichosts import ClassicHosts
from tandemmq.chaos.gathering import PERSON_EVENT
from tandemmq.chaos.groups import GroupMember, GroupPlan, SeenGroup
from tandemmq.chaos.journal import Journal, read_events
from tandemmq.chaos.person import Person
from tandemmq.chaos.processes import ProcessBroken

FORKED = "a person must act why=master a:0: two logs: the bytes below 7 are not ours; seed it anew"
ODD = "a person must act why=the clock went back"


class Host:
    """A broker; `role` as its broker.conf has it."""

    def __init__(self, directory: Path, number: int) -> None:
        self.name = f"replica {number}"
        self.number = number
        self.address = f"a:{number}"
        self.log = directory / f"{number}.log"
        self.log.write_text("started\n")
        self.store = directory / f"store-{number}"
        self.store.mkdir()
        self.alive = True
        self.code: int | None = None
        self.acts: list[str] = []

    async def terminate(self, within_s: float) -> None:
        self.alive = False
        self.acts.append("stopped")

    def launch(self) -> None:
        self.alive = True
        word = "cut" if (self.store / "cut-to-master").exists() else "plain"
        self.acts.append(word)

    def broken(self, what: str) -> ProcessBroken:
        return ProcessBroken(what)

    def tail(self) -> str:
        return ""


class Hosts:
    """A pair, of which the slave asks for a person until it, or its master, was started again."""

    def __init__(self, directory: Path, plan: GroupPlan, said: str) -> None:
        self.plan = plan
        self.replicas = [Host(directory, 0), Host(directory, 1)]
        self.roles: dict[int, dict[str, object]] = {
            0: {"brokerRole": "SYNC_MASTER", "brokerId": 0},
            1: {"brokerRole": "SLAVE", "brokerId": 1},
        }
        self.cut_ns = 17
        with self.replicas[1].log.open("a") as log:
            log.write(said + "\n")

    def replica_at(self, address: str) -> Host:
        return self.replicas[int(address.removeprefix("a:"))]

    def change_settings(self, replica: Host, **changed: object) -> None:
        self.roles[replica.number] |= changed

    def setting(self, replica: Host, key: str) -> object:
        return self.roles[replica.number][key]

    def move_store_away(self, replica: Host) -> Path:
        replica.acts.append("moved away")
        return replica.store

    async def end_of(self, replica: Host) -> int:
        return 7

    async def alarms_of(self, replica: Host) -> int:
        return 0 if self.done else replica.number

    @property
    def done(self) -> bool:
        """Whether the one that asked, or was replaced by it, gave up its own."""
        return any({"cut", "moved away"} & set(each.acts) for each in self.replicas)

    async def view(self) -> SeenGroup:
        master = next(
            each.address
            for each in self.replicas
            if self.roles[each.number]["brokerRole"] != "SLAVE" and each.alive
        )
        members = tuple(
            GroupMember(
                int(each.address == master), each.address, True, each.address == master or self.done
            )
            for each in self.replicas
        )
        return SeenGroup(master, 0, 0, members)


async def attend(directory: Path, plan: GroupPlan, said: str = FORKED, seed: int = 1) -> Hosts:
    hosts, counts = Hosts(directory, plan, said), Counter[str]()
    with Journal(directory / "journal") as journal:
        person = Person(
            cast(ClassicHosts, hosts), journal, random.Random(seed),
            lambda what: counts.update([what]),
        )  # fmt: skip
        await person.until_whole()
    acts = [each["how"] for each in read_events(directory / "journal")]
    assert counts == Counter(f"a person: {each}" for each in acts)
    assert {each["what"] for each in read_events(directory / "journal")} == {PERSON_EVENT}
    return hosts


@pytest.mark.parametrize("seed", [1, 2])
async def test_with_sync_master_and_async_flush_the_slave_is_made_the_master(
    tmp_path: Path, seed: int
) -> None:
    hosts = await attend(tmp_path, GroupPlan(), seed=seed)
    old, new = hosts.replicas
    assert new.acts == ["stopped", "plain"]
    assert old.acts in (["stopped", "cut"], ["stopped", "moved away", "plain"])
    assert hosts.roles[1]["brokerRole"] == "SYNC_MASTER"
    assert hosts.roles[0] == {"brokerRole": "SLAVE", "brokerId": 1}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(GroupPlan(sync_flush=True), id="S1"),
        pytest.param(GroupPlan(synchronous=False), id="A0"),
        pytest.param(GroupPlan(synchronous=False, sync_flush=True), id="A1"),
    ],
)
async def test_in_the_other_modes_the_slave_gives_up_what_its_master_has_not(
    tmp_path: Path, plan: GroupPlan, seed: int
) -> None:
    hosts = await attend(tmp_path, plan, seed=seed)
    master, slave = hosts.replicas
    assert master.acts == []
    assert slave.acts in (["stopped", "cut"], ["stopped", "moved away", "plain"])
    assert hosts.roles[1]["brokerRole"] == "SLAVE"


@pytest.mark.parametrize("said", [ODD, "", f"{FORKED}\n{ODD}"])
async def test_what_the_how_to_has_no_answer_for_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(module, "WHOLE_S", 0.2)
    with pytest.raises(ProcessBroken, match="not whole"):
        await attend(tmp_path, GroupPlan(), said)
