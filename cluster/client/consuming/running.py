"""The state of a consumer as tools read it: ConsumerRunningInfo. No I/O."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tandemmq.cluster.client.consuming.queue_cache import QueueCache
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.reaching.requests import queue_map
from tandemmq.cluster.remoting import VERSION

MIB = 1 << 20
STACKS_BYTES_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class RunningState:
    """What a consumer knows of itself. commits, queues: by queue. rates: ConsumeStatus by topic."""

    client_id: str
    name_servers: Sequence[str]
    consume_type: str
    ordered: bool
    started_ms: int
    subscriptions: Sequence[Mapping[str, object]]
    queues: Mapping[MessageQueue, QueueCache]
    commits: Mapping[MessageQueue, int]
    rates: Mapping[str, Mapping[str, float | int]]


def running_info(state: RunningState, *, threads: bool) -> bytes:
    """ConsumerRunningInfo as JSON. threads: with the stacks of threads and tasks as `jstack`.

    Source: RocketMQ's ConsumerRunningInfo.
    """
    properties = {
        "PROP_NAMESERVER_ADDR": ";".join(state.name_servers),
        "PROP_CONSUME_TYPE": state.consume_type,
        "PROP_CONSUMEORDERLY": "true" if state.ordered else "false",
        "PROP_CLIENT_VERSION": f"V{VERSION}",
        "PROP_CONSUMER_START_TIMESTAMP": str(state.started_ms),
        "PROP_THREADPOOL_CORE_SIZE": "-1",
        "clientId": state.client_id,
    }
    queues = {
        queue: msgspec.json.encode(_queue_state(cache, state.commits.get(queue, 0)))
        for queue, cache in state.queues.items()
    }
    encode = msgspec.json.encode
    parts = [
        b'"mqPopTable":{}',
        b'"mqTable":' + queue_map(queues),
        b'"properties":' + encode(properties),
        b'"statusTable":' + encode(state.rates),
        b'"subscriptionSet":' + encode(state.subscriptions),
        b'"userConsumerInfo":{}',
    ]
    if threads:
        parts.append(b'"jstack":' + encode(stacks()))
    return b"{%b}" % b",".join(parts)


def _queue_state(cache: QueueCache, commit_offset: int) -> dict[str, object]:
    smallest, largest = cache.bounds
    return {
        "cachedMsgCount": cache.count,
        "cachedMsgMaxOffset": largest,
        "cachedMsgMinOffset": smallest,
        "cachedMsgSizeInMiB": cache.byte_count // MIB,
        "commitOffset": commit_offset,
        "droped": cache.dropped,  # RocketMQ's spelling
        "lastConsumeTimestamp": cache.consumed_ms,
        "lastLockTimestamp": cache.locked_ms,
        "lastPullTimestamp": cache.pulled_ms,
        "locked": cache.ordered and cache.locked_until_s > 0,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def stacks() -> str:
    """Where every thread, and every task of this loop, stands now; cut at 256 KiB."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        out.write(f"thread {names.get(number, number)}\n")
        out.write("".join(traceback.format_stack(frame)))
    for task in asyncio.all_tasks():
        task.print_stack(limit=8, file=out)
        if out.tell() > STACKS_BYTES_MAX:
            break
    return out.getvalue()[:STACKS_BYTES_MAX]
