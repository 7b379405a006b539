"""Settings of one store. Field names carry units; keys are in RocketMQ's spelling."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tandemmq.storage.settings import setting

PAGE_BYTES = 4096
QUEUE_ENTRY_BYTES = 20


class FlushMode(enum.Enum):
    """When an append may be acknowledged."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


Positive = Annotated[int, Meta(gt=0)]
Percent = Annotated[int, Meta(ge=1, le=100)]
PercentOrNone = Annotated[int, Meta(ge=0, le=100)]


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a store needs to know. Defaults are RocketMQ's but where a comment says why not."""

    root: str = msgspec.field(name="storePathRootDir")
    commitlog_dir: str = setting("storePathCommitLog", "")  # empty: root/commitlog
    # a store keeps the size it was made with
    segment_bytes: Positive = setting("mappedFileSizeCommitLog", 1 << 30)
    # 300,000 entries of 20 bytes
    queue_segment_bytes: Positive = setting("mappedFileSizeConsumeQueue", 6_000_000)
    index_enabled: bool = setting("messageIndexEnable", True)
    index_slots: Positive = setting("maxHashSlotNum", 5_000_000)
    index_entries: Positive = setting("maxIndexNum", 20_000_000)
    flush_mode: FlushMode = setting("flushDiskType", FlushMode.ASYNC)
    flush_interval_ms: Positive = setting("flushIntervalCommitLog", 500)
    # RocketMQ's 4 leaves what fills less to the thorough flush: the last moment would be 10 s
    flush_pages_min: Annotated[int, Meta(ge=0)] = setting("flushCommitLogLeastPages", 0)
    flush_thorough_interval_ms: Positive = setting("flushCommitLogThoroughInterval", 10_000)
    queue_flush_interval_ms: Positive = setting("flushIntervalConsumeQueue", 1_000)
    queue_flush_pages_min: Annotated[int, Meta(ge=0)] = setting("flushConsumeQueueLeastPages", 2)
    queue_flush_thorough_interval_ms: Positive = setting(
        "flushConsumeQueueThoroughInterval", 60_000
    )
    sync_flush_timeout_ms: Positive = setting("syncFlushTimeout", 5_000)
    body_bytes_max: Positive = setting("maxMessageSize", 4 << 20)
    long_topics_as_v2: bool = setting("autoMessageVersionOnTopicLen", True)
    crc_checked_on_recover: bool = setting("checkCRCOnRecover", True)
    clean_interval_ms: Positive = setting("cleanResourceInterval", 10_000)
    delete_when: str = setting("deleteWhen", "04")  # hours of the day, ';' between them
    reserved_hours: Positive = setting("fileReservedTime", 72)
    delete_pause_ms: Annotated[int, Meta(ge=0)] = setting("deleteCommitLogFilesInterval", 100)
    delete_files_max: Positive = setting("deleteFileBatchMax", 10)
    forced_release_ms: Positive = setting("destroyMapedFileIntervalForcibly", 120_000)
    disk_percent_max: Percent = setting("diskMaxUsedSpaceRatio", 75)
    disk_percent_clean_forcibly: Percent = setting("diskSpaceCleanForciblyRatio", 85)
    disk_percent_warning: Percent = setting("diskSpaceWarningLevelRatio", 90)
    clean_forcibly_enabled: bool = setting("cleanFileForciblyEnable", True)
    transfer_bytes_max_hot: Positive = setting("maxTransferBytesOnMessageInMemory", 256 << 10)
    transfer_count_max_hot: Positive = setting("maxTransferCountOnMessageInMemory", 32)
    transfer_bytes_max_cold: Positive = setting("maxTransferBytesOnMessageInDisk", 64 << 10)
    transfer_count_max_cold: Positive = setting("maxTransferCountOnMessageInDisk", 8)
    hot_memory_percent: PercentOrNone = setting("accessMessageInMemoryMaxRatio", 40)
    filter_bytes_max: Positive = setting("maxFilterMessageSize", 16_000)
    query_count_max: Positive = setting("maxMsgsNumBatch", 64)
    query_count_default: Positive = setting("defaultQueryMaxNum", 32)
    delay_levels: str = setting(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )

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
