"""The client reference, from signatures and docstrings: what docs/generate.py writes as client-reference.md."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import tandemmq

SECTIONS = (
    ("Clients", ("Producer", "PushConsumer", "PullConsumer", "Admin", "ClientConfig")),
    ("Messages", ("Message", "ReceivedMessage", "MessageQueue", "SendResult", "SendStatus")),
)
ERRORS = "Errors"
OTHERS = "Settings, results and functions"
#: what asyncio and the connections call, not applications
INTERNAL: Final[Mapping[str, frozenset[str]]] = {
    "SendFuture": frozenset({"stored", "answered", "failed", "about", "send", "throw", "close"})
}
METHODS: Final = (property, classmethod, staticmethod)
STARS: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
# structs resolve their types, the others show them as written
MODULES: Final = re.compile(r"\b(?:collections\.abc|tandemmq(?:\.[a-z_]+)+)\.(?=[A-Z])")
TERM = re.compile(r"^(\S(?:.*?\S)?) {2,}(\S.*)$")


def page() -> str:
    """The whole page."""
    public = [name for name in tandemmq.__all__ if not name.startswith("_")]
    named = {name for _, names in SECTIONS for name in names}
    errors = [name for name in public if name not in named and _is_error(name)]
    others = [name for name in public if name not in named and name not in errors]
    parts = [
        "# Client reference\n\n`from tandemmq import ...`; written from the docstrings. "
        "New here? [Ten minutes](tutorial.md) first.\n"
    ]
    sections = [
        *((title, [n for n in names if n in public]) for title, names in SECTIONS),
        (OTHERS, others),
        (ERRORS, errors),
    ]
    for title, names in sections:
        links = ", ".join(f"[`{name}`](#{name.lower()})" for name in names)
        parts.append(f"**{title}**: {links}\n")
    for title, names in sections:
        parts.append(f"\n# {title}\n")
        parts += [entry for name in names for entry in _entry(name)]
    return "\n".join(parts)


def _is_error(name: str) -> bool:
    value = getattr(tandemmq, name)
    return inspect.isclass(value) and issubclass(value, Exception)


def _entry(name: str) -> Iterator[str]:
    value: Any = getattr(tandemmq, name)
    yield f"\n## {name}\n"
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield _text(value)
        yield "\n".join(f"* `{name}.{member.name}`" for member in value)
        return
    if inspect.isclass(value) and issubclass(value, Exception):
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        yield f"A {bases}.\n\n{_text(value)}"
        return
    if not inspect.isroutine(value) and not inspect.isclass(value):
        yield f"```python\n{name} = {value!r}\n```"
        return
    yield f"```python\n{_signature(name, value)}\n```\n"
    yield _text(value)
    if inspect.isclass(value):
        for member, found in _members(value):
            yield f"\n### {name}.{member}\n"
            if isinstance(found, property):
                yield f"A property.\n\n{_text(found)}"
            else:
                yield f"```python\n{_signature(member, found)}\n```\n"
                yield _text(found)


def _members(owner: type[Any]) -> Iterator[tuple[str, Any]]:
    """Methods and properties that applications use, in the order of their definition, those of base classes first."""
    fields = (
        {each.name for each in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else ()
    )
    hidden = INTERNAL.get(owner.__name__, frozenset())
    seen: dict[str, Any] = {}
    for base in reversed(owner.__mro__[:-1]):
        if not base.__module__.startswith("tandemmq.cluster."):
            continue
        for name, found in vars(base).items():
            public = not name.startswith("_") and name not in fields and name not in hidden
            if public and (inspect.isfunction(found) or isinstance(found, METHODS)):
                seen[name] = found
    yield from seen.items()


def _signature(name: str, value: Any) -> str:
    """How it is called; of what applications do not call, a protocol and a future, the class."""
    if getattr(value, "_is_protocol", False):
        return f"class {name}(Protocol)"
    if inspect.isclass(value) and issubclass(value, asyncio.Future):
        return f"class {name}(asyncio.Future)"
    word = ""
    function = value
    if isinstance(value, (classmethod, staticmethod)):
        word = f"@{type(value).__name__}\n"
        function = value.__func__
    word += "async def " if inspect.iscoroutinefunction(function) else ""
    signature = inspect.signature(function)
    kept = list(signature.parameters.values())
    if kept and kept[0].name in {"self", "cls"}:
        kept = kept[1:]
    returns = signature.return_annotation
    tail = ""
    if not inspect.isclass(value) and returns is not inspect.Signature.empty:
        tail = f" -> {returns if isinstance(returns, str) else inspect.formatannotation(returns)}"
    shown = list(_parameters(kept))
    line = f"{word}{name}({', '.join(shown)}){tail}"
    if len(line.splitlines()[-1]) <= 100:
        return line
    lines = "".join(f"    {each},\n" for each in shown)
    return f"{word}{name}(\n{lines}){tail}"


def _parameters(kept: list[inspect.Parameter]) -> Iterator[str]:
    """Each parameter, and where needed the lone star before those that are given by name only."""
    kinds = {each.kind for each in kept}
    star_due = inspect.Parameter.VAR_POSITIONAL not in kinds
    for each in kept:
        if star_due and each.kind is inspect.Parameter.KEYWORD_ONLY:
            star_due = False
            yield "*"
        yield _parameter(each)


def _parameter(each: inspect.Parameter) -> str:
    kind = each.annotation
    text = STARS.get(each.kind, "") + each.name
    if kind is not inspect.Parameter.empty:
        shown = kind if isinstance(kind, str) else inspect.formatannotation(kind)
        text += f": {MODULES.sub('', shown)}"
    if each.default is not inspect.Parameter.empty:
        text += f" = {_default(each.default)}"
    return text


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value):
        return str(value.__name__)
    shown = repr(value)
    return "..." if " at 0x" in shown or shown == "<factory>" else shown


def _text(value: Any) -> str:
    """A docstring as Markdown: prose, a list where names are explained, the example as code."""
    text = inspect.getdoc(value) or ""
    prose, mark, example = text.partition("Example:")
    parts = [_paragraph(each) for each in re.split(r"\n\s*\n", prose.strip()) if each.strip()]
    if mark:
        parts.append(f"```python\n{inspect.cleandoc(example)}\n```")
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    out: list[str] = []
    in_list = False
    for line in lines:
        term = TERM.match(line)
        if term and not line.startswith(" "):
            if out and not in_list:
                out.append("")
            out.append(f"* `{term[1]}`: {term[2]}")
            in_list = True
        elif in_list and line.startswith(" "):
            out[-1] += f" {line.strip()}"
        else:
            if in_list:
                out.append("")
            in_list = False
            out.append(line.strip())
    return "\n".join(out)
