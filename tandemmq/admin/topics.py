"""mqadmin's commands about topics."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    broker_or_cluster,
    hash_table,
    on_or_off,
    orders,
    targets,
    topic,
    usage,
)
from tandemmq.cluster.client import BrokerRefused, MessageQueue, NoRoute
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.admin.bodies import TopicConfig
from tandemmq.cluster.client.admin.values import StatsWindows, TopicSettings
from tandemmq.cluster.client.message import DLQ_PREFIX, RETRY_PREFIX
from tandemmq.cluster.remoting import bodies
from tandemmq.command.output import plain
from tandemmq.command.times import clock_text

Kind = TypeVar("Kind")
TOPICS_AT_ONCE: Final = (
    32  # asked about by statsAll: brokers and name servers are kept busy, not flooded
)


def _update_topic_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    topic(parser)
    parser.add_argument("-r", "--readQueueNums", dest="read", type=int, default=8, metavar="N")
    parser.add_argument("-w", "--writeQueueNums", dest="write", type=int, default=8, metavar="N")
    perms = "2 write, 4 read, 6 both (default)"
    parser.add_argument("-p", "--perm", type=int, default=6, choices=range(8), help=perms)
    parser.add_argument("-o", "--order", type=on_or_off, default=False, metavar="true|false")
    parser.add_argument("-u", "--unit", type=on_or_off, default=False, metavar="true|false")
    parser.add_argument(
        "-s", "--hasUnitSub", dest="unit_sub", type=on_or_off, default=False, metavar="true|false"
    )
    example = "e.g. +message.type=FIFO,-reserve.time (write -a=-... when it begins with a minus)"
    parser.add_argument("-a", "--attributes", default="", metavar="CHANGES", help=example)


async def update_topic(call: Call) -> Shown:
    """17 to each master; with -o also the order table of the name servers."""
    arguments = call.arguments
    for option, count in (("-r", arguments.read), ("-w", arguments.write)):
        if count < 0:
            raise usage(f"{option} must be at least 0, got {count}")
    settings = TopicSettings(
        arguments.topic,
        arguments.read,
        arguments.write,
        arguments.perm,
        arguments.order,
        int(arguments.unit) | int(arguments.unit_sub) << 1,
        attributes=_changes(arguments.attributes),
    )
    taken = await call.admin.put_topic(settings, await targets(call))
    lines = [f"create topic to {address} success." for address in taken]
    if arguments.order:
        members = await call.admin.cluster()
        names = [each.name for each in members.values() if each.master in taken]
        conf = ";".join(f"{name}:{arguments.write}" for name in names)
        await call.admin.put_order_conf(arguments.topic, conf)
        lines.append(f"set order conf [{conf}] at the name servers.")
    return Shown({"topic": plain(settings), "brokers": taken}, "\n".join([*lines, _line(settings)]))


def _changes(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = part.lstrip("+-").partition("=")
        if not key or (not equals and not part.startswith("-")):
            raise usage(f"-a takes +key=value or -key, joined with commas; got {part!r}")
        found[key] = None if part.startswith("-") else value
    return found


def _line(settings: TopicSettings) -> str:
    return (
        f"{settings.topic}: read queues {settings.read_queue_count}, write queues "
        f"{settings.write_queue_count}, perm {perm_text(settings.perm)}, order {settings.order}, "
        f"attributes {dict(settings.attributes) or '{}'}"
    )


def perm_text(perm: int) -> str:
    """RW-, R--, -W-: as RocketMQ writes permissions."""
    return f"{'R' if perm & 4 else '-'}{'W' if perm & 2 else '-'}{'X' if perm & 1 else '-'}"


def _file_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    parser.add_argument("-f", "--filename", dest="file", type=Path, required=True, metavar="FILE")


def listed(path: Path, kind: type[Kind], what: str) -> list[Kind]:
    """What a file holds as a JSON array of `what`. Raises CommandFailed, OSError."""
    try:
        return bodies.read(list[kind], path.read_bytes())  # type: ignore[valid-type]
    except bodies.BodyUnreadable as problem:
        raise usage(f"{path} is no JSON array of {what}: {problem}") from problem


async def update_topic_list(call: Call) -> Shown:
    """18 to each master."""
    needs = "topics, each with topicName, readQueueNums, writeQueueNums and perm"
    found = listed(call.arguments.file, TopicConfig, needs)
    settings = [each.value() for each in found]
    taken = await call.admin.put_topics(settings, await targets(call))
    lines = [f"submit batch of topic config to {address} success." for address in taken]
    return Shown({"topics": plain(settings), "brokers": taken}, "\n".join(lines))


def _delete_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-c", "--clusterName", dest="cluster", required=True, metavar="CLUSTER")


async def delete_topic(call: Call) -> Shown:
    """215 to each master, 216 and 102 to each name server."""
    name, cluster = call.arguments.topic, call.arguments.cluster
    await call.admin.delete_topic(name, cluster=cluster)
    text = (
        f"delete topic [{name}] from cluster [{cluster}] success.\n"
        f"delete topic [{name}] from NameServer success."
    )
    return Shown({"topic": name, "cluster": cluster}, text)


def _perm_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    topic(parser)
    perms = "2 write, 4 read, 6 both"
    parser.add_argument("-p", "--perm", type=int, required=True, choices=range(8), help=perms)


async def update_topic_perm(call: Call) -> Shown:
    """351 and 17 per broker: only the permission changes."""
    changed: dict[str, tuple[int, int]] = {}
    for address in await targets(call):
        changed |= await call.admin.set_topic_perm(
            call.arguments.topic, call.arguments.perm, address=address
        )
    lines = [
        f"update topic perm from {before} to {after} in {address} success."
        for address, (before, after) in changed.items()
    ]
    value = {at: {"before": before, "after": after} for at, (before, after) in changed.items()}
    return Shown(value, "\n".join(lines))


def _list_options(parser: argparse.ArgumentParser) -> None:
    help_text = "with clusters and groups"
    parser.add_argument("-c", "--clusterModel", dest="groups", action="store_true", help=help_text)


async def topic_list(call: Call) -> Shown:
    """206; with -c for each topic its clusters and groups."""
    names = await call.admin.topics()
    if not call.arguments.groups:
        return Shown(names, "\n".join(names))
    rows: list[tuple[str, str, str]] = []
    for name in names:
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        try:
            clusters = await call.admin.topic_clusters(name)
            groups = await call.admin.topic_groups(name)
        except NoRoute:
            continue  # deleted meanwhile
        rows += [(cluster, name, one) for cluster in clusters for one in groups or [""]]
    value = [dict(zip(("cluster", "topic", "group"), row, strict=True)) for row in rows]
    return Shown(value, hash_table(["Cluster Name", "Topic", "Consumer Group"], rows))


def _route_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-l", "--list", dest="rows", action="store_true", help="as a table")


async def topic_route(call: Call) -> Shown:
    """105."""
    route = await call.admin.route(call.arguments.topic)
    members = await call.admin.cluster()
    cluster = {name: members[name].cluster if name in members else "" for name in route.addresses}
    value: dict[str, list[dict[str, Any]]] = {
        "brokerDatas": [
            {
                "brokerAddrs": {str(n): a for n, a in at.items()},
                "brokerName": name,
                "cluster": cluster[name],
            }
            for name, at in route.addresses.items()
        ],
        "queueDatas": [
            {
                "brokerName": each.broker_name,
                "perm": each.perm,
                "readQueueNums": each.read_queue_count,
                "writeQueueNums": each.write_queue_count,
            }
            for each in route.queue_counts
        ],
    }
    if not call.arguments.rows:
        return Shown(value, json.dumps(value, indent=2))
    rows: list[tuple[object, ...]] = [
        (
            cluster.get(each.broker_name, ""),
            each.broker_name,
            " ".join(f"{n}={at}" for n, at in route.addresses.get(each.broker_name, {}).items()),
            each.read_queue_count,
            each.write_queue_count,
            each.perm,
        )
        for each in route.queue_counts
    ]
    reads = sum(each.read_queue_count for each in route.queue_counts)
    writes = sum(each.write_queue_count for each in route.queue_counts)
    rows.append(("Total:", len(route.queue_counts), "", reads, writes, ""))
    head = ["ClusterName", "BrokerName", "BrokerAddrs", "ReadQueue", "WriteQueue", "Perm"]
    return Shown(value, hash_table(head, rows))


def _status_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    help_text = "only brokers of this cluster"
    parser.add_argument("-c", "--cluster", metavar="CLUSTER", help=help_text)


async def topic_status(call: Call) -> Shown:
    """202 to each broker of the topic."""
    stats = await call.admin.topic_stats(call.arguments.topic)
    if call.arguments.cluster:
        names = await call.admin.cluster(call.arguments.cluster)
        chosen = {queue: each for queue, each in stats.queues.items() if queue.broker_name in names}
        stats = replace(stats, queues=chosen)
    rows = [
        (
            queue.broker_name,
            queue.queue_id,
            each.min_offset,
            each.max_offset,
            clock_text(each.updated_ms),
        )
        for queue, each in stats.queues.items()
    ]
    text = hash_table(["Broker Name", "QID", "Min Offset", "Max Offset", "Last Updated"], rows)
    return Shown(stats, f"{text}\n\nTopic Put TPS: {stats.put_per_second:.1f}")


async def topic_cluster_list(call: Call) -> Shown:
    """106 and 105."""
    found = await call.admin.topic_clusters(call.arguments.topic)
    return Shown(found, "\n".join(found))


def _order_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-m", "--method", required=True, choices=["get", "put", "delete"])
    parser.add_argument("-v", "--orderConf", dest="conf", metavar="BROKER:QUEUES;...")


async def update_order_conf(call: Call) -> Shown:
    """101, 100 or 102 in the order table."""
    name = call.arguments.topic
    match call.arguments.method:
        case "get":
            conf = await call.admin.order_conf(name)
        case "put":
            if not call.arguments.conf:
                raise usage("-m put needs -v broker-a:4;broker-b:4")
            conf = call.arguments.conf
            await call.admin.put_order_conf(name, conf)
        case _:
            conf = None
            await call.admin.delete_order_conf(name)
    shown = f", orderConf=[{conf or ''}]" if call.arguments.method != "delete" else ""
    done = (
        "get orderConf" if call.arguments.method == "get" else f"{call.arguments.method} orderConf"
    )
    return Shown({"topic": name, "order_conf": conf}, f"{done} success. topic=[{name}]{shown}")


def _allocate_options(parser: argparse.ArgumentParser) -> None:
    topic(parser)
    parser.add_argument("-i", "--ipList", dest="ips", required=True, metavar="IP,IP")


async def allocate(call: Call) -> Shown:
    """How the average allocation would share the topic's queues among these clients."""
    clients = sorted(each.strip() for each in call.arguments.ips.split(",") if each.strip())
    route = await call.admin.route(call.arguments.topic)
    queues = route.read_queues(call.arguments.topic)
    shares = average_shares(queues, clients)
    return Shown(
        {"result": {client: plain(share) for client, share in shares.items()}},
        "\n".join(f"{client}  {', '.join(map(str, share))}" for client, share in shares.items()),
    )


def average_shares(
    queues: tuple[MessageQueue, ...], clients: list[str]
) -> Mapping[str, tuple[MessageQueue, ...]]:
    """RocketMQ's default allocation: consecutive queues, the first clients get one more."""
    least, more = divmod(len(queues), len(clients)) if clients else (0, 0)
    shares: dict[str, tuple[MessageQueue, ...]] = {}
    begin = 0
    for place, client in enumerate(clients):
        end = begin + least + (place < more)
        shares[client] = queues[begin:end]
        begin = end
    return shares


def _stats_options(parser: argparse.ArgumentParser) -> None:
    active = "only topics that are in use"
    parser.add_argument("-a", "--activeTopic", dest="active", action="store_true", help=active)
    topic(parser, required=False)


async def stats_all(call: Call) -> Shown:
    """For each topic and group: what waits, comes and goes."""
    names = [call.arguments.topic] if call.arguments.topic else await call.admin.topics()
    names = [name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    active: bool = call.arguments.active
    found: dict[str, list[dict[str, Any]]] = {}
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            try:
                found[name] = await _topic_rates(call.admin, name, active)
            except NoRoute:
                if call.arguments.topic:
                    raise

    await asyncio.gather(*(work() for _ in range(min(TOPICS_AT_ONCE, len(names)))))
    rows = [row for name in names for row in found.get(name, ())]
    head = ["Topic", "Consumer Group", "Accumulation", "InTPS", "OutTPS", "InMsg24Hour"]
    table = [
        (
            row["topic"],
            row["group"] or "",
            "-" if row["behind"] is None else row["behind"],
            f"{row['in_per_second']:.2f}",
            f"{row['out_per_second']:.2f}" if row["group"] else "",
            row["in_24_hours"],
            row["out_24_hours"] if row["group"] else "NO_CONSUMER",
        )
        for row in rows
    ]
    return Shown(rows, hash_table([*head, "OutMsg24Hour"], table))


async def _topic_rates(admin: Admin, name: str, active: bool) -> list[dict[str, Any]]:
    """A row for each of its groups, or one; none for a topic that is not in use, when only active ones are wanted."""
    route = await admin.route(name)
    masters = [at[0] for at in route.addresses.values() if 0 in at]
    came = await _summed(admin, masters, "TOPIC_PUT_NUMS", name)
    row = {"topic": name, "in_per_second": came[0], "in_24_hours": came[1]}
    if active and not any(came):
        return []
    idle = {"group": None, "behind": 0, "out_per_second": 0.0, "out_24_hours": 0}
    rows = []
    for one in await admin.topic_groups(name, route=route):
        went = await _summed(admin, masters, "GROUP_GET_NUMS", f"{name}@{one}")
        try:
            behind: int | None = (await admin.progress(one, name)).behind
        except BrokerRefused:
            behind = None  # the group is being deleted
        more = {"group": one, "behind": behind, "out_per_second": went[0], "out_24_hours": went[1]}
        rows.append({**row, **more})
    return rows or [{**row, **idle}]


async def _summed(admin: Admin, masters: list[str], name: str, key: str) -> tuple[float, int]:
    found: list[StatsWindows | None] = await asyncio.gather(
        *(admin.broker_statistic(at, name, key) for at in masters)
    )
    known = [each for each in found if each is not None]
    return (
        round(sum(each.minute.per_second for each in known), 2),
        sum(each.longest_sum for each in known),
    )


COMMANDS = (
    orders(
        "updateTopic",
        "create a topic, or change its queues and permission",
        "updateTopic -c TandemCluster -t Orders -r 8 -w 8",
        _update_topic_options,
        update_topic,
    ),
    orders(
        "updateTopicList",
        "create or change the topics of a JSON file",
        "updateTopicList -c TandemCluster -f topics.json",
        _file_options,
        update_topic_list,
    ),
    orders(
        "deleteTopic",
        "delete a topic with its messages",
        "deleteTopic -c TandemCluster -t Orders",
        _delete_options,
        delete_topic,
    ),
    orders(
        "updateTopicPerm",
        "change who may use a topic",
        "updateTopicPerm -c TandemCluster -t Orders -p 4",
        _perm_options,
        update_topic_perm,
    ),
    asks(
        "topicList", "every topic, with -c its clusters and groups", "topicList", _list_options,
        topic_list,
    ),
    asks(
        "topicRoute", "which brokers have a topic, with how many queues", "topicRoute -t Orders -l",
        _route_options, topic_route,
    ),
    asks(
        "topicStatus", "how full a topic's queues are", "topicStatus -t Orders", _status_options,
        topic_status,
    ),
    asks(
        "topicClusterList", "the clusters that have a topic", "topicClusterList -t Orders", topic,
        topic_cluster_list,
    ),
    orders(
        "updateOrderConf",
        "a topic's fixed queues for ordered sends",
        "updateOrderConf -t Orders -m put -v 'broker-a:4;broker-b:4'",
        _order_options,
        update_order_conf,
    ),
    asks(
        "allocateMQ",
        "how a topic's queues would be shared among clients",
        "allocateMQ -t Orders -i 10.0.0.1,10.0.0.2",
        _allocate_options,
        allocate,
    ),
    asks(
        "statsAll", "for each topic and group: what waits, comes and goes", "statsAll -a",
        _stats_options, stats_all,
    ),
)  # fmt: skip
