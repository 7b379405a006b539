"""The two sides: a name server with a controller in it, a broker, and a replica of the controller's, ours and stock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.chaos.asking import ask
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.java import NEWEST

OURS: Final = "ours"
CLUSTER: Final = "TestCluster"
BROKER: Final = "broker-a"
REPLICA: Final = "broker-c"
SUPER_USER: Final = ("root0001", "rootpw12")  # of the replica, where access control is on
LEADS_S: Final = 90  # three JVMs on a busy machine

_SETTINGS: Final = {
    "messageDelayLevel": "1s 1s 2s " + " ".join(["1h"] * 15),
    "mappedFileSizeCommitLog": 16 << 20,
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "timerWheelEnable": "true",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 500,
}


_AUTH: Final = "org.apache.rocketmq.auth"
_ACCESS: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": '{{"username":"{}","password":"{}"}}'.format(*SUPER_USER),
    "innerClientAuthenticationCredentials": '{"accessKey":"inner001","secretKey":"innerpw1"}',
}


@dataclass(frozen=True)
class Side:
    """Servers that are asked, by address.

    replica  a broker alone in a group that the controller watches, with access control
    """

    name: str
    name_server: str
    controller: str
    broker: str
    replica: str


@contextmanager
def started(name: str, directory: Path) -> Iterator[Side]:
    """name: OURS, or a release of RocketMQ."""
    controller = f"{LOOPBACK}:{PORTS.take((0,))}"
    of_names = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": directory / "controller",
    }
    of_replica = {
        "brokerId": -1,
        "brokerRole": "SYNC_MASTER" if name == OURS else "ASYNC_MASTER",
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "allAckInSyncStateSet": "true",
        "storePathEpochFile": directory / "replica" / "store" / "epochFileCheckpoint",
        "mappedFileSizeCommitLog": 16 << 20,
        "timerWheelEnable": "true",
        **_ACCESS,
    }
    with ExitStack() as stack:
        if name == OURS:
            names = NameServer(directory, of_names)
        else:
            names = JavaNameServer(name, directory, of_names)
        stack.enter_context(names).start()

        def broker(called: str, place: Path, settings: dict[str, object]) -> Broker:
            if name == OURS:
                made = Broker(place, names.address, name=called, cluster=CLUSTER, settings=settings)
            else:
                made = JavaBroker(
                    name, place, names.address, name=called, cluster=CLUSTER, settings=settings
                )
            return stack.enter_context(made)

        plain = broker(BROKER, directory / "broker", dict(_SETTINGS))
        replica = broker(REPLICA, directory / "replica", dict(of_replica))
        plain.start()
        replica.launch()
        wait_until(lambda: leads(names.address), LEADS_S, f"{REPLICA} of {name} leads", every_s=0.3)
        yield Side(name, names.address, controller, plain.address, replica.address)


def leads(name_server: str) -> bool:
    """Whether the controller has made the replica master, and clients are sent to it."""
    code, _, body = ask(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": REPLICA})
    return code == 0 and (b'"0":' in body or b"{0:" in body)


STOCK: Final = NEWEST
