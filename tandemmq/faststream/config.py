"""What a broker and its routers hand on to subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import BrokerConfig

from tandemmq.cluster.client import ClientConfig

GROUP = "faststream"  # in front of the group of a subscriber that names none


@dataclass(kw_only=True)
class TandemBrokerConfig(BrokerConfig):
    """group: of subscribers without one of their own; client: how the cluster is reached, once connected.

    handed_over  by the test broker: subscribers join no group
    """

    group: str = GROUP
    client: ClientConfig | None = field(default=None, repr=False)
    consumer_options: dict[str, Any] = field(default_factory=dict)
    handed_over: bool = field(default=False, repr=False)
