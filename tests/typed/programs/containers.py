"""A user's tests: a container."""

from __future__ import annotations

from tandemmq.testing.containers import TandemContainer


def reach() -> str:
    with TandemContainer(
        "registry/tandemmq:1", replicas=2, settings={"maxMessageSize": "1024"}
    ) as container:
        topic: str = container.create_topic("Orders", 8)
        container.kill("broker-a-0")
        container.restart("broker-a-0")
        return container.namesrv + topic + container.host
