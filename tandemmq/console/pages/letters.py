"""Dead letters by group, and sending some again. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.cluster.client import ReceivedMessage, TopicStats
from tandemmq.console import words
from tandemmq.console.asking.asked import Problem
from tandemmq.console.asking.letters import TO_GROUP, TO_TOPIC, Place, SentAgain
from tandemmq.console.asking.messages import Found
from tandemmq.console.markup import NOTHING, Html, html, join
from tandemmq.console.pages import bodies, parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.messages import path_to
from tandemmq.console.pages.parts import Column
from tandemmq.console.seen.snapshot import DLQ_PREFIX

PATH: Final = "/console/letters"


def letter_groups(view: View, stats_of: Callable[[str], TopicStats | Problem | None]) -> Page:
    """Groups that have dead letters."""
    names = [each.name for each in view.seen.topics if each.kind == "dead letters"]
    shown = parts.Slice.of(view.query, len(names))
    rows: list[Sequence[object]] = []
    for name in names[shown.first : shown.end]:
        group, stats = name.removeprefix(DLQ_PREFIX), stats_of(name)
        count: object = "…"
        last: object = NOTHING
        if isinstance(stats, TopicStats):
            count = words.count(stats.message_count)
            last = words.moment(
                max((each.updated_ms for each in stats.queues.values()), default=0), view.now_ms
            )
        elif isinstance(stats, Problem):
            last = stats.why
        rows.append((parts.link(parts.path_of(PATH, group), group), count, last))
    empty = "No group ever gave a message up." if view.seen.topics_ms else parts.ASKING
    table = parts.table(
        (Column("group"), Column("letters", "n"), Column("last one")),
        rows,
        empty=empty,
        label="dead letters",
    )
    return Page(
        "Dead letters", parts.card("letters", parts.pager(shown, PATH, view.query, "group"), table)
    )


def letters(view: View, group: str, found: Found, problem: str) -> Page:
    """The last letters of one group, the newest first, with the form that sends them again."""
    if problem:
        return Page(f"Dead letters of {group}", parts.notice("bad", problem), live=False)
    act = view.session is not None
    rows = [_row(each.message, act) for each in found.lines]
    columns = [
        Column("given up"), Column("from topic"), Column("message id"), Column("keys", "w"), Column("tries", "nw"),
        Column("body", "w"),
    ]  # fmt: skip
    if act:
        columns.insert(0, Column(""))
    table = parts.table(columns, rows, empty="No letter is there.", label="letters")
    if act and rows:
        body = html(
            '<form method="post" action="{}">{}{}<fieldset class="inline"><legend>Send what is chosen again</legend>'
            '<label class="choice"><input type="radio" name="to" value="{}" checked> to {} alone</label>'
            '<label class="choice"><input type="radio" name="to" value="{}">'
            " to the topic it came from: all its groups get it</label>"
            '<button>Send again</button> <button type="button" class="plain" data-choose-all>choose all</button>'
            "</fieldset></form>",
            parts.path_of(PATH, group, "again"), view.form_word(), table, TO_GROUP, group, TO_TOPIC,
        )  # fmt: skip
    else:
        body = html("{}{}", table, view.sign_in("Sending letters again") if rows else NOTHING)
    side = html(
        "the last {} {}", words.several(len(rows), "letter"),
        parts.link(parts.path_of(PATH, group), "show 200", rows=200) if found.more else NOTHING,
    )  # fmt: skip
    return Page(
        f"Dead letters of {group}", parts.card("letters", "Letters", body, side), live=False
    )


def _row(letter: ReceivedMessage, act: bool) -> Sequence[object]:
    queue = letter.queue
    place = Place(queue.broker_name, queue.queue_id, letter.queue_offset)
    boxes: list[object] = []
    if act:
        boxes.append(html('<input type="checkbox" name="letter" value="{}" aria-label="choose {}">', str(place),
                          letter.message_id))  # fmt: skip
    origin = (
        letter.properties.get("DLQ_ORIGIN_TOPIC")
        or letter.properties.get("RETRY_TOPIC")
        or letter.topic
    )
    return (
        *boxes, words.moment(letter.store_ms), origin,
        html('<a class="id" href="{}">{}</a>', path_to(letter), letter.message_id), " ".join(letter.keys),
        letter.reconsume_times, html("<code>{}</code>", bodies.line(letter.body, 60)),
    )  # fmt: skip


def sent_again(group: str, results: Sequence[SentAgain]) -> Html:
    """What became of each letter."""
    good = sum(not each.problem for each in results)
    rows = [
        (parts.badge("bad", "not sent") if each.problem else parts.badge("good", "sent"),
         html('<span class="id">{}</span>', each.message_id or str(each.place)), each.problem or each.where)
        for each in results
    ]  # fmt: skip
    return join([
        parts.notice("good" if good == len(results) else "look",
                     f"{good} of {words.several(len(results), 'letter')} sent again."),
        parts.table((Column("how"), Column("message id"), Column("where")), rows),
        html("<p>{} The letters themselves stay until retention takes them.</p>",
             parts.link(parts.path_of(PATH, group), "Back to the letters.")),
    ])  # fmt: skip
