"""What request 26 shows of a broker's settings: those in force, under RocketMQ's names, with their values here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.names import TOPIC_CHARACTERS_MAX
from tandemmq.cluster.broker.tables.offsets import COMMITS_PER_VERSION
from tandemmq.cluster.config import Properties, setting_text
from tandemmq.cluster.remoting.stream import ConnectionLimits

_OFF: Final = """
    brokerFastFailureEnable coldCtrStrategyEnable
    coldDataFlowControlEnable coldDataScanEnable disableConsumeIfConsumerReadSlowly duplicationEnable
    enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCompaction
    enableConsumeQueueExt enableDLegerCommitLog enableLmq enableLmqStats enableMultiDispatch enableNetWorkFlowControl
    enableRemoteEscape enableScheduleAsyncDeliver enableSlaveActingMaster enabledAppendPropCRC
    fetchNamesrvAddrByAddressServer forceVerifyPropCRC haFlowControlEnable isBrokerContainer
    isInBrokerContainer popConsumerKVServiceEnable recoverConcurrently rocksdbCQDoubleWriteEnable
    transientStorePoolEnable useStaticSubscription warmMapedFileEnable
"""

#: RocketMQ's settings that have one value here, whatever a file says; a feature that is not here is off
FIXED: Final[Properties] = {
    **dict.fromkeys(_OFF.split(), "false"),
    "compressedRegister": "false",
    "configManagerVersion": "v1",
    "consumerOffsetUpdateVersionStep": str(COMMITS_PER_VERSION),
    "enableRegisterProducer": "true",
    "maxTopicLength": str(TOPIC_CHARACTERS_MAX),
    "messageStorePlugIn": "",
    "serverChannelMaxIdleTimeSeconds": str(ConnectionLimits().idle_ms // 1000),
    "storeType": "default",
}


def shown_settings(config: BrokerConfig) -> Properties:
    """RocketMQ's and our settings in force by key; what is empty in a file and has a value by now shows it. Secrets are
    masked. A setting without effect is shown only where the file has it."""
    found = config.to_properties() | FIXED
    root = Path(config.storage.root)
    in_force = {
        "bindAddress": config.bind_host,
        "brokerIP1": config.advertised_host,
        "brokerIP2": config.ha_ip or config.advertised_host,
        "flushDelayOffsetInterval": config.offset_flush_interval_ms,
        "storePathCommitLog": config.storage.commitlog_dir or root / "commitlog",
        "storePathEpochFile": config.epoch_path,
        "storePathBrokerIdentity": config.identity_path,
        "useTLS": config.tls.enforced,
    }
    return found | {key: setting_text(value) for key, value in in_force.items()}
