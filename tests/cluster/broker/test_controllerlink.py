"""cluster/broker/standing/controllerlink.py: one broker's talk with its controllers, in memory."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from replicakit import Controllers, MemoryController, config_of, controllers, until
from timekit import LoopClock, run

from tandemmq.cluster.broker.standing.controllerlink import (
    TAKEN_MS_MAX,
    ControllerLink,
    IdentityTaken,
)
from tandemmq.cluster.process import running
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication.registered import KnownReplica

__all__ = ["controllers"]


class Told:
    """Where the core would be."""

    def __init__(self) -> None:
        self.events: list[r.Event] = []
        self.replicas: tuple[KnownReplica, ...] | None = None

    def feed(self, event: r.Event) -> None:
        self.events.append(event)

    def registered(self, replicas: tuple[KnownReplica, ...]) -> None:
        self.replicas = replicas

    def of(self, kind: type[object]) -> list[r.Event]:
        return [event for event in self.events if type(event) is kind]


def beat(number: int = 1, *, leading: bool = False) -> r.SendHeartbeat:
    return r.SendHeartbeat(number, 3, 100, 90, leading, False, False)


def link_of(root: Path, told: Told, incarnation: int = 77, **settings: str) -> ControllerLink:
    return ControllerLink(
        config_of(root, **settings), LoopClock(), random.Random(3), replica=1,
        incarnation=incarnation, feed=told.feed, registered=told.registered,
    )  # fmt: skip


def give_id(controller: MemoryController) -> None:
    controller.feed(e.ApplyBrokerId(0, "C", "broker-a", 1, "code"))


@asynccontextmanager
async def connected(link: ControllerLink) -> AsyncIterator[None]:
    async with running(link=link.run):
        await until(lambda: link.connected, "no connection")
        yield


def test_it_connects_to_the_controller_that_leads_and_says_when_it_is_gone(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        follower, leader = controllers.add("c:1"), controllers.add("c:2")
        follower.leads, follower.leader = False, "c:2"
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            assert link.address == "c:2"
            assert told.events == [r.ControllerUp()]
            leader.hang_up()
            await asyncio.sleep(0.001)
            assert told.events == [r.ControllerUp(), r.ControllerLost()]
            await until(lambda: link.connected, "not back")

    run(main())


def test_a_controller_that_is_not_configured_is_found_by_what_another_one_says(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        for address in ("c:1", "c:2"):
            follower = controllers.add(address)
            follower.leads, follower.leader = False, "elsewhere:9"
        controllers.add("elsewhere:9")
        link = link_of(tmp_path, Told())
        async with connected(link):
            assert link.address == "elsewhere:9"

    run(main())


def test_a_controller_that_leads_no_more_is_left(tmp_path: Path, controllers: Controllers) -> None:
    async def main() -> None:
        first, second = controllers.add("c:1"), controllers.add("c:2")
        second.leads, second.leader = False, "c:1"
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            assert link.address == "c:1"
            first.leads, first.leader, second.leads = False, "c:2", True
            link.beat(beat())
            await until(lambda: link.address == "c:2", "still with the former one")
            assert told.of(r.HeartbeatAnswered) == []

    run(main())


def test_a_silent_controller_is_left_for_another_well_before_the_lease_is_over(
    tmp_path: Path, controllers: Controllers
) -> None:
    """And kept while there is no other: it may be slow, and what it says still counts."""

    async def main() -> None:
        controller = controllers.add()
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            controller.silent = True
            await asyncio.sleep(5)
            assert link.connected and not told.of(r.ControllerLost)
            controller.silent = False
            link.beat(beat())
            await asyncio.sleep(2)
            link.beat(beat())
            controllers.add("c:2")
            controller.silent = True
            began = asyncio.get_running_loop().time()
            await until(lambda: told.of(r.ControllerLost), "a silent controller is kept")
            waited_s = asyncio.get_running_loop().time() - began
            await until(lambda: link.address == "c:2", "nobody else is asked")
            assert waited_s * 1000 < 0.75 * link_of(tmp_path, told)._config.lease.lease_ms

    run(main())


def test_registration_and_heartbeats_bring_the_groups_view(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        give_id(controller)
        told = Told()
        link = link_of(tmp_path, told, haLeaseMillis="2000")
        async with connected(link):
            link.register(r.Register(True, 3, 100))
            await until(lambda: told.of(r.Registered), "not registered")
            (registered,) = controller.events(e.RegisterBroker)
            assert (registered.suspect, registered.epoch, registered.end) == (True, 3, 100)
            assert (registered.mode, registered.incarnation) == ("S0", 77)
            assert registered.address == "127.0.0.1:10911"
            assert registered.ha_address == "127.0.0.1:10912"
            assert link.leases
            link.beat(beat(5))
            await until(lambda: told.of(r.HeartbeatAnswered), "no answer")
            (answer,) = told.of(r.HeartbeatAnswered)
            assert isinstance(answer, r.HeartbeatAnswered)
            assert (answer.number, answer.known, answer.lease) == (5, True, False)
            (heartbeat,) = controller.events(e.Heartbeat)
            assert (heartbeat.epoch, heartbeat.end, heartbeat.confirmed) == (3, 100, 90)

    run(main())


def test_the_same_registration_again_and_again_is_logged_once_a_minute(
    tmp_path: Path, controllers: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller that has elected nobody is asked every few hundred milliseconds."""

    def lines() -> int:
        return sum("registered with controller" in text for text in caplog.messages)

    async def main() -> None:
        give_id(controllers.add())
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            for times in range(1, 6):
                link.register(r.Register(False, 3, 100))
                await until(lambda count=times: len(told.of(r.Registered)) == count, "no answer")
            assert lines() == 1
            await asyncio.sleep(60)
            link.register(r.Register(False, 3, 100))
            await until(lambda: len(told.of(r.Registered)) == 6, "no answer")
            assert lines() == 2

    with caplog.at_level(logging.INFO):
        run(main())


def test_an_election_and_a_proposal_are_answered_with_the_groups_view(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        give_id(controller)
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            link.register(r.Register(False, 0, 0))
            link.ask_for_election()
            await until(lambda: told.of(r.RoleNotified), "nobody elected")
            view = told.of(r.RoleNotified)[-1].view  # type: ignore[union-attr]
            assert (view.master, view.epoch, view.members) == (1, 1, frozenset({1}))
            told.events.clear()
            members = frozenset({1, 2})
            link.propose(m.Propose(members, view.number, 1, ((2, 88),)))
            await until(lambda: told.of(r.RoleNotified), "no answer to a refused proposal")
            (asked,) = controller.events(e.AlterSyncSet)
            assert (asked.members, asked.incarnations) == (members, ((2, 88),))
            refused = told.of(r.RoleNotified)[-1]
            assert isinstance(refused, r.RoleNotified)
            assert refused.answer, "it does not say which process it is for"
            assert refused.view.number == view.number, "replica 2 is unknown: the set stays"

    run(main())


def test_notices_of_the_controller_are_events(tmp_path: Path, controllers: Controllers) -> None:
    async def main() -> None:
        controller = controllers.add()
        give_id(controller)
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            link.register(r.Register(False, 0, 0))
            await asyncio.sleep(0.001)
            (session,) = controller.channels
            view = replace(controller.record.view(), registered=None)  # for masters only
            controller._perform(e.NotifyRole(session, "broker-a", 1, view))
            controller._perform(e.AskToSwitch(session, "broker-a", 1, 4, 2))
            await asyncio.sleep(0.001)
            assert told.events[-2:] == [
                r.RoleNotified(view),
                r.SwitchAsked(4, 2),
            ]

    run(main())


def test_a_core_that_cannot_step_is_kept_alive_without_a_claim_to_lead(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        give_id(controller)
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            link.beat(beat(9, leading=True))
            await asyncio.sleep(3)
            beats = controller.events(e.Heartbeat)
            assert len(beats) >= 4 and [each.number for each in beats[:2]] == [9, 0]
            assert not any(each.leading for each in beats[1:])
            assert {each.end for each in beats} == {100}
            assert all(
                answer.number == 9
                for answer in told.of(r.HeartbeatAnswered)
                if isinstance(answer, r.HeartbeatAnswered)
            )
            assert link.connected

    run(main())


def test_an_id_that_the_controller_has_forgotten_is_applied_for_again(
    tmp_path: Path, controllers: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        controllers.add()
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            link.register(r.Register(False, 0, 0))
            await until(lambda: told.of(r.RegistrationRefused), "not refused")
            link.register(r.Register(False, 0, 0))
            await until(lambda: told.of(r.Registered), "its id was not given again")
        assert "controller had forgotten our id" in caplog.text

    run(main())


def test_the_second_process_under_one_id_ends(tmp_path: Path, controllers: Controllers) -> None:
    async def main() -> None:
        controller = controllers.add()
        give_id(controller)
        first, second = link_of(tmp_path, Told()), link_of(tmp_path, told := Told(), 78)

        async def live(link: ControllerLink) -> None:
            link.register(r.Register(False, 0, 0))
            while True:
                link.beat(beat())
                await asyncio.sleep(0.3)

        async with connected(first), running(life=lambda: live(first)):
            with pytest.raises(IdentityTaken, match="another process"):
                async with connected(second):
                    for _ in range(2 * TAKEN_MS_MAX // 300):
                        second.register(r.Register(False, 0, 0))
                        await asyncio.sleep(0.3)
            assert told.of(r.Registered) == []
            assert first.connected

    run(main())


def test_a_controller_that_names_no_replicas_to_their_master_is_asked_who_they_are(
    tmp_path: Path, controllers: Controllers
) -> None:
    # INV-44, under an older release of ours; a stock controller is asked in the same words
    async def main() -> None:
        controller = controllers.add()
        controller.names_replicas = False
        give_id(controller)
        told = Told()
        link = link_of(tmp_path, told)
        async with connected(link):
            link.register(r.Register(False, 0, 0))
            await asyncio.sleep(0.001)
            link.ask_for_election()
            await until(lambda: told.of(r.RoleNotified), "nobody elected")
            link.beat(beat(1))
            await asyncio.sleep(0.001)
            assert told.replicas is None, "a slave lets nobody in"
            link.beat(beat(2, leading=True))
            await until(lambda: told.replicas is not None, "not asked")
            assert told.replicas == (KnownReplica(1, 0, ("127.0.0.1",)),)
            link.beat(beat(3, leading=True))
            await asyncio.sleep(0.001)
            assert len(controller.events(e.SyncStateData)) == 1, "not with every heartbeat"
            await asyncio.sleep(0.3)
            link.beat(beat(4, leading=True))
            await asyncio.sleep(0.001)
            assert len(controller.events(e.SyncStateData)) == 2

    run(main())
