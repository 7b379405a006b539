"""The client reference shows every public name as it is called."""

from __future__ import annotations

import ast
import asyncio
import enum
import inspect
import re
from pathlib import Path
from typing import Any, Protocol

import pytest

import tandemmq

PAGE = (Path(__file__).parents[2] / "docs/client-reference.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^##+ ([\w.]+)\n\n```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
SHOWN = dict(ENTRY.findall(PAGE))

#: methods of futures and coroutines that asyncio and the connections call
FOR_MACHINERY = {
    f"SendFuture.{name}"
    for name in ("stored", "answered", "failed", "about", "send", "throw", "close")
}


def callables() -> dict[str, Any]:
    """Public functions, classes that are constructed, and their own methods, by name."""
    found: dict[str, Any] = {}
    for name in sorted(set(tandemmq.__all__) - {"__version__"}):
        value = getattr(tandemmq, name)
        if inspect.isroutine(value):
            found[name] = value
        if not inspect.isclass(value) or issubclass(value, (enum.Enum, Exception)):
            continue
        if not issubclass(value, asyncio.Future) and Protocol not in value.__bases__:
            found[name] = value
        for member, method in vars(value).items():
            if not member.startswith("_") and isinstance(
                method, (classmethod, staticmethod, type(callables))
            ):
                found[f"{name}.{member}"] = getattr(value, member)
    return found


CALLABLES = {name: value for name, value in callables().items() if name not in FOR_MACHINERY}


def kinds(signature: str) -> dict[str, str]:
    """Parameter -> how it is given, of a signature as the page shows it."""
    call = signature.removeprefix("@classmethod\n").removeprefix("async def ")
    tree = ast.parse(f"def {call}: ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    given = tree.args
    shown = {each.arg: "POSITIONAL_OR_KEYWORD" for each in given.args}
    shown |= {each.arg: "KEYWORD_ONLY" for each in given.kwonlyargs}
    shown |= {given.vararg.arg: "VAR_POSITIONAL"} if given.vararg else {}
    shown |= {given.kwarg.arg: "VAR_KEYWORD"} if given.kwarg else {}
    return shown


@pytest.mark.parametrize("name", CALLABLES)
def test_a_signature_says_how_each_parameter_is_given(name: str) -> None:
    parameters = inspect.signature(CALLABLES[name]).parameters.values()
    actual = {each.name: each.kind.name for each in parameters if each.name != "self"}
    assert kinds(SHOWN[name]) == actual


def test_a_class_method_is_marked() -> None:
    assert SHOWN["Message.again"].startswith("@classmethod\n")


def test_what_applications_do_not_call_is_not_shown() -> None:
    assert not FOR_MACHINERY & SHOWN.keys()
    assert "SendFuture.cancel" in SHOWN
    assert SHOWN["SendHook"] == "class SendHook(Protocol)"
    assert SHOWN["SendFuture"] == "class SendFuture(asyncio.Future)"
