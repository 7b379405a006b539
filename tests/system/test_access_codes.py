"""Every request code to a name server and to a controller that ask for signatures, as real processes answer it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from controller_processes import Controller

from tandemmq.chaos.servers import NameServer
from tandemmq.cluster.access.needs import (
    CONTROLLER_OPEN,
    CONTROLLER_SUPER,
    NAME_SERVER_OPEN,
    NAME_SERVER_SUPER,
)
from tandemmq.cluster.access.signature import sign
from tandemmq.cluster.remoting import Command, RequestCode, open_channel
from tandemmq.cluster.remoting.channel import Channel

pytestmark = pytest.mark.system

ROOT = ("root0001", "rootpw12")
ACCESS = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": '{"username":"root0001","password":"rootpw12"}',
}
ASK_MS = 5_000

Signed = Callable[[Command], None]


async def refusal(channel: Channel, code: int, signed: Signed) -> str:
    """What access control said of a request; "" when it went on to its handler, or nobody has one for it."""
    command = Command(code, {"topic": "T", "brokerName": "b", "clusterName": "c"})
    signed(command)
    answer = await channel.request(command, ASK_MS)
    assert b"rootpw12" not in answer.encode()
    return answer.remark or "" if answer.code == 16 else ""


async def every_code(address: str, opened: frozenset[int], closed: frozenset[int]) -> None:
    host, _, port = address.rpartition(":")
    channel = await open_channel(host, int(port))
    try:
        for code in RequestCode:
            unsigned = await refusal(channel, code, lambda command: None)
            wrongly = await refusal(channel, code, lambda command: sign(command, ROOT[0], "wrong"))
            # Users of the brokers are nobody here, whatever they may do there.
            stranger = await refusal(
                channel, code, lambda command: sign(command, "shop", "shoppw12")
            )
            rightly = await refusal(channel, code, lambda command: sign(command, *ROOT))
            if code in opened:
                assert (unsigned, wrongly, stranger) == ("", "", ""), code
            else:
                assert unsigned == "username cannot be null.", code
                assert wrongly == "check signature failed.", code
                assert stranger == "User:shop is not found.", code
            assert rightly == "", (code, rightly)
        for code in closed:
            command = Command(code, {})
            sign(command, *ROOT)
            answer = await channel.request(command, ASK_MS)
            assert "not supported" not in (answer.remark or ""), code
    finally:
        channel.close()


async def test_every_code_at_a_name_server(tmp_path: Path) -> None:
    with NameServer(tmp_path, ACCESS).start() as names:
        await every_code(names.address, NAME_SERVER_OPEN, NAME_SERVER_SUPER)


async def test_every_code_at_a_controller(tmp_path: Path) -> None:
    with Controller(tmp_path, settings=ACCESS).start() as controller:
        await every_code(controller.address, CONTROLLER_OPEN, CONTROLLER_SUPER)
