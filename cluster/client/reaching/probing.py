"""Asks brokers that could not be reached whether they are back (RocketMQ's startDetectorEnable)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tandemmq.cluster.client.errors import BrokerRefused, ClientError
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.producing.faults import LatencyFaults
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.jobs import Jobs
from tandemmq.cluster.client.reaching.routes import TEMPLATE_TOPIC

log = logging.getLogger(__name__)

PROBE_INTERVAL_S: Final = 2.0
PROBE_TIMEOUT_MS: Final = 200


class Prober:
    """One job that probes the brokers `faults` calls unreachable, until stopped."""

    def __init__(self, faults: LatencyFaults) -> None:
        self._faults = faults
        self._jobs = Jobs()

    def start(self, instance: ClientInstance) -> None:
        """Begin."""
        self._jobs = Jobs()
        self._jobs.start("probe brokers", self._probe_for_ever(instance))

    async def stop(self) -> None:
        """End."""
        await self._jobs.stop()

    async def _probe_for_ever(self, instance: ClientInstance) -> None:
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            for name in self._faults.unreachable():
                address = instance.brokers.master(name)
                if address is not None and await _answers(instance, address, name):
                    log.info("broker is back broker=%s address=%s", name, address)
                    self._faults.answered(name)


async def _answers(instance: ClientInstance, address: str, broker_name: str) -> bool:
    queue = MessageQueue(TEMPLATE_TOPIC, broker_name, 0)
    try:
        await calls.max_offset(instance.connections, address, queue, PROBE_TIMEOUT_MS)
    except BrokerRefused:
        return True  # it spoke
    except ClientError:
        return False
    return True
