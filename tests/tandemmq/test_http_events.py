"""Events of /api/events without a cluster: what differs between two looks, ids, and readers that are slow."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import jsonschema
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tandemmq.cluster.client import BrokerMembers, Replica, ReplicaSet
from tandemmq.plane import events
from tandemmq.plane.changes import EVENTS, Event, Seen, changes, state
from tandemmq.plane.eventlog import KEPT_MAX, WAITING_MAX, EventLog, Reader, encoded
from tandemmq.plane.openapi import document
from tandemmq.plane.reach import Reach
from tandemmq.plane.rooms import ROUTES
from tandemmq.plane.schemas import schema_of


def group(master: int | None, epoch: int, *in_sync: int) -> ReplicaSet:
    members = tuple(Replica(each, f"127.0.0.1:1091{each}", True) for each in in_sync)
    return ReplicaSet("broker-a", master, "127.0.0.1:10911", epoch, 7, members, ())


def seen(*topics: str, **members: dict[int, str]) -> Seen:
    found = {name: BrokerMembers(name, "Test", at) for name, at in members.items()}
    return Seen(found, {"broker-a": group(1, 1, 1, 2)}, frozenset(topics))


def names(before: Seen, now: Seen) -> list[str]:
    found = list(changes(before, now))
    for event in found:
        jsonschema.validate(json.loads(json.dumps(event.data)), schema_of(EVENTS[event.name]))
    return [event.name for event in found]


def test_nothing_new_is_no_event() -> None:
    assert names(seen("Orders", a={0: "h:1"}), seen("Orders", a={0: "h:1"})) == []


def test_members_that_come_go_and_move_are_told() -> None:
    before, now = seen(a={0: "h:1", 2: "h:2"}), seen(a={0: "h:3"}, b={0: "h:4"})
    found = [
        (event.name, event.data["broker"], event.data["address"]) for event in changes(before, now)
    ]
    assert found == [
        ("unregistered", "a", "h:1"), ("unregistered", "a", "h:2"),
        ("registered", "a", "h:3"), ("registered", "b", "h:4"),
    ]  # fmt: skip


def test_new_master_and_new_set_are_told_with_what_was_before() -> None:
    before = Seen({}, {"broker-a": group(1, 1, 1, 2)})
    now = Seen({}, {"broker-a": group(2, 2, 2)})
    assert names(before, now) == ["role", "sync-state-set"]
    role, members = changes(before, now)
    assert (role.data["master_id"], role.data["master_id_before"], role.data["epoch"]) == (2, 1, 2)
    assert (members.data["in_sync"], members.data["in_sync_before"]) == ([2], [1, 2])
    assert names(before, Seen({}, {"broker-a": group(None, 1, 1, 2)})) == ["role"]


def test_ten_thousand_topics_are_one_event_that_counts_them() -> None:
    many = Seen(topics=frozenset(f"T{number}" for number in range(10_000)))
    (event,) = changes(Seen(), many)
    assert (event.name, event.data["created_count"], len(event.data["created"])) == (  # type: ignore[arg-type]
        "topics", 10_000, 100,
    )  # fmt: skip
    assert len(encoded(event, "x-1")) < 2_000


def test_state_is_everything_in_one_event() -> None:
    event = state(seen("Orders", a={0: "h:1"}))
    jsonschema.validate(json.loads(json.dumps(event.data)), schema_of(EVENTS["state"]))
    assert event.data["topic_count"] == 1


def test_text_of_strangers_stays_within_its_line() -> None:
    line = encoded(Event("unreachable", {"why": "a\nevent: forged\r\n\ndata: <b>\u2028"}), "x-1")
    assert line.count(b"\n") == 4 and line.endswith(b"\n\n") and b"\r" not in line


# -- readers -----------------------------------------------------------------------------------------


def reader() -> Reader:
    return Reader(lambda: None)


def event(number: int) -> Event:
    return Event("unreachable", {"why": str(number)})


def whys(lines: list[bytes]) -> list[str]:
    return [json.loads(line.split(b"data: ")[1])["why"] for line in lines]


def test_who_was_away_gets_what_it_missed_and_no_more() -> None:
    log = EventLog("boot")
    for number in range(5):
        log.add(event(number))
    back = reader()
    log.join(back, "boot-3")
    assert whys(back.take()) == ["3", "4"]
    log.add(event(5))
    assert whys(back.take()) == ["5"]
    assert not back.anew
    log.leave(back)
    log.add(event(6))
    assert back.take() == []


@pytest.mark.parametrize(
    "last_id", [None, "", "boot", "other-3", "boot-6", "boot--1", "boot-x", "boot-٣", "boot-" + "9" * 500]
)  # fmt: skip
def test_who_names_an_id_that_is_not_known_begins_anew(last_id: str | None) -> None:
    log = EventLog("boot")
    for number in range(5):
        log.add(event(number))
    back = reader()
    log.join(back, last_id)
    assert back.anew and back.take() == []


def test_who_was_away_for_too_long_begins_anew() -> None:
    log = EventLog("boot")
    for number in range(KEPT_MAX + 10):
        log.add(event(number))
    for last_id in ("boot-5", f"boot-{KEPT_MAX + 9 - WAITING_MAX}"):
        back = reader()
        log.join(back, last_id)
        assert back.anew, last_id


def test_slow_reader_begins_anew_and_holds_no_more_than_its_share() -> None:
    log, slow, quick = EventLog("boot"), reader(), reader()
    log.join(slow, "boot-0")
    log.join(quick, "boot-0")
    told = 0
    for number in range(3 * WAITING_MAX):
        log.add(event(number))
        told += len(quick.take())
    assert told == 3 * WAITING_MAX and not quick.anew
    assert slow.anew and slow.take() == []


# -- the whole ---------------------------------------------------------------------------------------


async def test_who_listens_is_let_go_when_nobody_looks_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that says that it lives, and nothing else ever again, would be believed."""
    looks = iter((seen("Orders"),))

    async def found(*_: object) -> Seen:
        return next(looks, None) or 1 / 0  # type: ignore[return-value]

    monkeypatch.setattr(events.Watcher, "_found", found)
    monkeypatch.setattr(events, "LOOK_S", 0.1)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.1)
    app = web.Application()
    app.router.add_get("/api/events", events.Events(Reach("127.0.0.1:1")).listen)
    async with (
        TestServer(app) as server, ClientSession() as client, asyncio.timeout(30),
        client.get(server.make_url("/api/events")) as answer,
    ):  # fmt: skip
        assert b"event: state" in await answer.read()  # and it ends
    assert "looking at the cluster failed" in caplog.text


def test_every_route_is_described_and_every_api_path_is_a_route() -> None:
    paths = document("broker")["paths"]
    described = {
        (method.upper(), path)
        for path, operations in paths.items()
        for method in operations.keys() & {"get", "post", "delete"}
        if path.startswith("/api/") and not path.startswith("/api/admin/")
    }
    routes = {(method, path) for method, path, _ in ROUTES if path != "/api/admin/{name}"}
    assert described == routes


def test_process_that_nobody_asks_loads_no_client() -> None:
    """What is loaded for a room that waits: aiohttp, and nothing of the client or the commands."""
    code = (
        "import sys, tandemmq.plane.hosts as h; "
        "print([m for m in sys.modules if m.startswith(('tandemmq.cluster.client', 'tandemmq.admin'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
