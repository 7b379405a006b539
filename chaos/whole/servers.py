"""The processes of the simulated cluster: settings as files would have them, and mains as the command runs them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from tandemmq.chaos.whole.plan import Scenario
from tandemmq.chaos.whole.stage import Host, Stage
from tandemmq.cluster.broker import broker as broker_module
from tandemmq.cluster.broker import serving as broker_serving
from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing import (  # noqa: F401 - a start would load them in every seed
    classicmaster,
    classicslave,
    replicagroup,
)
from tandemmq.cluster.broker.transactions.halves import Half
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.client import Admin, ClientConfig, ClientError
from tandemmq.cluster.controller import ControllerConfig, serving_controller
from tandemmq.cluster.controller import serving as controller_serving
from tandemmq.cluster.controller.server import Controller
from tandemmq.cluster.nameserver import NameServerConfig, serve_nameserver
from tandemmq.cluster.process import _stopped_by_bugs
from tandemmq.cluster.remoting import Command
from tandemmq.replication import election as e
from tandemmq.storage import Draft, Record

GROUP: Final = "group-a"
NAMES_PORT: Final = 9876
CONTROLLER_PORT: Final = 9878
BROKER_PORT: Final = 10911
SEGMENT_BYTES: Final = 16 << 10
LEVELS: Final = "1s 2s"
LEVEL_MS: Final = (0, 1000, 2000)
WHEEL_SLOTS: Final = 1280  # instead of a week's, which a disk that forgets would have to compare

#: faster than the defaults, so that two thousand turns see several reigns
TIMES: Final = {
    "brokerHeartbeatInterval": 150,
    "haLeaseMillis": 700,
    "controllerElectionWaitMillis": 900,
}


def as_text(settings: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in settings.items()}


def names_main(
    host: Host, times: dict[str, object], *, controlled: bool = True
) -> Coroutine[Any, Any, None]:
    """A name server, with the controller in it where the group has one."""
    controller = ControllerConfig.from_properties(
        as_text(
            {
                "controllerDLegerPeers": f"n0-{host.address}:{CONTROLLER_PORT}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": host.root / "controller",
                **times,
            }
        ),
        home=host.root,
    )
    config = NameServerConfig.from_properties(
        as_text(
            {
                "bindAddress": host.address,
                "listenPort": NAMES_PORT,
                "kvConfigPath": host.root / "kvConfig.json",
                "enableControllerInNamesrv": str(controlled).lower(),
                "scanNotActiveBrokerInterval": 5000,
            }
        ),
        home=host.root,
    )
    beside = partial(serving_controller, controller, ports=2) if controlled else None
    return _stopped_by_bugs(lambda: serve_nameserver(config, _ready, beside))


def broker_main(
    host: Host, names: Host, scenario: Scenario, group: dict[str, object]
) -> Coroutine[Any, Any, None]:
    """A replica of the group. group: what it is there, instead of what a controlled one is."""
    mode = scenario.mode
    settings: dict[str, object] = {
        "brokerClusterName": "whole",
        "brokerName": GROUP,
        "brokerId": -1,
        "brokerIP1": host.address,
        "brokerIP2": host.address,
        "listenPort": BROKER_PORT,
        "haListenPort": BROKER_PORT + 1,
        "namesrvAddr": f"{names.address}:{NAMES_PORT}",
        "enableControllerMode": "true",
        "controllerAddr": f"{names.address}:{CONTROLLER_PORT}",
        "storePathRootDir": host.root / "store",
        "flushDiskType": "SYNC_FLUSH" if mode.waits_for_disk else "ASYNC_FLUSH",
        "brokerRole": "SYNC_MASTER" if mode.waits_for_slaves else "ASYNC_MASTER",
        "allAckInSyncStateSet": "true" if mode.waits_for_slaves else "false",
        "defaultTopicQueueNums": scenario.queues,
        "messageDelayLevel": LEVELS,
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 400,
        "maxHashSlotNum": 50,
        "maxIndexNum": 100,
        "fileReservedTime": 87_600,
        "cleanFileForciblyEnable": "true" if scenario.makes_room else "false",
        "slaveTimeout": 800,
        "haMaxTimeSlaveNotCatchup": 500,
        "flushConsumerOffsetInterval": 300,
        "cleanResourceInterval": 1000,
        "transactionTimeOut": 500,
        "transactionCheckInterval": 250,
        "transactionCheckMax": 200,
        "transactionOpBatchInterval": 200,
        "timerPrecisionMs": 100,
        "timerRollWindowSlot": 15,
        "timerFlushIntervalMs": 300,
        "mappedFileSizeTimerLog": 5200,
        **group,
    }
    config = BrokerConfig.from_properties(as_text(settings), environment={})
    return _stopped_by_bugs(lambda: broker_serving.serve_broker(config, _ready))


def _ready(line: str) -> None:
    return


def install(
    stage: Stage, announced: Callable[[e.Announce], None], asked: Callable[[bytes], None]
) -> None:
    """Let the stage see the servers that its processes make; they are the same in all else.

    asked   told with the body of each transaction that a broker asks a producer about
    """

    class SeenBroker(Broker):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            assert stage.current is not None
            stage.current.parts["broker"] = self

    class SeenTransactions(Transactions):
        def _check_command(self, record: Record, draft: Draft, copy: Half) -> Command | None:
            asked(bytes(record.body))
            return super()._check_command(record, draft, copy)

    class SeenController(Controller):
        def _announce(self, effect: e.Announce) -> None:
            super()._announce(effect)
            announced(effect)

    broker_module.Transactions = SeenTransactions  # type: ignore[attr-defined]
    wheel = sys.modules["tandemmq.storage.timerwheel"]  # a part of a store: nobody imports it
    wheel.SLOTS = WHEEL_SLOTS  # type: ignore[attr-defined]
    wheel.WHEEL_BYTES = WHEEL_SLOTS * wheel.SLOT_BYTES  # type: ignore[attr-defined]
    broker_serving.Broker = SeenBroker  # type: ignore[attr-defined]
    controller_serving.Controller = SeenController  # type: ignore[attr-defined]


async def elect(names: Host, replica: int) -> None:
    """What a person does when nobody can be elected: says which replica leads, and that the rest may be lost."""
    config = ClientConfig(f"{names.address}:{NAMES_PORT}", "operator")
    async with Admin(config=config) as admin:
        with contextlib.suppress(ClientError):
            await admin.elect_master(
                GROUP, replica, cluster="whole", controllers=f"{names.address}:{CONTROLLER_PORT}", unclean=True
            )  # fmt: skip
