"""Changing settings of a broker that runs: which may be, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tandemmq.cluster.broker.settings.config import SECRET, BrokerConfig
from tandemmq.cluster.broker.settings.known_keys import WITHOUT_EFFECT
from tandemmq.cluster.broker.settings.unserved import refuse_unserved
from tandemmq.cluster.config import (
    ConfigError,
    Properties,
    convert_setting,
    keys_of,
    setting_text,
)

#: the only fields an administrator may change while the broker runs; read whenever needed
_CHANGEABLE: Final = frozenset(
    {
        "permission",
        "auto_create_topic",
        "auto_create_group",
        "auto_create_topics_max",
        "create_system_groups",
        "slave_read_enabled",
        "offset_checked_in_slave",
        "long_polling_enabled",
        "short_polling_ms",
        "lite_pull_enabled",
        "pull_consumers_rejected",
        "property_filter_enabled",
        "retries_filtered",
        "replies_stored",
        "server_side_reset",
        "transactions_rejected",
        "transaction_timeout_ms",
        "transaction_checks_max",
        "transaction_check_interval_ms",
        "system_topics_protected",
        "reserved_hours",
        "disk_percent_max",
        "disk_percent_clean_forcibly",
        "disk_percent_warning",
        "transfer_bytes_max_hot",
        "transfer_count_max_hot",
        "transfer_bytes_max_cold",
        "transfer_count_max_cold",
        "timer_max_delay_s",
        "timer_congest_count_max",
        "timer_enqueue_stopped",
        "timer_dequeue_stopped",
        "recall_enabled",
        "recall_when_not_writable",
    }
)

#: without effect here, and still not for strangers to write into anybody's file
_NEVER_CHANGEABLE: Final = frozenset(
    {
        "brokerConfigPath",
        "configBlackList",
        "rocketmqHome",
        "messageStorePlugIn",
        "rmqAddressServerDomain",
        "rmqAddressServerSubGroup",
    }
)


def change_settings(config: BrokerConfig, wanted: Mapping[str, str]) -> Properties:
    """Change settings of a running broker, all of these or none; those that really changed.

    The struct is frozen for everybody else: this is the one place where a broker's settings change.
    Raises ConfigError for a key that is unknown or fixed, and for a bad value.
    """
    changes: list[tuple[msgspec.Struct, str, Any]] = []
    changed: Properties = {}
    fields = {
        field.encode_name: (struct, field)
        for struct in config.parts
        for field in msgspec.structs.fields(type(struct))
        if field.encode_name in keys_of(type(struct))
    }
    for key, text in wanted.items():
        if key in fields:
            struct, field = fields[key]
            value = convert_setting(key, text, field.type)
            if key not in SECRET and value == getattr(struct, field.name):
                continue
            if field.name not in _CHANGEABLE:
                raise ConfigError(key, text, "cannot be changed while the broker runs")
            changes.append((struct, field.name, value))
            changed[key] = setting_text(value)
        elif key in WITHOUT_EFFECT and key not in _NEVER_CHANGEABLE:
            refuse_unserved(key, text)
            changed[key] = text.strip()
        else:
            raise ConfigError(key, text, "Can not update config in black list, or unknown")
    for owner, name, value in changes:
        msgspec.structs.force_setattr(owner, name, value)
    config.kept.update((key, text) for key, text in changed.items() if key in WITHOUT_EFFECT)
    return changed
