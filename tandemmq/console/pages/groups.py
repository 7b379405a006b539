"""Consumer groups and their lag, and one group with its members. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.cluster.client import GroupMembers, GroupProgress
from tandemmq.console import words
from tandemmq.console.asking.asked import Problem
from tandemmq.console.markup import NOTHING, Html, html, join
from tandemmq.console.pages import parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.parts import Column
from tandemmq.console.seen.findings import BEHIND_LOOK
from tandemmq.console.seen.snapshot import Group

PATH: Final = "/console/groups"
KINDS: Final = {"": "of applications", "system": "of brokers"}

Members = GroupMembers | Problem | None
Progress = GroupProgress | Problem | None


def groups(view: View, members_of: Callable[[str], Members]) -> Page:
    """A page of groups, who is furthest behind first. members_of: asked for the shown ones only."""
    query = view.query
    text, system = query.get("q", "").lower(), query.get("kind") == "system"
    found = [
        each
        for each in view.seen.groups
        if each.system == system and (not text or text in each.name.lower())
    ]
    sort = query.get("sort") or "behind"
    if sort == "behind":
        found.sort(key=lambda each: -1 if each.behind is None else each.behind, reverse=True)
    shown = parts.Slice.of(query, len(found))
    rows = [_row(each, members_of(each.name)) for each in found[shown.first : shown.end]]
    columns = (
        Column("group", sort="name"), Column("behind", "n", "behind"), Column("in flight", "nw"),
        Column("takes", "n"), Column("members", "n"), Column("topics"), Column("dead letters", "w"),
    )  # fmt: skip
    listed = parts.listing(
        PATH, query, shown, columns, rows, kinds=KINDS, what="group", sorted_by=sort,
        empty="No such group." if view.seen.groups_ms else parts.ASKING,
    )  # fmt: skip
    return Page("Groups", listed)


def _row(group: Group, members: Members) -> Sequence[object]:
    behind: object = words.count(group.behind)
    if (group.behind or 0) >= BEHIND_LOOK:
        behind = parts.badge("look", behind)
    online: object = "…"
    if isinstance(members, GroupMembers):
        online = len(members.connections) or (parts.badge("look", "none") if group.behind else 0)
    elif isinstance(members, Problem):
        online = words.ABSENT
    topics = [each for each in group.topics if not each.startswith("%RETRY%")]
    listed = ", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
    letters = (
        parts.link(parts.path_of("/console/letters", group.name), "look")
        if group.dead_letters
        else NOTHING
    )
    return (
        parts.named_link(PATH, group.name), behind,
        words.count(group.in_flight), words.rate(group.consume_per_second), online, listed, letters,
    )  # fmt: skip


def group(view: View, name: str, members: Members, progress: Progress) -> Page:
    """One group: how far it is in each queue, who its members are, its settings."""
    known = view.seen.group(name)
    cards = []
    if known is not None and known.settings is not None:
        settings = known.settings
        rows = [
            ("behind", words.count(known.behind)), ("takes", words.rate(known.consume_per_second)),
            ("may consume", "yes" if settings.consume_enable else "no"),
            ("tries before a dead letter", settings.retry_max_times + 1),
            ("broadcasts", "allowed" if settings.broadcast_enable else "no"),
            ("in order", "yes" if settings.orderly else "no"),
        ]  # fmt: skip
        side = (
            parts.link(parts.path_of("/console/letters", name), "its dead letters")
            if known.dead_letters
            else NOTHING
        )
        cards.append(parts.card("about", "Standing", parts.facts(rows), side))
    cards.append(parts.card("members", "Members", _members(members)))
    if isinstance(members, GroupMembers) and members.connections:
        wanted = [
            (each.topic, each.expression, each.expression_type)
            for each in members.subscriptions.values()
        ]
        columns = (Column("topic"), Column("expression"), Column("kind"))
        cards.append(parts.card("wanted", "What they subscribe to", parts.table(columns, wanted)))
    cards.append(parts.card("progress", "Progress", _progress(progress)))
    return Page(name, join(cards))


def _members(members: Members) -> Html:
    if members is None or isinstance(members, Problem):
        return parts.pending(members)
    rows = [
        (each.client_id, each.address, each.language.lower(), each.version_name)
        for each in members.connections
    ]  # fmt: skip
    columns = (
        Column("client"),
        Column("address"),
        Column("language", "w"),
        Column("version", "w"),
    )
    table = parts.table(columns, rows, empty="Nobody is online.", label="members")
    how = f"{members.message_model}, {members.consume_type.removeprefix('CONSUME_')}".lower()
    return html("{}<p><small>{}</small></p>", table, how) if rows else table


def _progress(progress: Progress) -> Html:
    if progress is None or isinstance(progress, Problem):
        return parts.pending(progress)
    rows = [
        (parts.link(parts.path_of("/console/topics", queue.topic), queue.topic), queue.broker_name, queue.queue_id,
         words.count(at.consumer_offset), words.count(at.broker_offset),
         parts.badge("look", words.count(at.behind)) if at.behind >= BEHIND_LOOK else words.count(at.behind),
         words.moment(at.last_ms))
        for queue, at in progress.queues.items()
    ]  # fmt: skip
    columns = (
        Column("topic"), Column("broker"), Column("queue", "n"), Column("consumed to", "n"), Column("of", "n"),
        Column("behind", "n"), Column("last one is of", "w"),
    )  # fmt: skip
    return parts.table(columns, rows, empty="It has no positions yet.", label="progress")
