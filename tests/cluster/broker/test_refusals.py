"""What is refused leaves a trace: a line that names the client, and a count."""

from __future__ import annotations

import pytest
from brokerkit import Asker, FakeConnection

from tandemmq.cluster import logs
from tandemmq.cluster.remoting.codes import RequestCode as R
from tandemmq.cluster.remoting.command import Command

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "j": 0}
PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 0,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
}  # fmt: skip


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "request refused" in each.getMessage()]


async def test_every_kind_of_refusal_names_client_code_and_reason(
    asker: Asker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asker.ask(R.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=4, writeQueueNums=4, perm=6)
    await asker.ask(R.HEART_BEAT, b'{"consumerDataSet":7}')
    await asker.ask(R.PULL_MESSAGE, **PULL)
    sql = {"sysFlag": 4, "expressionType": "SQL92", "subscription": "a > 1"}
    await asker.ask(R.LITE_PULL_MESSAGE, **{**PULL, **sql})
    monkeypatch.setattr(FakeConnection, "active_ms", asker.clock.monotonic_ms())
    send = {**SEND, "g": asker.clock.now_ms()}
    await asker.ask(R.SEND_MESSAGE_V2, b"x", **send, i="TIMER_DELAY_SEC\x015\x02")
    await asker.ask(R.SEND_MESSAGE_V2, b"x", **send, i="TIMER_DELAY_SEC\x01soon\x02")
    await asker.ask(
        R.SEND_BATCH_MESSAGE, b"x", **{**send, "f": 4}, i="TRAN_MSG\x01true\x02DELAY\x013\x02"
    )
    asker.broker.refusals.unsupported(Command(R.END_TRANSACTION, {"producerGroup": "P"}), asker.connection)  # fmt: skip
    told = lines(caplog)
    for request, code, why in (
        ("HEART_BEAT", "1 SYSTEM_ERROR", "Expected an array, got 7 - at `$.consumerDataSet`"),
        ("PULL_MESSAGE", "24 SUBSCRIPTION_NOT_EXIST", "group=G topic=T why=the consumer's group info not exist"),
        ("LITE_PULL_MESSAGE", "1 SYSTEM_ERROR", "filter message by SQL92"),
        ("SEND_MESSAGE_V2", "13 MESSAGE_ILLEGAL", "group=P topic=T why=timer message illegal"),
        ("SEND_BATCH_MESSAGE", "13 MESSAGE_ILLEGAL", "transaction"),
        ("END_TRANSACTION", "3 REQUEST_CODE_NOT_SUPPORTED", "group=P topic=- why=no handler"),
    ):  # fmt: skip
        line = next(each for each in told if f"request={request} code={code}" in each)
        assert f"peer=10.0.0.7:{asker.connection.peer[1]}" in line and why in line, line
        assert asker.broker.refusals.counts[request, code.split()[1]] == 1
    assert len(told) == 6


async def test_a_client_is_named_once_per_minute_and_request(
    asker: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        await asker.ask(R.HEART_BEAT, b"{")
        await asker.ask(R.PULL_MESSAGE, **PULL)
    assert len(lines(caplog)) == 2
    asker.clock.advance(60_000)
    await asker.ask(R.HEART_BEAT, b"{")
    assert len(lines(caplog)) == 3 and lines(caplog)[-1].endswith("suppressed=8")
    assert sum(asker.broker.refusals.counts.values()) == 11


async def test_many_refused_clients_neither_fill_the_log_nor_memory(
    asker: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    for port in range(logs.KEYS_MAX + 50):
        await asker.ask(R.HEART_BEAT, b"{", FakeConnection(port=port))
        asker.broker.refusals.unsupported(Command(90_000 + port), FakeConnection(port=port))
    assert len(lines(caplog)) == logs.KEYS_MAX
    assert dict(asker.broker.refusals.counts) == {
        ("HEART_BEAT", "SYSTEM_ERROR"): 150,
        ("OTHER", "REQUEST_CODE_NOT_SUPPORTED"): 150,
    }


async def test_what_is_taken_is_not_named(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    await asker.ask(R.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=4, writeQueueNums=4, perm=6)
    await asker.heartbeat("G", "T")
    assert (await asker.ask(R.PULL_MESSAGE, **{**PULL, "subVersion": 1})).code == 19
    assert lines(caplog) == [] and not asker.broker.refusals.counts
