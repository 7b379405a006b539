"""mqadmin's commands that `tandem admin` does not have, each with the reason."""

from __future__ import annotations

from typing import Final

_COLD: Final = "cold data control: TandemMQ's store reads through the page cache alone"
_ROCKSDB: Final = "RocksDB: TandemMQ keeps its settings in JSON files, as RocketMQ does by default"
_STATIC: Final = "static topics are not here"
_CONTAINER: Final = "broker containers: run one `tandem broker` per broker"

ABSENT: Final[dict[str, str]] = {
    "setConsumeMode": "POP consumption is not here",
    "exportPopRecord": "POP consumption is not here",
    "startMonitoring": "use the metrics, docs/metrics.md",
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "addBroker": _CONTAINER,
    "removeBroker": _CONTAINER,
    "dumpCompactionLog": "compacted topics are not here; `tandem inspect` reads a store",
    "getColdDataFlowCtrInfo": _COLD,
    "updateColdDataFlowCtrGroupConfig": _COLD,
    "removeColdDataFlowCtrGroupConfig": _COLD,
    "setCommitLogReadAheadMode": _COLD,
    "exportMetadataInRocksDB": _ROCKSDB,
    "rocksDBConfigToJson": _ROCKSDB,
    "checkRocksdbCqWriteProgress": _ROCKSDB,
}
