"""Several name servers, and the page that lists them. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import random

import pytest
from timekit import run

from tandemmq.cluster.client import BrokerUnreachable, ClientConfig, NoNameServer
from tandemmq.cluster.client.config import name_servers, one_config
from tandemmq.cluster.client.reaching.nameservers import NameServers
from tandemmq.cluster.remoting import Command


class Caller:
    """Answers for the addresses that are up."""

    def __init__(self, *up: str) -> None:
        self.up = set(up)
        self.asked: list[str] = []

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.asked.append(address)
        if address not in self.up:
            raise BrokerUnreachable(address, "refused")
        return command.reply()

    async def oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        raise AssertionError("name servers are asked, not told")


class Pages:
    def __init__(self, **pages: str | Exception) -> None:
        self.pages = pages
        self.read: list[str] = []

    async def __call__(self, url: str, timeout_ms: int) -> str:
        self.read.append(url)
        await asyncio.sleep(0)
        page = self.pages[url.rpartition("/")[2]]
        if isinstance(page, Exception):
            raise page
        return page


def made(addresses: list[str], caller: Caller, pages: Pages | None = None) -> NameServers:
    return NameServers(addresses, caller, random.Random(3), 1_000, pages or Pages())


def test_one_that_answers_is_kept_and_left_when_it_fails() -> None:
    caller = Caller("b:2")

    async def main() -> None:
        servers = made(["a:1", "b:2", "c:3"], caller)
        for _ in range(3):
            await servers.ask(Command(105))
        assert caller.asked[-2:] == ["b:2", "b:2"]
        caller.up = {"c:3"}
        await servers.ask(Command(105))
        assert caller.asked[-1] == "c:3"

    run(main())


def test_none_that_answers_names_every_address() -> None:
    async def main() -> None:
        with pytest.raises(NoNameServer, match=r"(?s)(?=.*a:1)(?=.*b:2).*Is one running"):
            await made(["a:1", "b:2"], Caller()).ask(Command(105))

    run(main())


def test_page_is_read_before_the_first_request_and_again_after_two_minutes() -> None:
    caller, pages = Caller("a:1", "b:2"), Pages(nsaddr="a:1;\n")

    async def main() -> None:
        servers = made(["http://host:8080/rocketmq/nsaddr"], caller, pages)
        await asyncio.gather(*(servers.ask(Command(105)) for _ in range(5)))
        assert len(pages.read) == 1
        pages.pages["nsaddr"] = "b:2"
        await asyncio.sleep(119)
        await servers.ask(Command(105))
        assert caller.asked[-1] == "a:1"
        await asyncio.sleep(2)
        await servers.ask(Command(105))
        assert caller.asked[-1] == "b:2"
        assert servers.addresses == ("b:2",)

    run(main())


@pytest.mark.parametrize(
    "trouble", [OSError("refused"), TimeoutError(), ValueError("HTTP status 500"), "nonsense"]
)
def test_page_that_fails_leaves_the_old_list_in_use_or_is_named(trouble: str | Exception) -> None:
    async def main() -> None:
        with pytest.raises(NoNameServer, match="http://host/ns gave no address list"):
            await made(["http://host/ns"], Caller(), Pages(ns=trouble)).ask(Command(105))
        pages = Pages(ns="a:1")
        servers = made(["http://host/ns"], Caller("a:1"), pages)
        await servers.ask(Command(105))
        pages.pages["ns"] = trouble
        await asyncio.sleep(130)
        await servers.ask(Command(105))
        assert servers.addresses == ("a:1",)

    run(main())


def test_addresses_come_in_several_spellings() -> None:
    assert name_servers("a:1; b:2,a:1") == ("a:1", "b:2")
    assert name_servers(["http://a:1"]) == ("a:1",)
    assert name_servers("http://a:1/") == ("a:1",)
    assert name_servers("http://a/rocketmq/nsaddr") == ("http://a/rocketmq/nsaddr",)
    with pytest.raises(ValueError, match="not host:port"):
        name_servers("localhost")


def test_config_and_single_arguments_exclude_each_other() -> None:
    config = ClientConfig("a:1")
    assert one_config(config, None, "", None) is config
    with pytest.raises(ValueError, match="not both"):
        one_config(config, "b:2", "", None)
    with pytest.raises(ValueError, match="call_timeout_ms"):
        ClientConfig("a:1", call_timeout_ms=0)
