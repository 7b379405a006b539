"""The address that RocketMQ would register: measured with Java's own list of interfaces."""

from __future__ import annotations

import socket
import sys

import pytest

from tandemmq.cluster import addresses
from tandemmq.cluster.addresses import Interface, chosen

LOOPBACK = Interface("lo", "127.0.0.1", True)


def up(*named: str) -> list[Interface]:
    """Interfaces as the kernel lists them: "eth0=10.0.0.1"."""
    return [LOOPBACK, *(Interface(*each.split("="), True) for each in named)]


@pytest.mark.parametrize(
    ("listed", "address"),
    [
        ([], "127.0.0.1"),
        (up("eth0=172.17.0.2"), "172.17.0.2"),  # a container
        (up("eth0=10.0.0.1", "eth0=10.0.0.2", "eth1=172.20.0.1", "eth2=192.168.1.1"), "10.0.0.1"),
        (up("eth0=8.8.4.1", "eth1=9.9.9.9", "eth1=7.7.7.7", "eth2=10.1.1.1"), "7.7.7.7"),
        ([*up("eth0=10.0.0.5"), Interface("docker0", "172.17.0.1", False)], "10.0.0.5"),
        ([*up("eth0=10.0.0.5"), Interface("tun0", "100.64.0.9", False)], "10.0.0.5"),
    ],
)
def test_public_ones_first_else_the_last_private_one_in_javas_order(
    listed: list[Interface], address: str
) -> None:
    assert chosen(listed) == address


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's kernel")
def test_the_kernel_is_asked_for_what_there_is() -> None:
    found = addresses.interfaces()
    assert ("127.0.0.1", True) in {(each.address, each.usable) for each in found}
    assert {each.name for each in found} <= {name for _, name in socket.if_nameindex()}
    assert "127.0.0.1" not in addresses.reached_at()
    assert addresses.local_address() in {each.address for each in found}


def test_an_address_of_another_machine_is_not_here() -> None:
    assert addresses.is_here("127.0.0.1")
    assert not addresses.is_here("192.0.2.77")
    assert not addresses.is_here("no.such.name.invalid")
