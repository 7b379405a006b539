"""Who is let in at an HTTP port: the token, the Host header, pages of other origins, and proxies."""

from __future__ import annotations

import pytest

from tandemmq.cluster.httpdoor import Door, Shown, is_foreign, is_here

TOKEN = "a-token-of-some-length"
DOOR = Door(TOKEN, {"localhost", "broker-a"}, reads_unasked=True)
GUARDED = Door(TOKEN, {"localhost"}, reads_unasked=False)
HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, Shown.NOTHING),
        (f"Bearer {TOKEN}", Shown.RIGHT),
        (f"bearer  {TOKEN} ", Shown.RIGHT),
        ("", Shown.WRONG),
        ("Bearer", Shown.WRONG),
        (f"Bearer {TOKEN[:-1]}", Shown.WRONG),
        (f"Bearer {TOKEN}x", Shown.WRONG),
        (f"Bearer {TOKEN.upper()}", Shown.WRONG),
        (f"Basic {TOKEN}", Shown.WRONG),
        (TOKEN, Shown.WRONG),
        ("Bearer \udcff\udcfe", Shown.WRONG),
    ],
)
def test_only_the_whole_token_of_the_right_scheme_is_right(
    header: str | None, expected: Shown
) -> None:
    assert DOOR.shown(header) is expected


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LocalHost:8080", True),
        ("127.0.0.1:8080", True),
        ("10.1.2.3", True),
        ("[::1]", True),
        ("[::1]:8080", True),
        ("broker-a:8080", True),
        ("broker-a.evil.example", False),
        ("localhost.evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example", False),
        ("", False),
    ],
)
def test_host_header_names_an_address_or_one_of_our_names(host: str, known: bool) -> None:
    assert DOOR.knows(host) is known


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"Origin": "http://127.0.0.1:8080"}, False),
        ({"Origin": "https://127.0.0.1:8080"}, False),
        ({"Origin": "http://127.0.0.1:8081"}, True),
        ({"Origin": "http://evil.example"}, True),
        ({"Origin": "http://evil.example/127.0.0.1:8080"}, True),
        ({"Origin": "http://127.0.0.1:8080.evil.example"}, True),
        ({"Origin": "null"}, True),
        ({"Origin": ""}, True),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, True),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),
    ],
)
def test_page_of_another_origin_is_told_apart(headers: dict[str, str], foreign: bool) -> None:
    assert is_foreign({"Host": "127.0.0.1:8080", **headers}, "GET") is foreign


def test_form_of_another_page_is_foreign_though_it_navigates() -> None:
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert is_foreign({"Host": "localhost", **sent}, "POST")


@pytest.mark.parametrize(
    ("peer", "here"),
    [("127.0.0.1", True), ("127.3.4.5", True), ("::1", True), ("::ffff:127.0.0.1", True),
     ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("", False), ("localhost", False),
     (None, False)],
)  # fmt: skip
def test_peer_is_on_this_machine_by_its_address(peer: str | None, here: bool) -> None:
    assert is_here({}, peer) is here


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"]
)
def test_who_comes_through_a_proxy_on_this_machine_is_not_here(header: str) -> None:
    assert not is_here({header: "127.0.0.1"}, HERE)


def test_writing_wants_the_token_and_reading_does_not_on_this_machine() -> None:
    def let_in(door: Door, peer: str, shown: Shown, writing: bool) -> bool:
        return door.let_in({}, peer, shown, writing=writing)

    for writing in (False, True):
        assert let_in(DOOR, "10.0.0.1", Shown.RIGHT, writing)
        assert not let_in(DOOR, HERE, Shown.WRONG, writing)
        assert not let_in(DOOR, "10.0.0.1", Shown.NOTHING, writing)
        assert not let_in(GUARDED, HERE, Shown.NOTHING, writing)
    assert let_in(DOOR, HERE, Shown.NOTHING, False)
    assert not let_in(DOOR, HERE, Shown.NOTHING, True)
