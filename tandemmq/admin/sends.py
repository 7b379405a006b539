"""mqadmin's commands that send: one message, or many to see how long that takes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

from tandemmq.admin.shape import (
    Call,
    Shown,
    hash_table,
    orders,
    topic,
    usage,
)
from tandemmq.cluster.client import Message, MessageQueue, Producer, SendResult
from tandemmq.command.output import plain

GROUP: Final = "TANDEM_ADMIN"
SIZE_BYTES_MAX: Final = 64 << 20  # brokers take 4 MiB, or what their maxMessageSize says


def _send_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-p", "--body", required=True, metavar="TEXT")
    parser.add_argument("-k", "--key", default="", metavar="KEYS")
    parser.add_argument("-c", "--tags", metavar="TAG")
    parser.add_argument("-b", "--broker", metavar="BROKER_NAME")
    parser.add_argument("-i", "--qid", type=int, metavar="ID", help="with -b: to this queue")
    parser.add_argument("-m", "--msgTraceEnable", dest="ignored", help=argparse.SUPPRESS)


async def send_message(call: Call) -> Shown:
    """310."""
    arguments = call.arguments
    if (arguments.qid is None) != (arguments.broker is None):
        raise usage("-b and -i go together: a broker name and one of its queues")
    queue = None
    if arguments.broker:
        queue = MessageQueue(arguments.topic, arguments.broker, arguments.qid)
    message = Message(
        arguments.topic, arguments.body.encode(), tags=arguments.tags, keys=arguments.key.split()
    )
    async with Producer(GROUP, config=call.config) as producer:
        return sent([await producer.send(message, queue=queue)])


def sent(results: Sequence[SendResult]) -> Shown:
    """Where messages were stored."""
    rows = [
        (each.queue.broker_name, each.queue.queue_id, each.status.name, each.message_id)
        for each in results
    ]
    return Shown(results, hash_table(["Broker Name", "QID", "Send Result", "MsgId"], rows))


def _amount_options(parser: argparse.ArgumentParser, letter: str = "-a", count: int = 100) -> None:
    name = "--amount" if letter == "-a" else "--count"
    parser.add_argument(
        letter, name, dest="amount", type=int, default=count, metavar="N", help=f"default {count}"
    )
    parser.add_argument("-s", "--size", type=int, default=128, metavar="BYTES", help="default 128")


def _check_rt_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    _amount_options(parser)


async def check_send_rt(call: Call) -> Shown:
    """Sends one after the other, round robin over the topic's queues."""
    return await _timed(call, call.arguments.topic)


def _cluster_rt_options(parser: argparse.ArgumentParser) -> None:
    _amount_options(parser)
    parser.add_argument("-c", "--cluster", metavar="CLUSTER")
    parser.add_argument("-i", "--interval", type=float, metavar="S", help="again every S seconds")
    for short, name in (("-p", "--printLog"), ("-m", "--machineRoom")):
        parser.add_argument(short, name, dest="ignored", help=argparse.SUPPRESS)


async def cluster_rt(call: Call) -> Shown:
    """Sends to the topic that is named like each broker."""
    rows, values = [], []
    for member in (await call.admin.cluster(call.arguments.cluster)).values():
        shown = await _timed(call, member.name)
        sends: Any = shown.value
        costs = [each["cost_ms"] for each in sends["sends"]]
        good = sum(each["status"] == "SEND_OK" for each in sends["sends"])
        rows.append(
            (member.cluster, member.name, f"{sends['average_ms']:.2f}", good, len(costs) - good)
        )
        values.append({"cluster": member.cluster, "broker": member.name, **sends})
    head = ["Cluster Name", "Broker Name", "RT", "successCount", "failCount"]
    return Shown(values, hash_table(head, rows))


def _status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")
    _amount_options(parser, "-c", 50)


async def send_status(call: Call) -> Shown:
    """Sends to the topic that is named like the broker."""
    return await _timed(call, call.arguments.name)


async def _timed(call: Call, name: str) -> Shown:
    if call.arguments.amount < 1 or call.arguments.size < 1:
        raise usage("the number of messages and their size must be at least 1")
    if call.arguments.size > SIZE_BYTES_MAX:
        raise usage(f"a message has at most {SIZE_BYTES_MAX} bytes")
    message = Message(name, b"x" * call.arguments.size)
    sends: list[dict[str, Any]] = []
    async with Producer(GROUP, config=call.config) as producer:
        queues = await producer.queues(name)
        for number in range(call.arguments.amount):
            began = time.perf_counter()
            result = await producer.send(message, queue=queues[number % len(queues)])
            cost_ms = round((time.perf_counter() - began) * 1000, 2)
            sends.append({**plain(result), "cost_ms": cost_ms})
    average = sum(each["cost_ms"] for each in sends) / len(sends)
    rows = [(each["broker"], each["queue_id"], each["status"], each["cost_ms"]) for each in sends]
    text = hash_table(["Broker Name", "QID", "Send Result", "RT"], rows)
    value = {"sends": sends, "average_ms": round(average, 2)}
    return Shown(value, f"{text}\nAvg RT: {average:.2f}")


COMMANDS = (
    orders(
        "sendMessage", "send one message", "sendMessage -t Orders -p hello -k order-17",
        _send_options, send_message,
    ),
    orders(
        "checkMsgSendRT", "how long sends to a topic take", "checkMsgSendRT -t Orders -a 20",
        _check_rt_options, check_send_rt,
    ),
    orders(
        "clusterRT", "how long sends to each broker take", "clusterRT -a 20", _cluster_rt_options,
        cluster_rt,
    ),
    orders(
        "sendMsgStatus", "how long sends to one broker take", "sendMsgStatus -b broker-a -c 20",
        _status_options, send_status,
    ),
)  # fmt: skip
