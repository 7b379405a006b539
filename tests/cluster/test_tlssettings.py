"""What the keys of tls.* mean together, and where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.cluster import tlssettings
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.remoting.tls import ClientAuth, TlsMode
from tandemmq.cluster.tlssettings import read_tls

ENFORCING = {"tls.server.mode": "enforcing"}
CERTIFICATE = {"tls.server.certPath": "own.pem", "tls.server.keyPath": "own.key"}


@pytest.mark.parametrize(
    ("settings", "speaks"),
    [
        ({}, False),
        (ENFORCING, True),
        ({"tls.server.mode": "permissive"}, False),
        ({"tls.server.mode": "permissive", "tls.enable": "TRUE"}, True),
        ({**ENFORCING, "tls.enable": "false"}, False),
        ({"tls.enable": "true"}, True),
    ],
)
def test_who_demands_tls_speaks_it_unless_told_otherwise(
    settings: dict[str, str], speaks: bool
) -> None:
    assert read_tls(settings).speaks is speaks


@pytest.mark.parametrize(
    ("settings", "checks", "roots"),
    [
        ({}, False, ""),
        ({"tls.server.trustCertPath": "a.pem"}, True, "a.pem"),
        (
            {"tls.server.trustCertPath": "a.pem", "tls.client.trustCertPath": "b.pem"},
            True,
            "b.pem",
        ),
        ({"tls.client.trustCertPath": "b.pem", "tls.client.authServer": "false"}, False, "b.pem"),
        ({"tls.client.authServer": "true"}, True, ""),
    ],
)
def test_peers_are_checked_where_roots_are_known(
    settings: dict[str, str], checks: bool, roots: str
) -> None:
    config = read_tls({**ENFORCING, **settings})
    assert (config.checks_peers, config.roots) == (checks, roots)
    assert bool(config.warnings()) is not checks


def test_peers_are_shown_our_servers_certificate_unless_there_is_another() -> None:
    assert read_tls(CERTIFICATE).shown_files.cert_path == "own.pem"
    other = {
        "tls.client.certPath": "c.pem",
        "tls.client.keyPath": "c.key",
        "tls.client.keyPassword": "pw",
    }
    shown = read_tls({**CERTIFICATE, **other}).shown_files
    assert (shown.cert_path, shown.key_path, shown.key_password) == ("c.pem", "c.key", "pw")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tls.server.certPath": "own.pem"}, "tls.server.certPath"),
        ({"tls.server.keyPath": "own.key"}, "tls.server.keyPath"),
        ({"tls.client.certPath": "own.pem"}, "tls.client.certPath"),
        ({**ENFORCING, "tls.test.mode.enable": "false"}, "tls.server.mode"),
        ({**ENFORCING, "tls.server.need.client.auth": "require"}, "tls.server.need.client.auth"),
        ({**ENFORCING, "tls.server.need.client.auth": "optional"}, "tls.server.need.client.auth"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_key(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tls(settings).check()
    assert caught.value.key == key


@pytest.mark.parametrize(
    "settings", [{"tls.enable": "perhaps"}, {"tls.server.need.client.auth": "some"}]
)
def test_a_word_that_is_none_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must be one of"):
        read_tls(settings)


def test_the_file_that_is_named_wins(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.need.client.auth=optional\ntls.server.certPath=theirs.pem\n")
    config = read_tls({**ENFORCING, **CERTIFICATE, "tls.config.file": str(file)})
    assert (config.client_auth, config.certificate_path) == (ClientAuth.OPTIONAL, "theirs.pem")
    assert (config.mode, config.key_path) == (TlsMode.ENFORCING, "own.key")


def test_rocketmqs_usual_file_is_read_only_where_tls_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=usual.pem\ntls.server.keyPath=usual.key\n")
    monkeypatch.setattr(tlssettings, "USUAL_FILE", str(file))
    assert read_tls(ENFORCING).certificate_path == "usual.pem"
    assert read_tls({"brokerName": "a"}).certificate_path == ""
