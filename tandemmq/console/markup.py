"""HTML that escapes by construction: what is put into a template is text unless it is Html already. No I/O.

A template is a literal in our source. A test reads every call and refuses templates that are put together.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Iterable
from typing import Final, LiteralString


class Html(str):
    """Text that is HTML already. Made by html() and join() only."""

    __slots__ = ()


NOTHING: Final = Html("")
_SPECIAL: Final = re.compile("[&<>\"']").search


def html(template: LiteralString, *values: object, **named: object) -> Html:
    """The template with its {} filled: Html as it is, None as nothing, everything else escaped.

    Attributes in templates are quoted, so that a value cannot leave its attribute.

    Example: html('<a href="{}">{}</a>', url, topic)
    """
    return Html(
        template.format(
            *[escaped(each) for each in values],
            **{name: escaped(each) for name, each in named.items()},
        )
    )


def escaped(value: object) -> str:
    """The value as it may stand in HTML, in text and in quoted attributes."""
    if type(value) is Html:
        return value
    if value is None:
        return ""
    text = value if type(value) is str else str(value)
    return _html.escape(text) if _SPECIAL(text) else text  # most texts have nothing to escape


def join(parts: Iterable[Html], between: LiteralString = "") -> Html:
    """Html after Html."""
    return Html(between.join(parts))
