"""Messages that wait for their time: how many in which hour, and the next ones. No I/O."""

from __future__ import annotations

from collections import Counter

from tandemmq.console import words
from tandemmq.console.asking.asked import Problem
from tandemmq.console.asking.delayed import Queue
from tandemmq.console.markup import Html, html, join
from tandemmq.console.pages import bodies, parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.messages import path_to
from tandemmq.console.pages.parts import Column
from tandemmq.console.seen import delayed


def timed(view: View, queue: Queue | Problem | None) -> Page:
    """By hour, by topic, by level, and one by one."""
    hours: Counter[int] = Counter()
    topics: Counter[str] = Counter()
    for each in view.seen.timers.values():
        hours.update(each.by_hour)
        topics.update(each.by_topic)
    levels: Counter[int] = Counter()
    for group in view.seen.brokers:
        if group.master is not None:
            for level, (first, end) in delayed.undelivered(dict(group.master.status or {})).items():
                levels[level] += end - first
    top = max([*hours.values(), 1])
    by_hour = [
        (words.clock(hour_ms)[:16], words.count(count), _bar(count / top))
        for hour_ms, count in sorted(hours.items())
    ]
    by_topic = [(parts.link(parts.path_of("/console/topics", name), name), words.count(count))
                for name, count in topics.most_common(50)]  # fmt: skip
    names = delayed.LEVELS.split()
    by_level = [(level, names[level - 1] if level <= len(names) else "", words.count(count))
                for level, count in sorted(levels.items())]  # fmt: skip
    cards = [
        parts.card("next", "The next ones", _next(view, queue), _side(queue)),
        parts.card("hours", "Timed, by hour", parts.table(
            (Column("hour from"), Column("messages", "n"), Column("")), by_hour, empty="No timed message waits."),
            wide=False),
        parts.card("topics", "Timed, by topic", parts.table(
            (Column("topic"), Column("messages", "n")), by_topic, empty="No timed message waits."), wide=False),
        parts.card("levels", "Delayed, by level", parts.table(
            (Column("level", "n"), Column("usually"), Column("messages", "n")), by_level,
            empty="No message waits with a delay level."), wide=False),
    ]  # fmt: skip
    return Page("Delayed and timed", join(cards))


def _bar(ratio: float) -> Html:
    return html('<meter class="plain" min="0" max="1" value="{}"></meter>', round(ratio, 3))


def _side(queue: Queue | Problem | None) -> str:
    if not isinstance(queue, Queue):
        return ""
    return "of the youngest 512 timed ones of each broker" if queue.partly else ""


def _next(view: View, queue: Queue | Problem | None) -> Html:
    if queue is None or isinstance(queue, Problem):
        return parts.pending(queue)
    rows = [
        (words.moment(each.due_ms, view.now_ms), parts.link(parts.path_of("/console/topics", each.topic), each.topic),
         each.how, html('<a class="id" href="{}">{}</a>', path_to(each.message), each.message.message_id),
         html("<code>{}</code>", bodies.line(each.message.body, 50)))
        for each in queue.waiting
    ]  # fmt: skip
    columns = (
        Column("due"),
        Column("topic"),
        Column("how", "w"),
        Column("message id"),
        Column("body", "w"),
    )
    table = parts.table(columns, rows, empty="Nothing waits.", label="what is due next")
    problems = join(parts.notice("look", each) for each in queue.problems)
    return html("{}{}", problems, table)
