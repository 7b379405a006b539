"""What a name server shows to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.cluster.metrics import MetricTable
from tandemmq.cluster.nameserver.server import NameServer


def table_of(names: NameServer) -> MetricTable:
    """The name server's metrics, under the labels that all of them have; it knows several clusters."""
    config, routes = names.config, names.routes

    def brokers() -> Iterator[tuple[tuple[str, ...], float]]:
        ids = [broker_id for group in routes.groups.values() for broker_id in group.addresses]
        masters = ids.count(0)
        yield ("master",), masters
        yield ("slave",), len(ids) - masters

    return MetricTable(
        {
            "tandem_nameserver_brokers": brokers,
            "tandem_nameserver_topics": lambda: [((), len(routes.topics))],
            "tandem_nameserver_brokers_expired_total": lambda: [((), routes.expired)],
        },
        {
            "cluster": "",
            "node_type": "nameserver",
            "node_id": f"{config.bind_address}:{config.listen_port}",
        },
    )
