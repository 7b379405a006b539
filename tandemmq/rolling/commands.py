"""`tandem rolling-restart`: a command of the operator's restarts a server, we say which one, and when."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict

from tandemmq.cluster.client import Admin
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.outcome import client_errors
from tandemmq.command.reach import reach
from tandemmq.rolling.order import Server
from tandemmq.rolling.rollout import Limits, Restarter, Rollout

_OUTPUT_CHARACTERS = 2_000


def run_rolling_restart(arguments: argparse.Namespace) -> ExitCode:
    """Raises CommandFailed; the servers that were restarted until then are."""
    words = split(arguments.command)
    if arguments.timeout <= 0 or arguments.drain < 0:
        raise CommandFailed("--timeout must be above 0, --drain at least 0", ExitCode.USAGE)
    with client_errors():
        return asyncio.run(_run(arguments, by_command(words, arguments.timeout)))


async def _run(arguments: argparse.Namespace, restart: Restarter) -> ExitCode:
    config = reach(arguments)
    say = (lambda line: None) if arguments.json else (lambda line: print(line, flush=True))
    async with Admin(config=config) as admin:
        rollout = Rollout(admin, config, restart, Limits(arguments.timeout, arguments.drain), say)
        if arguments.name_servers:
            await rollout.name_servers()
        await rollout.brokers(arguments.group or None)
    if arguments.json:
        print(json.dumps({"steps": [asdict(each) for each in rollout.done]}))
    return ExitCode.OK


def split(command: str) -> list[str]:
    """Its words, as a shell would have them. Raises CommandFailed."""
    try:
        words = shlex.split(command)
        filled(words, Server("broker", "broker-a", 1, "127.0.0.1:10911"))
    except (ValueError, KeyError, IndexError) as problem:
        raise CommandFailed(
            f"--with {command!r} cannot be used ({problem}): "
            "it knows {role} {name} {id} {address} {host} {port}",
            ExitCode.USAGE,
        ) from problem
    if not words:
        raise CommandFailed(
            "--with is empty: which command restarts a server here?", ExitCode.USAGE
        )
    return words


def filled(words: Sequence[str], server: Server) -> list[str]:
    """The command for one server. No shell sees it: what a server is called is never a command."""
    host, _, port = server.address.rpartition(":")
    known = {
        "role": server.role, "name": server.name, "id": server.broker_id, "address": server.address,
        "host": host.strip("[]"), "port": port,
    }  # fmt: skip
    return [word.format_map(known) for word in words]


def by_command(words: Sequence[str], timeout_s: float) -> Restarter:
    """Restarts a server by a command; the environment names the server, too (TANDEM_ROLE, _NAME, _ID, _ADDRESS)."""

    async def restart(server: Server) -> None:
        command = filled(words, server)
        told = {
            "TANDEM_ROLE": server.role, "TANDEM_NAME": server.name, "TANDEM_ID": str(server.broker_id),
            "TANDEM_ADDRESS": server.address,
        }  # fmt: skip
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **told}, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as problem:
            raise CommandFailed(
                f"{shlex.join(command)}: {problem.strerror}", ExitCode.MISSING
            ) from problem
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise CommandFailed(f"{shlex.join(command)}: not done within {timeout_s:g} s") from None
        if process.returncode:
            said = output.decode(errors="replace")[-_OUTPUT_CHARACTERS:].strip()
            raise CommandFailed(f"{shlex.join(command)} ended with {process.returncode}: {said}")

    return restart
