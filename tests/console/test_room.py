"""The console's door, over real requests: who reads, who acts, what headers every answer has, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from consolekit import TOKEN, console, seen, served, signed_in, silent_port

from tandemmq.chaos.ports import PORTS
from tandemmq.cluster import httpport
from tandemmq.cluster.client import ClientConfig
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.metrics import MetricPage, MetricTable
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.tlssettings import TlsConfig
from tandemmq.command.cli import main
from tandemmq.console import paths, reports, room
from tandemmq.console.paths import LateConsole

PLAIN = {"allow_redirects": False}


async def test_who_is_on_this_machine_reads_without_a_token() -> None:
    async with console(seen()) as (client, _, address):
        async with client.get(f"{address}/", **PLAIN) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/console/")
        for page in (
            "",
            "topics",
            "groups",
            "messages",
            "letters",
            "timed",
            "story",
            "reports",
            "brokers/broker-a",
        ):
            async with client.get(f"{address}/console/{page}") as answer:
                text = await answer.text()
                assert answer.status == 200, page
                assert text.startswith("<!doctype html>") and "Sign in" in text
        async with client.get(f"{address}/console/brokers/nobody") as answer:
            assert (answer.status, "No broker group nobody" in await answer.text()) == (404, True)


async def test_every_answer_has_a_policy_without_inline_scripts_and_styles() -> None:
    async with console(seen()) as (client, _, address):
        for page in (
            "/console/",
            "/console/enter",
            "/console/brokers/nobody",
            "/console/static/x/console.js",
        ):
            async with client.get(address + page) as answer:
                text, headers = await answer.text(), answer.headers
            assert headers["Content-Security-Policy"] == room.POLICY and "unsafe" not in room.POLICY
            assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == (
                "nosniff",
                "DENY",
            )
            assert not re.search(
                r"<script(?! src=)|<style| style=| on\w+=|javascript:|https?://", text
            ), page


async def test_static_files_keep_for_a_year_under_a_name_of_their_content() -> None:
    async with console(seen()) as (client, _, address):
        async with client.get(f"{address}/console/") as answer:
            text = await answer.text()
        for path in re.findall(r'(?:href|src)="(/console/static/[^"]+)"', text):
            async with client.get(address + path) as answer:
                assert answer.status == 200 and "immutable" in answer.headers["Cache-Control"]
                assert len(await answer.read()) > 100


async def test_where_access_control_is_on_nobody_reads_without_the_token() -> None:
    async with console(seen(), reads_unasked=False) as (client, _, address):
        async with client.get(f"{address}/console/topics?q=a", **PLAIN) as answer:
            assert answer.status == 303
            assert answer.headers["Location"] == "/console/enter?next=%2Fconsole%2Ftopics%3Fq%3Da"
        for path, headers in (
            ("/console/events", {}),
            ("/console/", {room.FRAGMENT: "1"}),
            ("/console/message/body", {}),
        ):
            async with client.get(address + path, headers=headers, **PLAIN) as answer:
                assert answer.status in (303, 401), path
                assert "Topic0" not in await answer.text()
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        async with client.get(f"{address}/console/topics", headers=bearer) as answer:
            assert "Topic00001" in await answer.text()
        await signed_in(client, address)
        async with client.get(f"{address}/console/topics") as answer:
            assert "Topic00001" in await answer.text()


async def test_a_wrong_token_is_refused_in_words_and_guessing_is_slow() -> None:
    async with console(seen()) as (client, _, address):
        for _ in range(10):
            async with client.post(f"{address}/console/enter", data={"token": "wrong"}) as answer:
                assert (answer.status, "That is not the token" in await answer.text()) == (
                    403,
                    True,
                )
                assert not answer.cookies
        async with client.post(f"{address}/console/enter", data={"token": TOKEN}) as answer:
            assert (answer.status, "Too many wrong tokens" in await answer.text()) == (429, True)


async def test_uploads_and_large_forms_are_not_even_read() -> None:
    async with console(seen()) as (client, _, address):
        for data in (
            b"token=" + b"x" * 70_000,
            b'--x\r\nContent-Disposition: form-data; name="token"\r\n\r\nx',
        ):
            kind = "multipart/form-data; boundary=x" if data[:1] == b"-" else room.FORM
            headers = {"Content-Type": kind}
            async with client.post(
                f"{address}/console/enter", data=data, headers=headers
            ) as answer:
                assert (answer.status, "no files" in await answer.text()) == (413, True)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"token=a", "; charset=nonsense"),
        (b"token=a", "; charset=utf-16"),
        (b"token=\xed\xb2\x80", ""),
    ],
)
async def test_a_form_that_is_no_text_is_refused_by_a_word(body: bytes, kind: str) -> None:
    form = {"Content-Type": room.FORM + kind}
    async with (
        console(seen()) as (client, _, address),
        client.post(f"{address}/console/enter", data=body, headers=form) as answer,
    ):
        assert (answer.status, await answer.text()) == (400, "the form cannot be read\n")


async def test_a_form_that_never_comes_holds_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "FORM_S", 0.05)
    async with console(seen()) as (_, _, address):
        host = address.removeprefix("http://")
        name, port = host.split(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        writer.write(
            f"POST /console/enter HTTP/1.1\r\nHost: {host}\r\nContent-Type: {room.FORM}\r\n"
            "Content-Length: 1000\r\n\r\ntoken=".encode()
        )
        async with asyncio.timeout(20):
            assert (await reader.readline()).split()[1] == b"408"
        writer.close()


async def test_a_request_that_names_no_host_asks_no_resolver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("a resolver was asked, while the loop waits")

    monkeypatch.setattr(socket, "getfqdn", asked)
    async with console(seen()) as (_, _, address):
        name, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


async def test_the_cookie_is_for_this_site_and_no_script() -> None:
    async with console(seen()) as (client, _, address):
        form = {"token": TOKEN, "next": "/console/story"}
        async with client.post(f"{address}/console/enter", data=form, **PLAIN) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/console/story")
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/console" in cookie


@pytest.mark.parametrize(
    "where", ["https://evil.example/", "//evil.example", "/console/\\evil", "/api/admin", "x", ""]
)
async def test_signing_in_never_leads_elsewhere(where: str) -> None:
    async with console(seen()) as (client, _, address):
        form = {"token": TOKEN, "next": where}
        async with client.post(f"{address}/console/enter", data=form, **PLAIN) as answer:
            assert answer.headers["Location"] == "/console/"


ACTS = ("/console/brokers/broker-a/handover", "/console/letters/billing/again", "/console/leave")


@pytest.mark.parametrize("path", ACTS)
async def test_acting_needs_a_session_its_form_word_and_our_own_origin(path: str) -> None:
    form = {"to": "2", "epoch": "3", "sure": "yes", "letter": "broker-a:0:0"}
    async with console(seen()) as (client, made, address):
        async with client.post(address + path, data=form) as answer:
            assert (answer.status, "Sign in first" in await answer.text()) == (403, True)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        async with client.post(address + path, data=form, headers=bearer) as answer:
            assert (
                answer.status == 403
            )  # a form wants a session: /api/ is for who has the token in a program
        word = await signed_in(client, address)
        for wrong in ("", "word-0", word + "x"):
            async with client.post(address + path, data={**form, "word": wrong}) as answer:
                assert (answer.status, "no page of this session" in await answer.text()) == (
                    403,
                    True,
                )
        right = {**form, "word": word}
        for headers in (
            {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"}, {"Origin": address.replace("127.0.0.1", "127.0.0.2")},
        ):  # fmt: skip
            async with client.post(address + path, data=right, headers=headers) as answer:
                assert answer.status == 403, headers
        assert not made.desk.outcomes
        async with client.post(
            address + path, data=right, headers={"Origin": address}, **PLAIN
        ) as answer:
            assert answer.status in (303, 400)


async def test_an_action_is_done_once_and_its_outcome_can_be_loaded_again() -> None:
    async with console(seen()) as (client, _, address):
        word = await signed_in(client, address)
        form = {"word": word, "to": "2", "epoch": "3", "sure": "yes"}
        async with client.post(f"{address}/console/brokers/broker-a/handover", data=form) as answer:
            assert "/console/done/" in str(answer.url)
            assert "Not handed over" in await answer.text()  # no name server is there
            again = str(answer.url)
        async with client.get(again) as answer:
            assert "Not handed over" in await answer.text()
        for missing in ("sure", "to"):
            part = {name: value for name, value in form.items() if name != missing}
            async with client.post(
                f"{address}/console/brokers/broker-a/handover", data=part
            ) as answer:
                assert answer.status == 400
        for letters in (
            {},
            {"to": "group"},
            {"to": "group", "letter": "x"},
            {"to": "mars", "letter": "b:0:0"},
        ):
            async with client.post(
                f"{address}/console/letters/g/again", data={"word": word, **letters}
            ) as answer:
                assert answer.status == 400, letters


async def test_a_page_that_did_not_change_is_not_sent_again() -> None:
    async with console(seen()) as (client, _, address):
        ask = {room.FRAGMENT: "1"}
        async with client.get(f"{address}/console/story", headers=ask) as answer:
            text, tag = await answer.text(), answer.headers["ETag"]
        assert text.startswith("<main") and "<html" not in text
        async with client.get(
            f"{address}/console/story", headers={**ask, "If-None-Match": tag}
        ) as answer:
            assert (answer.status, await answer.text()) == (304, "")


async def test_changes_are_told_as_events_and_viewers_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "STREAMS_MAX", 2)
    async with (
        console(seen()) as (client, made, address),
        client.get(f"{address}/console/events") as one,
        client.get(f"{address}/console/events"),
    ):
        assert one.headers["Content-Type"].startswith("text/event-stream")
        first = (await one.content.readuntil(b"\n\n")).decode()
        await made.watcher.touch()
        second = (await one.content.readuntil(b"\n\n")).decode()
        assert first.startswith("event: changed\ndata: ") and second.startswith("event: changed")
        assert first != second
        async with client.get(f"{address}/console/events") as third:
            assert third.status == 503


async def test_a_cluster_that_does_not_answer_is_said_so_and_nothing_breaks() -> None:
    async with console() as (client, made, address):
        async with asyncio.timeout(30):
            version = -1
            while not made.watcher.seen.problem:
                version = await made.watcher.changed(version, 30)
        async with client.get(f"{address}/console/") as answer:
            assert "No name server answers" in await answer.text()
        for page in ("messages?topic=Orders&by=newest", "messages?topic=Orders&by=time&from=never", "letters/billing",
                     "message?topic=Orders&broker=b&queue=0&offset=0"):  # fmt: skip
            async with client.get(f"{address}/console/{page}") as answer:
                assert (answer.status, "notice bad" in await answer.text()) == (200, True), page
        for page in ("message", "message?queue=x&offset=1", "message?queue=1&offset=" + "9" * 30):
            async with client.get(f"{address}/console/{page}") as answer:
                assert answer.status == 404, page


async def test_reports_are_served_as_pages_that_can_do_nothing(tmp_path: Path) -> None:
    run = tmp_path / "reports" / "RUN 1"
    run.mkdir(parents=True)
    (run / "report.html").write_text("<script>alert(1)</script>")
    (run / "<b>.txt").write_text("text")
    (tmp_path / "secret.txt").write_text("secret")
    (run / "secret.txt").symlink_to(tmp_path / "secret.txt")
    (run / ".hidden.txt").write_text("hidden")
    (run / "00000000000000000000").write_bytes(b"a log")
    root = tmp_path / "reports"
    async with console(seen(), reports=root) as (client, _, address):
        async with client.get(f"{address}/console/reports") as answer:
            page = await answer.text()
        paths = re.findall(r'href="(/console/reports/[^"]+)"', page)
        assert sorted(paths) == [
            "/console/reports/RUN%201/%3Cb%3E.txt",
            "/console/reports/RUN%201/report.html",
        ]
        for path in paths:
            async with client.get(address + path) as answer:
                assert (
                    answer.status == 200
                    and answer.headers["Content-Security-Policy"] == room.REPORT_POLICY
                )
        assert "sandbox" in room.REPORT_POLICY
        for path in ("..%2Fsecret.txt", "RUN%201/secret.txt", "RUN%201/.hidden.txt", "RUN%201/00000000000000000000",
                     "%2Fetc%2Fpasswd", "RUN%201", "RUN%201%2F..%2F..%2Fsecret.txt", "x%00.txt"):  # fmt: skip
            async with client.get(f"{address}/console/reports/{path}") as answer:
                assert answer.status in (400, 404), path
                assert (await answer.text()).strip() != "secret"
    assert reports.read(root, "../secret.txt") is None


async def test_a_guest_is_loaded_for_the_first_request_and_what_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "SETTLED_S", 3_600)
    monkeypatch.setattr(paths, "AGAIN_S", 0)
    asked: list[str] = []

    def make(token: str) -> room.Console:
        asked.append(token)
        if len(asked) == 1:
            raise ConfigError("TANDEM_ACCESS_KEY", "", "half a key")
        return room.made(ClientConfig(f"127.0.0.1:{silent_port()}"), token, None)

    async with served(LateConsole(make).room) as (client, address):
        assert not asked
        async with client.get(f"{address}/console/") as answer:
            assert (answer.status, "the log says why" in await answer.text()) == (503, True)
        for _ in range(2):
            async with client.get(f"{address}/console/") as answer:
                assert (answer.status, "What stands out" in await answer.text()) == (200, True)
        assert asked == [TOKEN, TOKEN]


def test_a_name_server_starts_without_loading_the_console() -> None:
    wanted = "{'tandemmq.console.room', 'tandemmq.cluster.client'}"
    script = f"import sys, tandemmq.console.guest; print(sorted({wanted} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_connections_beyond_what_a_port_holds_are_closed_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(httpport, "OPEN_MAX", 2)
    port = PORTS.take((0,))
    process = httpport.Process("broker", list, dict, MetricPage([MetricTable({}, {})]))
    config = HttpConfig(port=port, token=TOKEN)
    async with httpport.serving_http(process, config, Encryption(TlsConfig())), asyncio.timeout(30):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        held[0][1].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await held[0][0].readline()).split()[1] == b"200"
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await late.read(1) == b""
        writer.close()
        held[1][1].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await held[1][0].readline()).split()[1] == b"200"
        for _, each in held:
            each.close()


@pytest.mark.parametrize("port", ["0", "65536", "99999", "-1"])
def test_a_port_that_cannot_be_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", f"--port={port}"]) == 2
    assert "--port must be between 1 and 65535" in capsys.readouterr().err
