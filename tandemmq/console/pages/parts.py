"""What pages are put together from: tables, badges, meters, curves, pagers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from tandemmq.console import words
from tandemmq.console.asking.asked import Problem
from tandemmq.console.markup import NOTHING, Html, escaped, html, join

ASKING: Final = "Asking the brokers …"
ROWS: Final = 100  # of a page of a long table
ROWS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Column:
    """title; kind: "" text, "n" a number, "w" left out on narrow screens, "nw" both. sort: the query's word for it."""

    title: str
    kind: str = ""
    sort: str = ""


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "Nothing here.",
    label: str = "",
    sorted_by: str = "",
    sort_link: Mapping[str, str] | None = None,
) -> Html:
    """A table that scrolls in itself where it is too wide. Cells are text unless they are Html.

    sort_link  sort word -> address that shows it sorted so
    """
    heads = []
    for each in columns:
        title = html("{}", each.title)
        if sort_link and each.sort:
            arrow = " ▾" if each.sort == sorted_by else ""
            title = html('<a href="{}">{}{}</a>', sort_link[each.sort], each.title, arrow)
        heads.append(html('<th scope="col" class="{}">{}</th>', each.kind, title))
    # a line is filled in at once: a table may have ten thousand of them
    cells = "".join(
        f'<td class="{each.kind}">%s</td>' if each.kind else "<td>%s</td>" for each in columns
    )
    line = f"<tr>{cells}</tr>"
    lines = [line % tuple(map(escaped, row)) for row in rows]
    if not lines:
        return html('<p class="empty">{}</p>', empty)
    return html(
        '<div class="scroll"><table aria-label="{}"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>',
        label, join(heads), Html("\n".join(lines)),
    )  # fmt: skip


def badge(tone: str, text: object) -> Html:
    """A word with a colour. tone: good, look, bad or quiet."""
    return html('<span class="badge {}">{}</span>', tone, text)


def meter(ratio: float | None, look: float, bad: float) -> Html:
    """A bar of 0 to 1 with its number; its colour changes at look and at bad."""
    if ratio is None:
        return html("{}", words.ABSENT)
    return html(
        '<span class="bar"><meter min="0" max="1" low="{}" high="{}" optimum="0" value="{}"></meter>{}</span>',
        look, bad, round(ratio, 3), words.percent(ratio),
    )  # fmt: skip


CURVE_WIDTH: Final = 120
CURVE_HEIGHT: Final = 28


def curve(values: Sequence[float], label: str) -> Html:
    """A small curve of the last values, the scale from 0 to the highest."""
    if len(values) < 2:
        return NOTHING
    top = max(*values, 1e-9)
    step = CURVE_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{CURVE_HEIGHT - 2 - value / top * (CURVE_HEIGHT - 4):.1f}"
        for place, value in enumerate(values)
    )
    return html(
        '<svg class="curve" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{l}">'
        '<polyline class="area" points="0,{h} {p} {w},{h}"/><polyline class="line" points="{p}"/></svg>',
        w=CURVE_WIDTH, h=CURVE_HEIGHT, p=points, l=label,
    )  # fmt: skip


def tile(title: str, value: object, note: object = NOTHING, tone: str = "") -> Html:
    """One large number with its title, and a line under it."""
    return html(
        '<div class="tile {}"><span class="name">{}</span><span class="value">{}</span>'
        '<span class="note">{}</span></div>',
        tone, title, value, note,
    )  # fmt: skip


def card(key: str, title: object, body: Html, side: object = NOTHING, *, wide: bool = True) -> Html:
    """A region of a page that is replaced by itself when it changed. key: unique in the page."""
    return html(
        '<section class="card{}" id="{}" data-live><header><h2>{}</h2><div class="side">{}</div></header>{}</section>',
        "" if wide else " half", key, title, side, body,
    )  # fmt: skip


def facts(rows: Iterable[tuple[str, object]]) -> Html:
    """Names and values."""
    return html(
        '<dl class="facts">{}</dl>',
        join(html("<div><dt>{}</dt><dd>{}</dd></div>", name, value) for name, value in rows),
    )


def link(path: str, text: object, **query: object) -> Html:
    """A link to a page of the console; what is in the path is quoted by path_of."""
    return html('<a href="{}">{}</a>', path_of(path, **query), text)


def named_link(path: str, name: str) -> Html:
    """A link to the page of a topic or group: many of them in one table."""
    return Html(f'<a href="{path}/{quote(name, safe="")}">{escaped(name)}</a>')


def path_of(path: str, *parts: str, **query: object) -> str:
    """/console/topics + Orders -> /console/topics/Orders; whatever the name holds."""
    whole = "/".join([path, *(quote(part, safe="") for part in parts)])
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{whole}?{urlencode(given)}" if given else whole


def notice(tone: str, text: object) -> Html:
    """A sentence in a coloured frame."""
    return html('<p class="notice {}">{}</p>', tone, text)


def pending(problem: Problem | None) -> Html:
    """In place of what brokers did not tell, or not yet."""
    return (
        html('<p class="empty">{}</p>', ASKING) if problem is None else notice("look", problem.why)
    )


@dataclass(frozen=True, slots=True)
class Slice:
    """Which rows of how many are shown."""

    first: int
    end: int
    total: int
    size: int

    @classmethod
    def of(cls, query: Mapping[str, str], total: int) -> Slice:
        """By ?page=N and ?rows=N; what cannot be is taken as the nearest that can."""
        size = min(ROWS_MAX, max(1, _number(query.get("rows", ""), ROWS)))
        last = max(0, (total - 1) // size)
        page = min(last, max(0, _number(query.get("page", ""), 1) - 1))
        return cls(page * size, min(total, page * size + size), total, size)


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else otherwise


def pager(shown: Slice, path: str, query: Mapping[str, str], what: str) -> Html:
    """Where one is in a long table, and links to the pages before and after."""
    if shown.total <= shown.size:
        return html('<span class="count">{}</span>', words.several(shown.total, what))
    page, last = shown.first // shown.size + 1, (shown.total - 1) // shown.size + 1
    kept = {name: value for name, value in query.items() if name != "page"}

    def step(to: int, text: str, key: str) -> Html:
        if not 1 <= to <= last:
            return html('<span class="off">{}</span>', text)
        return html('<a rel="{}" href="{}">{}</a>', key, path_of(path, **kept, page=to), text)

    return html(
        '<nav class="pager" aria-label="pages">{}<span class="count">{}–{} of {}</span>{}</nav>',
        step(page - 1, "← before", "prev"), f"{shown.first + 1:,}", f"{shown.end:,}", f"{shown.total:,}",
        step(page + 1, "next →", "next"),
    )  # fmt: skip


def search_field(path: str, value: str, label: str, hidden: Mapping[str, str]) -> Html:
    """A field that narrows a table down; it works without a script, too."""
    kept = join(
        html('<input type="hidden" name="{}" value="{}">', name, each)
        for name, each in hidden.items()
        if each
    )
    return html(
        '<form class="search" method="get" action="{}" role="search" data-narrow>{}'
        '<input type="search" name="q" value="{}" placeholder="{}" aria-label="{}" maxlength="255"'
        ' autocomplete="off"></form>',
        path, kept, value, label, label,
    )  # fmt: skip


def choices(path: str, query: Mapping[str, str], name: str, words_of: Mapping[str, str]) -> Html:
    """Links of which one is chosen: value -> its word."""
    chosen = query.get(name, "")
    kept = {each: value for each, value in query.items() if each not in (name, "page")}
    return html(
        '<span class="choices">{}</span>',
        join(
            html(
                '<a href="{}"{}>{}</a>',
                path_of(path, **kept, **{name: value}),
                Html(' aria-current="true"') if value == chosen else NOTHING,
                word,
            )
            for value, word in words_of.items()
        ),
    )


def listing(
    path: str, query: Mapping[str, str], shown: Slice, columns: Sequence[Column], rows: Sequence[Sequence[object]], *,
    kinds: Mapping[str, str], what: str, sorted_by: str, empty: str,
) -> Html:  # fmt: skip
    """A long table page by page, to be sorted, and narrowed down by kind and part of a name. what: one row of it."""
    kept = {name: value for name, value in query.items() if name not in ("sort", "page")}
    side = html(
        "{}{}",
        search_field(path, query.get("q", ""), "part of a name", {"kind": query.get("kind", "")}),
        choices(path, query, "kind", kinds),
    )
    found = table(
        columns, rows, empty=empty, label=f"{what}s", sorted_by=sorted_by,
        sort_link={each.sort: path_of(path, **kept, sort=each.sort) for each in columns if each.sort},
    )  # fmt: skip
    pages = pager(shown, path, query, what)
    again = pages if shown.total > shown.size else NOTHING
    return card(f"{what}s", pages, html("{}{}", found, again), side)
