"""Settings of RocketMQ's that nobody here would keep stop a start, and are refused while a broker runs."""

from __future__ import annotations

import pytest

from tandemmq.cluster.broker.settings.changing import change_settings
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.settings.startable import check_startable
from tandemmq.cluster.config import ConfigError


def settings(**given: str) -> BrokerConfig:
    return BrokerConfig.from_properties(given, environment={})


@pytest.mark.parametrize(
    ("key", "value", "harmless"),
    [
        ("storeType", "defaultRocksDB", "default"),
        ("configManagerVersion", "v2", "v1"),
        ("enableDLegerCommitLog", "true", "false"),
        ("messageStorePlugIn", "org.apache.rocketmq.tieredstore.TieredMessageStore", ""),
        ("readOnlyCommitLogStorePaths", "/old/commitlog", ""),
        ("enableConsumeQueueExt", "true", "false"),
        ("enableLmq", "true", "false"),
        ("enableMultiDispatch", "True", "false"),
    ],
)
def test_settings_that_change_what_is_stored_stop_the_start(
    key: str, value: str, harmless: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_startable(settings(**{key: value}))
    assert caught.value.key == key
    check_startable(settings(**{key: harmless}))


@pytest.mark.parametrize("key", ["enableLmq", "enableMultiDispatch"])
def test_what_would_stop_the_next_start_is_not_set_while_a_broker_runs(key: str) -> None:
    running = settings()
    with pytest.raises(ConfigError, match=key):
        change_settings(running, {key: "true"})
    assert key not in running.kept
    assert change_settings(running, {key: "false"}) == {key: "false"}
