"""RocketMQ settings that would be a promise nobody here keeps: they stop a start and are refused while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.cluster.config import ConfigError

MOVING: Final = "docs/howto/from-rocketmq.md"


def is_on(text: str) -> bool:
    """Whether a switch of RocketMQ's is on."""
    return text.lower() == "true"


def _is_given(text: str) -> bool:
    return bool(text)


#: what would be stored or promised otherwise: RocketMQ's key -> (whether a value asks for it, what is allowed)
_NOT_HERE: Final[dict[str, tuple[Callable[[str], bool], str]]] = {
    "storeType": (
        lambda text: text.lower() not in ("", "default"),
        "must be default: what RocketMQ keeps in RocksDB (topics, groups, positions) is not read here and would be "
        f"missing. Write it as JSON first: {MOVING}, RocksDB",
    ),
    "configManagerVersion": (
        lambda text: text.lower() not in ("", "v1"),
        "must be v1: topics, groups and positions of v2 are in RocksDB, are not read here and would be missing. "
        f"{MOVING}, RocksDB, says how they come over",
    ),
    "enableDLegerCommitLog": (
        is_on,
        "must be false: a DLedger log is not read here, and nothing here is replicated in its way. Replicas take "
        f"enableControllerMode or brokerRole instead, and {MOVING} says how messages come over",
    ),
    "messageStorePlugIn": (
        _is_given,
        "must be empty: plug-ins are Java. What only a tiered store holds cannot be read here: remove the line when "
        "consumers need nothing older than the local log",
    ),
    "readOnlyCommitLogStorePaths": (
        _is_given,
        "must be empty: messages there would be missing. Move their files into storePathCommitLog",
    ),
    "brokerConfigPaths": (
        _is_given,
        "must be empty: there are no containers here, and the brokers of these files would be missing. Start each with "
        "its own file, and with this one's name servers: tandem broker -c FILE -n HOST:PORT",
    ),
    "enableConsumeQueueExt": (
        is_on,
        "must be false: entries of queues have no extension here. Filters of properties do without, and consumers that "
        f"choose by tag need entries that have none: {MOVING} says what to remove",
    ),
    "enableLmq": (is_on, "must be false: light queues are not here, what is sent to them would reach nobody"),
    "enableMultiDispatch": (
        is_on,
        "must be false: a message is put into its own queue only, so what is sent to others would reach nobody there",
    ),
}  # fmt: skip


def refuse_unserved(key: str, value: str) -> None:
    """Raises ConfigError where a value of RocketMQ's asks for what is not here."""
    is_asked, allowed = _NOT_HERE.get(key, (None, ""))
    if is_asked is not None and is_asked(value.strip()):
        raise ConfigError(key, value, allowed)
