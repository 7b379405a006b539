"""What applications import from tandemmq: complete, documented, and without the servers behind it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import metadata

import pytest

import tandemmq
import tandemmq.cluster.client

PUBLIC = sorted(set(tandemmq.__all__) - {"__version__"})


def test_the_version_is_that_of_the_package() -> None:
    assert tandemmq.__version__ == metadata.version("tandemmq")


def test_names_of_the_issue_are_there() -> None:
    assert {"Message", "Producer", "PushConsumer", "PullConsumer"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_comes_from_the_client_with_a_docstring(name: str) -> None:
    value = getattr(tandemmq, name)
    assert value is getattr(tandemmq.cluster.client, name)
    assert inspect.getdoc(value)


def public_methods() -> list[tuple[str, str]]:
    found = []
    for name in PUBLIC:
        value = getattr(tandemmq, name)
        if inspect.isclass(value):
            found += [
                (name, method)
                for method, function in vars(value).items()
                if inspect.isfunction(function) and not method.startswith("_")
            ]
    return found


@pytest.mark.parametrize(("name", "method"), public_methods())
def test_every_public_method_has_a_docstring(name: str, method: str) -> None:
    assert inspect.getdoc(getattr(getattr(tandemmq, name), method))


@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "PullConsumer", "Message", "by_key"])
def test_main_names_show_an_example(name: str) -> None:
    assert "Example:" in (inspect.getdoc(getattr(tandemmq, name)) or "")


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = tandemmq.Nonsense  # type: ignore[attr-defined]


def test_dir_lists_what_can_be_imported() -> None:
    assert dir(tandemmq) == sorted(tandemmq.__all__)


def modules_after(code: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after running some code."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


def test_client_loads_neither_servers_nor_uvloop() -> None:
    loaded = modules_after("from tandemmq import Producer, PushConsumer, PullConsumer")
    assert "tandemmq.cluster.client.producing.producer" in loaded
    unwanted = {
        "uvloop",
        "tandemmq.cluster.broker",
        "tandemmq.cluster.nameserver",
        "aiohttp",
        "prometheus_client",
    }
    assert not unwanted & loaded


def test_the_package_is_imported_within_a_tenth_of_a_second() -> None:
    """Of a processor: a busy machine takes longer. The command line within half as much again."""
    timed = "import time; began = time.process_time(); {}; print(time.process_time() - began)"
    for code, most_s in (("import tandemmq", 0.1), ("import tandemmq.command.cli", 0.15)):
        took_s = []
        for _ in range(3):
            words = [sys.executable, "-c", timed.format(code)]
            took_s.append(float(subprocess.run(words, capture_output=True, check=True).stdout))
        assert min(took_s) < most_s, code


def test_command_line_starts_without_the_client() -> None:
    loaded = modules_after("import tandemmq.command.cli")
    assert "tandemmq.command.cli" in loaded
    assert not {"tandemmq.cluster.client", "tandemmq.cluster.broker", "asyncio", "msgspec"} & loaded


@pytest.mark.parametrize("role", ["broker", "nameserver"])
def test_server_starts_without_the_client_and_the_other_server(role: str) -> None:
    loaded = modules_after(f"import tandemmq.command.serving, tandemmq.cluster.{role}")
    others = {
        "tandemmq.cluster.broker",
        "tandemmq.cluster.nameserver",
        "tandemmq.cluster.client",
    } - {f"tandemmq.cluster.{role}"}
    assert not others & loaded
