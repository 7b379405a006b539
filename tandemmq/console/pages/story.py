"""The story of failovers: what happened since the console looks, and who wrote which part of each log. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.console import words
from tandemmq.console.markup import Html, html, join
from tandemmq.console.pages import parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.parts import Column
from tandemmq.console.seen.story import Entry

_TONES = {"good": "good", "note": "quiet", "bad": "bad"}


def entry_list(entries: Sequence[Entry], now_ms: int) -> Html:
    """Entries in the order given."""
    if not entries:
        return html('<p class="empty">Nothing changed since the console looks.</p>')
    rows = join(
        html(
            '<li class="{}"><span class="when">{}</span>{}<span>{}</span></li>',
            each.tone, words.moment(each.at_ms, now_ms), parts.badge(_TONES[each.tone], each.group), each.text,
        )
        for each in entries
    )  # fmt: skip
    return html('<ol class="story">{}</ol>', rows)


def story(view: View) -> Page:
    """Everything that is remembered, the newest first."""
    chosen = view.query.get("group", "")
    entries = [each for each in reversed(view.seen.story) if not chosen or each.group == chosen]
    reigns = [each for each in view.seen.reigns if not chosen or each.group == chosen]
    names = {"": "all"} | {each.name: each.name for each in view.seen.brokers}
    rows = [
        (
            parts.link(parts.path_of("/console/brokers", each.group), each.group), each.epoch,
            words.moment(each.first_ms or 0, view.now_ms), words.count(each.start_offset),
            parts.badge("good", "it lasts") if each.end_offset is None else words.count(each.end_offset),
            words.size((each.end_offset or 0) - each.start_offset) if each.end_offset is not None else words.ABSENT,
        )
        for each in reigns
    ]  # fmt: skip
    columns = (
        Column("group"), Column("epoch", "n"), Column("its first message"), Column("from byte", "n"),
        Column("to byte", "n"), Column("written", "nw"),
    )  # fmt: skip
    cards = [
        parts.card("entries", "What happened", entry_list(entries, view.now_ms),
                   parts.choices("/console/story", view.query, "group", names)),
        parts.card("reigns", "Who wrote which part of the log",
                   parts.table(columns, rows, empty="No group runs under a controller, so nobody counts epochs.",
                               label="epochs")),
    ]  # fmt: skip
    return Page("Story", join(cards))
