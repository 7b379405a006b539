"""Settings of one store. Field names carry units; rename maps them to RocketMQ's spelling."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

PAGE_BYTES = 4096
QUEUE_ENTRY_BYTES = 20

#: inside name -> RocketMQ's key in broker.conf
ROCKETMQ_NAMES = {
    "root": "storePathRootDir",
    "commitlog_dir": "storePathCommitLog",
    "segment_bytes": "mappedFileSizeCommitLog",
    "queue_segment_bytes": "mappedFileSizeConsumeQueue",
    "index_enabled": "messageIndexEnable",
    "index_slots": "maxHashSlotNum",
    "index_entries": "maxIndexNum",
    "flush_mode": "flushDiskType",
    "flush_interval_ms": "flushIntervalCommitLog",
    "flush_pages_min": "flushCommitLogLeastPages",
    "flush_thorough_interval_ms": "flushCommitLogThoroughInterval",
    "queue_flush_interval_ms": "flushIntervalConsumeQueue",
    "queue_flush_pages_min": "flushConsumeQueueLeastPages",
    "queue_flush_thorough_interval_ms": "flushConsumeQueueThoroughInterval",
    "sync_flush_timeout_ms": "syncFlushTimeout",
    "body_bytes_max": "maxMessageSize",
    "long_topics_as_v2": "autoMessageVersionOnTopicLen",
    "crc_checked_on_recover": "checkCRCOnRecover",
    "clean_interval_ms": "cleanResourceInterval",
    "delete_when": "deleteWhen",
    "reserved_hours": "fileReservedTime",
    "delete_pause_ms": "deleteCommitLogFilesInterval",
    "delete_files_max": "deleteFileBatchMax",
    "forced_release_ms": "destroyMapedFileIntervalForcibly",
    "disk_percent_max": "diskMaxUsedSpaceRatio",
    "disk_percent_clean_forcibly": "diskSpaceCleanForciblyRatio",
    "disk_percent_warning": "diskSpaceWarningLevelRatio",
    "clean_forcibly_enabled": "cleanFileForciblyEnable",
    "transfer_bytes_max_hot": "maxTransferBytesOnMessageInMemory",
    "transfer_count_max_hot": "maxTransferCountOnMessageInMemory",
    "transfer_bytes_max_cold": "maxTransferBytesOnMessageInDisk",
    "transfer_count_max_cold": "maxTransferCountOnMessageInDisk",
    "hot_memory_percent": "accessMessageInMemoryMaxRatio",
    "filter_bytes_max": "maxFilterMessageSize",
    "query_count_max": "maxMsgsNumBatch",
    "query_count_default": "defaultQueryMaxNum",
    "delay_levels": "messageDelayLevel",
}


class FlushMode(enum.Enum):
    """When an append may be acknowledged."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


Positive = Annotated[int, Meta(gt=0)]
Percent = Annotated[int, Meta(ge=1, le=100)]
PercentOrNone = Annotated[int, Meta(ge=0, le=100)]


class StorageConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=ROCKETMQ_NAMES
):
    """Everything a store needs to know. Defaults are RocketMQ's but where a comment says why not."""

    root: str
    commitlog_dir: str = ""  # empty: root/commitlog
    segment_bytes: Positive = 1 << 30  # a store keeps the size it was made with
    queue_segment_bytes: Positive = 6_000_000  # 300,000 entries of 20 bytes
    index_enabled: bool = True
    index_slots: Positive = 5_000_000
    index_entries: Positive = 20_000_000
    flush_mode: FlushMode = FlushMode.ASYNC
    flush_interval_ms: Positive = 500
    # RocketMQ's 4 leaves what fills less to the thorough flush: the last moment would be 10 s
    flush_pages_min: Annotated[int, Meta(ge=0)] = 0
    flush_thorough_interval_ms: Positive = 10_000
    queue_flush_interval_ms: Positive = 1_000
    queue_flush_pages_min: Annotated[int, Meta(ge=0)] = 2
    queue_flush_thorough_interval_ms: Positive = 60_000
    sync_flush_timeout_ms: Positive = 5_000
    body_bytes_max: Positive = 4 << 20
    long_topics_as_v2: bool = True
    crc_checked_on_recover: bool = True
    clean_interval_ms: Positive = 10_000
    delete_when: str = "04"  # hours of the day, ';' between them
    reserved_hours: Positive = 72
    delete_pause_ms: Annotated[int, Meta(ge=0)] = 100
    delete_files_max: Positive = 10
    forced_release_ms: Positive = 120_000
    disk_percent_max: Percent = 75
    disk_percent_clean_forcibly: Percent = 85
    disk_percent_warning: Percent = 90
    clean_forcibly_enabled: bool = True
    transfer_bytes_max_hot: Positive = 256 << 10
    transfer_count_max_hot: Positive = 32
    transfer_bytes_max_cold: Positive = 64 << 10
    transfer_count_max_cold: Positive = 8
    hot_memory_percent: PercentOrNone = 40
    filter_bytes_max: Positive = 16_000
    query_count_max: Positive = 64
    query_count_default: Positive = 32
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    def __post_init__(self) -> None:
        # A record, its blank and one page must fit; real stores use 1 GiB, tests use a few KiB.
        if self.segment_bytes < 1024:
            raise ValueError(
                f"mappedFileSizeCommitLog must be at least 1024, got {self.segment_bytes}"
            )
        if self.queue_segment_bytes % QUEUE_ENTRY_BYTES:
            # RocketMQ rounds up, so the same broker.conf opens the same store.
            entries = -(-self.queue_segment_bytes // QUEUE_ENTRY_BYTES)
            msgspec.structs.force_setattr(self, "queue_segment_bytes", entries * QUEUE_ENTRY_BYTES)

    @property
    def commitlog_path(self) -> Path:
        return Path(self.commitlog_dir) if self.commitlog_dir else Path(self.root) / "commitlog"
