"""Settings that ask for what is not here, and what `tandem check-config` says of each."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Final

from tandemmq.command.cli import main as tandem

#: a value that asks for it
ASKING: Final = {
    "storeType": "defaultRocksDB",
    "configManagerVersion": "v2",
    "rocksdbCQDoubleWriteEnable": "true",
    "enableCompaction": "true",
    "coldDataFlowControlEnable": "true",
    "enableSlaveActingMaster": "true",
    "popConsumerKVServiceEnable": "true",
    "enableDLegerCommitLog": "true",
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "readOnlyCommitLogStorePaths": "/data/more",
    "brokerConfigPaths": "/data/broker-b.conf",
    "enableConsumeQueueExt": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "duplicationEnable": "true",
    "enabledAppendPropCRC": "true",
    "forceVerifyPropCRC": "true",
}
#: RocketMQ's default, so nobody asks for anything by it
BY_DEFAULT: Final = {"enableCompaction": "the default; topics that need it are refused"}
_WARNING: Final = re.compile(r"^warning: (.*)$", re.MULTILINE)


def outcome(key: str, value: str, directory: Path) -> str:
    """What a start with it comes to."""
    file = directory / f"{key}.conf"
    store = directory / "store"
    file.write_text(f"brokerName=b\nbrokerIP1=127.0.0.1\nstorePathRootDir={store}\n{key}={value}\n")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = tandem(["check-config", str(file)])
    said = printed.getvalue()
    if code:
        why = said.strip().splitlines()[-1].removeprefix(f"tandem: {key}={value}: ")
        return f"does not start: {why}"
    if warned := _WARNING.search(said):
        return f"warns: {warned[1]}"
    return f"nothing: {BY_DEFAULT[key]}"


def outcomes() -> list[tuple[str, ...]]:
    """A row for each."""
    with tempfile.TemporaryDirectory(prefix="settings") as place:
        return [
            (f"`{key}={value}`", outcome(key, value, Path(place))) for key, value in ASKING.items()
        ]
