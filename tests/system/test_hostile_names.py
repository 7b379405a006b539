"""A thousand names that are none, through every code: no topic, group, file or forged log line comes of them."""

from __future__ import annotations

import functools
import json
import random
import re
import string
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_wire import (
    Wire,
    files_below,
    framed,
    json_frame,
    memory_bytes,
    producing,
    pull_ext,
    send_ext,
    send_one,
    topic_names,
)

from tandemmq.chaos.asking import ask
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.broker.tables.names import HALF_TOPIC, OP_TOPIC
from tandemmq.cluster.broker.transactions.records import GROUP as TRANSACTION_GROUP
from tandemmq.cluster.remoting.codes import RequestCode

pytestmark = pytest.mark.system

SEED = 20190
COUNT = 1_000
GET_ALL_GROUPS, GET_ALL_OFFSETS = 201, 43
GET_CONFIG, GET_CLUSTER, GET_ALL_TOPICS_OF_NAMES = 26, 106, 206
SUCCESS, NOT_SUPPORTED = 0, 3

#: fields that carry a name, in the headers of any request
NAME_FIELDS = (
    "topic", "b", "a", "c", "consumerGroup", "producerGroup", "group", "groupName", "srcGroup", "destGroup",
    "originTopic", "defaultTopic", "clientId", "clientID", "brokerName", "clusterName", "cluster", "compareGroup",
)  # fmt: skip
#: their names in JSON bodies
BODY_FIELDS = (
    "topicName", "groupName", "consumerGroup", "topic", "group", "clientId", "clientID", "brokerName",
)  # fmt: skip
#: would change something by what they are, not by the name they carry
LEFT_OUT = {RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_UNUSED_TOPIC}
KV_CODES = {RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG}  # their keys are no names

NAME_SERVER_CODES_BY_BROKER = {
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.UNREGISTER_BROKER,
}

#: what a broker writes sooner or later, whatever comes in
ORDINARY_FILES = re.compile(
    r"checkpoint|queuestate|consumequeue|index(/\d{17})?|commitlog/\d{20}"
    r"|config/(consumerOffset|delayOffset|deletedTopics|queueLocks|subscriptionGroup|topics)\.json"
    r"|consumequeue/(%RETRY%Known|%DLQ%Known|Known|SCHEDULE_TOPIC_XXXX)(/\d+(/\d{20})?)?"
)

MARK = "@@name@@"
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def hostile_names(rng: random.Random, count: int) -> list[str]:
    """Names that break the rules of topics and of groups, each in one way or several."""
    pieces = [
        "../x", "..", "/etc/passwd", "a/b", "a\\b", "x\0y", "\0", "\n", "x\r\nERROR forged", "\x1b[2J",
        "", " ", "\t", "a b", "a.b", "ünïcode", "漢字", "\u2028", "\u202egnp", "$(id)", "`id`", "a;b", "%00/..",
        "{}", '"', "'", "a,b", "a@b", "a#b", "\ufeff", "😀", "%DLQ%/..", "%RETRY%../../x", "a:b", "*", "a||b c",
    ]  # fmt: skip
    names: list[str] = []
    while len(names) < count:
        kind = rng.randrange(5)
        if kind == 0:
            name = rng.choice(pieces)
        elif kind == 1:
            name = rng.choice(string.ascii_letters) * rng.choice((256, 300, 1_000))
        elif kind == 2:
            name = "../" * rng.randrange(1, 12) + rng.choice(
                ("x", "etc/cron.d/x", "config/topics.json")
            )
        elif kind == 3:
            name = (
                rng.choice(("%DLQ%", "%RETRY%", "Known", ""))
                + rng.choice(pieces)
                + rng.choice(pieces)
            )
        else:
            name = "".join(
                chr(rng.choice((rng.randrange(32, 127), rng.randrange(1, 0xD7FF))))
                for _ in range(9)
            )
        if len(name) > 255 or not _LEGAL.fullmatch(name):
            names.append(name)
    return names


def headers(name: str, field: str) -> dict[str, str]:
    """Every field that any request wants, sound but for the one that carries the name."""
    known = {each: "Known" for each in NAME_FIELDS}
    numbers = dict.fromkeys(
        ("queueId", "e", "offset", "maxOffset", "timestamp", "consumeTimes"), "0"
    )
    others = {
        "brokerAddr": "127.0.0.1:1", "brokerId": "0", "haServerAddr": "", "namespace": "n", "key": "k",
        "d": "4", "f": "0", "g": "0", "h": "0", "i": "", "j": "0", "k": "false", "m": "false", "n": "",
        "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
        "order": "false", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": "9", "isForce": "true",
        "originMsgId": "x", "delayLevel": "0", "unitMode": "false", "maxReconsumeTimes": "3", "commitOffset": "5",
        "statsName": "TOPIC_PUT_NUMS", "statsKey": name, "readable": "false", "value": "v", "index": "0",
        "count": "10", "isOffline": "false", "filterServerNums": "0",
    }  # fmt: skip
    return {**send_ext("Known"), **pull_ext("Known"), **numbers, **others, **known, field: name}


def body(name: str, field: str) -> bytes:
    members: dict[str, object] = dict.fromkeys(BODY_FIELDS, "Known")
    members[field] = name
    queue = {"topic": members["topic"], "brokerName": members["brokerName"], "queueId": 0}
    members |= {
        "mqSet": [queue],
        "producerDataSet": [{"groupName": members["groupName"]}],
        "consumerDataSet": [
            {
                "groupName": members["groupName"],
                "subscriptionDataSet": [{"topic": members["topic"], "subString": "*"}],
            }
        ],
        "topicConfigList": [{"topicName": members["topicName"]}],
        "groupConfigList": [{"groupName": members["groupName"]}],
        "queueDatas": [
            {
                "brokerName": members["brokerName"], "perm": 6, "readQueueNums": 1, "writeQueueNums": 1,
                "topicSysFlag": 0,
            }
        ],
        "topicConfigSerializeWrapper": {"topicConfigTable": {name: {}, name + "2": {}}},
    }  # fmt: skip
    return json.dumps(members).encode()


@functools.cache
def _templates(field: str, body_field: str) -> tuple[str, str]:
    return json.dumps(headers(MARK, field)), body(MARK, body_field).decode()


def frame_with(code: int, name: str, number: int, **others: str) -> bytes:
    """A request with a name in one of its header fields and one of its body's."""
    head, content = _templates(
        NAME_FIELDS[number % len(NAME_FIELDS)], BODY_FIELDS[number % len(BODY_FIELDS)]
    )
    written = json.dumps(name)[1:-1]
    fields = head.replace(MARK, written)
    for key, value in others.items():  # the last of two wins
        fields = f"{fields[:-1]},{json.dumps(key)}:{json.dumps(value)}}}"
    header = (
        f'{{"code":{code & 0x7FFF},"language":"JAVA","version":479,"opaque":{number},"flag":0,'
        f'"extFields":{fields}}}'
    )
    return framed(header.encode(), content.replace(MARK, written).encode())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NameServer, Broker]]:
    directory = tmp_path_factory.mktemp("names")
    with (
        NameServer(directory / "names").start() as name_server,
        Broker(directory / "broker", name_server.address).start() as broker,
    ):
        send_one(broker.address, "Known")
        with Wire(broker.address) as wire:  # the group, and its topic for retries
            beat = {
                "clientID": "c",
                "consumerDataSet": [
                    {"groupName": "Known", "subscriptionDataSet": [{"topic": "Known"}]}
                ],
            }
            wire.send(json_frame(34, {}, json.dumps(beat).encode()))
            wire.read()
            wire.request(json_frame(200, {}, json.dumps({"groupName": "Known"}).encode()))
        yield name_server, broker


def exchanged(address: str, frames: list[bytes]) -> int:
    """Sends frames, fifty in one go, and waits until each is answered; the code of the last answer."""
    with Wire(address, timeout_s=30) as wire:
        answers = 0
        for at in range(0, len(frames), 50):
            wire.send(b"".join(frames[at : at + 50]))
            wanted = at + len(frames[at : at + 50])
            while answers < wanted:
                answer = wire.read()
                answers += answer.header["flag"] & 1  # what the server asks itself does not count
        return answer.code


def test_a_thousand_hostile_names_through_every_code_change_nothing(
    cluster: tuple[NameServer, Broker], tmp_path: Path
) -> None:
    # INV-14
    name_server, broker = cluster
    names = hostile_names(random.Random(SEED), COUNT)
    groups = json.loads(ask(broker.address, GET_ALL_GROUPS)[2])["subscriptionGroupTable"].keys()
    topics = topic_names(broker.address)
    home = broker.store.parent.parent
    outside = {path for path in files_below(home) if "/store" not in path}
    stored = {path for path in files_below(broker.store) if not path.endswith((".bak", ".new"))}
    memory = memory_bytes(broker)
    lines = len(broker.output().splitlines())
    served = 0
    began = time.monotonic()
    with producing(broker.address, "Known") as load:
        for code in sorted(set(RequestCode) - LEFT_OUT):
            # Few names go through a code that nobody serves: all get the same answer.
            probe = exchanged(broker.address, [json_frame(code & 0x7FFF, headers("../x", "topic"))])
            mine = names if probe != NOT_SUPPORTED else names[:20]
            served += probe != NOT_SUPPORTED
            frames = [frame_with(code, name, number) for number, name in enumerate(mine)]
            exchanged(broker.address, frames)
    assert served > 40, "the broker's table was walked"
    assert load.problem is None and max(load.seconds) < 3
    assert topic_names(broker.address) == topics
    found = json.loads(ask(broker.address, GET_ALL_GROUPS)[2])["subscriptionGroupTable"].keys()
    assert found == groups
    offsets = json.loads(ask(broker.address, GET_ALL_OFFSETS)[2])["offsetTable"]
    own = {f"{each}@{TRANSACTION_GROUP}" for each in (HALF_TOPIC, OP_TOPIC)}
    assert set(offsets) - own <= {"Known@Known", "%RETRY%Known@Known"}
    assert outside == {path for path in files_below(home) if "/store" not in path}
    new = {
        path for path in files_below(broker.store) if not path.endswith((".bak", ".new"))
    } - stored
    odd = [path for path in new if not ORDINARY_FILES.fullmatch(path)]
    assert not odd, "only its own files"
    # Requests with the bad name elsewhere delete the topic that is there.
    deleted = broker.store / "config" / "deletedTopics.json"
    if deleted.exists():
        assert set(json.loads(deleted.read_text())["deletedTopics"]) <= {"Known"}
    assert memory_bytes(broker) - memory < 60 << 20
    written = broker.output().splitlines()[lines:]
    assert len(written) < 100 + 10 * (time.monotonic() - began), written[-20:]
    assert not [line for line in written if "Traceback" in line or line.startswith("ERROR forged")]
    assert name_server.alive


def test_a_thousand_hostile_names_do_nothing_to_a_name_server(
    cluster: tuple[NameServer, Broker],
) -> None:
    name_server, broker = cluster
    address = name_server.address
    # The dot is no sin here: no name becomes a path, and stock brokers are named after hosts.
    names = [
        name
        for name in hostile_names(random.Random(SEED + 1), COUNT + 200)
        if not re.fullmatch(r"[%|a-zA-Z0-9_.-]{1,255}", name)
    ]
    before = [json.loads(ask(address, code)[2]) for code in (GET_CLUSTER, GET_ALL_TOPICS_OF_NAMES)]
    outside = files_below(name_server.log.parent)
    lines = len(name_server.output().splitlines())
    for code in sorted(set(RequestCode) - KV_CODES):
        probe = exchanged(address, [json_frame(code & 0x7FFF, {})])
        mine = names if probe != NOT_SUPPORTED else names[:20]
        frames = []
        for number, name in enumerate(mine):
            given = {"brokerAddr": f"127.0.0.1:{1 + number}"}
            if code in NAME_SERVER_CODES_BY_BROKER:
                given["brokerName"] = name
            elif code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
                given["topic"] = name
            elif code == RequestCode.REGISTER_BROKER:
                given["brokerName" if number % 2 else "clusterName"] = name
            frames.append(frame_with(code, name, number, **given))
        exchanged(address, frames)
    after = [json.loads(ask(address, code)[2]) for code in (GET_CLUSTER, GET_ALL_TOPICS_OF_NAMES)]
    assert after == before
    assert files_below(name_server.log.parent) == outside
    written = name_server.output().splitlines()[lines:]
    assert len(written) < 100, written[-20:]
    assert broker.alive


def test_topics_with_hostile_names_in_a_registration_are_left_out(
    cluster: tuple[NameServer, Broker],
) -> None:
    address = cluster[0].address
    names = hostile_names(random.Random(SEED + 2), 300)
    table = {name: {} for name in names if "." not in name} | {"Sound": {}, "Safe": {}}
    ext = {
        "brokerName": "other", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "",
        "brokerId": "0",
    }  # fmt: skip
    registration = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()
    with Wire(address) as wire:
        assert wire.request(json_frame(103, ext, registration)).code == SUCCESS
        listed = json.loads(wire.request(json_frame(GET_ALL_TOPICS_OF_NAMES)).body)["topicList"]
        assert "Sound" in listed
        assert not [name for name in listed if not re.fullmatch(r"[%|a-zA-Z0-9_.-]{1,255}", name)]


@pytest.mark.parametrize("prefix", ["%DLQ%", "%RETRY%"])
def test_topics_of_groups_are_made_for_groups_only(
    cluster: tuple[NameServer, Broker], prefix: str
) -> None:
    """A group named like a retry topic would have a retry topic of its own, and so on."""
    address = cluster[1].address
    before = topic_names(address)
    for name in (prefix + "../x", prefix + "x" * 260, prefix + "a.b"):
        assert send_one(address, name).code != SUCCESS
    assert topic_names(address) == before
