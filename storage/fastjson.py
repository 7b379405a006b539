"""JSON as RocketMQ's serializer (fastjson 1.x) writes it: read its dialect, write standard JSON."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

BYTES_MAX: Final = 64 << 20
DEPTH_MAX: Final = 64
NODES_MAX: Final = 5_000_000  # values in one document, counting what "$ref" repeats
REPEATED_CHARACTERS_MAX: Final = 16 << 20  # of texts and keys that "$ref" repeats, together

# Possessive, and an unterminated string reaches to the end: linear whatever comes in.
_QUOTED = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# Tables for bytes.translate(): what looks at each byte of a body is done there, hundred times faster than by a regex.
_LONG_NUMBER: Final = b"0" * 19
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789", b"0" * 9)
_BRACKETS_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_NOT_IN_OUTLINE: Final = bytes(set(range(256)) - set(b'[]{}"'))
#: a queue as a key, written as every Java broker and ours writes it; in valid JSON nothing else looks like it
_QUEUE_KEY = re.compile(
    rb'\{"brokerName":"([^"\\{}]*+)","queueId":(\d{1,9}),"topic":"([^"\\{}]*+)"\}:'
)
_QUOTED_KEY: Final = b'"{\\"brokerName\\":\\"%b\\",\\"queueId\\":%b,\\"topic\\":\\"%b\\"}":%b'
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$]*|-?\d+")
_SPACE = re.compile(r"(?:[ \t\r\n\f\b]++|/\*(?:[^*]|\*(?!/))*+\*/|//[^\n]*+)*+")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_STEP = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]", re.DOTALL)
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_WORDS: Final = {"true": True, "false": False, "null": None}
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", **{chr(ord("0") + code): chr(code) for code in range(8)},
}  # fmt: skip

_encode_key: Final = msgspec.json.Encoder(decimal_format="number").encode
_decode_exact: Final = msgspec.json.Decoder(float_hook=Decimal).decode

Container = dict[str, Any] | list[Any]


def loads(
    text: str | bytes | bytearray | memoryview,
    *,
    bytes_max: int = BYTES_MAX,
    nodes_max: int | None = None,
    exact_numbers: bool = False,
) -> Any:
    """Parse one document; beyond standard JSON also what fastjson writes and reads.

    Also: bare integer and word keys ({0:1}); objects as keys ({{"topic":"T"}:1}), which become
    their compact JSON text; single quotes; commas that separate nothing; comments; null in any
    case; {"$ref":"$.a[0]"} as what it points back to.
    exact_numbers: fractions and integers beyond 64 bits come as Decimal, which keeps how they are
    written. Else the former are floats and the latter refused.
    All keys come back as str; of duplicate keys the last wins.
    Raises ValueError, and nothing else, for anything wrong: syntax, size, nesting above DEPTH_MAX,
    integers beyond 64 bits, NaN, references that are unknown or make a cycle.
    Source: RocketMQ's RemotingSerializable.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    if len(data) > bytes_max:
        raise ValueError(f"JSON of {len(data)} bytes is above the limit of {bytes_max}")
    if not refers(data) and not _has_long_number(data) and _is_shallow(data):
        try:
            return _decode_exact(data) if exact_numbers else msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # not standard: let the tolerant reader judge
        quoted = _with_quoted_keys(data)
        if len(quoted) > len(data):  # a map by queue, which is long where there are many queues
            try:
                return _decode_exact(quoted) if exact_numbers else msgspec.json.decode(quoted)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                pass
    try:
        return _Reader(data.decode("utf-8"), nodes_max or NODES_MAX, exact_numbers).document()
    except UnicodeDecodeError as error:
        raise ValueError(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None


def _with_quoted_keys(data: bytes) -> bytes:
    """The same with each queue that is a key as a string, its own compact text."""
    before, *found = _QUEUE_KEY.split(data)
    parts = iter(found)  # of each key its broker's name, queue id and topic, and what follows it
    keys = zip(parts, parts, parts, parts, strict=True)
    return before + b"".join(map(_QUOTED_KEY.__mod__, keys))


def refers(data: bytes) -> bool:
    """Whether there may be a "$ref", which no reader of standard JSON knows; it may hide behind escapes."""
    # a single byte is found much sooner than several, and is in few bodies
    return (b"$" in data and b"$ref" in data) or (b"\\" in data and b"\\u00" in data)


def _has_long_number(data: bytes) -> bool:
    """Whether there are so many digits in a row that they may not fit 64 bits."""
    return _LONG_NUMBER in data.translate(_DIGITS_ALIKE)


def dumps(value: Any) -> bytes:
    """Standard compact JSON in UTF-8; integer keys are quoted, which RocketMQ reads as integers
    again.
    """
    return msgspec.json.encode(value)


def _is_shallow(data: bytes) -> bool:
    """Whether brackets nest no deeper than DEPTH_MAX; False, too, where some have no partner."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return True
    left = data.translate(_BRACKETS_ALIKE, _NOT_IN_OUTLINE).replace(b'""', b"")
    if b'"' in left or b"\\" in data:  # some string holds a bracket, or may seem to
        left = _QUOTED.sub(b"", data).translate(_BRACKETS_ALIKE, _NOT_IN_OUTLINE)
    for _ in range(DEPTH_MAX):
        outer = left.replace(b"[]", b"")  # the innermost go
        if len(outer) in (0, len(left)):
            return not outer
        left = outer
    return False


class _Reader:
    """A recursive-descent reader; depth is bounded, so Python's stack is safe."""

    def __init__(self, text: str, nodes_max: int = NODES_MAX, exact_numbers: bool = False) -> None:
        self.text = text
        self.nodes_max = nodes_max
        self.number = _exact_number if exact_numbers else _number
        self.repeated_characters = 0
        self.at = 1 if text.startswith("\ufeff") else 0
        self.nodes = 0
        self.open: list[Container] = []  # containers being read, outermost first
        self.steps: list[str | int] = []  # where in each of them
        self.in_key = False

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

    def _skip_commas(self) -> str:
        while (char := self._skip_space()) == ",":
            self.at += 1
        return char

    def _count(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > self.nodes_max:
            raise ValueError(f"JSON has more than {self.nodes_max} values")

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
            return self.number(match)
        if match := _WORD.match(self.text, self.at):
            word = match.group() if match.group() in _WORDS else match.group().lower()
            if word in _WORDS and (word == "null" or word == match.group()):
                self.at = match.end()
                return _WORDS[word]
        raise self._wrong("a value")

    def _enter(self, container: Container) -> None:
        if len(self.open) >= DEPTH_MAX:
            raise ValueError(f"JSON is nested deeper than {DEPTH_MAX}")
        self.open.append(container)
        self.steps.append(0)
        self.at += 1

    def _array(self) -> list[Any]:
        found: list[Any] = []
        self._enter(found)
        while self._skip_commas() != "]":
            self.steps[-1] = len(found)
            found.append(self._value())
            if not self._comma("]"):
                break
        self._leave("]")
        return found

    def _object(self) -> Any:
        found: dict[str, Any] = {}
        self._enter(found)
        while self._skip_commas() != "}":
            key = self._key()
            if self._skip_space() != ":":
                raise self._wrong("':'")
            self.at += 1
            self.steps[-1] = key
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
        self.steps.pop()

    def _key(self) -> str:
        char = self._skip_space()
        if char and char in "\"'":
            return self._string(char)
        if char in ("{", "["):
            if self.in_key:  # each level would double what quoting takes: 2^64 from 64 levels
                raise self._wrong("no object as a key within such a key")
            self.in_key = True
            value = self._object() if char == "{" else self._array()
            self.in_key = False
            return _encode_key(value).decode()
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
        """What a reference points back to. It must be complete already, though what holds it need
        not be: a part of itself would be a cycle.
        """
        if not path.startswith("$"):
            raise ValueError(f"JSON reference {path!r} is not supported")
        if not self.open:
            raise ValueError(f"JSON reference {path!r} has nothing to point at")
        target: Any = self.open[0]
        at = 1
        level = 0  # of the containers being read, as long as the way goes through these
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise ValueError(f"JSON reference {path!r} cannot be read")
            at = step.end()
            name, index, quoted = step.groups()
            wanted: str | int = re.sub(r"\\(.)", r"\1", name or quoted or "")
            if index is not None:
                wanted = int(index) if isinstance(target, list) else index
            within = level + 1 < len(self.open) and target is self.open[level]
            if within and wanted == self.steps[level]:
                level += 1
                target = self.open[level]
                continue
            try:
                target = target[wanted]
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
            if isinstance(value, str):
                self._count_characters(value)
            elif isinstance(value, dict):
                for key in value:
                    self._count_characters(key)
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)

    def _count_characters(self, text: str) -> None:
        # a container may become a text: as a key here, as a member of that type elsewhere
        self.repeated_characters += len(text)
        if self.repeated_characters > REPEATED_CHARACTERS_MAX:
            raise ValueError(
                f"JSON references repeat more than {REPEATED_CHARACTERS_MAX} characters"
            )


def _exact_number(match: re.Match[str]) -> int | Decimal:
    digits = match.group()
    if match.group(1) or match.group(2) or len(digits) > 19:
        try:
            return Decimal(digits)
        except InvalidOperation:  # an exponent beyond anything
            raise ValueError(f"JSON number {digits[:40]} is too large") from None
    return int(digits)


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
