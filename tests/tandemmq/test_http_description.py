"""OpenAPI of the HTTP port, without a port: it is valid, whole, and says of options what the commands take."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest

from tandemmq.admin.commands import COMMANDS
from tandemmq.cluster.client import MessageQueue, TopicStats
from tandemmq.command.output import plain
from tandemmq.plane.openapi import document
from tandemmq.plane.options import CONTENTS, OF_THE_COMMAND_LINE, parameters, parse
from tandemmq.plane.problems import ApiProblem
from tandemmq.plane.results import RESULTS
from tandemmq.plane.schemas import schema_of

DOCUMENT: dict[str, Any] = json.loads(json.dumps(document("broker")))
#: one command of each shape: all of them take the validator half a minute
SHAPES = (
    "clusterList",
    "updateTopic",
    "electMaster",
    "updateTopicList",
    "queryMsgById",
    "printMsgByQueue",
)


def test_description_is_valid_openapi() -> None:
    shapes = {f"/api/admin/{name}" for name in SHAPES}
    paths = {
        path: each
        for path, each in DOCUMENT["paths"].items()
        if not path.startswith("/api/admin/") or path in shapes
    }
    openapi_spec_validator.validate({**DOCUMENT, "paths": paths})


def test_every_command_has_its_methods_its_result_and_an_operation_of_its_own() -> None:
    assert RESULTS.keys() == COMMANDS.keys()
    names = []
    for name, command in COMMANDS.items():
        operations = DOCUMENT["paths"][f"/api/admin/{name}"]
        assert set(operations) == ({"post"} if command.writes else {"get", "post"}), name
        names += [each["operationId"] for each in operations.values()]
        assert operations["post"]["security"] == [{"token": []}]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_has_a_schema_that_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(RESULTS[name]))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda each: each.name)
def test_no_command_touches_files_of_the_machine_that_answers(command: Any) -> None:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    files = {
        each.dest
        for each in parser._actions
        if each.type is Path or each.metavar in ("FILE", "DIR")
    }
    assert files <= OF_THE_COMMAND_LINE | CONTENTS
    assert not {each.dest for each in parameters(command).all} & OF_THE_COMMAND_LINE


def test_options_become_what_the_command_line_would_have_made_of_them() -> None:
    found = parse(
        COMMANDS["updateTopic"],
        {"topic": "-Orders", "clusterName": "c", "perm": 4, "order": True, "attributes": "-a,+b=c"},
    )
    assert (found.topic, found.cluster, found.perm, found.order) == ("-Orders", "c", 4, True)
    assert (found.attributes, found.read, found.broker) == ("-a,+b=c", 8, None)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "required"),
        ({"topic": "a"}, "one of the arguments"),
        ({"topic": "a", "clusterName": "c", "broker": "x"}, "no parameter 'broker'"),
        ({"topic": "a", "clusterName": "c", "perm": "9"}, "invalid choice"),
        ({"topic": "a", "clusterName": "c", "perm": None}, "perm takes text, a number, true or false"),
        ({"topic": "a", "clusterName": "c", "order": "maybe"}, "true or false"),
        ({"topic": ["a", {}], "clusterName": "c"}, "topic takes text"),
        ({"help": "true"}, "no parameter 'help'"),
        ({"json": "true"}, "no parameter 'json'"),
        ({"namesrv": "evil.example:9876"}, "no parameter 'namesrv'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_their_name(given: dict[str, object], error: str) -> None:
    with pytest.raises(ApiProblem) as problem:
        parse(COMMANDS["updateTopic"], given)
    assert problem.value.status == 400
    assert error in problem.value.error


def test_table_of_queues_is_a_list_with_or_without_queues() -> None:
    schema = schema_of(TopicStats)
    for queues in ({}, {MessageQueue("Orders", "broker-a", 0): None}):
        printed = plain(TopicStats(queues, 0.0))  # type: ignore[arg-type]
        assert isinstance(printed["queues"], list)
        if not queues:
            jsonschema.validate(printed, schema)
