"""Where a broker's HTTP port is, by what it says of its settings, and that it is that broker's."""

from __future__ import annotations

import pytest

from tandemmq.audit.replicas import RunningGroup, http_url, make_sure
from tandemmq.replication.audit import live
from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.live import Access, Standing

HERE = "127.0.0.1:10911"


@pytest.mark.parametrize(
    ("address", "settings", "url"),
    [
        (HERE, {"httpPort": "8081"}, "http://127.0.0.1:8081"),
        (HERE, {"httpPort": "8081", "httpHost": "127.0.0.2"}, "http://127.0.0.2:8081"),
        ("203.0.113.9:10911", {"httpPort": "1", "httpHost": "0.0.0.0"}, "http://203.0.113.9:1"),
        ("203.0.113.9:10911", {"httpPort": "1", "httpHost": "10.0.0.7"}, "http://10.0.0.7:1"),
        ("[2001:db8::9]:10911", {"httpPort": "1", "httpHost": "::"}, "http://[2001:db8::9]:1"),
        (
            "203.0.113.9:10911",
            {"httpPort": "1", "httpHost": "0.0.0.0", "tls.server.mode": "enforcing"},
            "https://203.0.113.9:1",
        ),
    ],
)
def test_port_is_where_the_settings_say(address: str, settings: dict[str, str], url: str) -> None:
    assert http_url("broker-a-0", address, settings) == url


@pytest.mark.parametrize("settings", [{}, {"httpPort": "0"}, {"httpPort": "x"}, {"httpPort": ""}])
def test_broker_without_a_port_is_told_what_to_set(settings: dict[str, str]) -> None:
    with pytest.raises(BadInput) as refused:
        http_url("broker-a-1", HERE, settings)
    assert str(refused.value) == (
        "broker-a-1 at 127.0.0.1:10911 has no HTTP port: set httpPort and httpToken (or"
        " httpTokenFile) in its broker.conf"
    )


def test_port_that_only_another_machine_reaches_is_told_so() -> None:
    with pytest.raises(
        BadInput, match=r"to its own machine only: set httpHost in its broker\.conf"
    ):
        http_url("broker-a-1", "203.0.113.9:10911", {"httpPort": "8081"})


@pytest.mark.parametrize(
    ("cluster", "group", "broker_id", "error", "sentence"),
    [
        (
            "Other",
            "broker-a",
            0,
            BadInput,
            "should be broker-a-0 of C, but it is a broker of Other",
        ),
        ("C", "broker-b", 0, BadInput, "mixed clusters"),
        ("C", "broker-a", 1, AuditIncomplete, "its broker id is 1: roles are changing"),
    ],
)
def test_port_of_somebody_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    cluster: str,
    group: str,
    broker_id: int,
    error: type[Exception],
    sentence: str,
) -> None:
    said = Standing(cluster, group, broker_id, "ASYNC_MASTER", 0, 0, 0, 0)
    monkeypatch.setattr(live.BrokerPort, "standing", lambda self: said)
    group_named = RunningGroup("C", "broker-a", {"broker-a-0": "http://127.0.0.1:1"})
    with pytest.raises(error, match=sentence):
        make_sure(group_named, "broker-a-0", "http://127.0.0.1:1", Access())
