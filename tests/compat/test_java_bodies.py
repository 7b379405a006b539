"""Bodies from outside, mutated, mean here what they mean to RocketMQ: read by its own classes in one JVM and by us."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from tandemmq import java as stock
from tandemmq.cluster import controlplane
from tandemmq.cluster.broker import registration
from tandemmq.cluster.broker.handlers import (
    admin_groups,
    admin_offsets,
    admin_topics,
    client,
    locks,
)
from tandemmq.cluster.broker.tables import versions
from tandemmq.cluster.nameserver import registration as registered
from tandemmq.cluster.remoting import bodies

PROGRAM = Path(__file__).parent / "java" / "Bodies.java"
BODIES = 5_005
OUT_OF_BOUNDS = "^Expected `int` [<>]="  # read, but no id or number that a request may name
JVM_S = 120
PROTOCOL = "org.apache.rocketmq.remoting.protocol."

_SUBSCRIPTION = {
    "topic": "T", "subString": "a || b", "tagsSet": ["a", "b"], "codeSet": [97, 98], "subVersion": 17,
    "classFilterMode": False, "expressionType": "TAG",
}  # fmt: skip
_CONSUMER = {
    "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
}  # fmt: skip
_TOPIC = {
    "topicName": "T", "readQueueNums": 4, "writeQueueNums": 5, "perm": 6, "topicFilterType": "MULTI_TAG",
    "topicSysFlag": 0, "order": True, "attributes": {"message.type": "FIFO", "more": "1"},
}  # fmt: skip
_GROUP = {
    "groupName": "g", "consumeEnable": True, "consumeFromMinEnable": False, "consumeBroadcastEnable": True,
    "consumeMessageOrderly": True, "retryQueueNums": 2, "retryMaxTimes": 3, "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": False, "groupSysFlag": 0,
    "consumeTimeoutMinute": 15, "attributes": {"a": "b"},
}  # fmt: skip
_VERSION = {"counter": 3, "stateVersion": 1, "timestamp": 1000}
_QUEUES = [{"brokerName": "b", "queueId": number, "topic": "T"} for number in (0, 1)]
# of registrations the members that a name server looks at
_WRAPPER = {"dataVersion": _VERSION, "topicConfigTable": {
    "T": {"readQueueNums": 4, "writeQueueNums": 5, "perm": 6, "topicSysFlag": 1}, "U": {"perm": 2},
}}  # fmt: skip


@dataclass(frozen=True)
class Body:
    """A body that RocketMQ sends, the class that its server reads it into, and what we read it into."""

    java: str
    ours: Any
    sent: Any


KINDS = [
    Body(PROTOCOL + "heartbeat.HeartbeatData", client.HeartbeatData, {
        "clientID": "c@1", "producerDataSet": [{"groupName": "p"}, {"groupName": "q"}],
        "consumerDataSet": [{**_CONSUMER, "subscriptionDataSet": [_SUBSCRIPTION, {**_SUBSCRIPTION, "topic": "U"}]},
                            {**_CONSUMER, "groupName": "h", "subscriptionDataSet": [_SUBSCRIPTION]}],
    }),
    Body(PROTOCOL + "body.CheckClientRequestBody", client.ClientCheck,
         {"clientId": "c", "group": "g", "subscriptionData": _SUBSCRIPTION}),
    Body(PROTOCOL + "body.LockBatchRequestBody", locks.LockBody,
         {"consumerGroup": "g", "clientId": "c", "mqSet": _QUEUES}),
    Body(PROTOCOL + "body.UnlockBatchRequestBody", locks.LockBody,
         {"consumerGroup": "g", "clientId": "c", "mqSet": _QUEUES}),
    Body(PROTOCOL + "body.CreateTopicListRequestBody", admin_topics.TopicList,
         {"topicConfigList": [_TOPIC, {"topicName": "U"}]}),
    Body(PROTOCOL + "subscription.SubscriptionGroupConfig", admin_groups.GroupConfig, _GROUP),
    Body(PROTOCOL + "body.SubscriptionGroupList", admin_groups.GroupList,
         {"groupConfigList": [_GROUP, {"groupName": "h"}]}),
    Body(PROTOCOL + "body.RegisterBrokerBody", registered._Body, {"topicConfigSerializeWrapper": _WRAPPER}),
    Body(PROTOCOL + "body.TopicConfigAndMappingSerializeWrapper", registered._Wrapper, _WRAPPER),
    Body(PROTOCOL + "DataVersion", versions.DataVersion, _VERSION),
    Body(PROTOCOL + "body.SyncStateSet", controlplane.SetBody, {"syncStateSet": [1, 2], "syncStateSetEpoch": 3}),
    Body(PROTOCOL + "body.KVTable", registration._OrderTable, {"table": {"T": "b:4", "U": "b:8"}}),
    Body(PROTOCOL + "body.GetConsumerStatusBody", admin_offsets.StatusBody,
         {"messageQueueTable": {json.dumps(queue): 7 for queue in _QUEUES}}),
]  # fmt: skip

# What takes the place of a value, as text. Left out is what fastjson takes by accident (cluster/remoting/bodies.py).
VALUES = [
    "5", "-5", "0", "1", "2", "7", "-1", "5.0", "5.7", "1.5", "0.5", "5e3", "1E2", "1.0E5", "+5", "1.50", "1e-8",
    "99999999999", "-99999999999", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    '"5"', '"-5"', '"+5"', '"05"', '"1,000"', '"5.0"', '"5.7"', '"1e2"', '" 5 "', '"0x10"', '"0"', '"1"', '"2"',
    '"99999999999"', '"2147483648"', '"9223372036854775807"', '"9223372036854775808"', "true", "false", '"true"',
    '"TRUE"', '"True"', '"false"', '"False"', '"yes"', '"Y"', '"T"', '"F"', '"N"', '"y"', '"f"', '"on"', '"n"', '"t"',
    "null", "NULL", '"null"', '"NULL"', '""', '" "', '"abc"', '"a\\u0041\\x41"', "'it\\'s'", '"\\u4f60\\u597d"', '"✓"',
    "{}", '{"a":1}', '{"a":{"b":[1.50,null]}}', "[]", "[5]", '["5"]', "[null]", '[1,null,"a"]', "[1.5,2]", "[true]",
    "[{}]", "[[]]", "[[1]]", "tru", "nul", "True", "x", '"\\u00', '"\\q"', '"clustering"', '"BroadCasting"',
    '"consume_actively"', '"CONSUME_POP"', '"Multi_Tag"', '"CONSUME_FROM_TIMESTAMP"',
]  # fmt: skip
# Of these fastjson takes some or none, by the blanks around them and the members before.
CAPRICES = {dict: ('"', "[{}]"), list: ("{", '"'), "syncStateSet": ("null", "NULL")}


class Mutator:
    """Draws a body: members' values exchanged, members gone, new or null, in one of fastjson's spellings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def draw(self, sent: Any) -> str:
        self.spread = self.random.choice((0.0, 0.0, 0.5))
        places = _places(sent)
        picked = self.random.sample(
            places, min(len(places), self.random.choice((0, 1, 1, 1, 1, 2, 3)))
        )
        text = self._written(sent, (), frozenset(picked), set())
        return text[: self.random.randrange(len(text))] if self.random.random() < 0.03 else text

    def _written(
        self, value: Any, path: tuple[Any, ...], picked: frozenset[tuple[Any, ...]], done: set[str]
    ) -> str:
        draw = self.random
        if path in picked:
            caprices = CAPRICES.get(type(value), ()) + CAPRICES.get(path[-1], ())
            return self._spaced(
                draw.choice([each for each in VALUES if not each.startswith(caprices)])
            )
        if isinstance(value, dict):
            here = _reference(path)
            kind = json.dumps(value, sort_keys=True)
            if not picked and path and kind in done and draw.random() < 0.5:
                at = next(at for at, other in self.places.items() if other == kind)
                return f'{{"$ref":"{at}"}}'
            done.add(kind)
            if path == ():
                self.places: dict[str, str] = {}
            members = [
                f"{self._key(name)}{self._spaced(':')}{self._written(each, (*path, name), picked, done)}"
                for name, each in value.items()
            ]
            self.places[here] = kind
            if picked and path[:1] != ("messageQueueTable",) and draw.random() < 0.2:
                members.insert(
                    draw.randrange(len(members) + 1),
                    draw.choice(('"unknown":{"a":[1,{"b":null}]}', '"more":"x"', '"none":null')),
                )
            return "{" + self._joined(members) + "}"
        if isinstance(value, list):
            items = [
                self._written(each, (*path, at), picked, done) for at, each in enumerate(value)
            ]
            return "[" + self._joined(items) + "]"
        return json.dumps(value)

    def _key(self, name: str) -> str:
        if name.isalpha() and self.random.random() < self.spread:
            return self.random.choice((name, f"'{name}'"))
        return json.dumps(name)

    def _spaced(self, text: str) -> str:
        if self.random.random() < self.spread / 4:
            return self.random.choice((f" {text}", f"{text}\n", f"\t{text} "))
        return text

    def _joined(self, items: list[str]) -> str:
        comma = "," if items and self.random.random() < self.spread / 4 else ""
        return ",".join(map(self._spaced, items)) + comma


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    entries: Any = value.items() if isinstance(value, dict) else ()
    for step, each in enumerate(value) if isinstance(value, list) else entries:
        found += _places(each, (*path, step))
    return found


def _reference(path: tuple[Any, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def read_by_java(drawn: list[tuple[Body, str]], home: Path) -> list[dict[str, Any]]:
    lines = "".join(
        f"{kind.java}\t{base64.b64encode(text.encode()).decode()}\n" for kind, text in drawn
    )
    home.mkdir(parents=True, exist_ok=True)
    command = stock.java_command(stock.NEWEST, str(PROGRAM), home, heap_mb=256)
    run = subprocess.run(
        command, input=lines.encode(), stdout=subprocess.PIPE, cwd=home, timeout=JVM_S, check=True,
        env={**os.environ, **stock.java_env(home)},
    )  # fmt: skip
    # what the log says of itself comes first
    return [json.loads(line) for line in run.stdout.decode().split("\n") if line.startswith("{")]


def meaning(info: inspect.Type, value: Any, since_ms: float) -> Any:
    """What a value says, whoever read it: none is the default, and lists are sets."""
    match info:
        case inspect.Metadata():
            return meaning(info.type, value, since_ms)
        case inspect.UnionType():
            (one,) = (each for each in info.types if not isinstance(each, inspect.NoneType))
            return meaning(one, value, since_ms)
        case inspect.StructType():
            return {
                field.encode_name: meaning(field.type, said(field, value, since_ms), since_ms)
                for field in info.fields
            }
        case inspect.ListType():
            items = [
                meaning(info.item_type, each, since_ms) for each in value or () if each is not None
            ]
            return sorted({json.dumps(each, sort_keys=True) for each in items})
        case inspect.DictType(value_type=inspect.AnyType()):
            return None  # carried along, not read
        case inspect.DictType():
            table = {} if value is None else value
            return {
                key: meaning(info.value_type, each, since_ms)
                for key, each in table.items()
                if each is not None
            }
    return None if value == "" else value


def said(field: inspect.Field, value: dict[str, Any] | None, since_ms: float) -> Any:
    """A member of an object; Java's default of times is the present."""
    found = (value or {}).get(field.encode_name)
    now = field.encode_name in ("subVersion", "timestamp") and found and since_ms <= found < 1 << 60
    if found is not None and not now:
        return found
    return None if field.default is msgspec.NODEFAULT else field.default


def named_queues(table: dict[str, Any]) -> dict[str, Any]:
    """Keys as Java prints queues."""
    found = {}
    for text, value in table.items():
        queue = json.loads(text)
        found[
            f"MessageQueue [topic={queue['topic']}, brokerName={queue['brokerName']}, queueId={queue['queueId']}]"
        ] = value
    return found


def test_mutated_bodies_mean_what_they_mean_to_rocketmq(java: None, tmp_path: Path) -> None:
    since_ms = time.time() * 1000
    mutator = Mutator(20_261_123)
    drawn = [(kind, mutator.draw(kind.sent)) for kind in KINDS * (BODIES // len(KINDS))]
    answers = read_by_java(drawn, tmp_path / "home")
    assert len(answers) == len(drawn)
    unlike = []
    count: Counter[str] = Counter()
    for (kind, text), answer in zip(drawn, answers, strict=True):
        theirs = answer.get("ok")
        try:
            ours = msgspec.to_builtins(bodies.read(kind.ours, text.encode()))
            if kind.ours is admin_offsets.StatusBody and ours["messageQueueTable"]:
                ours["messageQueueTable"] = named_queues(ours["messageQueueTable"])
        except ValueError as problem:
            count["refused"] += 1
            if theirs is not None and not re.search(OUT_OF_BOUNDS, str(problem)):
                unlike.append((kind.java, text, f"ours: {problem}", theirs))
            continue
        count["read"] += 1
        info = inspect.type_info(kind.ours)
        if theirs is None:
            unlike.append((kind.java, text, ours, answer))
        elif (said := meaning(info, ours, since_ms)) != (meant := meaning(info, theirs, since_ms)):
            unlike.append((kind.java, text, said, meant))
    assert not unlike, f"{len(unlike)} of {len(drawn)}, the first:\n" + "\n".join(
        "\n  ".join(map(str, each)) for each in unlike[:20]
    )
    assert min(count["read"], count["refused"]) > BODIES / 3, count
