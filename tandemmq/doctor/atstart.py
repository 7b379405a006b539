"""What of this machine is bad for a server, in its log when it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from tandemmq.doctor.findings import Severity, in_order
from tandemmq.doctor.host import host_findings
from tandemmq.doctor.hostfacts import host_facts


def advise_at_start(stores: Iterable[Path], log: logging.Logger) -> None:
    """A line per warning, one line for all advice; nothing on a machine that suits."""
    try:
        found = in_order(host_findings(host_facts(list(stores))))
    except OSError as problem:
        log.info(
            "host not looked at why=%s", problem
        )  # the server meets it, too, and says what to do
        return
    for each in found:
        if each.check == "open-files":
            continue  # said by raise_open_files_limit, with what was reached
        if each.severity is not Severity.ADVICE:
            log.warning(
                "host %s where=%s what=%s do=%s", each.check, each.where, each.text, each.do
            )
    advice = [each.check for each in found if each.severity is Severity.ADVICE]
    if advice:
        log.info("host advice checks=%s hint=tandem doctor explains", ",".join(advice))
