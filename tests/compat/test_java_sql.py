"""Stock Java clients choose by properties: push, pull and lite pull consumers, of both releases."""

from __future__ import annotations

from typing import Any

import pytest
from clients import AGAINST, Clients, texts

from tandemmq.chaos.processes import wait_until
from tandemmq.java import DriverError

PRICES = range(0, 120, 3)
DEAR = "price BETWEEN 60 AND 90 AND region IN ('eu', 'us') AND note NOT CONTAINS 'x' OR price = 3L"
WRONG = "price > 'dear'"


def offers() -> list[dict[str, Any]]:
    regions = ("eu", "us", "asia")
    return [
        {
            "body": f"{price:03}",
            "properties": {"price": str(price), "region": regions[number % 3], "note": "a note"},
        }
        for number, price in enumerate(PRICES)
    ]


def wanted() -> list[str]:
    return [
        offer["body"]
        for offer in offers()
        if (60 <= int(offer["body"]) <= 90 and offer["properties"]["region"] != "asia")
        or offer["body"] == "003"
    ]


def test_a_push_consumer_gets_what_its_filter_takes(clients: Clients) -> None:
    topic = clients.topic()
    clients.send(topic, offers()[:20])
    # What failed comes again by the retry topic, which nobody filters. Stock clients read it only
    # 20 s later: one of four is enough.
    tries = 2 if (clients.driver.version, clients.driver.serialization) == ("5.3.3", "json") else 1
    consumer = clients.push(topic, sql=DEAR, failUntil=tries - 1)
    wait_until(lambda: len(clients.assigned(consumer)) == 4, 15, "all queues assigned")
    clients.driver.wait_messages(consumer, 1)
    clients.send(topic, [*offers()[20:], {"body": "last", "properties": {"price": "3"}}])
    got = clients.driver.wait_messages(consumer, tries * (len(wanted()) + 1))
    assert sorted(texts(got)) == sorted([*wanted(), "last"] * tries)


def test_pull_consumers_get_what_their_filter_takes(clients: Clients) -> None:
    topic = clients.topic(queues=1)
    clients.send(topic, offers())
    clients.wait_stored(topic, len(PRICES), queues=1)
    page = clients.ask("pull.pull", topic, offset=0, max=32, sql=DEAR)
    assert (page["status"], page["next"]) == ("FOUND", len(PRICES))
    assert texts(page["messages"]) == wanted()
    none = clients.ask("pull.pull", topic, offset=0, max=32, sql="price > 5000")
    assert (none["status"], none["next"]) == ("NO_MATCHED_MSG", len(PRICES))
    lite = clients.lite(topic, sql=DEAR)
    got = clients.driver.call("lite.poll", name=lite, count=len(wanted()))
    assert texts(got) == wanted()


def test_a_filter_that_is_wrong_is_refused(clients: Clients) -> None:
    topic = clients.topic(queues=1)
    clients.send(topic, offers())
    with pytest.raises(DriverError) as refused:
        clients.push(topic, sql=WRONG)
    assert refused.value.kind == "MQClientException"
    assert "CODE: 23" in refused.value.text
    if AGAINST != "ours":
        return  # RocketMQ lets every message through where a pull's own filter is wrong
    with pytest.raises(DriverError) as refused:
        clients.ask("pull.pull", topic, offset=0, max=32, sql=WRONG)
    assert "CODE: 23" in refused.value.text
    assert "at character 9" in refused.value.text
