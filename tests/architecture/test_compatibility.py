"""The table of requests and commands leaves none out, says why where answers differ, and tells differences apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.compatibility import audience, brokers, commands, reasons, settings
from docs.compatibility.answers import Answer, answer_of, difference
from docs.compatibility.asker import Asked
from tandemmq.admin.absent import ABSENT
from tandemmq.admin.commands import COMMANDS
from tandemmq.cluster.broker.settings import unserved
from tandemmq.cluster.broker.settings.known_keys import COUNTED_ON
from tandemmq.cluster.remoting import Command, RequestCode

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def rows() -> list[list[str]]:
    """The cells of every row of a table on the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("| ") and not line.startswith("| ---")
    ]


def test_every_request_code_has_its_row() -> None:
    named = {int(match[1]) for row in rows() if (match := re.match(r"(\d+) `", row[0]))}
    assert named == set(RequestCode)


def test_every_command_of_mqadmin_and_of_ours_has_its_row() -> None:
    named = {match[1] for row in rows() if (match := re.match(r"`(\w+)", row[0]))}
    assert {*COMMANDS, *ABSENT, *commands.ARGUMENTS, *commands.ENDLESS} <= named


def test_a_row_where_the_answers_differ_says_why() -> None:
    compared = [row for row in rows() if len(row) == 5 and re.match(r"\d+ `", row[0])]
    assert len(compared) > len(RequestCode)
    for row in compared:
        assert (row[3] == "the same") == (row[4] == ""), row


def test_nothing_that_the_dashboard_or_the_exporter_asks_is_refused() -> None:
    refused = {
        int(row[0].split()[0])
        for row in rows()
        if len(row) == 5 and row[3].startswith("3 ") and re.match(r"\d+ `\w+`$", row[0])
    }
    assert RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC in refused
    assert not refused & (audience.DASHBOARD | audience.EXPORTER)


def test_every_setting_that_asks_for_what_is_not_here_is_told_with_what_it_comes_to() -> None:
    assert unserved._NOT_HERE.keys() | COUNTED_ON <= settings.ASKING.keys()
    told = {row[0]: row[1] for row in rows() if len(row) == 2}
    now = dict(settings.outcomes())
    assert {key: told.get(key) for key in now} == now


def test_a_difference_without_reason_and_a_reason_without_difference_are_told() -> None:
    asked = Asked(RequestCode.HEART_BEAT)
    assert reasons.unequal("request", [asked], [asked]) == []
    (lacking,) = reasons.unequal("request", [asked], [])
    assert "34 HEART_BEAT differs" in lacking
    (idle,) = reasons.unequal("request", [], [asked])
    assert "34 HEART_BEAT does not differ" in idle


def test_every_reason_is_of_a_request_that_is_asked_for_somewhere() -> None:
    asked_of_clients = {*brokers.OF_CLIENTS, RequestCode.GET_CONSUMER_RUNNING_INFO}
    assert set(reasons.OF_CLIENTS) <= asked_of_clients | {RequestCode.CONSUME_MESSAGE_DIRECTLY}
    assert set(reasons.OF_COMMANDS) <= set(commands.ARGUMENTS)


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (Command(1), Command(0), "1 SYSTEM_ERROR instead of 0 SUCCESS"),
        (Command(1, remark="no"), Command(1), "a remark"),
        (Command(0, remark=None), Command(0, remark="not set any response code"), ""),
        (Command(0, {"a": "1", "b": "2"}), Command(0, {"a": "3"}), "1 more field: `b`"),
        (Command(0, body=b'{"t":{"x":1}}'), Command(0, body=b'{"t":{}}'),
         "1 more member: `t.x: number`; 1 fewer member: `t: object`"),
        (Command(0, body=b'{"topicConfigTable":{"A":1}}'), Command(0, body=b'{"topicConfigTable":{"B":2}}'), ""),
        (Command(0, body=b'{"offsetTable":{{"topic":"A"}:1}}'), Command(0, body=b'{"offsetTable":{}}'),
         "1 more member: `offsetTable.<queue>: number`; 1 fewer member: `offsetTable: object`"),
        (Command(0, body=b"a=1\nb=2\n"), Command(0, body=b"a=1\n"), "1 more setting: `b`"),
        (Command(0, body=b"a=1"), Command(0), "settings instead of no body"),
    ],
)  # fmt: skip
def test_what_differs_is_named(ours: Command, theirs: Command, told: str) -> None:
    assert difference(answer_of(ours), answer_of(theirs)) == told


def test_no_answer_is_not_the_same_as_one() -> None:
    assert difference(Answer(None), Answer(0)) == "nothing instead of 0 SUCCESS"
