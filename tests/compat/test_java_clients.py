"""Stock Java clients, old and new, with both header forms, work unchanged."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime

import pytest
from clients import Clients, Cluster, by_queue, texts

from tandemmq.chaos.asking import ask, routed
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker
from tandemmq.java import Driver, DriverError, body_of, encoded, sha_of

COMPRESSED = 0x1
RETRY_DELAY_MS = 2000  # level 3 of the cluster fixture's delay levels


def numbered(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{i:03}" for i in range(count)]


def test_synchronous_sends_are_answered_with_place_and_ids(clients: Clients) -> None:
    topic = clients.topic()
    sent = clients.send(topic, numbered(12))
    assert {s["status"] for s in sent} == {"SEND_OK"}
    assert {s["queueId"] for s in sent} == {0, 1, 2, 3}  # round robin over the route's queues
    assert [s["queueOffset"] for s in sent if s["queueId"] == 2] == [0, 1, 2]
    assert len({s["offsetMsgId"] for s in sent}) == len({s["msgId"] for s in sent}) == 12
    clients.wait_stored(topic, 12)
    stored = {(m["queueId"], m["queueOffset"]): m for m in clients.stored(topic)}
    for body, answer in zip(numbered(12), sent, strict=True):
        message = stored[answer["queueId"], answer["queueOffset"]]
        assert body_of(message).decode() == body
        assert message["msgId"] == answer["msgId"]


def test_everything_a_message_carries_arrives_unchanged(clients: Clients) -> None:
    topic = clients.topic()
    body = bytes(range(256))
    message = {
        **encoded(body), "tags": "Tägé-签", "keys": "k-1 schlüssel", "flag": -1,
        "properties": {"user": "värde ✓", "empty.not": "0", "long": "x" * 3000},
    }  # fmt: skip
    (sent,) = clients.send(topic, [message])
    consumer = clients.push(topic)
    (got,) = clients.driver.wait_messages(consumer, 1)
    assert body_of(got) == body
    assert (got["tags"], got["keys"], got["flag"]) == ("Tägé-签", "k-1 schlüssel", -1)
    assert {k: got["properties"][k] for k in message["properties"]} == message["properties"]
    assert got["msgId"] == sent["msgId"]
    assert got["reconsumeTimes"] == 0
    assert got["storeHost"] == clients.cluster.broker.address
    assert got["bornHost"].startswith("127.0.0.1:")
    assert got["bornMs"] <= got["storeMs"] <= time.time() * 1000


def test_a_topic_comes_into_being_with_its_first_message(clients: Clients) -> None:
    topic = clients.fresh("AutoTopic")
    (sent,) = clients.send(topic, ["first"])
    assert sent["status"] == "SEND_OK"
    # A consumer that starts now asks once, and then not again for a long time.
    assert routed(clients.cluster.name_server, topic), "the answer came before the route was known"
    consumer = clients.push(topic)
    assert texts(clients.driver.wait_messages(consumer, 1)) == ["first"]


def test_asynchronous_sends_all_get_their_own_answer(clients: Clients) -> None:
    topic = clients.topic()
    sent = clients.send(topic, numbered(200), "async")
    assert all(s.get("status") == "SEND_OK" for s in sent), sent
    places = {(s["queueId"], s["queueOffset"]) for s in sent}
    assert len(places) == 200
    clients.wait_stored(topic, 200)
    stored = {(m["queueId"], m["queueOffset"]): body_of(m).decode() for m in clients.stored(topic)}
    for body, answer in zip(numbered(200), sent, strict=True):
        assert stored[answer["queueId"], answer["queueOffset"]] == body


def test_oneway_sends_arrive_without_an_answer(clients: Clients) -> None:
    topic = clients.topic()
    clients.send(topic, numbered(50), "oneway")
    clients.wait_stored(topic, 50)
    assert sorted(texts(clients.stored(topic))) == numbered(50)


def test_a_batch_is_stored_in_one_queue_in_order(clients: Clients) -> None:
    topic = clients.topic()
    messages = [
        {"body": b, "tags": f"T{i % 2}", "keys": f"batch-{b}"} for i, b in enumerate(numbered(20))
    ]
    answer = clients.send(topic, messages, "batch")
    assert answer["status"] == "SEND_OK"
    assert len(answer["offsetMsgId"].split(",")) == 20
    clients.wait_stored(topic, 20)
    stored = clients.stored(topic)
    assert texts(stored) == numbered(20)
    assert {m["queueId"] for m in stored} == {answer["queueId"]}
    assert [m["queueOffset"] for m in stored] == list(range(20))
    assert [m["tags"] for m in stored] == ["T0", "T1"] * 10
    assert [m["keys"] for m in stored] == [f"batch-{b}" for b in numbered(20)]


def test_a_selector_and_a_named_queue_decide_where_a_message_goes(clients: Clients) -> None:
    topic = clients.topic()
    messages = [{"body": b, "arg": i} for i, b in enumerate(numbered(12))]
    sent = clients.send(topic, messages, "selector")
    assert [s["queueId"] for s in sent] == [0, 1, 2, 3] * 3
    broker = clients.cluster.broker.broker_name
    (fixed,) = clients.send(topic, ["here"], "queue", broker=broker, queueId=3)
    assert (fixed["queueId"], fixed["queueOffset"]) == (3, 3)


def test_a_queue_that_is_not_there_is_refused(clients: Clients) -> None:
    topic = clients.topic()
    with pytest.raises(DriverError) as refused:
        clients.send(
            topic, ["nowhere"], "queue", broker=clients.cluster.broker.broker_name, queueId=9
        )
    assert refused.value.kind == "MQBrokerException"


def test_tags_choose_what_a_consumer_gets(clients: Clients) -> None:
    topic = clients.topic()
    messages = [{"body": f"{tag}{i}", "tags": tag} for i in range(10) for tag in ("A", "B", "C")]
    messages += [{"body": "untagged"}]
    # "Aa" and "BB" have one hash code: the broker cannot tell them apart, the client must.
    messages += [{"body": "same-hash-wanted", "tags": "Aa"}, {"body": "same-hash", "tags": "BB"}]
    clients.send(topic, messages)
    some = clients.push(topic, expression="A || C || Aa")
    everything = clients.push(topic, expression="*")
    got = texts(clients.driver.wait_messages(some, 21))
    assert sorted(got) == sorted(
        [f"{t}{i}" for i in range(10) for t in "AC"] + ["same-hash-wanted"]
    )
    assert len(clients.driver.wait_messages(everything, 33)) == 33
    assert len(clients.driver.messages(some)) == 21


def test_an_arriving_message_wakes_the_waiting_pull_at_once(clients: Clients) -> None:
    topic = clients.topic()
    consumer = clients.push(topic)
    wait_until(lambda: len(clients.assigned(consumer)) == 4, 15, "all queues assigned")
    clients.send(topic, ["first"])
    clients.driver.wait_messages(consumer, 1)  # the consumer's pulls are held now, or soon
    clients.send(topic, numbered(20))
    got = clients.driver.wait_messages(consumer, 21)[1:]
    waits = sorted(m["atMs"] - m["storeMs"] for m in got)
    assert waits[len(waits) // 2] < 500, waits


def test_an_orderly_consumer_sees_each_queue_in_order_and_retries_in_place(
    clients: Clients,
) -> None:
    topic = clients.topic()
    messages = [{"body": b, "arg": i} for i, b in enumerate(numbered(40))]
    clients.send(topic, messages, "selector")
    consumer = clients.push(topic, orderly=True, failUntil=1, suspendMs=10)
    got = clients.driver.wait_messages(consumer, 80)
    for queue_id, bodies in by_queue(got).items():
        mine = [b for i, b in enumerate(numbered(40)) if i % 4 == queue_id]
        assert bodies == [b for b in mine for _ in range(2)]
    assert [m["reconsumeTimes"] for m in got if m["queueId"] == 0][:4] == [0, 1, 0, 1]


def test_orderly_consumers_share_queues_through_broker_locks(clients: Clients) -> None:
    topic = clients.topic()
    group = clients.fresh("OrderGroup")
    first = clients.push(topic, group=group, orderly=True)
    wait_until(lambda: len(clients.assigned(first)) == 4, 20, "first has every queue")
    clients.send(topic, [{"body": b, "arg": i} for i, b in enumerate(numbered(8))], "selector")
    clients.driver.wait_messages(first, 8)
    second = clients.push(topic, group=group, orderly=True)
    wait_until(
        lambda: len(clients.assigned(first)) == len(clients.assigned(second)) == 2, 40, "two each"
    )
    clients.send(
        topic, [{"body": b, "arg": i} for i, b in enumerate(numbered(40, "n"))], "selector"
    )
    clients.driver.wait_for(
        lambda: _count_from(clients, (first, second), "n") >= 40, 40, "40 messages at both"
    )
    for consumer in (first, second):
        got = [m for m in clients.driver.messages(consumer) if body_of(m).startswith(b"n")]
        assert {m["queueId"] for m in got} == clients.assigned(consumer)
        for bodies in by_queue(got).values():
            assert bodies == sorted(bodies)
    assert _count_from(clients, (first, second), "n") == 40


def _count_from(clients: Clients, consumers: tuple[str, ...], prefix: str) -> int:
    return sum(
        body_of(m).decode().startswith(prefix)
        for c in consumers
        for m in clients.driver.messages(c)
    )


def test_a_group_shares_the_queues_again_when_members_join_leave_and_crash(
    clients: Clients, another_driver: Callable[[], Driver]
) -> None:
    topic = clients.topic(queues=8)
    group = clients.fresh("ShareGroup")
    first = clients.push(topic, group=group)
    wait_until(lambda: len(clients.assigned(first)) == 8, 15, "the only member has all")
    second = clients.push(topic, group=group)
    wait_until(
        lambda: [len(clients.assigned(c)) for c in (first, second)] == [4, 4],
        15,
        "4 and 4 after a join",
    )
    assert clients.assigned(first) | clients.assigned(second) == set(range(8))

    other = another_driver()
    third = clients.push(topic, group=group, driver=other)

    def shares() -> list[int]:
        mine = [len(clients.assigned(c)) for c in (first, second)]
        return sorted([*mine, len(clients.assigned(third, other))])

    wait_until(lambda: shares() == [2, 3, 3], 15, "3, 3 and 2 with the member of another process")
    bodies = numbered(64, "three")
    clients.send(topic, bodies)
    wait_until(
        lambda: _seen(clients, topic, (first, second), other, third) >= set(bodies), 20, "all"
    )
    owners = [clients.assigned(first), clients.assigned(second), clients.assigned(third, other)]
    assert sum(map(len, owners)) == 8 and set.union(*owners) == set(range(8))

    other.kill()
    wait_until(
        lambda: clients.assigned(first) | clients.assigned(second) == set(range(8)), 20,
        "the others take over the queues of the crashed member",
    )  # fmt: skip
    bodies = numbered(64, "crash")
    clients.send(topic, bodies)
    wait_until(
        lambda: _seen(clients, topic, (first, second)) >= set(bodies), 20, "all after the crash"
    )

    clients.stop(second)
    wait_until(lambda: clients.assigned(first) == set(range(8)), 15, "the last member has all")
    bodies = numbered(64, "left")
    clients.send(topic, bodies)
    wait_until(lambda: _seen(clients, topic, (first,)) >= set(bodies), 20, "all after the leave")
    repeats = Counter(texts(clients.driver.messages(first)))
    assert {repeats[b] for b in bodies} == {1}


def _seen(
    clients: Clients,
    topic: str,
    consumers: tuple[str, ...],
    other: Driver | None = None,
    third: str = "",
) -> set[str]:
    seen = {body_of(m).decode() for c in consumers for m in clients.driver.messages(c)}
    return seen | (set(texts(other.messages(third))) if other else set())


def test_a_group_goes_on_where_it_stopped(clients: Clients) -> None:
    topic = clients.topic()
    group = clients.fresh("ResumeGroup")
    clients.send(topic, numbered(20))
    first = clients.push(topic, group=group)
    clients.driver.wait_messages(first, 20)
    wait_until(
        lambda: clients.driver.call("push.unfinished", name=first) == 0, 10,
        "the client has counted what its listener returned from",
    )  # fmt: skip
    clients.stop(first)
    clients.send(topic, numbered(20, "later"))
    second = clients.push(topic, group=group)
    got = texts(clients.driver.wait_messages(second, 20))
    assert sorted(got) == numbered(20, "later")


def test_broadcasting_gives_every_member_every_message(clients: Clients) -> None:
    topic = clients.topic()
    group = clients.fresh("BroadcastGroup")
    clients.send(topic, numbered(20))
    members = [
        clients.push(topic, group=group, broadcasting=True, instance=clients.fresh("instance"))
        for _ in range(2)
    ]
    for member in members:
        assert sorted(texts(clients.driver.wait_messages(member, 20))) == numbered(20)
        assert clients.assigned(member) == {0, 1, 2, 3}


def test_a_message_to_be_consumed_later_comes_back_after_its_delay(clients: Clients) -> None:
    topic = clients.topic()
    group = clients.fresh("RetryGroup")
    _make_known(clients, topic, group)
    consumer = clients.push(topic, group=group, failUntil=1)
    (sent,) = clients.send(topic, [{"body": "again", "tags": "T", "keys": "retried"}])
    first, second = clients.driver.wait_messages(consumer, 2, timeout_s=40)
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)
    assert first["msgId"] == second["msgId"] == sent["msgId"]
    assert second["topic"] == topic  # the client restores it from RETRY_TOPIC
    assert second["properties"]["RETRY_TOPIC"] == topic
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]
    assert (second["tags"], second["keys"]) == ("T", "retried")
    assert second["atMs"] - first["atMs"] >= RETRY_DELAY_MS - 100
    assert first["properties"].get("RETRY_TOPIC") is None


def _make_known(clients: Clients, topic: str, group: str) -> None:
    """Makes the group's retry topic: the first member of a new group sees it 20 s late."""
    clients.stop(clients.push(topic, group=group))
    retries = f"%RETRY%{group}"
    wait_until(lambda: routed(clients.cluster.name_server, retries), 10, f"route of {retries}")


def test_a_message_that_fails_too_often_becomes_a_dead_letter(clients: Clients) -> None:
    topic = clients.topic()
    group = clients.fresh("DeadGroup")
    _make_known(clients, topic, group)
    consumer = clients.push(topic, group=group, failUntil=99, maxReconsumeTimes=1)
    clients.send(topic, [{"body": "doomed", "keys": "dead"}])
    dead = f"%DLQ%{group}"
    wait_until(lambda: routed(clients.cluster.name_server, dead), 40, f"route of {dead}")
    got = clients.driver.wait_messages(consumer, 2)
    assert [m["reconsumeTimes"] for m in got] == [0, 1]
    if _not_readable(clients.cluster, dead):
        pytest.skip("the stock 4.9.7 broker does not let anybody read dead letters")
    clients.wait_stored(dead, 1, queues=1)
    (letter,) = clients.stored(dead, queues=1)
    assert body_of(letter) == b"doomed"
    assert letter["keys"] == "dead"
    assert letter["properties"]["RETRY_TOPIC"] == topic


def _not_readable(cluster: Cluster, topic: str) -> bool:
    body = ask(cluster.name_server, 105, {"topic": topic})[2]
    return isinstance(cluster.broker, JavaBroker) and b'"perm":2' in body


def test_delay_levels_hold_a_message_back(clients: Clients) -> None:
    topic = clients.topic()
    consumer = clients.push(topic)
    wait_until(lambda: len(clients.assigned(consumer)) == 4, 15, "all queues assigned")
    before = time.time() * 1000
    clients.send(topic, [{"body": "delayed", "delay": 3}, {"body": "at once"}])
    at_once, delayed = clients.driver.wait_messages(consumer, 2)
    assert body_of(at_once) == b"at once"
    assert body_of(delayed) == b"delayed"
    assert delayed["atMs"] - before >= RETRY_DELAY_MS - 100


def test_bodies_above_four_kib_travel_compressed(clients: Clients) -> None:
    topic = clients.topic()
    plain = random.Random(1).randbytes(3000)
    large = b"tandem " * 20_000
    noise = random.Random(2).randbytes(300_000)
    clients.send(topic, [encoded(b) for b in (plain, large, noise)])
    consumer = clients.push(topic)
    got = {m["bodyBytes"]: m for m in clients.driver.wait_messages(consumer, 3)}
    assert {m["sha"] for m in got.values()} == {sha_of(b) for b in (plain, large, noise)}
    assert got[len(plain)]["storeSize"] > len(plain)
    assert got[len(large)]["storeSize"] < len(large) // 20  # deflated by the producer, stored so
    assert got[len(noise)]["storeSize"] > len(noise) * 9 // 10


def test_a_body_of_four_mib_is_the_limit(clients: Clients) -> None:
    topic = clients.topic(queues=1)
    noise = random.Random(3).randbytes(4 * 1024 * 1024 - 4096)
    (sent,) = clients.send(topic, [encoded(noise)])
    assert sent["status"] == "SEND_OK"
    clients.wait_stored(topic, 1, queues=1)
    (stored,) = clients.stored(topic, queues=1)
    assert stored["sha"] == sha_of(noise)


def test_messages_are_found_by_key(clients: Clients) -> None:
    topic = clients.topic()
    begin = int(time.time() * 1000) - 5000  # the index keeps whole seconds
    clients.send(
        topic,
        [{"body": f"{i}", "keys": f"order-{i % 3} line-{i}"} for i in range(12)]
        + [{"body": "no key"}],
    )
    wait_until(lambda: len(_found(clients, topic, "order-1", begin)) == 4, 15, "four are indexed")
    assert sorted(_found(clients, topic, "order-1", begin)) == ["1", "10", "4", "7"]
    wait_until(lambda: _found(clients, topic, "line-11", begin) == ["11"], 15, "the last one")
    assert _found(clients, topic, "order-9", begin) == []


def _found(clients: Clients, topic: str, key: str, begin_ms: int) -> list[str]:
    try:
        return texts(clients.ask("pull.query", topic, key=key, beginMs=begin_ms))
    except DriverError as error:
        if "query message by key finished, but no message" not in error.text:
            raise
        return []


def test_messages_are_found_by_both_ids(clients: Clients) -> None:
    topic = clients.topic()
    sent = clients.send(topic, [{"body": b, "keys": b} for b in numbered(5)])
    clients.wait_stored(topic, 5)
    for body, answer in zip(numbered(5), sent, strict=True):
        by_offset_id = clients.ask("pull.view", topic, msgId=answer["offsetMsgId"])
        by_unique_id = clients.ask("pull.view", topic, msgId=answer["msgId"])
        assert body_of(by_offset_id).decode() == body_of(by_unique_id).decode() == body
        assert by_offset_id["queueOffset"] == answer["queueOffset"]


def test_first_last_and_times_find_their_offsets(clients: Clients) -> None:
    topic = clients.topic(queues=1)
    clients.send(topic, numbered(10))
    clients.wait_stored(topic, 10, queues=1)
    stored = clients.stored(topic, queues=1)
    wait_until(lambda: time.time() * 1000 > stored[-1]["storeMs"] + 20, 5, "time moves on")
    between = stored[-1]["storeMs"] + 10
    clients.send(topic, numbered(10, "late"))
    clients.wait_stored(topic, 20, queues=1)
    offsets = clients.ask("pull.offsets", topic, timeMs=between)
    assert (offsets["min"], offsets["max"]) == (0, 20)
    assert offsets["earliestMs"] == stored[0]["storeMs"]
    # 4.9.7 brokers answer the nearest message where 5.x ones answer the first at or after the time.
    assert offsets["atTime"] == 10 or (_meets_stock_497(clients) and offsets["atTime"] == 9)
    assert clients.ask("pull.offsets", topic, timeMs=1)["atTime"] == 0
    assert clients.ask("pull.offsets", topic, timeMs=2**41)["atTime"] in (19, 20)


def _meets_stock_497(clients: Clients) -> bool:
    broker = clients.cluster.broker
    return isinstance(broker, JavaBroker) and broker.version == "4.9.7"


def test_new_groups_start_at_the_first_or_last_message_or_at_a_time(
    clients: Clients, cold_broker: Broker | JavaBroker
) -> None:
    if isinstance(cold_broker, JavaBroker) and cold_broker.version == "5.3.3":
        pytest.skip(
            "the stock 5.3.3 broker asks the page cache what is young: no setting changes it"
        )
    topic = clients.topic(broker=cold_broker)
    cold = {"broker": cold_broker.broker_name}
    clients.send(topic, numbered(8, "old"))
    clients.wait_stored(topic, 8, **cold)
    first = clients.push(topic)
    last = clients.push(topic, **{"from": "CONSUME_FROM_LAST_OFFSET"})
    # Times of the client have whole seconds, and 4.9.7 brokers look for the nearest message.
    newest = max(m["storeMs"] for m in clients.stored(topic, **cold))
    second = newest // 1000 + 2
    wait_until(lambda: time.time() > second + 0.05, 5, "the next second")
    wait_until(lambda: len(clients.assigned(last)) == 4, 15, "last has its queues")
    clients.driver.wait_messages(first, 8)
    clients.send(topic, numbered(8, "new"))
    stamp = datetime.fromtimestamp(second).strftime("%Y%m%d%H%M%S")
    timed = clients.push(topic, timestamp=stamp, **{"from": "CONSUME_FROM_TIMESTAMP"})
    assert sorted(texts(clients.driver.wait_messages(first, 16))) == numbered(8, "new") + numbered(
        8, "old"
    )
    assert sorted(texts(clients.driver.wait_messages(last, 8))) == numbered(8, "new")
    assert sorted(texts(clients.driver.wait_messages(timed, 8))) == numbered(8, "new")


def test_a_new_group_gets_a_young_topic_from_its_first_message(clients: Clients) -> None:
    topic = clients.topic()
    clients.send(topic, numbered(8))
    clients.wait_stored(topic, 8)
    last = clients.push(topic, **{"from": "CONSUME_FROM_LAST_OFFSET"})
    assert sorted(texts(clients.driver.wait_messages(last, 8))) == numbered(8)


def test_the_pull_consumer_reads_waits_and_keeps_offsets(clients: Clients) -> None:
    topic = clients.topic(queues=1)
    clients.send(topic, [{"body": b, "tags": "AB"[i % 2]} for i, b in enumerate(numbered(50))])
    clients.wait_stored(topic, 50, queues=1)
    page = clients.ask("pull.pull", topic, offset=10, max=8)
    assert (page["status"], page["next"], page["min"], page["max"]) == ("FOUND", 18, 0, 50)
    assert texts(page["messages"]) == numbered(50)[10:18]
    tagged = clients.ask("pull.pull", topic, offset=0, max=32, expression="B")
    assert texts(tagged["messages"])[:4] == ["m001", "m003", "m005", "m007"]
    assert clients.ask("pull.pull", topic, offset=50)["status"] == "NO_NEW_MSG"
    beyond = clients.ask("pull.pull", topic, offset=500)
    assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 50)
    none = clients.ask("pull.pull", topic, offset=0, expression="Z")
    assert none["status"] == "NO_MATCHED_MSG" and 0 < none["next"] <= 50
    clients.ask("pull.commit", topic, offset=17)
    wait_until(lambda: clients.ask("pull.committed", topic) == 17, 10, "offset committed")


def test_the_lite_pull_consumer_polls_seeks_and_commits(clients: Clients) -> None:
    if _meets_stock_497(clients) and clients.driver.version == "5.3.3":
        pytest.skip("the stock 4.9.7 broker does not know the lite pull request of 5.x clients")
    topic = clients.topic(queues=2)
    broker = clients.cluster.broker.broker_name
    sent = clients.send(
        topic, [{"body": b, "arg": i} for i, b in enumerate(numbered(40))], "selector"
    )
    group = clients.fresh("LiteGroup")
    lite = clients.lite(topic, group=group)
    got = clients.driver.call("lite.poll", name=lite, count=40)
    assert sorted(texts(got)) == numbered(40)
    queue = {"topic": topic, "broker": broker, "queueId": 1}
    clients.driver.call("lite.seek", name=lite, offset=15, **queue)
    again = clients.driver.call("lite.poll", name=lite, count=5)
    assert texts(again) == [b for i, b in enumerate(numbered(40)) if i % 2][15:]
    clients.driver.call("lite.commit", name=lite, offset=7, **queue)
    wait_until(
        lambda: clients.driver.call("lite.committed", name=lite, **queue) == 7,
        10,
        "offset committed",
    )
    assert sent[0]["status"] == "SEND_OK"

    assigned = clients.lite(topic, assign=True)
    got = clients.driver.call("lite.poll", name=assigned, count=40)
    assert sorted(texts(got)) == numbered(40)


def test_topics_without_permission_are_neither_written_nor_read(clients: Clients) -> None:
    only_write = clients.topic(queues=1, perm=2)
    clients.send(only_write, ["in"])
    with pytest.raises(DriverError):
        clients.ask("pull.pull", only_write, offset=0)
