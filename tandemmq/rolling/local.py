"""`tandem local rolling-restart`: the processes of a local cluster, in the order of their roles."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from dataclasses import asdict

from tandemmq.cluster.client import Admin, ClientConfig
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.outcome import client_errors
from tandemmq.local import processes
from tandemmq.local.layout import Layout, LocalProcess, open_layout
from tandemmq.rolling.order import Server
from tandemmq.rolling.rollout import Limits, Restarter, Rollout


def run_local(arguments: argparse.Namespace) -> ExitCode:
    """Raises CommandFailed when a process does not run, or is not back in time."""
    layout = open_layout(arguments.dir.absolute())
    for member in layout.members:
        if processes.running_pid(layout, member) is None:
            raise CommandFailed(
                f"{member.name} does not run: the cluster must be whole first (tandem local up)",
                ExitCode.NOT_RUNNING,
            )
    with client_errors():
        return asyncio.run(_run(layout, arguments))


async def _run(layout: Layout, arguments: argparse.Namespace) -> ExitCode:
    config = ClientConfig(layout.name_server.address)
    say = (lambda line: None) if arguments.json else (lambda line: print(line, flush=True))
    async with Admin(config=config) as admin:
        rollout = Rollout(
            admin, config, by_process(layout), Limits(arguments.timeout, arguments.drain), say
        )
        if arguments.name_server:
            await rollout.name_servers()
        await rollout.brokers(None)
    if arguments.json:
        print(json.dumps({"steps": [asdict(each) for each in rollout.done]}))
    return ExitCode.OK


def by_process(layout: Layout) -> Restarter:
    """Restarts a process of a local cluster: SIGTERM, wait for its end, start."""

    async def restart(server: Server) -> None:
        await asyncio.to_thread(_restart, layout, _member_at(layout, server.address))

    return restart


def _member_at(layout: Layout, address: str) -> LocalProcess:
    for member in layout.members:
        if member.address == address:
            return member
    raise CommandFailed(
        f"{address} is none of the processes in {layout.directory}", ExitCode.NOT_FOUND
    )


def _restart(layout: Layout, member: LocalProcess) -> None:
    processes.send_signal(layout, member, signal.SIGTERM)
    processes.start(layout, [member])
