"""Which admin commands change something: what their request codes say, and what the table of commands says."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tandemmq.admin.commands import COMMANDS
from tandemmq.admin.shape import AdminCommand
from tandemmq.cluster.access.needs import BROKER, only_super
from tandemmq.cluster.access.rights import Action
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command

#: those whose docstrings name no code
BY_CODE_OF = {
    "cleanExpiredCQ": (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,),
    "cleanUnusedTopic": (RequestCode.CLEAN_UNUSED_TOPIC,),
    "deleteExpiredCommitLog": (RequestCode.DELETE_EXPIRED_COMMITLOG,),
    "sendMessage": (RequestCode.SEND_MESSAGE_V2,),
    "checkMsgSendRT": (RequestCode.SEND_MESSAGE_V2,),
    "clusterRT": (RequestCode.SEND_MESSAGE_V2,),
    "sendMsgStatus": (RequestCode.SEND_MESSAGE_V2,),
    "consumeMessage": (RequestCode.PULL_MESSAGE,),
    "printMsgByQueue": (RequestCode.PULL_MESSAGE,),
    "allocateMQ": (RequestCode.GET_ROUTEINFO_BY_TOPIC,),
    "statsAll": (RequestCode.VIEW_BROKER_STATS_DATA, RequestCode.GET_CONSUME_STATS),
}
#: by their docstrings they may change something, but only with options that want the token
BY_OPTION = {"queryMsgById": {310}}
CHANGES = {Action.PUB, Action.CREATE, Action.UPDATE, Action.DELETE}
ASKS = {Action.SUB, Action.GET, Action.LIST}


class _Any(Mapping[str, str]):
    """Header fields of any name."""

    def __getitem__(self, key: str) -> str:
        return "7F00000100002A9F0000000000000000" if key == "msgId" else "1"

    def __iter__(self) -> Iterator[str]:
        return iter(("topic",))

    def __len__(self) -> int:
        return 1

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


class _Facts:
    cluster = "cluster"

    def topic_of(self, offset: int) -> str | None:
        return "Orders"


BODY = json.dumps(
    {
        "topicConfigList": [{"topicName": "Orders"}], "groupConfigList": [{"groupName": "g"}],
        "groupName": "g", "consumerGroup": "g", "topic": "Orders", "group": "g",
        "acks": [{"c": "g", "t": "Orders"}],
    }
).encode()  # fmt: skip


def changes(code: int) -> bool:
    """Whether a request changes something, by the rights that it needs; by its name where only Super users may."""
    row = BROKER.get(code, only_super)
    if row is only_super or code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
        return re.search(r"(^|_)(GET|LIST)(_|$)", RequestCode(code).name) is None
    command = Command(code, _Any(), BODY)  # type: ignore[arg-type]
    actions = {action for need in row(command, _Facts()) for action in need.actions}
    assert actions, code
    return not actions & ASKS if code != RequestCode.CLONE_GROUP_OFFSET else True


def codes_of(command: AdminCommand) -> set[int]:
    """The request codes that a command's docstring begins with, without the 1006 of "1006, then"."""
    if command.name in BY_CODE_OF:
        return set(BY_CODE_OF[command.name])
    said = (command.run.__doc__ or "").split("\n")[0]
    return {int(number) for number in re.findall(r"\b\d{2,4}\b", said)}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda each: each.name)
def test_command_that_sends_a_changing_request_is_said_to_write_and_no_other(
    command: AdminCommand,
) -> None:
    found = codes_of(command)
    assert found, f"{command.name} does not say which requests it sends"
    changing = {code for code in found if changes(code)}
    if not command.writes:
        assert changing == BY_OPTION.get(command.name, set()), changing
        assert bool(command.token_for) or not changing
    else:
        assert changing, f"{command.name} sends only {sorted(found)}"


def test_what_a_command_that_asks_wants_the_token_for_are_options_of_its() -> None:
    for command in COMMANDS.values():
        parser = argparse.ArgumentParser()
        command.arguments(parser)
        assert command.token_for <= {each.dest for each in parser._actions}, command.name
