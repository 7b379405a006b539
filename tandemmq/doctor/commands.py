"""`tandem doctor`: looks, says what is wrong, and ends by how bad the worst of it is."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.doctor.findings import Finding, Severity, in_order, worst
from tandemmq.doctor.host import host_findings
from tandemmq.doctor.hostfacts import host_facts

if TYPE_CHECKING:
    from tandemmq.doctor.clusters import ClusterFacts

CODES: Final = {
    None: ExitCode.OK,
    Severity.ADVICE: ExitCode.OK,
    Severity.WARNING: ExitCode.LOOKS_WRONG,
    Severity.CRITICAL: ExitCode.AT_RISK,
}
_COLOURS: Final = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.ADVICE: "dim"}


def run_doctor(arguments: argparse.Namespace) -> ExitCode:
    """OK when there is nothing but advice. Raises CommandFailed for options that do not go together."""
    if arguments.host_only and arguments.cluster_only:
        raise CommandFailed(
            "--host-only and --cluster-only leave nothing to look at", ExitCode.USAGE
        )
    found: list[Finding] = []
    asked: list[str] = []
    if not arguments.cluster_only:
        stores = arguments.data or default_stores()
        try:
            found += host_findings(host_facts(stores))
        except OSError as problem:
            raise CommandFailed(f"--data: {problem}", ExitCode.USAGE) from problem
        asked += ["this machine", *map(str, stores)]
    if not arguments.host_only:
        facts = _asked(arguments)
        if facts is not None:
            from tandemmq.doctor.clusters import cluster_findings

            found += cluster_findings(facts)
            asked += [each.address for each in facts.name_servers]
    found = in_order(found)
    _print(found, asked, as_json=arguments.json)
    return CODES[worst(found)]


def default_stores() -> list[Path]:
    """Where stores usually are, of what is here: a local cluster's, an image's, a package's."""
    usual = (Path("tandem-data"), Path("/data"), Path("/var/lib/tandemmq"))
    return [each for each in usual if each.is_dir()] or [Path()]


def _asked(arguments: argparse.Namespace) -> ClusterFacts | None:
    """None where nobody said which cluster and none is where one usually is. Raises CommandFailed."""
    from tandemmq.command.outcome import (
        client_errors,
    )  # the client takes longer to load than all the rest
    from tandemmq.command.reach import reach
    from tandemmq.doctor.asking import cluster_facts

    with client_errors():
        facts = asyncio.run(cluster_facts(reach(arguments)))
    silent = all(each.problem for each in facts.name_servers)
    named = arguments.namesrv is not None or arguments.cluster_only
    return None if silent and not named else facts


def _print(found: Sequence[Finding], asked: Sequence[str], *, as_json: bool) -> None:
    from tandemmq.command.output import to_json
    from tandemmq.command.screen import coloured

    if as_json:
        rows = [asdict(each) | {"severity": each.severity.word} for each in found]
        bad = worst(found)
        print(
            to_json(
                {
                    "asked": list(asked),
                    "worst": bad.word if bad is not None else None,
                    "findings": rows,
                }
            )
        )
        return
    for each in found:
        print(
            f"{coloured(each.severity.word.upper().ljust(8), _COLOURS[each.severity])}  {each.where}: {each.text}"
        )
        print(f"          {coloured('do:', 'bold')} {each.do}  [{each.check}]")
    counts = ", ".join(
        f"{sum(each.severity is level for each in found)} {level.word}"
        for level in reversed(Severity)
    )
    print(
        f"looked at {', '.join(asked) or 'nothing'}: {counts if found else 'nothing looks wrong'}"
    )
