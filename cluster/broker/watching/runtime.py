"""The runtime table of a broker: what brokerStatus, clusterList, dashboards and exporters show."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tandemmq.cluster.broker.sending.delay import DelaySchedule
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.codes import VERSION
from tandemmq.storage import MessageStore

VERSION_TEXT: Final = "V5_3_3"

#: thread pools of RocketMQ that tools ask after, with their capacity; nothing queues here
_POOLS: Final = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}

_DISTRIBUTION: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip

#: what the exporter reads without looking whether it is there
_DEFAULTS: Final = {
    "putMessageEntireTimeMax": "0",
    "putMessageTimesTotal": "1",
    "putMessageFailedTimes": "0",
    "putMessageSizeTotal": "0",
    "putMessageAverageSize": "0.0",
    "putMessageDistributeTime": "".join(f"{bucket}:0 " for bucket in _DISTRIBUTION),
    "getMessageEntireTimeMax": "0",
    "dispatchMaxBuffer": "0",
    "dispatchBehindBytes": "0",
    "commitLogMinOffset": "0",
    "commitLogMaxOffset": "0",
    "commitLogDiskRatio": "0.0",
    "consumeQueueDiskRatio": "0.0",
    "earliestMessageTimeStamp": "-1",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    "remainHowManyDataToFlush": "0 B",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
}


def runtime_table(
    config: BrokerConfig,
    store: MessageStore,
    stats: BrokerStats,
    schedule: DelaySchedule,
    standing: Standing,
    now_ms: int,
    waiting: Mapping[str, str],
) -> dict[str, str]:
    """Every entry of GET_BROKER_RUNTIME_INFO, all of them text. Source: RocketMQ's AdminBrokerProcessor.

    waiting  what timers and transactions say of themselves
    """
    table: dict[str, str] = dict(_DEFAULTS)
    appended = store.stats.appended_messages
    table.update(
        putMessageTimesTotal=str(max(appended, 1)),
        putMessageSizeTotal=str(store.stats.appended_bytes),
        putMessageAverageSize=repr(store.stats.appended_bytes / max(appended, 1)),
        dispatchBehindBytes=str(store.dispatch_backlog_bytes),
        remainHowManyDataToFlush=size_text(store.end - store.flushed),
        earliestMessageTimeStamp=str(store.earliest_store_ms()),
    )
    table.update(store.runtime())
    table.update(
        brokerVersionDesc=VERSION_TEXT,
        brokerVersion=str(VERSION),
        brokerActive=str(standing.role is not Role.SLAVE).lower(),
        bootTimestamp=str(stats.boot_ms),
        runtime=duration_text(now_ms - stats.boot_ms),
        startAcceptSendRequestTimeStamp=str(config.accept_sends_from_ms),
        commitLogDirCapacity=_capacity(config),
    )
    table.update(  # ours: where this broker stands in its group
        brokerRole=standing.role.value,
        brokerId=str(standing.broker_id),
        masterEpoch=str(standing.epoch),
        confirmOffset=str(min(standing.confirmed(), store.end)),
        flushedOffset=str(store.flushed),
    )
    if alarms := standing.alarms_now():
        table["alarms"] = "; ".join(alarms)
    table.update(standing.runtime())
    table.update(waiting)
    table.update(stats.rates())
    table.update(stats.day_totals())
    for level, (delivered, end) in schedule.progress().items():
        table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
    for pool, capacity in _POOLS.items():
        table[f"{pool}ThreadPoolQueueSize"] = "0"
        table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return table


def duration_text(elapsed_ms: int) -> str:
    """`[ 0 days, 1 hours, 2 minutes, 3 seconds ]`"""
    seconds = max(elapsed_ms, 0) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def size_text(size: int) -> str:
    """`12.3 KiB`: what a tool cuts at the blank, so number and unit are always two words."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} EiB"


def _capacity(config: BrokerConfig) -> str:
    path = config.storage.commitlog_path
    if not path.exists():  # no message yet: the log is made with the first one
        path = Path(config.storage.root)
    usage = shutil.disk_usage(path)
    return f"Total : {size_text(usage.total)}, Free : {size_text(usage.free)}."
