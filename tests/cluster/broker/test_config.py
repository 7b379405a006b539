"""cluster/broker/settings/config.py: the settings of a broker.conf, good and bad."""

from __future__ import annotations

import base64
import json
import logging
import lzma
from pathlib import Path

import pytest

from tandemmq.cluster.access.startup import AccessConfig
from tandemmq.cluster.broker.settings.access import RightsConfig
from tandemmq.cluster.broker.settings.changing import change_settings
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.settings.known_keys import WITHOUT_EFFECT
from tandemmq.cluster.broker.settings.proofs import ha_secret
from tandemmq.cluster.broker.settings.startable import check_startable, exposure
from tandemmq.cluster.broker.standing.haport import door_of
from tandemmq.cluster.config import ConfigError, keys_of, parse_properties
from tandemmq.replication import LeaseTimes, Mode, StreamRules
from tandemmq.storage import StorageConfig

WIRE = Path(__file__).parents[2] / "golden" / "wire"

SAMPLE = """
# a broker.conf as in many tutorials
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
namesrvAddr=127.0.0.1:9876;localhost:9877
storePathRootDir=/tmp/rmq
sendMessageThreadPoolNums=16
useReentrantLockWhenPutMessage=true
autoCreateTopicEnable=false
"""


def settings(text: str = "", **more: str) -> BrokerConfig:
    return BrokerConfig.from_properties({**parse_properties(text), **more}, environment={})


def test_a_tutorials_broker_conf_is_read_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = settings(SAMPLE)
    assert not caplog.records
    assert (config.name, config.cluster, config.storage.reserved_hours) == (
        "broker-a",
        "DefaultCluster",
        48,
    )
    assert config.name_servers == [("127.0.0.1", 9876), ("localhost", 9877)]
    assert config.auto_create_topic is False
    assert config.kept == {
        "sendMessageThreadPoolNums": "16",
        "useReentrantLockWhenPutMessage": "true",
    }


def test_every_setting_a_running_rocketmq_knows_is_known_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with lzma.open(WIRE / "b53-c53-json.jsonl.xz", "rt") as lines:
        answers = (line for line in map(json.loads, lines) if line.get("req") == 26)
        answer = next(answers)
    frame = base64.b64decode(answer["b"])
    properties = parse_properties(frame[len(frame) - answer["bodyLen"] :].decode())
    assert len(properties) > 400
    with caplog.at_level(logging.WARNING):
        settings(**properties)
    assert not caplog.records


def test_a_key_is_either_used_or_without_effect_and_never_both() -> None:
    kinds = (BrokerConfig, StorageConfig, StreamRules, LeaseTimes, AccessConfig, RightsConfig)
    used = {key for kind in kinds for key in keys_of(kind)}
    assert not used & WITHOUT_EFFECT.keys()


def test_a_feature_that_is_switched_on_and_not_here_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        settings(aclEnable="false", enableSlaveActingMaster=" True", popPollingSize="2000")
        settings(duplicationEnable="true", enabledAppendPropCRC="true")
        settings(rocksdbCQDoubleWriteEnable="true", coldDataFlowControlEnable="true")
    assert [each.message for each in caplog.records] == [
        "switched on, and not built yet, so without effect: enableSlaveActingMaster",
        "switched on, and not built yet, so without effect: duplicationEnable enabledAppendPropCRC",
        "switched on, and not built yet, so without effect: coldDataFlowControlEnable rocksdbCQDoubleWriteEnable",
    ]


def test_the_gap_has_two_names() -> None:
    assert settings(haSlaveFallbehindMax="1024").rules.gap_bytes_max == 1024
    both = settings(haSlaveFallbehindMax="1024", haMaxGapNotInSync="4096")
    assert both.rules.gap_bytes_max == 4096


def test_environment_names_the_name_servers_only_when_nothing_else_does() -> None:
    environment = {"NAMESRV_ADDR": "ns:1"}
    found = BrokerConfig.from_properties({}, environment=environment)
    assert found.name_servers == [("ns", 1)]
    given = {"namesrvAddr": "other:2"}
    found = BrokerConfig.from_properties(given, environment=environment)
    assert found.name_servers == [("other", 2)]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("namesrvAddr", "localhost"),
        ("namesrvAddr", "a:1;b"),
        ("brokerName", "../x"),
        ("brokerName", "a.b"),
        ("brokerClusterName", ""),
        ("listenPort", "0x1"),
        ("listenPort", "2"),
        ("brokerRole", "MASTER"),
        ("flushDiskType", "SYNC"),
        ("brokerPermission", "8"),
        ("mappedFileSizeCommitLog", "12"),
    ],
)
def test_bad_values_stop_the_start(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings(**{key: text})


def test_a_slave_needs_an_id_and_a_master_has_none() -> None:
    assert settings(brokerRole="SYNC_MASTER", brokerId="3").broker_id == 0
    with pytest.raises(ConfigError, match="brokerId"):
        settings(brokerRole="SLAVE")
    slave = settings(brokerRole="SLAVE", brokerId="1")
    assert slave.role is Role.SLAVE
    with pytest.raises(ConfigError, match="SLAVE"):
        check_startable(slave)


def test_slave_must_be_able_to_find_its_master() -> None:
    with pytest.raises(ConfigError, match="where its master is"):
        check_startable(settings(brokerRole="SLAVE", brokerId="1"))
    check_startable(settings(brokerRole="SLAVE", brokerId="1", namesrvAddr="127.0.0.1:9876"))
    check_startable(settings(brokerRole="SLAVE", brokerId="1", haMasterAddress="127.0.0.1:10912"))
    for nonsense in ("nonsense", "a:1;b:2", "a:99999"):
        with pytest.raises(ConfigError):
            settings(brokerRole="SLAVE", brokerId="1", haMasterAddress=nonsense)


def test_sync_masters_start_however_many_copies_they_want() -> None:
    check_startable(settings(brokerRole="SYNC_MASTER"))
    check_startable(settings(brokerRole="SYNC_MASTER", inSyncReplicas="3"))


def test_only_loopback_is_open_to_strangers_unless_insecure() -> None:
    check_startable(settings())
    for key in ("brokerIP1", "bindAddress"):
        with pytest.raises(ConfigError, match=key):
            check_startable(settings(**{key: "192.0.2.7"}))
        check_startable(settings(**{key: "192.0.2.7", "tls.server.mode": "enforcing"}))
    insecure = BrokerConfig.from_properties(
        {"brokerIP1": "192.0.2.7"}, insecure=True, environment={}
    )
    check_startable(insecure)
    assert insecure.bind_host == insecure.advertised_host == "192.0.2.7"


ELSEWHERE = "192.0.2.77"  # of no machine that runs tests


def from_file(**given: str) -> BrokerConfig:
    """Settings of a file that RocketMQ would read too."""
    return BrokerConfig.from_properties(given, as_rocketmq=True, environment={})


def test_a_settings_file_that_names_no_address_is_served_as_by_rocketmq(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandemmq.cluster.broker.settings.config.local_address", lambda: "10.0.0.5")
    monkeypatch.setattr(
        "tandemmq.cluster.broker.settings.startable.reached_at", lambda: ["10.0.0.5", "172.17.0.1"]
    )
    config = from_file()
    assert (config.bind_host, config.advertised_host) == ("0.0.0.0", "10.0.0.5")
    check_startable(config)
    (said,) = caplog.messages
    for part in (
        "10.0.0.5, 172.17.0.1",
        "10911",
        "10909",
        "without credentials",
        "haAllowedAddresses",
    ):
        assert part in said
    for key in ("bindAddress", "brokerIP1"):  # somebody said loopback
        assert from_file(**{key: "127.0.0.1"}).bind_host == "127.0.0.1"
    assert settings().bind_host == settings().advertised_host == "127.0.0.1"  # no file


def test_a_wide_address_of_a_file_is_warned_of_and_not_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for given in ({"bindAddress": "0.0.0.0"}, {"brokerIP1": ELSEWHERE}):
        caplog.clear()
        check_startable(from_file(**given))
        assert "without credentials" in caplog.text
        with pytest.raises(ConfigError, match="--insecure"):
            check_startable(settings(**given))
    caplog.clear()
    check_startable(from_file(**{"tls.server.mode": "enforcing"}))
    assert not caplog.records


def test_brokerip1_of_the_machine_around_a_container_is_told_and_all_of_ours_listened_on() -> None:
    config = from_file(brokerIP1=ELSEWHERE)
    assert (config.bind_host, config.advertised_host) == ("0.0.0.0", ELSEWHERE)


def test_the_replication_port_of_a_wide_file_keeps_its_door() -> None:
    """INV-44: RocketMQ's file opens the client ports to all, and the log to nobody."""
    assert door_of(from_file()).refuse("10.0.0.9") is not None
    assert door_of(from_file(haAllowedAddresses="10.0.0.0/24")).refuse("10.0.0.9") is None


def test_who_may_read_the_log_at_the_replication_port_is_said_of_every_wide_master() -> None:
    def said(**given: str) -> str:
        more = {"bindAddress": "0.0.0.0", **given}
        return exposure(BrokerConfig.from_properties(more, insecure=True, environment={}))

    assert "10912 everybody may read the whole log" in said()
    assert "10912 slaves get in from 10.0.0.9" in said(haAllowedAddresses="10.0.0.9")
    assert "signatures know no time" in said(aclEnable="true")
    assert "10912" not in said(brokerRole="SLAVE", brokerId="1")


def test_metrics_page_is_for_this_machine_unless_insecure() -> None:
    settings_of_page = {"metricsExporterType": "PROM", "metricsPromExporterHost": "192.0.2.7"}
    with pytest.raises(ConfigError, match="metricsPromExporterHost"):
        check_startable(settings(**settings_of_page))
    check_startable(settings(metricsExporterType="PROM"))
    check_startable(BrokerConfig.from_properties(settings_of_page, insecure=True, environment={}))


def test_a_file_cannot_call_itself_insecure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = settings(insecure="true", brokerIP1="192.0.2.7")
    assert not config.insecure
    assert "insecure" in caplog.text


def test_addresses_follow_from_each_other() -> None:
    config = settings(listenPort="20000")
    assert config.address == "127.0.0.1:20000"
    assert config.ha_address == "127.0.0.1:20001"
    assert settings(bindAddress="127.0.0.2").advertised_host == "127.0.0.2"


def test_register_interval_is_kept_between_ten_and_sixty_seconds() -> None:
    assert settings(registerNameServerPeriod="1").register_interval_ms == 10_000
    assert settings(registerNameServerPeriod="999999").register_interval_ms == 60_000


def test_settings_read_back_as_they_are_in_force() -> None:
    config = settings(SAMPLE)
    shown = config.to_properties()
    assert shown["brokerPermission"] == "6"
    assert shown["autoCreateTopicEnable"] == "false"
    assert shown["sendMessageThreadPoolNums"] == "16"
    assert "insecure" not in shown
    assert "storage" not in shown
    assert BrokerConfig.from_properties(shown, environment={}) == config


def test_secrets_are_shown_to_nobody() -> None:
    shown = settings(innerClientAuthenticationCredentials='{"secretKey":"s3cret"}').to_properties()
    assert "s3cret" not in str(shown)


def test_changeable_settings_change_all_or_none() -> None:
    config = settings(SAMPLE)
    changed = change_settings(config, {"brokerPermission": "4", "fileReservedTime": "72"})
    assert changed == {"brokerPermission": "4", "fileReservedTime": "72"}
    assert (config.permission, config.storage.reserved_hours) == (4, 72)
    for bad in ("storePathRootDir", "brokerName", "rocketmqHome", "noSuchKey"):
        with pytest.raises(ConfigError, match=bad):
            change_settings(config, {"brokerPermission": "2", bad: "x"})
    with pytest.raises(ConfigError, match="brokerPermission"):
        change_settings(config, {"brokerPermission": "many"})
    assert config.permission == 4


def test_setting_a_fixed_key_to_what_it_is_changes_nothing() -> None:
    assert change_settings(settings(SAMPLE), {"brokerName": "broker-a"}) == {}


QUICK_START = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = -1
brokerRole = SLAVE
flushDiskType = ASYNC_FLUSH
enableControllerMode = true
controllerAddr = 127.0.0.1:9878;127.0.0.1:9868
allAckInSyncStateSet = true
storePathRootDir=/tmp/rmq
storePathEpochFile=/tmp/rmq/epochs
"""


def test_a_stock_broker_conf_with_a_controller_is_read_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        config = settings(QUICK_START)
        check_startable(config)
    assert not caplog.records
    assert config.controller_addresses == [("127.0.0.1", 9878), ("127.0.0.1", 9868)]
    assert config.mode is Mode.S0 and config.rules.all_in_set
    assert str(config.epoch_path) == "/tmp/rmq/epochs"
    assert str(config.identity_path) == "/tmp/rmq/brokerIdentity"
    assert BrokerConfig.from_properties(config.to_properties(), environment={}) == config


@pytest.mark.parametrize(
    ("role", "more", "waits", "all_in_set"),
    [
        ("ASYNC_MASTER", {}, False, False),
        ("ASYNC_MASTER", {"allAckInSyncStateSet": "true"}, True, True),
        ("ASYNC_MASTER", {"inSyncReplicas": "2"}, True, True),
        ("SYNC_MASTER", {}, True, True),
        ("SYNC_MASTER", {"allAckInSyncStateSet": "false"}, True, True),
        ("SYNC_MASTER", {"allAckInSyncStateSet": "false", "inSyncReplicas": "2"}, True, False),
        ("SLAVE", {}, True, True),
        ("SLAVE", {"allAckInSyncStateSet": "false"}, False, False),
    ],
)
def test_no_file_promises_less_than_it_does_to_rocketmq(
    role: str, more: dict[str, str], waits: bool, all_in_set: bool
) -> None:
    config = settings(
        enableControllerMode="true", controllerAddr="c:1", brokerRole=role,
        flushDiskType="SYNC_FLUSH", **more,
    )  # fmt: skip
    assert config.mode is (Mode.S1 if waits else Mode.A1)
    assert config.rules.all_in_set is all_in_set


def test_what_a_file_says_of_the_set_and_does_not_get_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {
        "enableControllerMode": "true",
        "controllerAddr": "c:1",
        "brokerRole": "SYNC_MASTER",
        "allAckInSyncStateSet": "false",
        "haMaxTimeSlaveNotCatchup": "15000",
    }
    with caplog.at_level("INFO"):
        assert settings(**given).rules.catch_up_ms_max == 15000
        assert "allAckInSyncStateSet=false has no effect" in caplog.text
        assert "haMaxTimeSlaveNotCatchup=15000 is not below slaveTimeout=2000" in caplog.text
        caplog.clear()
        settings(**{**given, "brokerRole": "ASYNC_MASTER"})
        settings(**{**given, "enableControllerMode": "false"})
        assert not caplog.text


def test_rocketmqs_heartbeat_gives_way_to_the_lease_unless_the_lease_is_named() -> None:
    assert settings(brokerHeartbeatInterval="1000").lease == LeaseTimes()
    assert settings(brokerHeartbeatInterval="200").lease.heartbeat_ms == 200
    with pytest.raises(ConfigError, match="lease"):
        settings(brokerHeartbeatInterval="1000", haLeaseMillis="2000")


def test_controller_mode_needs_a_controller_and_gives_the_id() -> None:
    with pytest.raises(ConfigError, match="controllerAddr"):
        settings(enableControllerMode="true")
    with pytest.raises(ConfigError, match="controllerAddr"):
        settings(enableControllerMode="true", controllerAddr="here")
    with pytest.raises(ConfigError, match="enableControllerMode"):
        settings(brokerId="-1")
    config = settings(enableControllerMode="true", controllerAddr="c:1", brokerId="7")
    assert config.broker_id == -1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"haSecret": "s" * 20}, "needs enableControllerMode=true"),
        (
            {
                "haSecret": "s" * 20,
                "enableControllerMode": "true",
                "controllerAddr": "127.0.0.1:9878",
                "haExtensionEnable": "false",
            },
            "haExtensionEnable=true",
        ),
        ({"haSecret": "s", "haSecretFile": "/dev/null"}, "not both"),
        ({"haSecretFile": "/dev/null"}, "is empty"),
        ({"haSecretFile": "/no/such/file"}, "No such file"),
        ({"haSecret": "schlüssel"}, "printable characters"),
    ],
)
def test_a_secret_that_would_protect_nothing_stops_the_start(
    given: dict[str, str], why: str
) -> None:
    config = settings(**given)
    with pytest.raises(ConfigError, match=why):
        check_startable(config)


def test_a_secret_of_the_group_is_shown_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the group\n")
    config = settings(haSecretFile=str(tmp_path / "secret"))
    assert ha_secret(config) == b"of the group"
    shown = settings(haSecret="of the group").to_properties()
    assert "of the group" not in str(shown)
