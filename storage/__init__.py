"""One broker's bytes on one disk: synchronous, no loop, sockets or threads of its own."""

from tandemmq.storage import fastjson, jsonfile, setaside
from tandemmq.storage.checkpoint import BOOT_ID_PATH, RunningMark, load_checkpoint
from tandemmq.storage.clock import Clock, SystemClock
from tandemmq.storage.codec import (
    COMPILED,
    BatchItem,
    Draft,
    Head,
    LogTail,
    QueueTail,
    Record,
    SysFlag,
    decode,
    decode_properties,
    encode,
    encode_properties,
    get_property,
    has_index_entries,
    has_queue_entry,
    java_hash,
    join_properties,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    record_size,
    scan,
    split_batch,
    tags_code,
    takes_queue_offset,
    unpack_host,
)
from tandemmq.storage.commitlog import BatchPlaced, CommitLog, Placed
from tandemmq.storage.config import FlushMode, StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.cutting import Cut
from tandemmq.storage.directories import make_directory
from tandemmq.storage.dispatch import parse_delay_levels
from tandemmq.storage.dump import Report, inspect_store, store_config
from tandemmq.storage.errors import (
    CorruptFile,
    CorruptRecord,
    FlushFailed,
    MessageIllegal,
    MessageTooLarge,
    NotAStore,
    PropertiesTooLarge,
    SegmentUnavailable,
    StorageError,
    StoreIsFull,
    StoreLocked,
    StoreNotWritable,
)
from tandemmq.storage.flags import Problem, StoreFlags
from tandemmq.storage.pagecache import PageCache
from tandemmq.storage.reading import EVERYTHING, GetResult, GetStatus, Selector
from tandemmq.storage.record import Bytes
from tandemmq.storage.recovery import Recovered
from tandemmq.storage.store import MessageStore, QueryResult, open_store
from tandemmq.storage.storelock import is_in_use

__all__ = [
    "BOOT_ID_PATH",
    "COMPILED",
    "EVERYTHING",
    "BatchItem",
    "BatchPlaced",
    "Bytes",
    "Clock",
    "CommitLog",
    "ConsumeQueue",
    "ConsumeQueues",
    "CorruptFile",
    "CorruptRecord",
    "Cut",
    "Draft",
    "FlushFailed",
    "FlushMode",
    "GetResult",
    "GetStatus",
    "Head",
    "LogTail",
    "MessageIllegal",
    "MessageStore",
    "MessageTooLarge",
    "NotAStore",
    "PageCache",
    "Placed",
    "Problem",
    "PropertiesTooLarge",
    "QueryResult",
    "QueueTail",
    "Record",
    "Recovered",
    "Report",
    "RunningMark",
    "SegmentUnavailable",
    "Selector",
    "StorageConfig",
    "StorageError",
    "StoreFlags",
    "StoreIsFull",
    "StoreLocked",
    "StoreNotWritable",
    "SysFlag",
    "SystemClock",
    "decode",
    "decode_properties",
    "encode",
    "encode_properties",
    "fastjson",
    "get_property",
    "has_index_entries",
    "has_queue_entry",
    "inspect_store",
    "is_in_use",
    "java_hash",
    "join_properties",
    "jsonfile",
    "load_checkpoint",
    "make_directory",
    "offset_message_id",
    "open_store",
    "pack_host",
    "parse_delay_levels",
    "parse_offset_message_id",
    "record_size",
    "scan",
    "setaside",
    "split_batch",
    "store_config",
    "tags_code",
    "takes_queue_offset",
    "unpack_host",
]
