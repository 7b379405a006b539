"""The stock name server and broker as processes, beside ours in tandemmq.chaos.servers, and what stock clients got."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tandemmq.chaos.repeats import Delivery
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.client import MessageQueue
from tandemmq.java import Driver, java_command, java_env, text_of

NAME_SERVER_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN: Final = "org.apache.rocketmq.broker.BrokerStartup"
# A stock server makes two RSA keys at each start, 3 s of a core, for TLS that nobody here speaks to it.
WITHOUT_TLS: Final = "-Dtls.server.mode=disabled"
DIRECT_MEMORY: Final = "-XX:MaxDirectMemorySize=512m"
# What keeps a stock broker fast on a small, busy machine and its files comparable with ours.
BROKER_SETTINGS: Final[Mapping[str, object]] = {
    "waitTimeMillsInSendQueue": 10_000,
    "brokerFastFailureEnable": "false",
    "sendMessageThreadPoolNums": 2,
    "pullMessageThreadPoolNums": 4,
    "timerWheelEnable": "false",
    "diskMaxUsedSpaceRatio": 95,
}


class JavaNameServer(NameServer):
    """The stock name server of one release."""

    READY_S = 40

    def __init__(
        self, version: str, directory: Path, more: Mapping[str, object] | None = None
    ) -> None:
        home = directory / "namesrv-home"
        own = {"kvConfigPath": home / "kvConfig.json", "rocketmqHome": home}
        super().__init__(directory, {**own, **(more or {})})
        self.version = version
        self.name = f"Java name server {version}"
        self.log = directory / "java-namesrv.log"
        self.command = java_command(
            version, NAME_SERVER_MAIN, home, "-c", str(self.file), heap_mb=192,
            options=[WITHOUT_TLS],
        )  # fmt: skip
        self.env = java_env(home)


class JavaBroker(Broker):
    """The stock broker of one release; small heap and files."""

    READY_S = 60
    STOP_S = 40

    def __init__(
        self,
        version: str,
        directory: Path,
        name_servers: str,
        *,
        name: str = "broker-a",
        settings: Mapping[str, object] | None = None,
        **more: Any,
    ) -> None:
        home = directory / f"{name}-home"
        own = {**BROKER_SETTINGS, "rejectTransactionMessage": "false", "rocketmqHome": home}
        merged = {**own, **(settings or {})}
        super().__init__(directory, name_servers, name=name, settings=merged, **more)
        self.version = version
        self.name = f"Java broker {version}"
        self.log = directory / f"java-{name}.log"
        self.command = java_command(
            version, BROKER_MAIN, home, *self.arguments, heap_mb=512,
            options=[WITHOUT_TLS, DIRECT_MEMORY],
        )  # fmt: skip
        self.env = java_env(home)


def delivered(driver: Driver, consumer: str, member: str) -> list[Delivery]:
    """What a push consumer of the driver was given so far, in the words of a campaign."""
    return [
        Delivery(
            member,
            MessageQueue(each["topic"], each.get("brokerName") or each["broker"], each["queueId"]),
            each["queueOffset"],
            text_of(each),
            each["atMs"],
        )
        for each in driver.messages(consumer)
    ]
