"""Which of a cluster's topics a pattern means. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_BROKERS: Final = frozenset(
    {
        "TBW102", "BenchmarkTest", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)  # fmt: skip


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Names that the pattern matches whole, sorted; the brokers' own topics left out.

    Retry and dead-letter topics only where the pattern begins with their "%".
    """
    wanted = re.compile(pattern)
    return sorted(name for name in names if wanted.fullmatch(name) and not _hidden(name, pattern))


def _hidden(name: str, pattern: str) -> bool:
    if name.startswith("%"):
        return not pattern.startswith("%")
    return name in _BROKERS or name.lower().startswith("rmq_sys_") or name.endswith("_REPLY_TOPIC")
