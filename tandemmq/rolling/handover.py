"""`tandem hand-over HOST:PORT`: before a broker is stopped, another member of its group leads, and clients know it.

A broker that is told to stop hands over by itself, and ends at most a second later. Here whoever stops it waits until
name servers send clients to the new master: what a pod's preStop is for.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import replace

from tandemmq.cluster.client import Admin
from tandemmq.cluster.client.errors import NoSuccessor
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.outcome import client_errors
from tandemmq.command.reach import reach


def run_hand_over(arguments: argparse.Namespace) -> ExitCode:
    """OK when somebody else leads, or did before. Raises CommandFailed where nobody can or nobody answers."""
    with client_errors():
        print(asyncio.run(_handed_over(arguments)))
    return ExitCode.OK


async def _handed_over(arguments: argparse.Namespace) -> str:
    address: str = arguments.address
    config = reach(arguments)
    async with Admin(config=config) as admin:
        settings = await admin.broker_config(address)
        status = await admin.broker_status(address)
    kept = nothing_to_do(settings, status)
    if kept:
        return f"{address}: {kept}"
    if arguments.namesrv is None and settings.get("namesrvAddr"):
        config = replace(config, namesrv=settings["namesrvAddr"])  # the broker's own
    name = settings["brokerName"]
    async with Admin(config=config) as admin:
        try:
            found = await admin.switchover(name)
        except NoSuccessor as problem:
            raise CommandFailed(f"{address}: {problem}") from problem
    if found.announced_ms is None:
        raise CommandFailed(
            f"{name}: {found.after.master_id} leads, and the name server does not send clients there yet"
        )
    return (
        f"{name}: {found.before.master_id} handed over to {found.after.master_id}, "
        f"clients are sent there after {found.announced_ms} ms"
    )


def nothing_to_do(settings: Mapping[str, str], status: Mapping[str, str]) -> str:
    """Why this broker has nothing to hand over, by its settings and what it says of itself; "" if it leads a group."""
    if settings.get("enableControllerMode") != "true":
        return "its role is fixed, nobody can take over"
    if status.get("brokerRole", settings.get("brokerRole")) == "SLAVE":
        return "it does not lead"
    return ""
