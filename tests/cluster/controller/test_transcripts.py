"""Transcripts of a controller: what comes over its connections and from its store, and what leaves when.

scripts/*.txt. `at N` sets the clock; `> SESSION what field=value` is a request over that connection. What else
happens: `> SESSION closed`, `> tick`, `> restart`; of the store `> stored`, `> unreachable`, `> deposed`; of a probe
`> refused`, `> silent`.
Everything indented is what the controller did. Rewrite them with

    .venv/bin/python -m pytest tests/replication tests/cluster/controller --rewrite-transcripts
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from controllerkit import Table

from tandemmq.cluster import controlplane as plane
from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting.command import ONEWAY_FLAG
from tandemmq.replication import LeaseTimes
from tandemmq.replication import election as e

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.txt"))
TIMES = LeaseTimes()


def address(replica: int) -> str:
    return f"10.0.0.{replica}:10911"


def command_of(what: str, fields: dict[str, str]) -> Command:
    """A request as a broker or a tool would send it."""
    replica = int(fields.pop("replica", -1))
    process = int(fields.pop("process", 10 + replica))
    members = frozenset(int(each) for each in fields.pop("set", "").split(",") if each)
    numbers = {name: int(value) for name, value in fields.items() if value.isdigit()}
    flags = {name: True for name, value in fields.items() if value == "yes"}
    match what:
        case "next":
            return plane.encode_next_broker_id(e.NextBrokerId(0, "c", "a"))
        case "apply":
            return plane.encode_apply_broker_id(
                e.ApplyBrokerId(0, "c", "a", replica, f"code{replica}")
            )
        case "register" | "stock_register":
            event = e.RegisterBroker(
                0,
                0,
                "c",
                "a",
                replica,
                address(replica),
                "",
                process,
                "S0",
                **flags,
                **numbers,
            )
            return stocked(plane.encode_register_broker(event, TIMES, 0), what)
        case "beat" | "stock_beat":
            beat = e.Heartbeat(0, "a", replica, process, **flags, **numbers)
            if what == "stock_beat":
                beat = e.Heartbeat(0, "a", replica, timeout_ms=10_000, **numbers)
            return stocked(plane.encode_heartbeat(beat, "c", address(replica)), what)
        case "alter":
            event_set = e.AlterSyncSet(
                0, "a", replica, members=members, **numbers,
                incarnations=tuple((each, 10 + each) for each in sorted(members)),
            )  # fmt: skip
            return plane.encode_alter_sync_set(event_set, 0)
        case "elect":
            return plane.encode_elect_master(e.ElectMaster(0, "c", "a", replica, **flags), 0)
        case "info":
            return plane.encode_replica_info(e.ReplicaInfo(0, "a"))
        case "state":
            return plane.encode_sync_state_data(e.SyncStateData(0, ("a",)))
        case "clean":
            replicas = (replica,) if replica > 0 else ()
            return plane.encode_clean_broker_data(
                e.CleanBrokerData(0, "c", "a", replicas, **flags), 0
            )
        case _:
            assert what == "metadata", what
            return plane.encode_metadata()


OURS = {
    "incarnation", "haAddress", "ackMode", "suspect", "leaseMillis", "clockDriftPercent", "heartbeatNumber",
    "leading", "streaming", "resigned",
}  # fmt: skip


def stocked(command: Command, what: str) -> Command:
    """Without our fields, and heartbeats oneway, as Java brokers send it."""
    if what.startswith("stock_"):
        command.ext = {name: text for name, text in (command.ext or {}).items() if name not in OURS}
        if what == "stock_beat":
            command.flag |= ONEWAY_FLAG
        else:
            del command.ext["epoch"], command.ext["maxOffset"]
    return command


async def performed(script: str) -> str:
    """The script's comments and commands, with what the controller does now."""
    settings: dict[str, str] = {}
    out: list[str] = []
    lines = [line for line in script.splitlines() if not line.startswith("  ")]
    for line in lines:
        if line.startswith("set "):
            key, _, value = line.removeprefix("set ").partition("=")
            settings[key] = value
    async with Table(**settings) as table:
        start_ms = table.clock.ms
        for line in lines:
            out.append(line)
            if line.startswith("at "):
                table.clock.ms = start_ms + int(line.split()[1])
            elif line.startswith("> "):
                del table.lines[:]
                await happen(table, line.split()[1:])
                out += table.lines
    return "\n".join(out) + "\n"


async def happen(table: Table, words: list[str]) -> None:
    first, *rest = words
    if first in ("stored", "unreachable", "deposed"):
        table.store.finish(first)
        await table.settle()
    elif first in ("refused", "silent"):
        table.probed(first == "refused")
        await table.settle()
    elif first == "tick":
        assert table.controller.reign is not None
        table.controller.reign.feed(e.Tick())
        await table.settle()
    elif first == "restart":
        await table.__aexit__()
        await table.begin()
    elif rest[0] == "closed":
        await table.close_line(int(first))
    else:
        fields = dict(each.split("=", 1) for each in rest[1:])
        await table.ask(int(first), command_of(rest[0], fields))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_what_the_controller_does(path: Path, request: pytest.FixtureRequest) -> None:
    script = path.read_text(encoding="utf-8")
    transcript = asyncio.run(performed(script))
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(transcript, encoding="utf-8")
    else:
        assert transcript == script, "read the difference; if it is right: --rewrite-transcripts"


def test_there_are_transcripts() -> None:
    assert len(SCRIPTS) >= 6
