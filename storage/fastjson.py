"""JSON as RocketMQ's serializer (fastjson 1.x) writes it: read its dialect, write standard JSON."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

BYTES_MAX: Final = 64 << 20
DEPTH_MAX: Final = 64
NODES_MAX: Final = 5_000_000  # values in one document, counting what "$ref" repeats

# Possessive, and an unterminated string reaches to the end: linear whatever comes in.
_BRACKET_OR_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{19}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_$][\w$]*|-?\d+")
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_STEP = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]", re.DOTALL)
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_WORDS: Final = {"true": True, "false": False, "null": None}
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "0": "\0",
}  # fmt: skip

Container = dict[str, Any] | list[Any]


def loads(text: str | bytes | bytearray | memoryview, *, bytes_max: int = BYTES_MAX) -> Any:
    """Parse one document; beyond standard JSON also what fastjson writes and reads.

    Also: bare integer and word keys ({0:1}); objects as keys ({{"topic":"T"}:1}), which become
    their compact JSON text; single quotes; trailing commas; {"$ref":"$.a[0]"} as what it points
    back to.
    All keys come back as str; of duplicate keys the last wins.
    Raises ValueError, and nothing else, for anything wrong: syntax, size, nesting above DEPTH_MAX,
    integers beyond 64 bits, NaN, references that are unknown or make a cycle.
    Source: RocketMQ's RemotingSerializable.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    if len(data) > bytes_max:
        raise ValueError(f"JSON of {len(data)} bytes is above the limit of {bytes_max}")
    if b"$ref" not in data and not _LONG_NUMBER.search(data) and _depth(data) <= DEPTH_MAX:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # not standard: let the tolerant reader judge
    try:
        return _Reader(data.decode("utf-8")).document()
    except UnicodeDecodeError as error:
        raise ValueError(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None


def dumps(value: Any) -> bytes:
    """Standard compact JSON in UTF-8; integer keys are quoted, which RocketMQ reads as integers
    again.
    """
    return msgspec.json.encode(value)


def _depth(data: bytes) -> int:
    """An upper bound of the nesting; exact when it could matter."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return 0
    depth = deepest = 0
    for token in _BRACKET_OR_STRING.findall(data):
        if token in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token in (b"]", b"}"):
            depth -= 1
    return deepest


class _Reader:
    """A recursive-descent reader; depth is bounded, so Python's stack is safe."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 1 if text.startswith("\ufeff") else 0
        self.nodes = 0
        self.open: list[Container] = []  # containers being read, outermost first
        self.key_depth = 0

    def document(self) -> Any:
        value = self._value()
        self._skip_space()
        if self.at != len(self.text):
            raise self._wrong("end of document")
        return value

    def _wrong(self, expected: str) -> ValueError:
        found = repr(self.text[self.at : self.at + 12]) if self.at < len(self.text) else "the end"
        return ValueError(f"JSON: expected {expected} at character {self.at}, found {found}")

    def _skip_space(self) -> str:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at] if self.at < len(self.text) else ""

    def _count(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > NODES_MAX:
            raise ValueError(f"JSON has more than {NODES_MAX} values")

    def _value(self) -> Any:
        self._count(1)
        char = self._skip_space()
        if char == "{":
            return self._object()
        if char == "[":
            return self._array()
        if char and char in "\"'":
            return self._string(char)
        if match := _NUMBER.match(self.text, self.at):
            self.at = match.end()
            return _number(match)
        if (match := _WORD.match(self.text, self.at)) and match.group() in _WORDS:
            self.at = match.end()
            return _WORDS[match.group()]
        raise self._wrong("a value")

    def _enter(self, container: Container) -> None:
        if len(self.open) >= DEPTH_MAX:
            raise ValueError(f"JSON is nested deeper than {DEPTH_MAX}")
        self.open.append(container)
        self.at += 1

    def _array(self) -> list[Any]:
        found: list[Any] = []
        self._enter(found)
        while self._skip_space() != "]":
            found.append(self._value())
            if not self._comma("]"):
                break
        self._leave("]")
        return found

    def _object(self) -> Any:
        found: dict[str, Any] = {}
        self._enter(found)
        while self._skip_space() != "}":
            key = self._key()
            if self._skip_space() != ":":
                raise self._wrong("':'")
            self.at += 1
            found[key] = self._value()
            if not self._comma("}"):
                break
        self._leave("}")
        if len(found) == 1 and isinstance(path := found.get("$ref"), str):
            return self._resolve(path)
        return found

    def _comma(self, close: str) -> bool:
        """Skip the separator; False when the container ends here."""
        char = self._skip_space()
        if char == ",":
            self.at += 1
            return True
        if char != close:
            raise self._wrong(f"',' or '{close}'")
        return False

    def _leave(self, close: str) -> None:
        if self._skip_space() != close:
            raise self._wrong(f"'{close}'")
        self.at += 1
        self.open.pop()

    def _key(self) -> str:
        char = self._skip_space()
        if char and char in "\"'":
            return self._string(char)
        if char in ("{", "["):
            value = self._object() if char == "{" else self._array()
            return msgspec.json.encode(value).decode()
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return match.group()
        raise self._wrong("a key")

    def _string(self, quote: str) -> str:
        text, plain = self.text, _PLAIN[quote]
        self.at += 1
        parts: list[str] = []
        while True:
            match = plain.match(text, self.at)
            assert match is not None
            parts.append(match.group())
            self.at = match.end()
            if self.at >= len(text):
                raise self._wrong("the end of a string")
            if text[self.at] == quote:
                self.at += 1
                break
            parts.append(self._escape())
        if len(parts) == 1:
            return parts[0]
        found = "".join(parts)
        # Two \u escapes may form one character beyond 16 bits; a lone half has no UTF-8 form.
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _escape(self) -> str:
        char = self.text[self.at + 1 : self.at + 2]
        if char in ("u", "x"):
            width = 4 if char == "u" else 2
            digits = self.text[self.at + 2 : self.at + 2 + width]
            if len(digits) != width or not _HEX.fullmatch(digits.rjust(4, "0")):
                raise self._wrong(f"{width} hex digits")
            self.at += 2 + width
            return chr(int(digits, 16))
        if not char or char not in _ESCAPES:
            raise self._wrong("an escape")
        self.at += 2
        return _ESCAPES[char]

    def _resolve(self, path: str) -> Any:
        """What a reference points back to. It must be complete already: a part of itself would be a
        cycle.
        """
        if not path.startswith("$"):
            raise ValueError(f"JSON reference {path!r} is not supported")
        if not self.open:
            raise ValueError(f"JSON reference {path!r} has nothing to point at")
        target: Any = self.open[0]
        at = 1
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise ValueError(f"JSON reference {path!r} cannot be read")
            at = step.end()
            name, index, quoted = step.groups()
            try:
                if index is not None:
                    target = target[int(index)] if isinstance(target, list) else target[index]
                else:
                    target = target[re.sub(r"\\(.)", r"\1", name or quoted)]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"JSON reference {path!r} points at nothing") from None
        if any(target is container for container in self.open):
            raise ValueError(f"JSON reference {path!r} makes a cycle")
        self._count_repeated(target)
        return target

    def _count_repeated(self, target: Any) -> None:
        # References to references double in size at each level; what a reader would walk is what
        # counts.
        waiting = [target]
        while waiting:
            value = waiting.pop()
            self._count(1)
            if isinstance(value, dict):
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)


def _number(match: re.Match[str]) -> int | float:
    digits = match.group()
    if match.group(1) or match.group(2):
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"JSON number {digits[:40]} is too large")
        return value
    if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 63:
        raise ValueError(f"JSON integer {digits[:40]} does not fit 64 bits")
    return int(digits)
