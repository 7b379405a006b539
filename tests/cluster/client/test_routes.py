"""Routes: which queues to send to and to read, and where their brokers listen."""

from __future__ import annotations

import pytest

from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.reaching.routes import BrokerTable, parse_route

STANDARD = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
    b'"brokerName":"broker-b","cluster":"C","enableActingMaster":false},'
    b'{"brokerAddrs":{"0":"10.0.0.3:10911"},"brokerName":"broker-a","cluster":"C"}],'
    b'"filterServerTable":{},"queueDatas":['
    b'{"brokerName":"broker-b","perm":6,"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":2},'
    b'{"brokerName":"broker-a","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1}]}'
)
LEGACY = STANDARD.replace(b'"0":"10', b'0:"10').replace(b'"1":"10', b'1:"10')


def texts(queues: object) -> list[str]:
    return [str(queue) for queue in queues]  # type: ignore[attr-defined]


@pytest.mark.parametrize("body", [STANDARD, LEGACY])
def test_queues_come_sorted_by_broker_in_both_json_dialects(body: bytes) -> None:
    route = parse_route(body)
    assert texts(route.publish_queues("T")) == ["T@broker-a:0", "T@broker-b:0", "T@broker-b:1"]
    assert texts(route.read_queues("T")) == [
        "T@broker-a:0", "T@broker-b:0", "T@broker-b:1", "T@broker-b:2"
    ]  # fmt: skip


def test_broker_without_a_master_is_read_but_not_written() -> None:
    route = parse_route(STANDARD.replace(b'"0":"10.0.0.1:10911",', b""))
    assert texts(route.publish_queues("T")) == ["T@broker-a:0"]
    assert len(route.read_queues("T")) == 4


@pytest.mark.parametrize(("perm", "writable", "readable"), [(2, 2, 0), (4, 0, 3), (0, 0, 0)])
def test_permission_bits_decide_what_a_broker_is_used_for(
    perm: int, writable: int, readable: int
) -> None:
    body = STANDARD.replace(b'"broker-b","perm":6', f'"broker-b","perm":{perm}'.encode())
    route = parse_route(body)
    assert len(route.publish_queues("T")) == 1 + writable
    assert len(route.read_queues("T")) == 1 + readable


def test_order_configuration_replaces_the_publish_queues() -> None:
    route = parse_route(
        STANDARD.replace(
            b'"filterServerTable"', b'"orderTopicConf":"broker-b:1;broker-a:1","filterServerTable"'
        )
    )
    assert texts(route.publish_queues("T")) == ["T@broker-b:0", "T@broker-a:0"]


def test_template_route_offers_at_most_the_queues_a_send_creates() -> None:
    template = parse_route(
        STANDARD.replace(b'"readQueueNums":3', b'"readQueueNums":8')
    ).as_template(4)
    assert len(template.publish_queues("New")) == 1 + 4


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"queueDatas":[{}]}', b'{"brokerDatas":[{"brokerName":"a"}]}', b"7"],
)
def test_answer_that_is_no_route_is_an_error(body: bytes) -> None:
    with pytest.raises(BrokerAnswerBroken):
        parse_route(body)


def test_learning_the_same_route_again_is_no_change() -> None:
    table = BrokerTable()
    assert table.learn("T", parse_route(STANDARD))
    assert not table.learn("T", parse_route(LEGACY))
    assert table.learn("T", parse_route(STANDARD.replace(b"10.0.0.3", b"10.0.0.4")))


def test_reader_is_the_suggested_member_else_the_next_id_else_any() -> None:
    table = BrokerTable()
    table.learn("T", parse_route(STANDARD))
    assert table.reader("broker-b", 1) == ("10.0.0.2:10911", 1)
    assert table.reader("broker-b", 0) == ("10.0.0.1:10911", 0)
    assert table.reader("broker-b", 5) == ("10.0.0.1:10911", 0)
    assert table.reader("broker-a", 1) == ("10.0.0.3:10911", 0)
    assert table.reader("broker-c", 0) is None


def test_only_consumers_send_heartbeats_to_slaves() -> None:
    table = BrokerTable()
    table.learn("T", parse_route(STANDARD))
    assert table.heartbeat_addresses(with_slaves=False) == ["10.0.0.1:10911", "10.0.0.3:10911"]
    assert len(table.heartbeat_addresses(with_slaves=True)) == 3


def test_addresses_of_a_forgotten_topic_go_unless_another_names_them() -> None:
    table = BrokerTable()
    table.learn("T", parse_route(STANDARD))
    table.learn("U", parse_route(STANDARD.replace(b"broker-b", b"broker-z")))
    table.forget("T")
    assert table.master("broker-b") is None
    assert table.master("broker-a") == "10.0.0.3:10911"
    assert table.publish_queues("T") == ()


def test_only_an_address_that_routes_once_named_can_leave_them() -> None:
    table = BrokerTable()
    table.learn("T", parse_route(STANDARD))
    assert not table.left("10.0.0.2:10911")
    assert not table.left("10.0.0.9:9878")  # a controller: no route ever named it
    table.learn("T", parse_route(STANDARD.replace(b',"1":"10.0.0.2:10911"', b"")))
    assert table.left("10.0.0.2:10911")
    assert not table.left("10.0.0.9:9878")
    table.learn("T", parse_route(STANDARD))
    assert not table.left("10.0.0.2:10911")


def test_a_new_topic_is_merged_without_looking_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand topics took ten thousand squared steps: most of what statsAll did."""
    table = BrokerTable()
    with monkeypatch.context() as patched:
        patched.setattr(BrokerTable, "_merge", lambda self: pytest.fail("all of them"))
        for number in range(3):
            route = parse_route(STANDARD.replace(b"10.0.0.3", b"10.0.0.%d" % (4 + number)))
            assert table.learn(f"T{number}", route)
    assert table.master("broker-a") == "10.0.0.6:10911"  # the last one's word
    assert table.version == 3
    table.forget("T2")
    assert table.master("broker-a") == "10.0.0.5:10911"
