"""cluster/broker/broker.py: the parts of a broker fit together."""

from __future__ import annotations

import gc

import pytest
from brokerkit import Asker, MakeBroker

from tandemmq.cluster.broker.broker import NOT_ON_FAST_PORT
from tandemmq.cluster.broker.serving import first_of, settle_memory
from tandemmq.cluster.broker.settings.config import packed_host
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.storage import FlushFailed, pack_host

#: request codes that stock clients and tools need of a broker
SERVED = {
    10, 11, 12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 43, 45,
    46, 60, 61, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 225, 300, 303, 305, 306, 307, 308, 309,
    310, 314, 315, 316, 317, 320, 321, 323, 324, 325, 328, 329, 343, 345, 351, 352, 353, 361, 370, 402, 907, 29010,
    *range(3001, 3011),
}  # fmt: skip

#: places that are kept: POP and assignments
LATER = {400, 401, 200050, 200051, 200053}


def test_table_serves_what_clients_and_tools_need_and_nothing_else(asker: Asker) -> None:
    assert {int(code) for code in asker.broker.table} == SERVED
    assert not SERVED & LATER


def test_fast_port_serves_all_but_what_may_wait(asker: Asker) -> None:
    main, fast = asker.broker.listening
    assert fast.listen.port == main.listen.port - 2
    assert main.endpoint.table.keys() - fast.endpoint.table.keys() == {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
    assert not fast.endpoint.table.keys() & NOT_ON_FAST_PORT


def test_what_only_a_master_does(asker: Asker) -> None:
    """Slaves deliver nothing by time, and ask no producer."""
    assert set(asker.broker.on_master._jobs) == {"schedule", "transactions", "timers"}


def test_start_line_is_what_health_checks_look_for(make_broker: MakeBroker) -> None:
    asker = make_broker(namesrvAddr="127.0.0.1:9876;127.0.0.1:9877")
    assert asker.broker.started_text == (
        "The broker[broker-a, 127.0.0.1:10911] boot success. serializeType=JSON"
        " and name server is 127.0.0.1:9876;127.0.0.1:9877"
    )


def test_start_line_names_no_name_server_when_there_is_none(asker: Asker) -> None:
    assert asker.broker.started_text.endswith("boot success. serializeType=JSON")


def test_advertised_host_name_is_looked_up_for_records(make_broker: MakeBroker) -> None:
    asker = make_broker(brokerIP1="localhost", bindAddress="127.0.0.1")
    assert packed_host(asker.broker.config) == pack_host("127.0.0.1", 10911)


def test_closing_saves_every_table(asker: Asker) -> None:
    broker = asker.broker
    broker.offsets.commit("G", "T", 0, 1)
    broker.groups.find("G")
    broker.save()
    assert not any(
        table.file.unsaved
        for table in (broker.topics, broker.groups, broker.offsets, broker.schedule)
    )


async def test_store_and_tables_are_as_before_after_a_restart(make_broker: MakeBroker) -> None:
    first = make_broker()
    await first.ask(17, topic="T", readQueueNums=2, writeQueueNums=2, perm=6)
    await first.ask(200, {"groupName": "G", "retryMaxTimes": 3})
    first.put("T", 1, TAGS="A")
    first.broker.save()
    first.broker.store.flush_log(0)
    topics, groups = first.broker.topics.to_json(), first.broker.groups.to_json()
    first.broker.topics.load()
    first.broker.groups.load()
    assert first.broker.topics.to_json() == topics
    assert first.broker.groups.to_json() == groups


def test_settled_memory_is_not_collected_again() -> None:
    before = gc.get_threshold()
    try:
        settle_memory()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_one_flush_failure_of_several_is_told() -> None:
    first, second = FlushFailed("log"), FlushFailed("queues")
    nested = BaseExceptionGroup("jobs", [BaseExceptionGroup("inner", [first]), second])
    assert first_of(nested) is first


@pytest.mark.parametrize("code", sorted(LATER))
def test_place_of_later_requests_is_free(code: int, asker: Asker) -> None:
    assert code not in asker.broker.table
