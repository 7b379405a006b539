"""Signing in, what an action brought, reports, and what is not there. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.console import words
from tandemmq.console.markup import Html, html
from tandemmq.console.pages import parts
from tandemmq.console.pages.frame import Page
from tandemmq.console.pages.parts import Column


def enter(then: str, problem: str, where: str) -> Page:
    """The form for the token. then: the page to go on with; where: how an operator finds the token."""
    said = parts.notice("bad", problem) if problem else html("")
    body = html(
        '{}<form method="post" action="/console/enter" class="fields"><input type="hidden" name="next" value="{}">'
        '<input class="aside" type="text" name="user" value="console" autocomplete="username"'
        ' tabindex="-1" aria-hidden="true">'
        '<label>token <input type="password" name="token" required autofocus'
        ' autocomplete="current-password" maxlength="4096"></label>'
        "<button>Sign in</button></form><p><small>{}</small></p>",
        said, then, where,
    )  # fmt: skip
    return Page("Sign in", parts.card("enter", "Show the token", body), live=False)


def outcome(title: str, body: Html) -> Page:
    """What an action brought."""
    return Page(title, parts.card("outcome", title, body), live=False)


def problem(title: str, text: str) -> Page:
    """Why a page cannot be shown."""
    return Page(title, parts.notice("bad", text), live=False)


@dataclass(frozen=True, slots=True)
class Report:
    """A file that somebody can open. path: within the reports' directory, with / between."""

    path: str
    size_bytes: int
    written_ms: int


def reports(found: Sequence[Report] | None, directory: str, now_ms: int) -> Page:
    """Reports of audits and campaigns; None: no directory is set."""
    if found is None:
        body = html(
            "<p>No directory of reports is set. With <code>consoleReportsPath</code> of the name server, or "
            "<code>tandem console --reports DIR</code>, its reports are linked here:</p>"
            "<ul><li><code>tandem audit report RUN</code> writes <code>RUN/report.html</code>: whether replicas are "
            "equal, and where not;</li>"
            "<li>chaos campaigns write what they did and what was found into the directory given to them.</li></ul>"
        )
        return Page("Reports", parts.card("reports", "Audits and chaos", body), live=False)
    rows = [
        (html('<a href="{}">{}</a>', parts.path_of("/console/reports", *each.path.split("/")), each.path),
         words.size(each.size_bytes), words.moment(each.written_ms, now_ms))
        for each in found
    ]  # fmt: skip
    columns = (Column("report"), Column("size", "n"), Column("written"))
    table = parts.table(columns, rows, empty=f"No report lies in {directory} yet.", label="reports")
    return Page("Reports", parts.card("reports", "Audits and chaos", table, directory), live=False)
