"""cluster/broker/watching/stats.py: sums and rates over windows."""

from __future__ import annotations

from brokerkit import Asker

from tandemmq.cluster.broker.watching.putsizes import ENTRIES_MAX, Put
from tandemmq.cluster.broker.watching.stats import BrokerStats


class Source:
    """A store's counters, by hand."""

    def __init__(self) -> None:
        self.topics = {"Old": 7}
        self.total = 0

    def stats(self) -> BrokerStats:
        return BrokerStats("C", lambda: list(self.topics.items()), lambda: self.total, 0)


def test_counter_that_never_counted_does_not_exist() -> None:
    stats = Source().stats()
    stats.sample_windows(0)
    assert stats.windows("TOPIC_PUT_NUMS", "Old") is None, "7 messages from before the start"
    assert stats.put_tps("Old") == 0.0


def test_minute_spans_sixty_seconds_of_ten_second_samples() -> None:
    stats = Source().stats()
    for second in range(0, 130, 10):
        stats.pulled("G", "T", 5, 500)
        stats.sample_windows(second * 1000)
    found = stats.windows("GROUP_GET_NUMS", "T@G")
    assert found is not None
    minute, hour, _ = found
    assert (minute.sum, minute.tps, minute.per_call) == (30, 0.5, 5.0)
    assert hour.sum == 0, "one sample is no window"
    assert stats.get_tps("T", "G") == 0.5


def test_hour_and_day_take_every_sixtieth_and_every_360th_sample() -> None:
    stats = Source().stats()
    for number in range(2 * 360 + 1):
        stats.pulled("G", "T", 1, 10)
        stats.sample_windows(number * 10_000)
    found = stats.windows("GROUP_GET_SIZE", "T@G")
    assert found is not None
    _, hour, day = found
    assert hour.sum == 6 * 60 * 10
    assert day.sum == 2 * 360 * 10


def test_puts_are_read_from_the_store() -> None:
    source = Source()
    stats = source.stats()
    stats.sample_windows(0)
    source.topics = {"Old": 17, "New": 3}
    source.total = 13
    stats.sample_windows(10_000)
    assert stats.put_tps("Old") == 1.0
    assert stats.values("TOPIC_PUT_NUMS") == [("Old", 10), ("New", 3)]
    assert stats.values("BROKER_PUT_NUMS") == [("C", 13)]


def test_rates_are_three_numbers_from_the_first_moment() -> None:
    source = Source()
    stats = source.stats()
    assert stats.rates()["putTps"] == "0.0 0.0 0.0"
    for second in range(61):
        source.total = second * 10
        stats.pulled("G", "T", 2, 20)
        stats.missed()
        stats.sample_rates(second * 1000)
    rates = stats.rates()
    assert rates["putTps"] == "10.0 10.0 10.0"
    assert rates["getFoundTps"] == rates["getMissTps"] == "1.0 1.0 1.0"
    assert rates["getTotalTps"] == "2.0 2.0 2.0"
    assert rates["getTransferredTps"] == rates["getTransferedTps"] == "2.0 2.0 2.0"


def test_mornings_move_at_midnight() -> None:
    source = Source()
    stats = source.stats()
    source.total = 5
    stats.morning()
    source.total = 12
    found = stats.day_totals()
    assert (found["msgPutTotalYesterdayMorning"], found["msgPutTotalTodayMorning"]) == ("0", "5")
    assert found["msgPutTotalTodayNow"] == "12"


def test_deleted_topic_is_not_counted_any_more() -> None:
    source = Source()
    stats = source.stats()
    stats.pulled("G", "T", 1, 1)
    stats.pulled("G", "Tail", 1, 1)
    stats.forget_topic("T")
    assert stats.windows("GROUP_GET_NUMS", "T@G") is None
    assert stats.windows("GROUP_GET_NUMS", "Tail@G") is not None


async def test_tools_are_shown_every_name_that_rocketmq_counts_by(asker: Asker) -> None:
    broker = asker.broker
    await asker.ask(17, topic="T", readQueueNums=2, writeQueueNums=2, perm=6)

    def sample(after_ms: int) -> None:
        asker.clock.advance(after_ms)
        broker.stats.put(broker.put_sizes.look())
        broker.stats.sample_windows(asker.clock.now_ms())

    sample(0)
    for number in range(6):
        asker.put("T", number % 2, body=b"x" * 100)
        asker.put("BenchmarkTest", 0)
    broker.stats.pulled("G", "T", 6, 600, 1, 5)
    broker.stats.pulled("G", "BenchmarkTest", 6, 60)
    sample(10_000)
    broker.stats.pulled("G", "T", 6, 600, 1, 7)
    sample(10_000)

    async def minute(name: str, key: str) -> dict[str, float]:
        found = await asker.json(315, statsName=name, statsKey=key)
        window: dict[str, float] = found["statsMinute"]
        return window

    size = await minute("TOPIC_PUT_SIZE", "T")
    stored = sum(size for _, size, _ in _entries(asker, "T"))
    assert size["sum"] == stored > 600 and size["avgpt"] == stored / 6
    assert (await minute("TOPIC_PUT_LATENCY", "1@T"))["sum"] == 0, "nothing was waited for"
    cluster = broker.config.cluster
    assert (await minute("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", cluster))["sum"] == 6
    assert (await minute("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", cluster))["sum"] == 6
    assert (await minute("GROUP_GET_LATENCY", "1@T@G"))["avgpt"] == 7
    broker.stats.forget_topic("T")
    for name, key in (
        ("TOPIC_PUT_SIZE", "T"),
        ("TOPIC_PUT_LATENCY", "0@T"),
        ("GROUP_GET_LATENCY", "1@T@G"),
    ):
        assert broker.stats.windows(name, key) is None


def _entries(asker: Asker, topic: str) -> list[tuple[int, int, int]]:
    return [
        queue.entry(offset) or (0, 0, 0)
        for queue in asker.broker.store.queues
        if queue.topic == topic
        for offset in range(queue.max_offset)
    ]


def test_large_bursts_are_measured_by_their_newest_messages(asker: Asker) -> None:
    sizes = asker.broker.put_sizes
    for _ in range(ENTRIES_MAX + 100):
        asker.put("T", 0, body=b"x")
    (put,) = sizes.look()
    each = _entries(asker, "T")[0][1]
    assert put == Put("T", 0, ENTRIES_MAX + 100, (ENTRIES_MAX + 100) * each, 0.0)
    assert list(sizes.look()) == []


async def test_a_put_takes_as_long_as_its_answer_was_held(asker: Asker) -> None:
    asker.put("T", 0)
    asker.broker.acks.waited = (200, 200 * 30)
    (put,) = asker.broker.put_sizes.look()
    assert put.wait_ms == 30
