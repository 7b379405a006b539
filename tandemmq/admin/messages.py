"""mqadmin's commands about messages: finding, printing, sending, timing."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from tandemmq.admin.sends import GROUP, sent
from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    hash_table,
    missing,
    on_or_off,
    topic,
    usage,
)
from tandemmq.cluster.client import Message, MessageQueue, Producer, ReceivedMessage
from tandemmq.cluster.client.admin.messages import FOR_EVER_MS
from tandemmq.command.output import body_text, plain
from tandemmq.command.times import clock_text, moment_ms

STYLES: Final = ("auto", "text", "hex", "json", "none")

# Finding


def _by_id_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--msgId", dest="ids", required=True, metavar="ID[,ID]", help="either kind of id"
    )
    topic(parser)
    parser.add_argument("-g", "--consumerGroup", dest="group", metavar="GROUP")
    direct = "with -g: hand the message to this member now"
    parser.add_argument("-d", "--clientId", dest="client", metavar="ID", help=direct)
    again = "send the message once more to its topic"
    parser.add_argument(
        "-s", "--sendMessage", dest="resend", type=on_or_off, default=False, metavar="true|false",
        help=again,
    )  # fmt: skip
    _body_option(parser)
    for ignored in (["-u", "--unitName"], ["-c", "--cluster"]):
        parser.add_argument(*ignored, dest="ignored", help=argparse.SUPPRESS)


def _body_option(parser: argparse.ArgumentParser) -> None:
    style = "how to show the body: text where it can be, else hex (auto, default)"
    parser.add_argument(
        "-f", "--bodyFormat", dest="style", choices=STYLES, default="auto", help=style
    )


async def query_by_id(call: Call) -> Shown:
    """33 at the address in the id, or 12; then what became of it, 309 with -g -d, 310 with -s."""
    arguments = call.arguments
    if bool(arguments.group) != bool(arguments.client):
        raise usage("-g and -d go together: a group and one of its members")
    ids = [each.strip() for each in arguments.ids.split(",") if each.strip()]
    found = []
    for each in ids:
        message = await call.admin.message_by_id(each, arguments.topic)
        if message is None:
            raise missing(f"no message with id {each} is in {arguments.topic} (any more)")
        found.append(message)
    if arguments.client:
        return await _hand_over(call, found)
    if arguments.resend:
        return await _resend(call, found)
    return await _with_tracks(call, found)


async def _with_tracks(call: Call, messages: Sequence[ReceivedMessage]) -> Shown:
    values, texts = [], []
    for message in messages:
        tracks = await call.admin.track(message)
        values.append({**plain(message), "tracks": plain(tracks)})
        shown = [
            f"MessageTrack [consumerGroup={each.group}, trackType={each.state.value}, "
            f"exceptionDesc={each.why or 'null'}]"
            for each in tracks
        ]
        texts.append("\n".join([details(message, call.arguments.style), "", *shown]))
    return Shown(values, "\n\n".join(text.rstrip() for text in texts))


async def _hand_over(call: Call, messages: Sequence[ReceivedMessage]) -> Shown:
    values, lines = [], []
    for message in messages:
        result = await call.admin.consume_directly(
            call.arguments.group, call.arguments.client, message
        )
        values.append({"message_id": message.message_id, **plain(result)})
        lines.append(
            f"{message.message_id}  {result.result}  {result.spent_ms} ms  {result.remark}".rstrip()
        )
    return Shown(values, "\n".join(lines))


async def _resend(call: Call, messages: Sequence[ReceivedMessage]) -> Shown:
    results = []
    async with Producer(GROUP, config=call.config) as producer:
        for each in messages:
            results.append(await producer.send(Message.again(each, each.topic, same_id=True)))
    return sent(results)


def details(message: ReceivedMessage, style: str = "auto") -> str:
    """One message as mqadmin shows it, its body in place."""
    properties = ", ".join(f"{key}={value}" for key, value in message.properties.items())
    rows = {
        "OffsetID": message.offset_message_id,
        "Message ID": message.message_id,
        "Topic": message.topic,
        "Tags": f"[{message.tags or ''}]",
        "Keys": f"[{' '.join(message.keys)}]",
        "Broker Name": message.queue.broker_name,
        "Queue ID": message.queue.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": clock_text(message.born_ms),
        "Store Timestamp": clock_text(message.store_ms),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": f"{{{properties}}}",
        "Message Body": body_text(message.body, style),
    }
    return "\n".join(f"{name + ':':<20} {value}" for name, value in rows.items())


def _by_key_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-k", "--msgKey", dest="key", required=True, metavar="KEY")
    _between(parser, "-b", "-e")
    most = "at most so many per broker, default 64"
    parser.add_argument(
        "-m", "--maxNum", dest="count", type=int, default=64, metavar="N", help=most
    )
    parser.add_argument("-c", "--cluster", help=argparse.SUPPRESS)


def _between(parser: argparse.ArgumentParser, begin: str, end: str) -> None:
    when = "stored then or later: 2025-09-19#08:30:00:000, milliseconds, or 10m for 10m ago"
    parser.add_argument(begin, "--beginTimestamp", dest="begin", metavar="TIME", help=when)
    parser.add_argument(end, "--endTimestamp", dest="end", metavar="TIME", help="stored before")


def _span(call: Call) -> tuple[int, int]:
    begin, end = call.arguments.begin, call.arguments.end
    return (
        moment_ms("--beginTimestamp", begin, call.now_ms) if begin else 0,
        moment_ms("--endTimestamp", end, call.now_ms) if end else FOR_EVER_MS,
    )


async def query_by_key(call: Call) -> Shown:
    """12 to each broker of the topic."""
    begin_ms, end_ms = _span(call)
    found = await call.admin.messages_by_key(
        call.arguments.topic,
        call.arguments.key,
        count_max=call.arguments.count,
        begin_ms=begin_ms,
        end_ms=end_ms,
    )
    rows = [
        (each.message_id, each.queue.broker_name, each.queue.queue_id, each.queue_offset)
        for each in found
    ]
    return Shown(found, hash_table(["Message ID", "Broker Name", "QID", "Offset"], rows))


def _by_unique_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--msgId", dest="ids", required=True, metavar="ID")
    topic(parser)
    parser.add_argument("-g", "--consumerGroup", dest="group", metavar="GROUP")
    parser.add_argument("-d", "--clientId", dest="client", metavar="ID")
    every = "every copy, up to 32"
    parser.add_argument("-a", "--showAll", dest="every", action="store_true", help=every)
    parser.add_argument("-c", "--cluster", help=argparse.SUPPRESS)
    _body_option(parser)


async def query_by_unique(call: Call) -> Shown:
    """12 with the unique flag."""
    arguments = call.arguments
    if bool(arguments.group) != bool(arguments.client):
        raise usage("-g and -d go together: a group and one of its members")
    found = await call.admin.messages_by_unique_id(arguments.topic, arguments.ids)
    if not found:
        raise missing(f"no message with id {arguments.ids} is in {arguments.topic} (any more)")
    chosen = found if arguments.every else found[:1]
    return await (_hand_over(call, chosen) if arguments.client else _with_tracks(call, chosen))


def _by_offset_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-b", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")
    parser.add_argument("-i", "--queueId", dest="queue", type=int, required=True, metavar="ID")
    parser.add_argument("-o", "--offset", type=int, required=True, metavar="N")
    _body_option(parser)


async def query_by_offset(call: Call) -> Shown:
    """11."""
    queue = MessageQueue(call.arguments.topic, call.arguments.name, call.arguments.queue)
    found = await call.admin.message_at(queue, call.arguments.offset)
    if found is None:
        lowest, end = await call.admin.min_offset(queue), await call.admin.max_offset(queue)
        raise missing(
            f"nothing at {call.arguments.offset} of {queue}, which holds {lowest} to {end - 1}",
        )
    return await _with_tracks(call, [found])


def _cq_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-q", "--queue", type=int, required=True, metavar="ID")
    parser.add_argument("-i", "--index", type=int, required=True, metavar="N")
    parser.add_argument("-c", "--count", type=int, default=10, metavar="N", help="default 10")
    parser.add_argument("-b", "--broker", metavar="HOST:PORT", help="default: each of the topic's")
    parser.add_argument("-g", "--consumer", help=argparse.SUPPRESS)


async def query_queue(call: Call) -> Shown:
    """321."""
    arguments = call.arguments
    names = sorted((await call.admin.route(arguments.topic)).addresses)
    members = await call.admin.cluster()
    if arguments.broker:
        names = [n for n in names if arguments.broker in members[n].addresses.values()]
        if not names:
            raise usage(f"{arguments.broker} is no broker of topic {arguments.topic}")
    found, texts = {}, []
    for name in names:
        queue = MessageQueue(arguments.topic, name, arguments.queue)
        entries = await call.admin.queue_entries(
            queue, arguments.index, arguments.count, address=arguments.broker
        )
        found[queue] = entries
        rows = [
            (each.queue_offset, each.physical_offset, each.size, each.tags_code)
            for each in entries.entries
        ]
        head = ["Index", "PhysicOffset", "PhysicSize", "TagsCode"]
        texts.append(
            f"Queue data: {queue}\nmax: {entries.max_offset}, min: {entries.min_offset}\n"
            + hash_table(head, rows)
        )
    return Shown(found, "\n\n".join(texts))


def _trace_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--msgId", dest="id", required=True, metavar="ID")
    parser.add_argument(
        "-t", "--traceTopic", dest="topic", default="RMQ_SYS_TRACE_TOPIC", metavar="TOPIC"
    )
    _between(parser, "-b", "-e")
    parser.add_argument("-c", "--maxNum", dest="count", type=int, default=64, metavar="N")


async def query_trace(call: Call) -> Shown:
    """12 on the trace topic: who sent and who consumed a message, where traces are on."""
    begin_ms, end_ms = _span(call)
    found = await call.admin.messages_by_key(
        call.arguments.topic,
        call.arguments.id,
        count_max=call.arguments.count,
        begin_ms=begin_ms,
        end_ms=end_ms,
    )
    traces = [trace for each in found for trace in read_traces(each, call.arguments.id)]
    sent = [
        (
            trace["type"],
            trace["group"],
            trace["host"],
            clock_text(trace["time_ms"]),
            f"{trace['cost_ms']}ms",
            trace["status"],
        )
        for trace in traces
    ]
    head = ["Type", "Group", "ClientHost", "Time", "CostTimes", "Status"]
    return Shown(traces, hash_table(head, sent))


def read_traces(message: ReceivedMessage, message_id: str) -> list[dict[str, Any]]:
    """Records of one trace message that speak of message_id. Source: RocketMQ's TraceDataEncoder."""
    parts = message.body.decode(errors="replace").split("\x02")
    records = [part.split("\x01") for part in parts if part]
    groups = {each[4]: each[3] for each in records if each[0] == "SubBefore" and len(each) > 5}
    found: list[dict[str, Any]] = []
    for each in records:
        host, status = message.born_host, ""
        if each[0] == "Pub" and len(each) >= 12 and each[5] == message_id:
            ok = each[13] if len(each) >= 14 else each[12] if len(each) == 13 else "true"
            status = "success" if ok == "true" else "failed"
            found.append(_trace("Pub", each[3], host, int(each[1]), int(each[10]), status))
        elif each[0] == "SubAfter" and len(each) >= 6 and each[2] == message_id:
            status = "success" if each[4] == "true" else "failed"
            group = each[8] if len(each) >= 9 else groups.get(each[1], "")
            when = int(each[7]) if len(each) >= 9 else message.born_ms
            found.append(_trace("Sub", group, host, when, int(each[3]), status))
        elif each[0] == "EndTransaction" and len(each) >= 13 and each[5] == message_id:
            status = f"{each[11]}, asked" if each[12] == "true" else each[11]
            found.append(_trace("End", each[3], host, int(each[1]), 0, status))
    return found


def _trace(
    kind: str, group: str, host: str, time_ms: int, cost_ms: int, status: str
) -> dict[str, Any]:
    return {
        "type": kind, "group": group, "host": host, "time_ms": time_ms, "cost_ms": cost_ms,
        "status": status,
    }  # fmt: skip


# Printing


def _print_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    _print_more(parser)
    parser.add_argument(
        "-d", "--printBody", dest="body", type=on_or_off, default=True, metavar="true|false"
    )
    parser.add_argument("-l", "--lmqParentTopic", dest="ignored", help=argparse.SUPPRESS)


def _print_more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--charsetName", dest="charset", default="UTF-8", metavar="NAME")
    parser.add_argument(
        "-s", "--subExpression", dest="expression", default="*", metavar="TAG || TAG"
    )
    _between(parser, "-b", "-e")


def _print_queue_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-a", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")
    parser.add_argument("-i", "--queueId", dest="queue", type=int, required=True, metavar="ID")
    _print_more(parser)
    for short, name, dest, default, text in (
        ("-p", "--print", "lines", True, "each message, default true"),
        ("-d", "--printBody", "body", True, "with its body, default true"),
        ("-f", "--calculate", "tags", False, "how many messages of each tag, default false"),
    ):
        parser.add_argument(
            short, name, dest=dest, type=on_or_off, default=default, metavar="true|false", help=text
        )


async def print_messages(call: Call) -> AsyncIterator[Shown]:
    """31, 30, 29, then 11 until the end that each queue had."""
    route = await call.admin.route(call.arguments.topic)
    for queue in route.read_queues(call.arguments.topic):
        async for message in _read(call, queue):
            yield Shown(message, _print_line(call, message))


async def print_queue(call: Call) -> AsyncIterator[Shown]:
    """As printMsg, of one queue; counts tags with -f."""
    arguments = call.arguments
    queue = MessageQueue(arguments.topic, arguments.name, arguments.queue)
    counts: dict[str, int] = {}
    async for message in _read(call, queue):
        counts[message.tags or ""] = counts.get(message.tags or "", 0) + 1
        if arguments.lines:
            yield Shown(message, _print_line(call, message))
    if arguments.tags:
        rows = [(tag or "(none)", count) for tag, count in sorted(counts.items())]
        yield Shown({"tags": counts}, hash_table(["Tag", "Count"], rows))


async def _read(call: Call, queue: MessageQueue) -> AsyncIterator[ReceivedMessage]:
    begin_ms, end_ms = _span(call)
    wanted = {tag.strip() for tag in call.arguments.expression.split("||")} - {"*", ""}
    at = await call.admin.min_offset(queue)
    if begin_ms:
        at = max(at, await call.admin.offset_for_time(queue, begin_ms))
    end = await call.admin.max_offset(queue)
    while at < end:
        batch = await call.admin.messages_from(queue, at)
        if not batch:
            return
        for message in batch:
            if message.queue_offset >= end or message.store_ms >= end_ms:
                return
            if not wanted or message.tags in wanted:
                yield message
        at = batch[-1].queue_offset + 1


def _print_line(call: Call, message: ReceivedMessage) -> str:
    text = (
        f"MSGID: {message.message_id} {message.queue.broker_name}:{message.queue.queue_id} "
        f"{message.queue_offset} {clock_text(message.store_ms)} tags={message.tags or ''} "
        f"keys={','.join(message.keys)}"
    )
    if not call.arguments.body:
        return text
    try:
        return f"{text} BODY: {message.body.decode(call.arguments.charset, 'backslashreplace')}"
    except LookupError as problem:
        raise usage(f"-c {call.arguments.charset}: {problem}") from problem


def _consume_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-b", "--brokerName", dest="name", metavar="BROKER_NAME")
    parser.add_argument("-i", "--queueId", dest="queue", type=int, metavar="ID", help="with -b")
    parser.add_argument("-o", "--offset", type=int, metavar="N", help="with -i: from there on")
    parser.add_argument("-g", "--consumerGroup", dest="group", help=argparse.SUPPRESS)
    _between(parser, "-s", "-e")
    most = "stop after so many, default 128"
    parser.add_argument(
        "-c", "--MessageNumber", dest="count", type=int, default=128, metavar="N", help=most
    )


async def consume_messages(call: Call) -> AsyncIterator[Shown]:
    """Messages from the oldest on, without a trace in any group."""
    arguments = call.arguments
    if arguments.queue is not None and not arguments.name:
        raise usage("-i needs -b, the broker's name")
    arguments.expression, arguments.body, arguments.charset = "*", True, "UTF-8"
    queues = (await call.admin.route(arguments.topic)).read_queues(arguments.topic)
    left = arguments.count
    for queue in queues:
        if arguments.name not in (None, queue.broker_name):
            continue
        if arguments.queue not in (None, queue.queue_id):
            continue
        async for message in _read(call, queue):
            if arguments.offset is not None and message.queue_offset < arguments.offset:
                continue
            if not left:
                return
            left -= 1
            yield Shown(message, _print_line(call, message))


COMMANDS = (
    asks(
        "queryMsgById", "a message by either of its ids, and what became of it",
        "queryMsgById -t Orders -i 7F000001000071840000000000000000", _by_id_options, query_by_id,
        token_for=("client", "resend"),
    ),
    asks(
        "queryMsgByKey", "messages that carry a key", "queryMsgByKey -t Orders -k order-17",
        _by_key_options, query_by_key,
    ),
    asks(
        "queryMsgByUniqueKey", "a message by its producer's id, all copies with -a",
        "queryMsgByUniqueKey -t Orders -i 7F0000016F1118B4AAC26A065CD10000", _by_unique_options,
        query_by_unique, token_for=("client",),
    ),
    asks(
        "queryMsgByOffset", "the message at a place in a queue",
        "queryMsgByOffset -t Orders -b broker-a -i 0 -o 17", _by_offset_options, query_by_offset,
    ),
    asks(
        "queryMsgTraceById", "who sent and who consumed a message, where traces are on",
        "queryMsgTraceById -i 7F0000016F1118B4AAC26A065CD10000", _trace_options, query_trace,
    ),
    asks(
        "queryCq", "entries of a consume queue", "queryCq -t Orders -q 0 -i 0 -c 5", _cq_options,
        query_queue,
    ),
    asks(
        "printMsg", "every message of a topic", "printMsg -t Orders -b 1h", _print_options,
        print_messages,
    ),
    asks(
        "printMsgByQueue", "every message of one queue",
        "printMsgByQueue -t Orders -a broker-a -i 0", _print_queue_options, print_queue,
    ),
    asks(
        "consumeMessage", "the oldest messages of a topic", "consumeMessage -t Orders -c 10",
        _consume_options, consume_messages,
    ),
)  # fmt: skip
