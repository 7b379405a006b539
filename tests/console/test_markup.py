"""HTML escapes by construction: values are text unless they are Html, and templates are literals."""

from __future__ import annotations

import ast
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tandemmq.console.markup import Html, html, join
from tandemmq.console.pages import parts

CONSOLE = Path(__file__).parents[2] / "tandemmq" / "console"
SOURCES = sorted(CONSOLE.rglob("*.py"))


class Texts(HTMLParser):
    """The text of a document, and which elements and attributes it has."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@given(some.text())
def test_a_value_stays_text_whatever_it_is(value: str) -> None:
    made = html('<a title="{}">{}</a>', value, value)
    found = Texts()
    found.feed(made)
    found.close()
    assert [tag for tag, _ in found.tags] == ["a"]
    ((_, attributes),) = found.tags
    assert list(attributes) == ["title"]
    assert "<" not in made.removeprefix('<a title="').replace("</a>", "")


def test_html_in_html_is_not_escaped_twice_and_nothing_is_nothing() -> None:
    assert html("<p>{}{}</p>", html("<b>{}</b>", "<"), None) == "<p><b>&lt;</b></p>"
    assert join([html("{}", "&"), Html("<i>")]) == "&amp;<i>"


def test_a_table_escapes_its_cells_and_a_link_quotes_names() -> None:
    made = parts.table((parts.Column("topic"),), [("<script>alert(1)</script>",)])
    assert "<script" not in made and "&lt;script&gt;" in made
    assert (
        parts.path_of("/console/topics", "%RETRY%a/b?c#d")
        == "/console/topics/%25RETRY%25a%2Fb%3Fc%23d"
    )
    assert parts.path_of("/console/x", a="1&b=2", empty="") == "/console/x?a=1%26b%3D2"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_templates_are_literals_in_our_source(path: Path) -> None:
    """A template that is put together from values would let them in unescaped. Html(...) itself: where it is due."""
    allowed = {"markup.py", "parts.py"}  # rows that were escaped one by one
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "html":
            assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}"
        if node.func.id == "Html" and path.name not in allowed:
            assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}"
