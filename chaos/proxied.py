"""A replicated group with proxies inside: between each broker and the controller, before each master's stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.proxy import ProxiedLink

PROXIED: Final = "127.0.0.2"  # advertised for replication: all of 127/8 is loopback on Linux


class ProxiedGroup(ReplicaGroup):
    """controller_links[n]: from replica n to the controller. stream_links[n]: from slaves to replica n."""

    def __init__(self, directory: Path, plan: GroupPlan) -> None:
        self.controller_links: list[ProxiedLink] = []
        self.stream_links: list[ProxiedLink] = []
        super().__init__(directory, plan)

    def settings_of(self, number: int) -> dict[str, object]:
        settings = super().settings_of(number)
        port, ha_port = PORTS.take(), int(str(settings["haListenPort"]))
        controller_port = int(self.controller_address.rpartition(":")[2])
        self.controller_links.append(
            ProxiedLink(
                f"controller of replica {number}", LOOPBACK, port, LOOPBACK, controller_port
            )
        )
        self.stream_links.append(
            ProxiedLink(f"stream of replica {number}", PROXIED, ha_port, LOOPBACK, ha_port)
        )
        return settings | {
            "controllerAddr": f"{LOOPBACK}:{port}",
            "brokerIP2": PROXIED,
            "bindAddress": LOOPBACK,
        }

    def controller_link(self, replica: ReplicaProcess) -> ProxiedLink:
        return self.controller_links[replica.number]

    def stream_link(self, master: ReplicaProcess) -> ProxiedLink:
        return self.stream_links[master.number]

    def heal(self, *, reset: bool = False) -> None:
        """Every link passes everything again."""
        for link in (*self.controller_links, *self.stream_links):
            link.heal(reset=reset)


@contextlib.asynccontextmanager
async def proxied(directory: Path, plan: GroupPlan) -> AsyncIterator[ProxiedGroup]:
    """The group with its links, up and whole."""
    async with contextlib.AsyncExitStack() as stack:
        group = ProxiedGroup(directory, plan)
        for link in (*group.controller_links, *group.stream_links):
            await stack.enter_async_context(link)
        await stack.enter_async_context(group)
        await group.start()
        yield group
