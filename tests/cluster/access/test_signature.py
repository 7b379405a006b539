"""cluster/access/signature.py against requests that RocketMQ's own clients signed and 5.3.3 accepted."""

from __future__ import annotations

import pytest

from tandemmq.cluster.access.signature import is_signed, sign, sign_own, signature_of
from tandemmq.cluster.remoting.command import Command

PASSWORDS = {"alice": "alice123", "root": "rootpw12", "inner": "innerpw1"}
FIELDS = "a=ga b=TopicA c=TBW102 d=4 e=0 f=0 h=0 j=0 k=false m=false n=ba"
KEYS = "KEYS\x01k{}\x02UNIQ_KEY\x01{}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
HEARTBEAT = (
    '{"clientID":"192.0.2.2@31891#3804357710562","consumerDataSet":[],"heartbeatFingerprint":0,'
    '"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"},{"groupName":"ga"}],"withoutSub":false}'
)


def fields(text: str, **more: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split()) | more


SENT = fields(
    FIELDS,
    g="1795370377548",
    i=KEYS.format(1, "FD0000000000000000000000000000027C934E0E2F2A7001F94C0000"),
)
ONEWAY = fields(
    FIELDS,
    g="1795370377580",
    i=KEYS.format(2, "FD0000000000000000000000000000027C934E0E2F2A7001F96C0001"),
)
TOKEN = fields(
    FIELDS, g="1795370440634", SecurityToken="tok123",
    i=KEYS.format(1, "FD0000000000000000000000000000027F444E0E2F2A7002EFBA0000"),
)  # fmt: skip
BINARY = fields(
    FIELDS,
    g="1795370437663",
    i=KEYS.format(1, "FD0000000000000000000000000000027EBC4E0E2F2A7002E41F0000"),
)
PULL = fields(
    "queueId=0 commitOffset=0 suspendTimeoutMillis=15000 bname=ba sysFlag=2 expressionType=TAG topic=TopicA "
    "consumerGroup=ga maxMsgNums=32 queueOffset=0 subVersion=1795370380191 maxMsgBytes=262144"
)
QUEUE = "queueId=0 bname=ba topic=TopicA consumerGroup=ga"
BOB = '{"password":"bob12345","userType":"Normal","username":"bob"}'
RULES = (
    '{"policies":[{"entries":[{"actions":["Pub"],"decision":"Allow","resource":"Topic:*",'
    '"sourceIps":["10.0.0.1"]}]}],"subject":"User:bob"}'
)
VECTORS = [
    ("alice", fields("topic=TopicA"), "", "TNm9ru/SNFCNFM5zSBcU2gBZdYQ="),
    ("alice", SENT, "hello", "uzgqSsWC6ydvMqJUfdAHQzeAKGM="),
    ("alice", ONEWAY, "ow", "JcURuUDWFPniK4EIMqAMacMGa6s="),
    ("alice", TOKEN, "hello", "k2Z3yoyhMSkpgHVXC3087qeReuk="),
    ("alice", BINARY, "hello", "VrXwcwC5XLpz2NzIkA5bemQt8LE="),
    ("alice", PULL, "", "Q+XY9TAJN45DBHi2DaYqh2dyDb4="),
    ("alice", {}, HEARTBEAT, "dR1wFq55qFpYZQEGpfnu0jh6MOA="),
    ("alice", fields("consumerGroup=ga"), "", "cLaPJ8NzMR80lR4/tA6WLOuqnGU="),
    ("alice", fields(QUEUE), "", "MpcAUWPYTR2JdLhe9+qjBMXQYtQ="),
    ("alice", fields(QUEUE, commitOffset="3"), "", "eSR/Qxk958y+VD9VtjGxBHdZTBk="),
    (
        "alice",
        fields("clientID=192.0.2.2@31891#3804357710562 producerGroup=ga"),
        "",
        "w9WL3G5quZqz5bmlHFjrP3OBOZA=",
    ),
    ("inner", {}, "", "p8ind0ppz/A/6CeCg0gHK1AIHqQ="),
    ("root", {}, "", "J489o4Bjr54e2ithUd8BnAa3QYQ="),
    ("root", fields("filter=bo"), "", "oLqtKVW0ZYd3O+HVLsIOwuMgKVo="),
    ("root", fields("username=bob"), "", "6OyXr6eR7DhfCdxtJp+NFLOrr9A="),
    ("root", fields("subject=User:bob"), "", "CtOLPRMvsjlZQaHisqlw9vjnOZ8="),
    ("root", fields("subject=User:bob resource=Topic:*"), "", "V/7bL7xQVhMGvJDrjp3v0n8x7zA="),
    ("root", fields("subjectFilter=bob resourceFilter=Topic"), "", "koLNVo/kKugwNleKfTkrOlqmjR4="),
    ("root", fields("username=bob"), BOB, "YGlrdmPfnJNFhUkveS7CwzyRSF4="),
    (
        "root",
        fields("username=bob"),
        '{"userStatus":"disable","username":"bob"}',
        "jy2jy4fdi6OOIME0Rcy105CUGvc=",
    ),
    ("root", fields("subject=User:bob"), RULES, "1wqKfvbzfAh0F0+neQ55l3nnK1Q="),
    ("root", {}, "flushDiskType=ASYNC_FLUSH\n", "1bOeZ48A21PygkjZU+c/YS0cjRg="),
]


@pytest.mark.parametrize(("user", "ext", "body", "tag"), VECTORS)
def test_requests_that_java_clients_signed_are_signed(
    user: str, ext: dict[str, str], body: str, tag: str
) -> None:
    signed = {**ext, "AccessKey": user, "Signature": tag}
    assert is_signed(signed, body.encode() or None, PASSWORDS[user])
    assert not is_signed(signed, body.encode() + b"x", PASSWORDS[user])
    assert not is_signed(signed, body.encode() or None, "another1")
    for bad in (tag[:-1], tag + " ", tag.lower(), ""):
        assert not is_signed({**signed, "Signature": bad}, body.encode() or None, PASSWORDS[user])
    command = Command(310, dict(ext), body.encode() or None)
    sign(command, user, PASSWORDS[user])
    assert (command.ext or {})["Signature"] == tag


def test_fields_that_clients_add_behind_the_signature_do_not_spoil_it() -> None:
    ext = {"topic": "T", "AccessKey": "alice"}
    ext["Signature"] = signature_of(ext, None, "alice123")
    for late in ("__ZONE_NAME", "__ZONE_MODE", "_UNIQUE_KEY_QUERY"):
        assert is_signed({**ext, late: "true"}, None, "alice123")
    assert not is_signed({**ext, "other": "true"}, None, "alice123")
    within = {"topic": "T", "AccessKey": "alice", "_UNIQUE_KEY_QUERY": "true"}  # clients of 5.x
    within["Signature"] = signature_of(within, None, "alice123")
    assert is_signed(within, None, "alice123")


def test_names_are_ordered_as_java_orders_them() -> None:
    beyond, private = "\U00010000", "\ue000"  # by code point the other way round
    ext = {private: "2", beyond: "1", "AccessKey": "a"}
    assert signature_of(ext, None, "k") == signature_of({"AccessKey": "a12"}, None, "k")


def test_our_own_requests_say_their_code_among_what_is_signed() -> None:
    """What one of our processes asks a peer must not be of use for another request."""
    command = Command(201, {"tableStamp": ""})
    sign_own(command, "inner", "innerpw1")
    ext = command.ext or {}
    assert ext["SignedCode"] == "201." and is_signed(ext, None, "innerpw1")
    assert not is_signed({**ext, "SignedCode": "26."}, None, "innerpw1")
    assert ext["Signature"] != signature_of({"AccessKey": "inner"}, None, "innerpw1")
