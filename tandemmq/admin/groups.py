"""mqadmin's commands about consumer and producer groups."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    broker_or_cluster,
    group,
    hash_table,
    key_lines,
    missing,
    on_or_off,
    orders,
    targets,
    topic,
    usage,
)
from tandemmq.admin.topics import listed
from tandemmq.cluster.client import BrokerRefused, MessageQueue, NoRoute
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.admin.bodies import tree
from tandemmq.cluster.client.admin.values import (
    GroupMembers,
    GroupProgress,
    GroupSettings,
    MemberState,
)
from tandemmq.cluster.remoting import ResponseCode
from tandemmq.command.output import plain
from tandemmq.command.times import clock_text, moment_ms

_OFFLINE = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST)

# Settings


def _update_options(parser: argparse.ArgumentParser) -> None:
    known = GroupSettings("")
    broker_or_cluster(parser)
    parser.add_argument("-g", "--groupName", dest="group", required=True, metavar="GROUP")
    for short, name, dest, default in (
        ("-s", "consumeEnable", "enable", known.consume_enable),
        ("-m", "consumeFromMinEnable", "from_min", False),
        ("-d", "consumeBroadcastEnable", "broadcast", False),
        ("-o", "consumeMessageOrderly", "orderly", known.orderly),
        ("-a", "notifyConsumerIdsChanged", "notify", known.notify_members_enable),
    ):
        shown = f"default {str(default).lower()}"
        parser.add_argument(
            short, f"--{name}", dest=dest, type=on_or_off, default=default,
            metavar="true|false", help=shown,
        )  # fmt: skip
    for short, name, dest, number in (
        ("-q", "retryQueueNums", "retry_queues", known.retry_queue_count),
        ("-r", "retryMaxTimes", "retries", known.retry_max_times),
        ("-i", "brokerId", "broker_id", known.broker_id),
        ("-w", "whichBrokerWhenConsumeSlowly", "slow_id", known.slow_reader_broker_id),
    ):
        parser.add_argument(
            short, f"--{name}", dest=dest, type=int, default=number, metavar="N",
            help=f"default {number}",
        )  # fmt: skip
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,...}}'
    parser.add_argument("-p", "--groupRetryPolicy", dest="policy", metavar="JSON", help=policy)
    parser.add_argument("--attributes", default="", metavar="+KEY=VALUE,...")


async def update_group(call: Call) -> Shown:
    """200 to each master."""
    arguments = call.arguments
    policy: dict[str, object] = {"type": "CUSTOMIZED"}
    if arguments.policy:
        try:
            policy = dict(json.loads(arguments.policy))
        except (ValueError, TypeError) as problem:
            raise usage(f"-p takes a JSON object, got {arguments.policy!r}: {problem}") from problem
    pairs = (part.partition("=") for part in arguments.attributes.split(",") if part.strip())
    settings = GroupSettings(
        arguments.group,
        consume_enable=arguments.enable,
        consume_from_min_enable=arguments.from_min,
        broadcast_enable=arguments.broadcast,
        orderly=arguments.orderly,
        retry_queue_count=arguments.retry_queues,
        retry_max_times=arguments.retries,
        retry_policy=policy,
        broker_id=arguments.broker_id,
        slow_reader_broker_id=arguments.slow_id,
        notify_members_enable=arguments.notify,
        attributes={key.strip(): value for key, _, value in pairs},
    )
    taken = await call.admin.put_group(settings, await targets(call))
    lines = [f"create subscription group to {address} success." for address in taken]
    lines.append(key_lines(tree(settings)))
    return Shown({"group": plain(settings), "brokers": taken}, "\n".join(lines))


def _file_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    parser.add_argument("-f", "--filename", dest="file", type=Path, required=True, metavar="FILE")


async def update_group_list(call: Call) -> Shown:
    """225 to each master."""
    settings = listed(call.arguments.file, GroupSettings, "groups, each with groupName")
    taken = await call.admin.put_groups(settings, await targets(call))
    lines = [f"submit batch of group config to {address} success." for address in taken]
    return Shown({"groups": plain(settings), "brokers": taken}, "\n".join(lines))


def _delete_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    parser.add_argument("-g", "--groupName", dest="group", required=True, metavar="GROUP")
    parser.add_argument(
        "-r", "--removeOffset", dest="offsets", type=on_or_off, default=False, metavar="true|false",
        help="what it has committed too; default false",
    )  # fmt: skip


async def delete_group(call: Call) -> Shown:
    """207 to each master, then its retry and dead-letter topics."""
    name, cluster = call.arguments.group, call.arguments.cluster
    taken = await call.admin.delete_group(
        name, call.arguments.broker, cluster=cluster, offsets_too=call.arguments.offsets
    )
    where = f" in cluster [{cluster}]" if cluster else ""
    lines = [
        f"delete subscription group [{name}] from broker [{at}]{where} success." for at in taken
    ]
    return Shown({"group": name, "brokers": taken}, "\n".join(lines))


def _group_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-g", "--groupName", dest="group", required=True, metavar="GROUP")


async def consumer_config(call: Call) -> Shown:
    """201 to each master."""
    name = call.arguments.group
    found: dict[str, Any] = {}
    lines: list[str] = []
    for member in (await call.admin.cluster()).values():
        settings = None
        if member.master is not None:
            settings = await call.admin.group_settings(name, member.master)
        if settings is not None:
            found[member.name] = plain(settings)
            lines.append(f"{member.cluster}:{member.name}".center(78, "="))
            lines.append(key_lines(tree(settings)))
    if not found:
        raise missing(f"no broker has a consumer group {name}")
    return Shown(found, "\n".join(lines))


# Progress


def _progress_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-g", "--groupName", dest="group", metavar="GROUP", help="default: all")
    parser.add_argument("-t", "--topicName", dest="topic", metavar="TOPIC")
    parser.add_argument(
        "-s", "--showClientIP", dest="clients", type=on_or_off, default=False,
        metavar="true|false", help="which member holds each queue",
    )  # fmt: skip
    parser.add_argument("-c", "--cluster", metavar="CLUSTER", help="only brokers of this cluster")


async def consumer_progress(call: Call) -> Shown:
    """208; without -g for every group."""
    if not call.arguments.group:
        return await _all_progress(call)
    name = call.arguments.group
    progress = await call.admin.progress(name, call.arguments.topic)
    if not progress.queues:
        raise missing(
            f"Not found the consumer group consume stats of {name}, because return offset table is "
            "empty, maybe the consumer not consume any message"
        )
    if call.arguments.cluster:
        names = await call.admin.cluster(call.arguments.cluster)
        chosen = {q: each for q, each in progress.queues.items() if q.broker_name in names}
        progress = GroupProgress(chosen, progress.consume_per_second)
    owners = await _owners(call.admin, name) if call.arguments.clients else None
    head = ["Topic", "Broker Name", "QID", "Broker Offset", "Consumer Offset"]
    if owners is not None:
        head.append("Client IP")
    rows: list[list[object]] = []
    for queue, each in progress.queues.items():
        row: list[object] = [queue.topic, queue.broker_name, queue.queue_id]
        row += [each.broker_offset, each.consumer_offset]
        if owners is not None:
            row.append(owners.get(queue, "N/A"))
        rows.append([*row, each.behind, each.in_flight, clock_text(each.last_ms)])
    text = (
        f"{hash_table([*head, 'Diff', 'Inflight', 'LastTime'], rows)}\n\n"
        f"Consume TPS: {progress.consume_per_second:.2f}\n"
        f"Consume Diff Total: {progress.behind}\n"
        f"Consume Inflight Total: {progress.in_flight}"
    )
    value = {
        "group": name,
        "queues": [
            {**each, "behind": found.behind, "owner": owners.get(queue) if owners else None}
            for each, (queue, found) in zip(
                plain(progress.queues) or [], progress.queues.items(), strict=True
            )
        ],
        "consume_per_second": progress.consume_per_second,
        "behind": progress.behind,
        "in_flight": progress.in_flight,
    }
    return Shown(value, text)


async def _owners(admin: Admin, name: str) -> dict[MessageQueue, str]:
    """queue -> client id of the member that says it holds it; members that do not answer are left out."""
    try:
        members = await admin.consumers(name)
    except BrokerRefused as problem:
        if problem.code not in _OFFLINE:
            raise
        return {}
    found: dict[MessageQueue, str] = {}
    for each in members.connections:
        try:
            state = await admin.member_state(name, each.client_id)
        except BrokerRefused:
            continue
        found.update(
            (queue, each.client_id) for queue, at in state.queues.items() if not at.dropped
        )
    return found


async def _all_progress(call: Call) -> Shown:
    rows: list[dict[str, Any]] = []
    for name in await call.admin.groups():
        members = await _online(call.admin, name)
        try:
            progress = await call.admin.progress(name)
        except NoRoute:
            continue  # deleted meanwhile
        connections = members.connections if members is not None else ()
        versions = [each.version_name for each in connections]
        rows.append(
            {
                "group": name,
                "members": len(connections),
                "version": min(versions, default="OFFLINE"),
                "type": _kind(members),
                "model": members.message_model if members is not None else "",
                "consume_per_second": progress.consume_per_second,
                "behind": progress.behind,
            }
        )
    head = ["Group", "Count", "Version", "Type", "Model", "TPS", "Diff Total"]
    cells = [
        [*list(row.values())[:5], f"{row['consume_per_second']:.0f}", row["behind"]] for row in rows
    ]
    return Shown(rows, hash_table(head, cells))


async def _online(admin: Admin, name: str) -> GroupMembers | None:
    try:
        return await admin.consumers(name)
    except BrokerRefused as problem:
        if problem.code not in _OFFLINE:
            raise
        return None


def _kind(members: GroupMembers | None) -> str:
    kinds = {"CONSUME_PASSIVELY": "PUSH", "CONSUME_ACTIVELY": "PULL", "CONSUME_POP": "POP"}
    return kinds.get(members.consume_type, members.consume_type) if members is not None else ""


def _broker_stats_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--brokerAddr", dest="broker", required=True, metavar="HOST:PORT")
    parser.add_argument("-t", "--timeoutMillis", dest="timeout", help=argparse.SUPPRESS)
    above = "only queues that are at least so far behind"
    parser.add_argument("-l", "--level", type=int, default=0, metavar="N", help=above)
    parser.add_argument("-o", "--order", type=on_or_off, default=False, metavar="true|false")


async def broker_consume_stats(call: Call) -> Shown:
    """317."""
    found = await call.admin.broker_progress(
        call.arguments.broker, ordered_only=call.arguments.order
    )
    rows = [
        (
            queue.topic,
            name,
            queue.broker_name,
            queue.queue_id,
            each.broker_offset,
            each.consumer_offset,
            each.behind,
            clock_text(each.last_ms),
        )
        for name, progress in found.items()
        for queue, each in progress.queues.items()
        if each.behind >= call.arguments.level
    ]
    head = ["Topic", "Group", "Broker Name", "QID", "Broker Offset", "Consumer Offset", "Diff"]
    total = sum(progress.behind for progress in found.values())
    text = f"{hash_table([*head, 'LastTime'], rows)}\n\nDiff Total: {total}"
    return Shown({"groups": plain(found), "behind": total}, text)


# Members


def _consumer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-g", "--consumerGroup", dest="group", required=True, metavar="GROUP")
    parser.add_argument("-b", "--brokerAddr", dest="broker", metavar="HOST:PORT")


async def consumer_connection(call: Call) -> Shown:
    """203."""
    members = await call.admin.consumers(call.arguments.group, address=call.arguments.broker)
    rows = [
        (each.client_id, each.address, each.language, each.version_name)
        for each in members.connections
    ]
    wanted = [(each.topic, each.expression) for each in members.subscriptions.values()]
    text = (
        hash_table(["ClientId", "ClientAddr", "Language", "Version"], rows)
        + "\n\nBelow is subscription:\n"
        + hash_table(["Topic", "SubExpression"], wanted)
        + f"\n\nConsumeType: {members.consume_type}\nMessageModel: {members.message_model}\n"
        + f"ConsumeFromWhere: {members.start_from}"
    )
    return Shown(members, text)


def _state_options(parser: argparse.ArgumentParser) -> None:
    _consumer_options(parser)
    parser.add_argument("-i", "--clientId", dest="client", metavar="ID", help="only this member")
    stacks = "with the stacks of its threads (Java clients)"
    parser.add_argument("-s", "--jstack", dest="stacks", action="store_true", help=stacks)


async def consumer_status(call: Call) -> Shown:
    """203, and 307 to each member: do they subscribe alike, does each queue have one owner?"""
    name = call.arguments.group
    members = await call.admin.consumers(name, address=call.arguments.broker)
    chosen = [
        each for each in members.connections if call.arguments.client in (None, each.client_id)
    ]
    if not chosen:
        raise usage(f"no member {call.arguments.client} of {name} is online")
    states: dict[str, MemberState] = {}
    problems: list[str] = []
    for each in chosen:
        try:
            states[each.client_id] = await call.admin.member_state(
                name, each.client_id, stacks=call.arguments.stacks, address=call.arguments.broker
            )
        except BrokerRefused as problem:
            problems.append(f"{each.client_id} does not tell: {problem.remark}")
    rows = [
        (place, each.client_id, each.version_name, *_sums(states.get(each.client_id)))
        for place, each in enumerate(chosen, 1)
    ]
    head = ["Index", "ClientId", "Version", "Queues", "Cached", "ConsumeTPS", "FailedTPS"]
    lines = [hash_table(head, rows), ""]
    if call.arguments.client is None and not problems:
        problems += _disagreements(states, members.message_model)
        lines += problems or [
            "Same subscription in the same group of consumer", "", "Rebalance OK"
        ]  # fmt: skip
    else:
        lines += problems
        lines += [line for state in states.values() for line in _details(state)]
    value = {"members": plain(states), "problems": problems}
    return Shown(value, "\n".join(lines).rstrip())


def _sums(state: MemberState | None) -> tuple[str, str, str, str]:
    if state is None:
        return "-", "-", "-", "-"
    held = [each for each in state.queues.values() if not each.dropped]
    return (
        str(len(held)),
        str(sum(each.cached_count for each in held)),
        f"{sum(each.consumed_per_second for each in state.topics.values()):.2f}",
        f"{sum(each.failed_per_second for each in state.topics.values()):.2f}",
    )


def _disagreements(states: dict[str, MemberState], model: str) -> list[str]:
    """What is wrong between the members of one group."""
    kinds = {
        tuple((each.topic, each.expression) for each in state.subscriptions)
        for state in states.values()
    }
    found = []
    if len(kinds) > 1:
        found.append("Different subscription in the same group of consumer: " + str(sorted(kinds)))
    if model != "BROADCASTING":
        owners = Counter(
            queue
            for state in states.values()
            for queue, each in state.queues.items()
            if not each.dropped
        )
        shared = sorted(str(queue) for queue, count in owners.items() if count > 1)
        if shared:
            found.append(f"Rebalance failed, queues with several owners: {', '.join(shared)}")
    return found


def _details(state: MemberState) -> list[str]:
    rows = [
        (
            queue.topic, queue.broker_name, queue.queue_id, each.commit_offset, each.cached_count,
            "dropped" if each.dropped else "locked" if each.locked else "",
            clock_text(each.last_pull_ms), clock_text(each.last_consume_ms),
        )
        for queue, each in state.queues.items()
    ]  # fmt: skip
    head = ["Topic", "Broker Name", "QID", "Commit", "Cached", "State", "LastPull", "LastConsume"]
    lines = ["", key_lines(state.properties), "", hash_table(head, rows)]
    return [*lines, *(["", state.stacks] if state.stacks else [])]


def _producer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-g", "--producerGroup", dest="group", required=True, metavar="GROUP")
    topic(parser)


async def producer_connection(call: Call) -> Shown:
    """204 to the topic's brokers."""
    found = await call.admin.connected_producers(call.arguments.group, call.arguments.topic)
    rows = [
        (f"{place:04}", each.client_id, each.address, each.language, each.version_name)
        for place, each in enumerate(found, 1)
    ]
    return Shown(
        found, hash_table(["Index", "ClientId", "ClientAddr", "Language", "Version"], rows)
    )


def _one_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--broker", required=True, metavar="HOST:PORT")


async def producer(call: Call) -> Shown:
    """328."""
    found = await call.admin.producers(call.arguments.broker)
    rows = [
        (name, each.client_id, each.address, each.language, each.version_name,
         clock_text(each.seen_ms))
        for name, members in found.items()
        for each in members
    ]  # fmt: skip
    head = ["Group", "ClientId", "ClientAddr", "Language", "Version", "LastHeartbeat"]
    return Shown(found, hash_table(head, rows))


# Positions


def _reset_options(parser: argparse.ArgumentParser) -> None:
    group(parser)
    topic(parser)
    when = "now (the end), 2025-09-19#08:30:00:000, milliseconds, or 10m for 10m ago; 0: the oldest"
    parser.add_argument("-s", "--timestamp", dest="when", required=True, metavar="TIME", help=when)
    _force(parser)
    parser.add_argument("-c", "--cluster", help=argparse.SUPPRESS)
    parser.add_argument(
        "-b", "--broker", metavar="NAME", help="with -q: one queue of this broker name"
    )
    parser.add_argument("-q", "--queue", type=int, metavar="ID")
    parser.add_argument("-o", "--offset", type=int, metavar="N", help="with -q: exactly there")


def _force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--force", type=on_or_off, default=True, metavar="true|false",
        help="false: never forwards (old brokers only)",
    )  # fmt: skip


async def reset_offset(call: Call) -> Shown:
    """222."""
    arguments = call.arguments
    when = None if arguments.when == "now" else moment_ms("-s", arguments.when, call.now_ms)
    if arguments.queue is None:
        if arguments.broker or arguments.offset is not None:
            raise usage("-b and -o go with -q: one queue of one broker")
        found = await call.admin.reset(
            arguments.group, arguments.topic, when, force=arguments.force
        )
    else:
        if not arguments.broker:
            raise usage("-q needs -b, the broker's name or address")
        name = await _broker_name(call.admin, arguments.broker)
        queue = MessageQueue(arguments.topic, name, arguments.queue)
        offset = await call.admin.reset_queue(
            arguments.group, queue, offset=arguments.offset, time_ms=when
        )
        found = {queue: offset}
    return _offsets(found)


async def _broker_name(admin: Admin, given: str) -> str:
    """mqadmin takes an address here; a name is as good."""
    for member in (await admin.cluster()).values():
        if given == member.name or given in member.addresses.values():
            return member.name
    raise usage(f"no broker {given!r} is registered at the name server")


def _offsets(found: dict[MessageQueue, int]) -> Shown:
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in found.items()]
    return Shown(found, hash_table(["brokerName", "queueId", "offset"], rows))


def _skip_options(parser: argparse.ArgumentParser) -> None:
    group(parser)
    topic(parser)
    _force(parser)
    parser.add_argument("-c", "--cluster", help=argparse.SUPPRESS)


async def skip_accumulated(call: Call) -> Shown:
    """222 to the end of every queue."""
    return _offsets(await call.admin.reset(call.arguments.group, call.arguments.topic, None))


def _clone_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--srcGroup", dest="source", required=True, metavar="GROUP")
    parser.add_argument("-d", "--destGroup", dest="target", required=True, metavar="GROUP")
    topic(parser)
    parser.add_argument(
        "-o", "--offline", type=on_or_off, default=False, metavar="true|false",
        help="the source need not subscribe to the topic now",
    )  # fmt: skip


async def clone_offsets(call: Call) -> Shown:
    """314 to the topic's brokers."""
    arguments = call.arguments
    source, target, name = arguments.source, arguments.target, arguments.topic
    await call.admin.clone_offsets(source, target, name, offline=arguments.offline)
    text = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{name}]"
    return Shown({"source": source, "target": target, "topic": name}, text)


COMMANDS = (
    orders(
        "updateSubGroup", "create or change a consumer group",
        "updateSubGroup -c TandemCluster -g billing -r 3", _update_options, update_group,
    ),
    orders(
        "updateSubGroupList", "create or change the groups of a JSON file",
        "updateSubGroupList -c TandemCluster -f groups.json", _file_options, update_group_list,
    ),
    orders(
        "deleteSubGroup", "delete a consumer group, its retries and dead letters",
        "deleteSubGroup -c TandemCluster -g billing -r true", _delete_options, delete_group,
    ),
    asks(
        "getConsumerConfig", "a consumer group's settings on each broker",
        "getConsumerConfig -g billing", _group_name, consumer_config,
    ),
    asks(
        "consumerProgress", "how far a group is, or all groups are", "consumerProgress -g billing",
        _progress_options, consumer_progress,
    ),
    asks(
        "brokerConsumeStats", "how far every group of one broker is",
        "brokerConsumeStats -b 127.0.0.1:10911 -l 1000", _broker_stats_options,
        broker_consume_stats,
    ),
    asks(
        "consumerConnection", "the members of a consumer group, and what they subscribe to",
        "consumerConnection -g billing", _consumer_options, consumer_connection,
    ),
    asks(
        "consumerStatus", "what the members of a group say about themselves",
        "consumerStatus -g billing", _state_options, consumer_status,
    ),
    asks(
        "producerConnection", "the members of a producer group",
        "producerConnection -g shop -t Orders", _producer_options, producer_connection,
    ),
    asks(
        "producer", "every producer connected to a broker", "producer -b 127.0.0.1:10911",
        _one_broker, producer,
    ),
    orders(
        "resetOffsetByTime", "send a group to a point in time",
        "resetOffsetByTime -g billing -t Orders -s 1h", _reset_options, reset_offset,
    ),
    orders(
        "skipAccumulatedMessage", "let a group skip what it has not consumed",
        "skipAccumulatedMessage -g billing -t Orders", _skip_options, skip_accumulated,
    ),
    orders(
        "cloneGroupOffset", "let a group start where another one is",
        "cloneGroupOffset -s billing -d billing-2 -t Orders", _clone_options, clone_offsets,
    ),
)  # fmt: skip
