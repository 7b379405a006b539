"""Pull requests as bytes, and the two ways they take."""

from __future__ import annotations

import pytest

from tandemmq.cluster.client import BrokerAnswerBroken, BrokerRefused, MessageQueue
from tandemmq.cluster.client.consuming.pulls import (
    PullHead,
    PullRequest,
    PullStatus,
    lite_code,
    pull_answer,
)
from tandemmq.cluster.client.consuming.subscriptions import parse_subscription
from tandemmq.cluster.remoting import Command

QUEUE = MessageQueue("T", "broker-a", 3)


def request(offset: int, commit: int | None, suspend_ms: int = 15_000) -> PullRequest:
    subscription = parse_subscription("T", "A || B", 7)
    return PullRequest("CG", QUEUE, offset, subscription, 32, suspend_ms, commit)


@pytest.mark.parametrize("commit", [None, 0, 5, 1 << 40])
@pytest.mark.parametrize("offset", [0, 17, 1 << 50])
def test_frame_made_from_parts_is_the_command_encoded(offset: int, commit: int | None) -> None:
    head = PullHead(request(1, None))
    wanted = request(offset, commit)
    command = wanted.command()
    command.opaque = 4_711
    assert head.frame(wanted, 4_711) == command.encode()


def test_lite_pull_has_its_flag_and_its_code_where_the_broker_knows_it() -> None:
    subscription = parse_subscription("T", "*", 7)
    for version, code in ((479, 361), (413, 361), (407, 11), (0, 11)):
        lite = PullRequest("CG", QUEUE, 1, subscription, lite=True, code=lite_code(version))
        assert (lite.flags, lite.command().code) == (22, code)
        assert PullHead(lite).frame(lite, 0) == lite.command().encode()


def answer(code: int, **ext: str) -> Command:
    fields = {
        "nextBeginOffset": "9",
        "minOffset": "1",
        "maxOffset": "10",
        "suggestWhichBrokerId": "1",
    }
    return Command(11).reply(code, "remark", {**fields, **ext})


def test_answer_says_where_to_go_on() -> None:
    found = pull_answer(answer(19), request(9, None), "a:1")
    assert found.status is PullStatus.NOTHING_NEW
    assert (found.next_offset, found.min_offset, found.max_offset) == (9, 1, 10)
    assert found.suggested_broker_id == 1
    assert not found.messages


def test_refusal_and_nonsense_are_told_apart() -> None:
    with pytest.raises(BrokerRefused, match=r"CODE: 24.*a:1, topic T"):
        pull_answer(answer(24), request(9, None), "a:1")
    with pytest.raises(BrokerAnswerBroken, match=r"a:1 has nextBeginOffset='x'"):
        pull_answer(answer(19, nextBeginOffset="x"), request(9, None), "a:1")
