"""cluster/broker/watching/measures.py: every metric of a broker can be read."""

from __future__ import annotations

from brokerkit import Asker

from tandemmq.cluster.broker.watching.measures import Measures
from tandemmq.cluster.metrics import METRICS, MetricTable, page


async def test_every_metric_of_the_table_has_a_reader(asker: Asker) -> None:
    names = {metric.name for metric in METRICS}
    of_controllers = {name for name in names if name.startswith("tandem_controller_")}
    assert Measures(asker.broker).readers().keys() == names - of_controllers


async def test_a_working_broker_shows_what_it_does(asker: Asker) -> None:
    asker.broker.topics.create_for_send("T", "TBW102", 1)
    for _ in range(3):
        asker.put("T")
    await asker.heartbeat("G", "T", client_id="c1")
    await asker.ask(34, {"clientID": "p1", "producerDataSet": [{"groupName": "P"}]})
    asker.broker.offsets.commit("G", "T", 0, 1)
    asker.broker.offsets.commit_pull("G", "T", 0, 2)
    asker.broker.stats.pulled("G", "T", 2, 99)
    text = page(MetricTable(Measures(asker.broker).readers(), {})).decode()
    for line in (
        'rocketmq_messages_in_total{is_system="false",message_type="normal",topic="T"} 3.0',
        'rocketmq_messages_out_total{consumer_group="G",is_system="false",topic="T"} 2.0',
        'rocketmq_throughput_out_total{consumer_group="G",is_system="false",topic="T"} 99.0',
        'rocketmq_producer_connections{language="java",protocol_type="remoting",version="479"} 1.0',
        "tandem_appended_messages_total 3.0",
        "tandem_store_writable 1.0",
        "tandem_held_pulls 0.0",
        "rocketmq_broker_permission 6.0",
        'tandem_role{role="ASYNC_MASTER"} 1.0',
        f"tandem_log_end_bytes {float(asker.broker.store.end)}",
        "tandem_slaves 0.0",
    ):
        assert line in text, line
    lag = {"lag": 2.0, "inflight": 1.0, "ready": 1.0}
    for kind, value in lag.items():
        assert (
            f'rocketmq_consumer_{kind}_messages{{consumer_group="G",is_retry="false",'
            f'is_system="false",topic="T"}} {value}' in text
        )
