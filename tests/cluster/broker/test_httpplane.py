"""Ranges, pace, names and tokens of the HTTP port; its sockets are in tests/system/test_http_port.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.broker.settings.changing import change_settings
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.settings.startable import check_startable
from tandemmq.cluster.broker.watching.httpplane import ByteRange, Pace, RangeProblem, parse_range
from tandemmq.cluster.config import ConfigError

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-99", (0, 100)),
        ("bytes=0-100", (0, 100)),
        ("bytes=40-", (40, 100)),
        ("bytes=99-5000", (99, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-1000", (0, 100)),
        (" bytes=3-4 ", (3, 5)),
    ],
)
def test_range_names_bytes_of_the_file(header: str, expected: tuple[int, int]) -> None:
    assert parse_range(header, 100) == ByteRange(*expected)


@pytest.mark.parametrize(
    "header",
    ["", "bytes", "bytes=", "bytes=-", "bytes=5-4", "bytes=100-", "bytes=100-200", "bytes=-0",
     "bytes=0-1,4-5", "lines=0-1", "bytes=a-b", "bytes=1-2-3", "bytes=--1", "bytes=+1-2",
     "bytes=" + "9" * 20 + "-", "bytes=٣-٤"],
)  # fmt: skip
def test_other_ranges_are_refused(header: str) -> None:
    with pytest.raises(RangeProblem):
        parse_range(header, 100)


def test_no_range_is_no_problem_even_of_an_empty_file() -> None:
    assert parse_range(None, 0) is None
    with pytest.raises(RangeProblem):
        parse_range("bytes=0-", 0)


@given(
    header=st.text(max_size=40) | st.from_regex(r"bytes=\d{0,22}-\d{0,22}"),
    length=st.integers(0, 1 << 40),
)
def test_whatever_is_asked_for_stays_within_the_file(header: str, length: int) -> None:
    try:
        found = parse_range(header, length)
    except RangeProblem:
        return
    assert found is not None
    assert 0 <= found.start < found.end <= length


async def test_pace_lets_readers_through_one_after_the_other() -> None:
    now_s = 100.0
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    pace = Pace(1000, lambda: now_s, wait)
    for _ in range(3):
        await pace.take(500)
    assert waits == [0.5, 1.0]
    now_s += 10  # who does not read saves nothing up
    waits.clear()
    await pace.take(500)
    await pace.take(500)
    assert waits == [0.5]


async def test_pace_of_zero_waits_for_nobody() -> None:
    async def wait(seconds: float) -> None:
        raise AssertionError("waited")

    pace = Pace(0, lambda: 0.0, wait)
    for _ in range(10):
        await pace.take(1 << 30)


def config(tmp_path: Path, *, insecure: bool = False, **settings: object) -> BrokerConfig:
    given_settings = {key: str(value) for key, value in settings.items()}
    return BrokerConfig.from_properties(
        {"storePathRootDir": str(tmp_path), **given_settings}, insecure=insecure, environment={}
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "httpToken=: httpPort=8081 needs a token of at least 16 printable characters"),
        ({"httpToken": "short"}, "needs a token of at least 16"),
        ({"httpToken": "naïve-token-of-some-length"}, "printable characters"),
        ({"httpToken": TOKEN, "httpTokenFile": "x"}, "give this or httpToken, not both"),
        ({"httpTokenFile": "/nowhere/token"}, "httpTokenFile=/nowhere/token: No such file"),
        ({"httpToken": TOKEN, "httpHost": "10.0.0.1"}, "httpHost=10.0.0.1: must be loopback"),
    ],
)
def test_port_is_not_served_without_a_token_or_in_plain_text_to_others(
    tmp_path: Path, settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_startable(config(tmp_path, httpPort=8081, **settings))
    assert sentence in str(refused.value)


def test_token_comes_from_the_file_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n", encoding="ascii")
    served = config(tmp_path, httpPort=8081, httpTokenFile=tmp_path / "token")
    check_startable(served)
    assert served.http.read_token() == TOKEN


@pytest.mark.parametrize(
    "settings", [{"tls.server.mode": "enforcing"}, {}], ids=["encrypted", "insecure"]
)
def test_other_machines_may_read_when_it_is_encrypted_or_said_to_be_safe(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    served = {"httpPort": 8081, "httpToken": TOKEN, "httpHost": "0.0.0.0", **settings}
    check_startable(config(tmp_path, insecure=not settings, **served))


def test_settings_of_a_port_that_is_off_are_not_looked_at(tmp_path: Path) -> None:
    check_startable(config(tmp_path, httpTokenFile="/nowhere"))


def test_token_is_never_handed_out_and_cannot_be_guessed_by_setting_it(tmp_path: Path) -> None:
    served = config(tmp_path, httpPort=8081, httpToken=TOKEN)
    assert TOKEN not in str(served.to_properties())
    assert served.to_properties()["httpToken"] == "******"
    for guess in (TOKEN, "another-token-of-that-length"):
        with pytest.raises(ConfigError, match="cannot be changed while the broker runs"):
            change_settings(served, {"httpToken": guess})
