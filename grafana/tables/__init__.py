"""One table of panels per dashboard, in the order of the menu."""

from __future__ import annotations

from typing import Final

from grafana.panels import Dashboard
from grafana.tables import audit, broker, clients, overview, replication, topics

DASHBOARDS: Final[tuple[Dashboard, ...]] = (
    overview.DASHBOARD,
    replication.DASHBOARD,
    broker.DASHBOARD,
    topics.DASHBOARD,
    clients.DASHBOARD,
    audit.DASHBOARD,
)
