"""`tandem admin`: what a broker remarks on a change that it made is shown, and does not spoil what programs read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tandemmq.admin.commands import run_admin
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.remoting import Command, RequestCode

REMARK = "done here, but not known to have reached the slaves 2 within 3000 ms"


@pytest.fixture
def remark(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """What the broker says to every request; no server is there."""
    said: list[str | None] = [REMARK]

    async def call(_: Any, address: str, command: Command, *rest: Any) -> Command:
        assert command.code == RequestCode.UPDATE_AND_CREATE_TOPIC
        return command.reply(remark=said[0])

    async def enter(self: Admin) -> Admin:
        self._instance = Admin  # type: ignore[assignment]
        return self

    async def leave(self: Admin, *exc: object) -> None:
        pass

    monkeypatch.setattr("tandemmq.cluster.client.reaching.calls.call", call)
    monkeypatch.setattr(Admin, "__aenter__", enter)
    monkeypatch.setattr(Admin, "__aexit__", leave)
    monkeypatch.setattr(Admin, "connections", None, raising=False)
    yield said


COMMAND = ["updateTopic", "-n", "n:9876", "-b", "b:10911", "-t", "T"]


def test_a_change_that_not_all_slaves_have_is_a_warning_beside_the_answer(
    remark: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_admin(COMMAND) == 0
    printed = capsys.readouterr()
    assert printed.err == f"warning: b:10911: {REMARK}\n"
    assert printed.out.startswith("create topic to b:10911 success.")


def test_programs_find_it_in_a_field(
    remark: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_admin([*COMMAND, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["remarks"] == [{"broker": "b:10911", "remark": REMARK}]
    remark[0] = None
    assert run_admin([*COMMAND, "--json"]) == 0
    printed = capsys.readouterr()
    assert "remarks" not in json.loads(printed.out)
    assert printed.err == ""
