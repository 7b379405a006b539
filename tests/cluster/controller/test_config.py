"""A controller's settings: RocketMQ's files start it, and what cannot work stops the start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tandemmq.cluster.config import ConfigError, parse_properties
from tandemmq.cluster.controller.config import (
    KEYS,
    ControllerConfig,
    Peer,
    StoreKind,
    check_startable,
)
from tandemmq.cluster.controller.serving import make_store
from tandemmq.cluster.controller.store import FileStore, NoStore
from tandemmq.cluster.nameserver import KEYS as NAME_SERVER_KEYS
from tandemmq.cluster.nameserver import NameServerConfig

# The settings of RocketMQ 5's distribution/conf/controller, its four kinds of example.
QUICK_START = """
listenPort = 9876
enableControllerInNamesrv = true
controllerDLegerGroup = group1
controllerDLegerPeers = n0-127.0.0.1:9878
controllerDLegerSelfId = n0
"""
PLUGIN_N1 = """
listenPort = 9886
enableControllerInNamesrv = true
controllerDLegerGroup = group1
controllerDLegerPeers = n0-127.0.0.1:9878;n1-127.0.0.1:9868;n2-127.0.0.1:9858
controllerDLegerSelfId = n1
"""
STANDALONE = """
controllerDLegerGroup = group1
controllerDLegerPeers = n0-127.0.0.1:9878
controllerDLegerSelfId = n0
"""
INDEPENDENT_N2 = STANDALONE.replace(
    "n0-127.0.0.1:9878", "n0-127.0.0.1:9878;n1-127.0.0.1:9868;n2-127.0.0.1:9858"
).replace("SelfId = n0", "SelfId = n2")


def config(text: str = "", **settings: str) -> ControllerConfig:
    return ControllerConfig.from_properties(
        {**parse_properties(text), **settings}, home=Path("/home/x")
    )


@pytest.mark.parametrize(
    ("text", "port", "leads"),
    [
        (QUICK_START, 9878, True),
        (PLUGIN_N1, 9868, False),
        (STANDALONE, 9878, True),
        (INDEPENDENT_N2, 9858, False),
    ],
    ids=["quick-start", "plugin", "standalone", "independent"],
)
def test_the_example_files_of_rocketmq_start_a_controller_without_a_warning_of_unknown_keys(
    text: str, port: int, leads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = parse_properties(text)
    with caplog.at_level(logging.WARNING):
        found = ControllerConfig.from_properties(
            given, home=Path("/home/x"), also_known=NAME_SERVER_KEYS
        )
        NameServerConfig.from_properties(given, home=Path("/home/x"), also_known=KEYS)
    assert not caplog.records
    check_startable(found)
    assert (found.bind_host, found.port, found.group) == ("127.0.0.1", port, "group1")
    assert found.store_path == "/home/x/controller"
    # Of several controllers without a common store exactly one decides.
    assert isinstance(make_store(found), FileStore if leads else NoStore)


def test_peers_are_ids_and_addresses() -> None:
    found = config(
        controllerDLegerPeers="n0-ctl-0.example:9878; n1-[::1]:9878;", controllerDLegerSelfId="n1"
    )
    assert found.all_peers == [Peer("n0", "ctl-0.example:9878"), Peer("n1", "[::1]:9878")]
    assert (found.bind_host, found.port, found.me.id) == ("::1", 9878, "n1")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("controllerDLegerPeers", "127.0.0.1:9878"),
        ("controllerDLegerPeers", "n0-127.0.0.1"),
        ("controllerDLegerPeers", "n0-127.0.0.1:99999"),
        ("controllerDLegerPeers", "n0-127.0.0.1:1;n0-127.0.0.1:2"),
        ("controllerDLegerPeers", "n0-127.0.0.1:1;n1-127.0.0.1:1"),
        ("controllerDLegerPeers", ";".join(f"n{n}-127.0.0.1:{n + 1}" for n in range(17))),
        ("controllerDLegerSelfId", "n1"),
        ("controllerType", "jRaft"),
        ("controllerStore", "zookeeper"),
        ("controllerStore", "etcd"),
        ("etcdEndpoints", "127.0.0.1:2379"),
        ("etcdPrefix", "relative/"),
        ("etcdLeaseSeconds", "1"),
        ("enableElectUncleanMaster", "perhaps"),
        ("tls.server.mode", "maybe"),
    ],
)
def test_a_bad_value_stops_the_start_and_names_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**{key: value})
    assert caught.value.key == ("etcdEndpoints" if value == "etcd" else key)


def test_times_that_fence_nothing_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="election wait of 2300 ms is not above the lease of 2200"
    ):
        config(haLeaseMillis="2200")
    assert config(haLeaseMillis="1500").times.lease_ms == 1500


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"controllerDLegerPeers": "n0-10.0.0.1:9878"}, "controllerDLegerPeers"),
        ({"bindAddress": "0.0.0.0"}, "bindAddress"),
        (
            {"metricsExporterType": "PROM", "metricsPromExporterHost": "0.0.0.0"},
            "metricsPromExporterHost",
        ),
    ],
)
def test_a_reachable_address_needs_tls_or_the_flag(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match="insecure") as caught:
        check_startable(config(**settings))
    assert caught.value.key == key
    check_startable(ControllerConfig.from_properties(settings, insecure=True))
    if key != "metricsPromExporterHost":
        check_startable(config(**settings, **{"tls.server.mode": "required"}))


def test_a_read_out_masks_secrets_and_can_be_read_back() -> None:
    found = config(
        controllerStore="etcd", etcdEndpoints="http://a:2379, http://b:2379/", etcdPassword="geheim",
        haLeaseMillis="1500",
    )  # fmt: skip
    assert found.endpoints == ["http://a:2379", "http://b:2379"]
    shown = found.to_properties()
    assert shown["etcdPassword"] == "******" and "geheim" not in str(shown)
    assert shown["haLeaseMillis"] == "1500"
    again = ControllerConfig.from_properties(shown)
    assert again.store_kind is StoreKind.ETCD and again.times == found.times


@pytest.mark.parametrize(
    ("scheme", "mode", "warned"),
    [("http", "enforcing", True), ("https", "enforcing", False), ("http", "disabled", False)],
)
def test_a_controller_that_takes_tls_only_says_so_when_etcd_is_spoken_to_in_plain_text(
    caplog: pytest.LogCaptureFixture, scheme: str, mode: str, warned: bool
) -> None:
    settings = {
        "controllerStore": "etcd",
        "etcdEndpoints": f"{scheme}://127.0.0.1:2379",
        "tls.server.mode": mode,
    }
    check_startable(ControllerConfig.from_properties(settings))
    assert ("etcd is spoken to in plain text" in caplog.text) is warned
