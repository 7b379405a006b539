"""Searching messages, and one message with its body, what became of it, and its trace. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tandemmq.cluster.client import ReceivedMessage, TrackState
from tandemmq.console import words
from tandemmq.console.asking.messages import Found, Line, Whereabouts
from tandemmq.console.markup import NOTHING, Html, html, join
from tandemmq.console.pages import bodies, parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.parts import Column

PATH: Final = "/console/messages"
WAYS: Final = {"key": "key", "id": "message id", "time": "time", "newest": "newest"}
TRACK_TONES: Final = {
    TrackState.CONSUMED: "good", TrackState.FILTERED: "quiet", TrackState.NOT_CONSUMED: "look",
    TrackState.NOT_ONLINE: "look",
}  # fmt: skip
_TRACKS: Final = {
    TrackState.CONSUMED: "consumed", TrackState.FILTERED: "left out by its tags",
    TrackState.PULLS: "its members pull by themselves: nobody can tell",
    TrackState.BROADCAST: "every member reads everything: nobody can tell",
    TrackState.NOT_CONSUMED: "not consumed yet", TrackState.NOT_ONLINE: "nobody is online",
    TrackState.UNKNOWN: "not known",
}  # fmt: skip
_COLUMNS: Final = (
    Column("stored"), Column("message id"), Column("keys"), Column("tag", "w"), Column("queue", "w"),
    Column("offset", "nw"), Column("size", "nw"), Column("body", "w"),
)  # fmt: skip


def search(view: View, found: Found | None, problem: str) -> Page:
    """The form, and what was found; None: nothing was asked for yet."""
    query = view.query
    cards = [parts.card("search", "Search", _form(view))]
    if problem:
        cards.append(parts.notice("bad", problem))
    elif found is not None:
        more = (
            " or more; narrow it down to see the others"
            if found.more and query.get("by") != "newest"
            else ""
        )
        side = f"{words.several(len(found.lines), 'message')}{more}"
        cards.append(parts.card("found", "Found", message_table(found.lines), side))
    return Page("Messages", join(cards), live=False)


def _form(view: View) -> Html:
    query = view.query
    by = query.get("by", "key")
    ways = join(
        html(
            '<option value="{}"{}>{}</option>',
            value,
            Html(" selected") if value == by else NOTHING,
            word,
        )
        for value, word in WAYS.items()
    )
    names = join(
        html('<option value="{}">', each.name)
        for each in view.seen.topics[:500]
        if each.kind != "system"
    )
    return html(
        '<form method="get" action="{path}" class="fields">'
        '<label>topic <input name="topic" value="{topic}" list="topics" required maxlength="255"'
        ' autocomplete="off"></label>'
        '<datalist id="topics">{names}</datalist><label>by <select name="by" id="by">{ways}</select></label>'
        '<label data-by="key id">key or id <input name="text" value="{text}" maxlength="255"'
        ' autocomplete="off"></label>'
        '<label data-by="key time">from <input name="from" value="{begin}"'
        ' placeholder="1h, or 2026-11-27T08:30"></label>'
        '<label data-by="key time">to <input name="to" value="{end}" placeholder="now"></label>'
        "<button>Search</button></form>",
        path=PATH, topic=query.get("topic", ""), names=names, ways=ways, text=query.get("text", ""),
        begin=query.get("from", ""), end=query.get("to", ""),
    )  # fmt: skip


def message_table(lines: Iterable[Line]) -> Html:
    """One row each."""
    return parts.table(_COLUMNS, map(_row, lines), empty="No message was found.", label="messages")


def _row(line: Line) -> Sequence[object]:
    message = line.message
    queue = message.queue
    return (
        words.moment(message.store_ms), html('<a class="id" href="{}">{}</a>', path_to(message), message.message_id),
        " ".join(message.keys), message.tags, f"{queue.broker_name} {queue.queue_id}",
        words.count(message.queue_offset),
        words.size(line.body_bytes), html("<code>{}</code>", bodies.line(message.body)),
    )  # fmt: skip


def path_to(message: ReceivedMessage, page: str = "/console/message") -> str:
    """Where a message is shown."""
    queue = message.queue
    return parts.path_of(
        page,
        topic=queue.topic,
        broker=queue.broker_name,
        queue=queue.queue_id,
        offset=message.queue_offset,
    )


def message(view: View, known: Whereabouts) -> Page:
    """Everything about one message."""
    found = known.message
    about = parts.facts([
        ("topic", parts.link(parts.path_of("/console/topics", found.queue.topic), found.queue.topic)),
        ("keys", " ".join(found.keys) or words.ABSENT), ("tag", found.tags or words.ABSENT),
        ("queue", f"{found.queue.broker_name} {found.queue.queue_id}, offset {found.queue_offset:,}"),
        ("stored", words.moment(found.store_ms, view.now_ms)), ("born", words.moment(found.born_ms)),
        ("sent by", found.born_host), ("stored at", f"{found.store_host}, byte {found.physical_offset:,}"),
        ("came again", f"{found.reconsume_times} times"), ("broker's id", found.offset_message_id),
    ])  # fmt: skip
    shown = bodies.preview(found.body)
    part = "" if shown.whole else ", its beginning"
    body = html('<pre class="body" tabindex="0">{}</pre>', shown.text)
    side = html(
        '{}, {}{} <a href="{}" download>download</a>',
        words.size(len(found.body)),
        shown.kind,
        part,
        path_to(found, "/console/message/body"),
    )
    properties = parts.table(
        (Column("property"), Column("value")), sorted(found.properties.items())
    )
    cards = [
        parts.card("about", "Standing", about),
        parts.card("body", "Body", body, side),
        parts.card("tracks", "What became of it", _tracks(known), wide=False),
        parts.card("trace", "Trace", _trace(known), wide=False),
        parts.card("properties", "Properties", properties),
    ]  # fmt: skip
    head = html('<span class="id">{}</span>', found.message_id)
    return Page("Message", join(cards), live=False, head=head)


def _tracks(known: Whereabouts) -> Html:
    if known.tracks_problem:
        return parts.notice("look", known.tracks_problem)
    rows = [
        (parts.link(parts.path_of("/console/groups", each.group), each.group),
         parts.badge(TRACK_TONES.get(each.state, "quiet"), _TRACKS[each.state]), each.why)
        for each in known.tracks
    ]  # fmt: skip
    return parts.table(
        (Column("group"), Column("state"), Column("why", "w")),
        rows,
        empty="No group consumes its topic.",
    )


def _trace(known: Whereabouts) -> Html:
    if known.traces_problem:
        return parts.notice("quiet", f"No traces can be read: {known.traces_problem}")
    kinds = {"Pub": "sent", "Sub": "consumed", "End": "transaction ended"}
    rows = [
        (words.moment(each["time_ms"]), kinds.get(each["type"], each["type"]), each["group"], each["host"],
         f"{each['cost_ms']} ms", parts.badge("good" if each["status"] == "success" else "look", each["status"]))
        for each in known.traces
    ]  # fmt: skip
    columns = (
        Column("when"),
        Column("what"),
        Column("group"),
        Column("host", "w"),
        Column("took", "n"),
        Column("how"),
    )
    return parts.table(
        columns,
        rows,
        empty="Nothing was traced: producers and consumers write traces where trace_topic is set.",
    )
