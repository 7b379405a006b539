"""cluster/broker/duplicates.py: who may not start beside whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.broker.config import BrokerConfig
from cluster.broker.duplicates import refuse_second
from cluster.config import ConfigError
from cluster.remoting.command import Command
from cluster.remoting.errors import ConnectFailed, RequestTimedOut

NAMES = "10.0.0.9:9876"
OTHER = "10.0.0.2:10911"


class Network:
    """A name server's table, and what brokers answer when they are asked who they are."""

    def __init__(self, **members: Any) -> None:
        self.table: dict[str, Any] = members
        self.brokers: dict[str, Command | Exception] = {}

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        if address == NAMES:
            assert command.code == 106
            body = ",".join(
                f'"{name}":{{"brokerAddrs":{{{broker_id}:"{at}"}},"brokerName":"{name}","cluster":"{cluster}"}}'
                for name, (cluster, broker_id, at) in self.table.items()
            )
            return Command(
                0, body=f'{{"brokerAddrTable":{{{body}}},"clusterAddrTable":{{}}}}'.encode()
            )
        assert command.code == 26
        answer = self.brokers.get(address, ConnectFailed(address, "refused"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def says(name: str = "broker-a", broker_id: int = 0, cluster: str = "C") -> Command:
    text = f"brokerName={name}\nbrokerId={broker_id}\nbrokerClusterName={cluster}\n"
    return Command(0, body=text.encode())


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "storePathRootDir": str(tmp_path), "brokerName": "broker-a", "brokerClusterName": "C",
            "brokerIP1": "10.0.0.1", "listenPort": "10911", "namesrvAddr": NAMES,
        },
        environment={},
    )  # fmt: skip


def network(cluster: str = "C", broker_id: int = 0, at: str = OTHER) -> Network:
    return Network(**{"broker-a": (cluster, broker_id, at), "broker-b": ("C", 0, "10.0.0.3:10911")})


async def test_second_broker_of_one_name_and_id_does_not_start(config: BrokerConfig) -> None:
    found = network()
    found.brokers[OTHER] = says()
    with pytest.raises(ConfigError, match=f"already, at {OTHER}") as refused:
        await refuse_second(config, found)
    assert refused.value.key == "brokerId"


@pytest.mark.parametrize("answer", [RequestTimedOut(OTHER, 26, 1000), Command(16, remark="no")])
async def test_who_lives_there_and_does_not_say_who_it_is_may_be_the_one(
    config: BrokerConfig, answer: Command | Exception
) -> None:
    found = network()
    found.brokers[OTHER] = answer
    with pytest.raises(ConfigError, match="already"):
        await refuse_second(config, found)


@pytest.mark.parametrize(
    "answer",
    [None, says(name="broker-z"), says(broker_id=1), Command(0, body=b"nonsense")],
    ids=["dead", "another", "a slave by now", "no broker"],
)
async def test_place_of_a_dead_or_renamed_broker_is_taken(
    config: BrokerConfig, answer: Command | None
) -> None:
    found = network()
    if answer is not None:
        found.brokers[OTHER] = answer
    await refuse_second(config, found)


async def test_own_registration_and_other_members_are_no_reason(config: BrokerConfig) -> None:
    await refuse_second(config, network(at="10.0.0.1:10911"))
    slave = network(broker_id=1)
    slave.brokers[OTHER] = says(broker_id=1)
    await refuse_second(config, slave)
    await refuse_second(config, Network())


async def test_name_of_another_cluster_is_refused(config: BrokerConfig) -> None:
    found = network(cluster="D", broker_id=1)
    found.brokers[OTHER] = says(broker_id=1, cluster="D")
    with pytest.raises(ConfigError, match="belongs to cluster D") as refused:
        await refuse_second(config, found)
    assert refused.value.key == "brokerClusterName"


async def test_name_server_that_is_away_or_talks_nonsense_knows_nobody(
    config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Network):
        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            if self.table:
                raise ConnectFailed(address, "refused")
            return Command(0, body=b'{"brokerAddrTable":{"broker-a":7}}')

    await refuse_second(config, Odd(any=1))
    await refuse_second(config, Odd())
