"""Ports that are given out before anybody opens them."""

from __future__ import annotations

import socket

import pytest

from tandemmq.chaos.ports import BROKER_OFFSETS, LOOPBACK, STEP, Ports
from tandemmq.chaos.processes import ProcessBroken

AMONG = range(18_000, 20_000)  # used by nothing else here


def test_what_was_taken_and_is_not_open_yet_is_not_given_out_again() -> None:
    ports = Ports(AMONG)
    assert len({ports.take((0,)) for _ in range(49)}) == 49


def test_ports_beside_one_that_was_taken_are_taken_too() -> None:
    ports = Ports(AMONG)
    numbers = []
    for offsets in [BROKER_OFFSETS, (-12, 0, 10, 21)] * 3:
        port = ports.take(offsets)
        numbers += [port + offset for offset in offsets]
    assert len(numbers) == len(set(numbers)) == 21
    assert all(number in AMONG for number in numbers)


def test_a_port_that_somebody_else_has_is_left_out() -> None:
    taken, free = (AMONG.start + number * STEP for number in (1, 2))
    with socket.create_server((LOOPBACK, taken + 1)):
        assert Ports(range(AMONG.start, free + 2)).take() == free


def test_none_left_is_an_error() -> None:
    ports = Ports(range(AMONG.start, AMONG.start + STEP + 2))
    ports.take()
    with pytest.raises(ProcessBroken, match="no free port"):
        ports.take()
