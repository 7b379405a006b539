"""The frame around every page: head, navigation, who is signed in. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.console import words
from tandemmq.console.markup import NOTHING, Html, html, join
from tandemmq.console.pages.parts import path_of
from tandemmq.console.seen.snapshot import Snapshot
from tandemmq.console.sessions import Session

ROOT: Final = "/console"
THEMES: Final = ("light", "dark")
#: path, word, the letter that goes there after g
PLACES: Final = (
    ("/console/", "Cluster", "c"),
    ("/console/topics", "Topics", "t"),
    ("/console/groups", "Groups", "g"),
    ("/console/messages", "Messages", "m"),
    ("/console/letters", "Dead letters", "d"),
    ("/console/timed", "Delayed", "l"),
    ("/console/story", "Story", "s"),
    ("/console/reports", "Reports", "r"),
)


@dataclass(frozen=True, slots=True)
class View:
    """What a page is made from.

    query    of the address; the last of several
    session  of who is signed in, None: may read only
    can_enter  whether there is a token that would let somebody act
    theme    light, dark or "": as the system has it
    """

    seen: Snapshot
    now_ms: int
    path: str = "/console/"
    query: Mapping[str, str] = field(default_factory=dict)
    session: Session | None = None
    can_enter: bool = True
    theme: str = ""

    def form_word(self) -> Html:
        """The hidden field without which a form is not acted upon."""
        word = self.session.form_word if self.session is not None else ""
        return html('<input type="hidden" name="word" value="{}">', word)

    def sign_in(self, why: str) -> Html:
        """What stands where a button would be, for who may read only."""
        if not self.can_enter:
            return html('<p class="notice quiet">{} needs a token, and none is set here.</p>', why)
        where = path_of("/console/enter", next=self.path)
        return html(
            '<p class="notice quiet"><a class="button" href="{}">Sign in</a> {} needs the token.</p>',
            where, why,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """What stands in the frame. live: whether it follows the cluster by itself."""

    title: str
    body: Html
    live: bool = True
    head: Html = NOTHING


def main_part(page: Page) -> Html:
    """The part that is replaced when something changed."""
    return html(
        '<main id="main" tabindex="-1"{}><div class="title"><h1>{}</h1>{}</div>{}</main>',
        Html(" data-follow") if page.live else NOTHING, page.title, page.head, page.body,
    )  # fmt: skip


def document(page: Page, view: View, assets: Mapping[str, str]) -> Html:
    """The whole document. assets: name -> path of the style sheet, the script and the icon."""
    clusters = sorted({group.cluster for group in view.seen.brokers})
    theme = html(' data-theme="{}"', view.theme) if view.theme in THEMES else NOTHING
    return html(
        '<!doctype html><html lang="en"{theme}><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="same-origin">'
        "<title>{title} · TandemMQ</title>"
        '<link rel="icon" href="{icon}"><link rel="stylesheet" href="{style}"><script src="{script}" defer></script>'
        '</head><body><a class="skip" href="#main">Skip to the page</a>'
        '<header class="top"><a class="brand" href="/console/"><svg viewBox="0 0 24 24" aria-hidden="true">'
        '<circle cx="7" cy="12" r="5"/><circle cx="17" cy="12" r="5"/></svg>TandemMQ</a>'
        '<span class="cluster">{clusters}</span><span class="grow"></span>'
        '<span id="live" class="live{still}" role="status" title="whether this page follows the cluster">…</span>'
        '<button type="button" id="theme" class="plain" title="light or dark" aria-label="light or dark">◐</button>'
        '<button type="button" id="keys" class="plain" title="keys (?)" aria-label="keys">?</button>{who}</header>'
        '<nav class="places" aria-label="pages">{places}</nav>{main}'
        '<dialog id="help"><h2>Keys</h2><dl class="facts">{keys}</dl>'
        '<form method="dialog"><button>Close</button></form></dialog>'
        '<footer>Times are of the server that shows this page. '
        '<span id="taken">Looked at {taken}.</span></footer></body></html>',
        still="" if page.live else " none", theme=theme, title=page.title, icon=assets["icon.svg"],
        style=assets["console.css"], script=assets["console.js"], clusters=", ".join(clusters), who=_who(view),
        places=join(_place(each, view.path) for each in PLACES), main=main_part(page), keys=_keys(),
        taken=words.clock(view.seen.taken_ms),
    )  # fmt: skip


def _place(place: tuple[str, str, str], path: str) -> Html:
    where, word, letter = place
    here = path == where if where == "/console/" else path.startswith(where.removesuffix("s"))
    if where == "/console/" and path.startswith("/console/brokers"):
        here = True
    current = Html(' aria-current="page"') if here else NOTHING
    return html('<a href="{}" data-key="{}"{}>{}</a>', where, letter, current, word)


def _who(view: View) -> Html:
    if view.session is None:
        if not view.can_enter:
            return html('<span class="who">read only</span>')
        where = path_of("/console/enter", next=view.path)
        return html('<a class="who" href="{}">Sign in</a>', where)
    return html(
        '<form class="who" method="post" action="/console/leave">{}<button class="plain">Sign out</button></form>',
        view.form_word(),
    )  # fmt: skip


def _keys() -> Html:
    rows = [(f"g {letter}", word) for _, word, letter in PLACES]
    rows += [("/", "to the search field"), ("j, k", "next and previous row"), ("n, p", "next and previous page"),
             ("?", "this list"), ("Esc", "close it")]  # fmt: skip
    return join(
        html("<div><dt><kbd>{}</kbd></dt><dd>{}</dd></div>", key, what) for key, what in rows
    )
