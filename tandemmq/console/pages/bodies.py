"""What a message's body looks like: text, JSON in order, or bytes; never more than a page can take. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tandemmq.command.output import hex_dump

TEXT_BYTES_MAX: Final = 16 << 10
HEX_BYTES_MAX: Final = 2 << 10
JSON_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Preview:
    """text to show as it is; kind: JSON, text or bytes; whole: whether that is all of the body."""

    text: str
    kind: str
    whole: bool


def preview(body: bytes) -> Preview:
    """The beginning of a body, readable."""
    head = body[:TEXT_BYTES_MAX]
    text = _text(head, cut=len(head) < len(body))
    if text is None:
        return Preview(hex_dump(body[:HEX_BYTES_MAX]), "bytes", len(body) <= HEX_BYTES_MAX)
    if len(body) <= JSON_BYTES_MAX and body[:1] in b"{[" and body:
        try:
            found = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass  # it only begins like JSON
        else:
            return Preview(found[: 2 * TEXT_BYTES_MAX], "JSON", len(found) <= 2 * TEXT_BYTES_MAX)
    return Preview(text, "text", len(head) == len(body))


def line(body: bytes, length: int = 80) -> str:
    """The beginning in one line, for tables."""
    text = _text(body[: length * 4], cut=True)
    if text is None:
        return body[: length // 4].hex(" ") + (" …" if len(body) > length // 4 else "")
    joined = " ".join(text.split())
    return joined if len(joined) <= length else joined[: length - 1] + "…"


def _text(head: bytes, *, cut: bool) -> str | None:
    """The bytes as text, None when they are none. cut: a character may end in its middle."""
    try:
        text = head.decode()
    except UnicodeDecodeError as problem:
        if not cut or problem.start < len(head) - 3:
            return None
        text = head[: problem.start].decode()
    return text if all(each.isprintable() or each in "\t\r\n" for each in text) else None
