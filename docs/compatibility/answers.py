"""What of an answer is compared: its code, whether it has a remark, its fields, and the shape of its body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.storage import fastjson, scan

SHOWN: Final = 6  # names of a long list that the page shows
#: a response that its handler gave no code or remark of its own
DEFAULT_REMARK: Final = "not set any response code"
_ADDRESS: Final = re.compile(r"\d+\.\d+\.\d+\.\d+[:@][\w#]+")
_PATH: Final = re.compile(r"/.*")
_NUMBER: Final = re.compile(r"\d+")
#: whose members are called as topics, groups and brokers are, so that their names are no part of the shape
_BY_NAME: Final = frozenset(
    {
        "attributes",
        "brokerAddrTable",
        "clusterAddrTable",
        "consumeStatsList[]",
        "consumerTable",
        "data",
        "forbiddenTable",
        "forbiddenTable.<name>",
        "groupTopicMap",
        "messageRequestModeMap",
        "messageRequestModeMap.<name>",
        "offsetTable",
        "subscriptionGroupTable",
        "subscriptionTable",
        "timingCount",
        "topicConfigTable",
        "replicasInfoTable",
    }
)
_RECORD_MAGIC: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


@dataclass(frozen=True)
class Answer:
    """What came back.

    code    None: nothing came
    remark  whether there is one
    fields  names of header fields
    kind    of the body: "", "JSON", "messages", "settings", "bytes", "text"
    shape   of the body: paths of JSON with the kind of each value, names of settings or of message properties
    words   the remark itself, which is never compared
    """

    code: int | None
    remark: bool = False
    fields: frozenset[str] = frozenset()
    kind: str = ""
    shape: frozenset[str] = frozenset()
    words: str = ""

    @property
    def short(self) -> str:
        """For a cell of the page."""
        if self.code is None:
            return "nothing"
        name = ResponseCode(self.code).name if self.code in list(ResponseCode) else "?"
        parts = [f"{self.code} {name}"]
        if self.fields:
            parts.append(f"{len(self.fields)} field{'s' * (len(self.fields) > 1)}")
        if self.kind:
            parts.append(self.kind)
        return ", ".join(parts)


NOTHING: Final = Answer(None)


def answer_of(command: Command) -> Answer:
    """What of a response, or of a request that a server sent, is compared."""
    kind, shape = _body(bytes(command.body or b""))
    words = (command.remark or "").strip()
    if words == DEFAULT_REMARK:
        words = ""
    return Answer(
        command.code, bool(words), frozenset(command.ext or {}), kind, frozenset(shape), words
    )


def _body(body: bytes) -> tuple[str, Iterable[str]]:
    if not body:
        return "", ()
    if body[4:8] in _RECORD_MAGIC:
        return "messages", set(_properties(body))
    try:
        found = fastjson.loads(body)
    except ValueError:
        pass
    else:
        return "JSON", set(_paths(found, ""))
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "bytes", ()
    if "=" in text:
        return "settings", {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line}  # fmt: skip
    return "text", ()


def _properties(body: bytes) -> Iterator[str]:
    for record in scan(body, 0, len(body)):
        text = bytes(record.properties).decode()
        yield from (each.partition("\x01")[0] for each in text.split("\x02") if each)


def _paths(value: Any, path: str) -> Iterator[str]:
    """`a.b[]: text` for every value; keys that are numbers, addresses, queues or names are one."""
    if isinstance(value, dict):
        if not value:
            yield f"{path}: object"
        for key, inner in value.items():
            named = path.endswith("attributes") or path in _BY_NAME
            yield from _paths(inner, f"{path}.{_key(key, named)}".removeprefix("."))
    elif isinstance(value, list):
        if not value:
            yield f"{path}: list"
        for inner in value:
            yield from _paths(inner, f"{path}[]")
    else:
        kinds = {bool: "yes/no", int: "number", float: "number", type(None): "null"}
        yield f"{path}: {kinds.get(type(value), 'text')}"


def _key(key: str, named: bool) -> str:
    if key.startswith("{"):
        return "<queue>"
    if _NUMBER.fullmatch(key):
        return "<number>"
    if named:
        return "<name>"
    return _PATH.sub("<path>", _ADDRESS.sub("<address>", key))


def difference(ours: Answer, theirs: Answer) -> str:
    """In words what our answer has that theirs has not, and the other way round; "" where they are the same."""
    found = []
    if ours.code != theirs.code:
        return f"{ours.short} instead of {theirs.short}"
    if ours.remark != theirs.remark:
        found.append("a remark" if ours.remark else "no remark")
    found += _sets("field", ours.fields, theirs.fields)
    if ours.kind != theirs.kind:
        found.append(f"{ours.kind or 'no body'} instead of {theirs.kind or 'no body'}")
    else:
        what = {"settings": "setting", "messages": "property"}.get(ours.kind, "member")
        found += _sets(what, ours.shape, theirs.shape)
    return "; ".join(found)


def _sets(what: str, ours: frozenset[str], theirs: frozenset[str]) -> list[str]:
    found = []
    for word, names in (("more", ours - theirs), ("fewer", theirs - ours)):
        if names:
            listed = ", ".join(f"`{name}`" for name in sorted(names)[:SHOWN])
            rest = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
            plural = (
                what
                if len(names) == 1
                else f"{what.removesuffix('y')}{'ies' if what.endswith('y') else 's'}"
            )
            found.append(f"{len(names)} {word} {plural}: {listed}{rest}")
    return found
