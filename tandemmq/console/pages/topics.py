"""Topics, and one topic with its queues and groups. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.cluster.client import TopicStats
from tandemmq.console import words
from tandemmq.console.asking.asked import Problem
from tandemmq.console.markup import NOTHING, Html, html, join
from tandemmq.console.pages import parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.parts import Column
from tandemmq.console.seen.snapshot import Topic

PATH: Final = "/console/topics"
KINDS: Final = {
    "": "normal",
    "retry": "retry",
    "dead letters": "dead letters",
    "system": "system",
    "all": "all",
}
_PERMS: Final = {6: "read, write", 4: "read only", 2: "write only", 0: "nobody"}

Stats = TopicStats | Problem | None


def topics(view: View, stats_of: Callable[[str], Stats]) -> Page:
    """A page of topics. stats_of: what is known of how full one is; asked for the shown ones only."""
    query = view.query
    wanted, text = query.get("kind", "") or "normal", query.get("q", "").lower()
    found = [
        each
        for each in view.seen.topics
        if (wanted == "all" or each.kind == wanted) and (not text or text in each.name.lower())
    ]
    if query.get("sort") == "queues":
        found.sort(key=lambda each: -each.write_queues)
    shown = parts.Slice.of(query, len(found))
    rows = [_row(each, stats_of(each.name)) for each in found[shown.first : shown.end]]
    columns = (
        Column("topic", sort="name"), Column("messages", "n"), Column("in", "n"), Column("last one", "w"),
        Column("queues", "n", "queues"), Column("brokers", "nw"), Column("open for", "w"), Column("type", "w"),
    )  # fmt: skip
    listed = parts.listing(
        PATH, query, shown, columns, rows, kinds=KINDS, what="topic", sorted_by=query.get("sort") or "name",
        empty="No such topic." if view.seen.topics_ms else parts.ASKING,
    )  # fmt: skip
    return Page("Topics", listed)


def _row(topic: Topic, stats: Stats) -> Sequence[object]:
    messages: object = "…"
    rate: object = "…"
    last: object = NOTHING
    if isinstance(stats, TopicStats):
        messages, rate = words.count(stats.message_count), words.rate(stats.put_per_second)
        last = words.moment(max((each.updated_ms for each in stats.queues.values()), default=0))
    elif isinstance(stats, Problem):
        messages, rate, last = words.ABSENT, words.ABSENT, html("<small>{}</small>", stats.why)
    return (
        parts.named_link(PATH, topic.name),
        messages, rate, last, topic.write_queues, topic.brokers, _PERMS.get(topic.perm & 6, topic.perm),
        topic.message_type.lower(),
    )  # fmt: skip


def topic(view: View, name: str, stats: Stats, groups: Sequence[str] | Problem | None) -> Page:
    """One topic. groups: who consumes it."""
    known = view.seen.topic(name)
    cards = []
    if known is not None:
        cards.append(parts.card("about", "Standing", parts.facts([
            ("kind", known.kind), ("brokers", known.brokers),
            ("queues", f"{known.write_queues} to write, {known.read_queues} to read"),
            ("open for", _PERMS.get(known.perm & 6, known.perm)), ("type", known.message_type.lower() or "not said"),
            ("ordered", "yes" if known.order else "no"),
        ]), html("{} {}", parts.link("/console/messages", "newest messages", topic=name, by="newest"),
                 parts.link("/console/messages", "search", topic=name))))  # fmt: skip
    cards.append(parts.card("queues", "Queues", _queues(stats), _total(stats)))
    cards.append(parts.card("groups", "Groups", _groups(view, name, groups)))
    return Page(name, join(cards))


def _total(stats: Stats) -> str:
    if not isinstance(stats, TopicStats):
        return ""
    return f"{words.several(stats.message_count, 'message')}, {words.rate(stats.put_per_second)}"


def _queues(stats: Stats) -> Html:
    if not isinstance(stats, TopicStats):
        return parts.pending(stats)
    rows = [
        (queue.broker_name, queue.queue_id, words.count(held.min_offset), words.count(held.max_offset),
         words.count(held.max_offset - held.min_offset), words.moment(held.updated_ms))
        for queue, held in stats.queues.items()
    ]  # fmt: skip
    columns = (
        Column("broker"), Column("queue", "n"), Column("from", "n"), Column("to", "n"), Column("messages", "n"),
        Column("last one"),
    )  # fmt: skip
    return parts.table(columns, rows, empty="It has no queues.", label="queues")


def _groups(view: View, name: str, groups: Sequence[str] | Problem | None) -> Html:
    if groups is None or isinstance(groups, Problem):
        return parts.pending(groups)
    rows = []
    for each in groups:
        known = view.seen.group(each)
        behind = words.ABSENT if known is None else words.count(known.behind)
        rows.append((parts.link(parts.path_of("/console/groups", each), each), behind))
    columns = (Column("group"), Column("behind, in all its topics", "n"))
    return parts.table(columns, rows, empty="Nobody consumes it.", label="groups")
