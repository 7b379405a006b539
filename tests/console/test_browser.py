"""A person at the console of a live cluster: headless Chromium clicks through every page, a master dies in between.

With TANDEM_PICTURES=docs/pictures the pictures of the documents are taken anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from consolebrowser import Tab, chromium, program

from tandemmq import Admin, Message, Producer, PushConsumer, ReceivedMessage, StartFrom
from tandemmq.chaos.ports import PORTS
from tandemmq.cluster.client import TRACE_TOPIC, GroupSettings, TopicSettings

pytestmark = [
    pytest.mark.console,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(program() is None, reason="no Chromium here: apt-get install chromium"),
]

PICTURES = os.environ.get("TANDEM_PICTURES", "")
HTML_BODY = b'<script>document.title = "taken over"</script><img src="https://example.com/x.png">'
LARGE_BODY = b"0123456789abcde\n" * (4 << 16)  # 4 MiB, which is what a broker takes at most
SEEN_S = 60.0  # as long may a change take until it is seen: the machine may have much to do
BROKER_PORTS = [10 * place + offset for place in range(4) for offset in (-2, 0, 1, 2)]
DESK, PHONE = (1180, 760), (390, 780)


@dataclass(frozen=True)
class Cluster:
    """A local cluster with a console."""

    directory: Path
    name_server: str
    console: str

    def tandem(self, *words: str) -> dict[str, Any]:
        """The JSON of a `tandem local` command that must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", "local", *words, "--dir", str(self.directory), "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @property
    def token(self) -> str:
        return (self.directory / "http.token").read_text().strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("console") / "data", "", "")
    try:
        ports = (str(PORTS.take((0, 2, 3))), str(PORTS.take(BROKER_PORTS)))
        told = made.tandem(
            "up", "--mode", "sync", "--namesrv-port", ports[0], "--broker-port", ports[1]
        )
        yield Cluster(
            made.directory, told["name_server"], told["console"].removesuffix("/console/")
        )
    finally:
        made.tandem("down", "--kill")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def traffic(cluster: Cluster) -> AsyncIterator[None]:
    """Orders and their group, some of which fail; a group that nobody reads for; messages for later."""
    namesrv = cluster.name_server

    async def handle(message: ReceivedMessage) -> None:
        if "fails" in message.keys:
            raise RuntimeError("as this test wants it")

    async with (
        Admin(namesrv) as admin,
        Producer("shop", namesrv=namesrv, trace_topic=TRACE_TOPIC) as producer,
    ):
        for name in ("Orders", "Payments", "Shipments", "Invoices"):
            await admin.put_topic(TopicSettings(name, 4, 4))
        await admin.put_group(GroupSettings("billing", retry_max_times=0))
        consumer = PushConsumer(
            "billing", handle, namesrv=namesrv, subscribe={"Orders": "*"}, start=StartFrom.FIRST,
            reconsume_times_max=0, trace_topic=TRACE_TOPIC,
        )  # fmt: skip
        async with consumer:
            for number in range(40):
                body = json.dumps(
                    {"order": number, "customer": f"c-{number % 7}", "total": 9.5 * number}
                ).encode()
                await producer.send(
                    Message("Orders", body, keys=[f"order-{number}"], tags="created")
                )
                await producer.send(
                    Message("Payments", body, keys=[f"order-{number}"], tags="paid")
                )
            await producer.send(Message("Shipments", HTML_BODY, keys=["html"]))
            await producer.send(Message("Shipments", LARGE_BODY, keys=["large"]))
            await producer.send(Message("Shipments", bytes(range(256)) * 4, keys=["binary"]))
            for number in range(3):
                await producer.send(
                    Message("Orders", b"a letter that fails", keys=["fails", f"letter-{number}"])
                )
                await producer.send(
                    Message("Invoices", b"in an hour or two", delay_s=3_600 * (number + 1))
                )
                await producer.send(Message("Invoices", b"in half an hour", delay_level=16))
            async with asyncio.timeout(SEEN_S):
                while await letters(admin) < 3:  # noqa: ASYNC110 - the brokers put them there, and tell nobody
                    await asyncio.sleep(0.2)
            yield


async def letters(admin: Admin, topic: str = "%DLQ%billing") -> int:
    """How many messages a topic of the group has."""
    return (await admin.topic_stats(topic)).message_count if topic in await admin.topics() else 0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Tab]:
    async with chromium() as tab:
        yield tab


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser: Tab, cluster: Cluster, traffic: None) -> AsyncIterator[Tab]:
    """The browser; after each test it has complained of nothing, and asked nobody but the console."""
    await browser.look(*DESK, "light")
    yield browser
    complaints, requests = list(browser.complaints), list(browser.requests)
    browser.complaints.clear()
    browser.requests.clear()
    assert complaints == []
    hosts = {urlsplit(each).netloc for each in requests if not each.startswith(("about:", "data:"))}
    assert hosts <= {urlsplit(cluster.console).netloc}


async def picture(tab: Tab, name: str) -> None:
    """Keep what is seen, where somebody asked for pictures."""
    if PICTURES:
        shown = await tab.picture()
        assert len(shown) < 150_000, f"{name}: {len(shown)} bytes"
        await asyncio.to_thread((Path(PICTURES) / f"{name}.png").write_bytes, shown)


async def sign_in(tab: Tab, cluster: Cluster) -> None:
    await tab.go(f"{cluster.console}/console/enter")
    await tab.click("input[name=token]")
    await tab.type(cluster.token)
    await tab.press("Enter", leads=True)
    await tab.says("Sign out", ".top")


async def test_every_page_is_reached_by_clicks_and_shows_what_is_there(
    tab: Tab, cluster: Cluster
) -> None:
    await tab.go(f"{cluster.console}/")
    await tab.says("Everything answers", within_s=SEEN_S)
    await tab.says("4 of 4")
    await tab.says("live", "#live")
    await tab.wait("document.querySelectorAll('#brokers tbody tr').length === 4")
    await picture(tab, "console-cluster")
    for word, told in (
        ("Topics", "Payments"), ("Groups", "billing"), ("Messages", "Search"), ("Dead letters", "billing"),
        ("Delayed", "Invoices"), ("Story", "it lasts"), ("Reports", "No directory of reports"), ("Cluster", "broker-b"),
    ):  # fmt: skip
        where = await tab.value(
            f"[...document.querySelectorAll('.places a')].find(e => e.innerText === {word!r}).dataset.key"
        )
        await tab.click(f'.places a[data-key="{where}"]', leads=True)
        await tab.says(told, within_s=SEEN_S)
        assert (
            await tab.value("document.querySelector('.places a[aria-current]').innerText") == word
        )
    await tab.click("#brokers tbody a", leads=True)
    await tab.says("sync-state-set")
    await tab.click("summary")
    await tab.says("commitLogMaxOffset")


async def test_topics_and_groups_tell_how_full_and_how_far(tab: Tab, cluster: Cluster) -> None:
    await tab.go(f"{cluster.console}/console/topics")
    await tab.says("Orders\t43", within_s=SEEN_S)  # it fills in by itself
    await tab.click('a[href="/console/topics/Orders"]', leads=True)
    await tab.says("broker-b", "#queues", within_s=SEEN_S)
    await tab.says("billing", "#groups", within_s=SEEN_S)
    await tab.click('#groups a[href="/console/groups/billing"]', leads=True)
    await tab.says("python", "#members", within_s=SEEN_S)
    await tab.says("clustering", "#members")
    await tab.wait("document.querySelectorAll('#progress tbody tr').length >= 8", SEEN_S)
    await picture(tab, "console-group")


async def test_messages_are_found_by_key_id_and_time_with_body_and_trace(
    tab: Tab, cluster: Cluster
) -> None:
    await tab.go(f"{cluster.console}/console/messages")
    await tab.click("input[name=topic]")
    await tab.type("Orders")
    await tab.click("input[name=text]")
    await tab.type("order-7")
    await tab.press("Enter", leads=True)
    await tab.says("1 message")
    await tab.click("#found tbody a", leads=True)
    await tab.says('"customer": "c-0"', "#body")
    await tab.says("consumed", "#tracks")
    for word in ("sent", "consumed"):  # clients write their traces every few seconds
        await _again_until_says(tab, word, "#trace")
    await picture(tab, "console-message")
    found = await tab.text(".title .id")
    for query in (f"by=id&text={found}", "by=time&from=1h", "by=newest"):
        await tab.go(f"{cluster.console}/console/messages?topic=Orders&{query}")
        await tab.says(found, "#found")


async def _again_until_says(tab: Tab, text: str, selector: str) -> None:
    async with asyncio.timeout(SEEN_S):
        while text not in await tab.text(selector):
            await asyncio.sleep(0.5)
            await tab.go(await tab.value("location.href"))


async def test_html_large_and_binary_bodies_are_shown_as_text(tab: Tab, cluster: Cluster) -> None:
    for key, told in (("html", '<script>document.title = "taken over"</script>'), ("large", "4.0 MiB, text"),
                      ("binary", "00000010  10 11 12 13")):  # fmt: skip
        await tab.go(f"{cluster.console}/console/messages?topic=Shipments&by=key&text={key}")
        await tab.click("#found tbody a", leads=True)
        await tab.says(told)
        assert (await tab.value("document.title")).startswith("Message")
        assert await tab.value("document.querySelectorAll('main img, main script').length") == 0
        assert len(await tab.text("#body pre")) < 64 << 10


async def test_a_wrong_token_is_refused_and_a_right_one_sends_letters_again(
    tab: Tab, cluster: Cluster
) -> None:
    await tab.go(f"{cluster.console}/console/letters/billing")
    await tab.says("letter that fails")
    assert await tab.value("document.querySelectorAll('main button').length") == 0
    await tab.click("main .button", leads=True)
    await tab.click("input[name=token]")
    await tab.type("wrong")
    await tab.press("Enter", leads=True)
    await tab.says("That is not the token")
    assert any(
        "403" in each for each in tab.complaints
    )  # the browser notes that the form was refused
    tab.complaints.clear()
    await tab.click("input[name=token]")
    await tab.type(cluster.token)
    await tab.press("Enter", leads=True)
    await tab.says("Dead letters of billing", "h1")  # where one came from
    async with Admin(cluster.name_server) as admin:
        before = await letters(admin, "%RETRY%billing")
        await tab.click('input[name="letter"]')
        await picture(tab, "console-letters")
        await tab.click("fieldset button", leads=True)
        await tab.says("1 of 1 letter sent again")
        assert await letters(admin, "%RETRY%billing") == before + 1
        await tab.go(await tab.value("location.href"))  # loading it again does nothing again
        await tab.says("1 of 1 letter sent again")
        assert await letters(admin, "%RETRY%billing") == before + 1
    await tab.click(".who button", leads=True)
    await tab.says("Sign in", ".top")


async def test_what_waits_is_shown_by_its_time(tab: Tab, cluster: Cluster) -> None:
    await tab.go(f"{cluster.console}/console/timed")
    await tab.wait("document.querySelectorAll('#next tbody tr').length === 6", SEEN_S)
    first = await tab.text("#next tbody tr")
    assert "level 16" in first and re.search(r" in \d+ min\b", first)
    await tab.says("Invoices\t3", "#topics", within_s=SEEN_S)
    await tab.wait("document.querySelectorAll('#hours tbody tr').length >= 3", SEEN_S)


async def test_a_failover_is_seen_without_a_reload(tab: Tab, cluster: Cluster) -> None:
    await tab.look(*DESK, "dark")
    await tab.go(f"{cluster.console}/console/")
    await tab.says("Everything answers", within_s=SEEN_S)
    await tab.value("window.mark = 'the same page'")
    leader = next(
        each["name"] for each in (await asyncio.to_thread(cluster.tandem, "status"))["members"]
        if each["role"] == "master" and each["name"].startswith("broker-a")
    )  # fmt: skip
    await asyncio.to_thread(cluster.tandem, "kill", leader)
    await tab.says("does not answer", "#verdict", within_s=SEEN_S)
    await tab.says("leads in epoch 2, in place of", "#story", within_s=SEEN_S)
    await tab.says("replica-missing", "#doctor", within_s=SEEN_S)
    assert await tab.value("window.mark") == "the same page"
    await picture(tab, "console-failover-dark")
    await tab.press("g")
    await tab.press("s", leads=True)
    await tab.value("window.mark = 'the same page'")
    await asyncio.to_thread(cluster.tandem, "start", leader)
    await tab.says("answers again, as slave", within_s=SEEN_S)
    await tab.says("is in sync", within_s=SEEN_S)
    await tab.wait("document.querySelectorAll('#reigns tbody tr').length === 3", SEEN_S)
    assert await tab.value("window.mark") == "the same page"
    await picture(tab, "console-story-dark")


async def test_a_group_is_handed_over_after_a_confirmation(tab: Tab, cluster: Cluster) -> None:
    await sign_in(tab, cluster)
    await tab.go(f"{cluster.console}/console/brokers/broker-b")
    await tab.click("#about .button", leads=True)
    await tab.says("No acknowledged message is lost")
    await picture(tab, "console-handover")
    await tab.click("button.danger")  # not without the box
    assert "handover" in await tab.value("location.pathname")
    await tab.click('input[name="sure"]')
    await tab.click("button.danger", leads=True)
    await tab.says("handed broker-b over to 2", within_s=SEEN_S)
    await tab.says("epoch 1 → 2")
    async with Admin(cluster.name_server) as admin:
        assert (await admin.replica_sets("broker-b"))["broker-b"].master_id == 2


async def test_keys_are_enough(tab: Tab, cluster: Cluster) -> None:
    await tab.go(f"{cluster.console}/console/")
    await tab.press("g")
    await tab.press("t", leads=True)
    await tab.says("Payments", within_s=SEEN_S)
    await tab.press("/")
    await tab.type("ship")
    await tab.wait("document.querySelectorAll('#topics tbody tr').length === 1")
    assert "q=ship" in await tab.value("location.search")
    assert await tab.value("document.activeElement.name") == "q"
    await tab.press("Escape")
    await tab.press("j")
    assert await tab.value("document.activeElement.innerText") == "Shipments"
    await tab.press("Enter", leads=True)
    await tab.says("Shipments", "h1")
    await tab.press("?")
    await tab.says("next and previous row", "dialog")
    await tab.press("Escape")


async def test_a_phone_shows_every_page_without_sideways_scrolling(
    tab: Tab, cluster: Cluster
) -> None:
    for theme in ("dark", "light"):
        await tab.look(*PHONE, theme, phone=True)
        for page in ("", "topics", "groups", "groups/billing", "messages?topic=Orders&by=newest", "letters/billing",
                     "timed", "story", "brokers/broker-a", "enter"):  # fmt: skip
            await tab.go(f"{cluster.console}/console/{page}")
            await tab.wait("document.querySelector('main section')")
            wide = await tab.value(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{page}: {wide} pixels too wide"
    await tab.go(f"{cluster.console}/console/")
    await tab.says("broker-b", within_s=SEEN_S)
    await picture(tab, "console-phone")


async def test_light_and_dark_are_chosen_and_remembered(tab: Tab, cluster: Cluster) -> None:
    await tab.go(f"{cluster.console}/console/topics")
    light = await tab.value("getComputedStyle(document.body).backgroundColor")
    await tab.click("#theme")
    dark = await tab.value("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    await tab.go(f"{cluster.console}/console/groups")
    assert await tab.value("getComputedStyle(document.body).backgroundColor") == dark
    await tab.click("#theme")
    assert await tab.value("getComputedStyle(document.body).backgroundColor") == light
