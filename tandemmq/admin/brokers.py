"""mqadmin's commands about clusters, brokers and name servers."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    broker_or_cluster,
    hash_table,
    interval_option,
    key_lines,
    no_arguments,
    on_or_off,
    orders,
    targets,
    usage,
)
from tandemmq.cluster.client import ClientError
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.admin.bodies import tree
from tandemmq.cluster.client.admin.values import BrokerMembers, ReplicaState
from tandemmq.cluster.client.message import DLQ_PREFIX, RETRY_PREFIX
from tandemmq.command.exits import ExitCode
from tandemmq.command.output import plain
from tandemmq.command.screen import coloured
from tandemmq.command.times import clock_text

# The cluster


def _list_options(parser: argparse.ArgumentParser) -> None:
    more = "messages of yesterday and today instead"
    parser.add_argument("-m", "--moreStats", dest="more", action="store_true", help=more)
    parser.add_argument("-c", "--clusterName", dest="cluster", metavar="CLUSTER")
    interval_option(parser)


async def cluster_list(call: Call) -> Shown:
    """106, and 28 to each broker. A broker that does not answer is shown, and fails the command."""
    members = list((await call.admin.cluster(call.arguments.cluster)).values())
    entries = [(each, number, at) for each in members for number, at in each.addresses.items()]
    found = await asyncio.gather(*(_status(call.admin, at) for _, _, at in entries))
    rows = [
        _more_row(member, status) if call.arguments.more else _row(call, member, number, at, status)
        for (member, number, at), status in zip(entries, found, strict=True)
        if number == 0 or not call.arguments.more
    ]
    value = [
        {
            "cluster": member.cluster, "broker": member.name, "broker_id": number, "address": at,
            "answers": isinstance(status, dict),
            **({"status": status} if isinstance(status, dict) else {"problem": status}),
        }
        for (member, number, at), status in zip(entries, found, strict=True)
    ]  # fmt: skip
    silent = [status for status in found if not isinstance(status, dict)]
    lines = [hash_table(_MORE_HEAD if call.arguments.more else _HEAD, rows)]
    lines += [coloured(text, "red") for text in silent]
    code = ExitCode.UNREACHABLE if silent else ExitCode.OK
    return Shown(value, "\n".join(lines), code)


_HEAD = [
    "Cluster Name", "Broker Name", "BID", "Addr", "Version", "InTPS(LOAD)", "OutTPS(LOAD)",
    "Timer(Progress)", "PCWait(ms)", "Hour", "SPACE", "ACTIVATED",
]  # fmt: skip
_MORE_HEAD = [
    "Cluster Name", "Broker Name", "InTotalYest", "OutTotalYest", "InTotalToday", "OutTotalToday"
]  # fmt: skip


async def _status(admin: Admin, address: str) -> dict[str, str] | str:
    try:
        return await admin.broker_status(address)
    except ClientError as problem:
        return str(problem)


def _row(
    call: Call, member: BrokerMembers, number: int, address: str, status: dict[str, str] | str
) -> list[object]:
    start: list[object] = [member.cluster, member.name, number, address]
    if isinstance(status, str):
        return [*start, "-", "-", "-", "-", "-", "-", "-", "no answer"]
    went = status.get("getTransferredTps") or status.get("getTransferedTps") or "0"  # 4.x: one r
    send = f"{_first(status.get('putTps', '0'))}({_queue(status, 'send')})"
    pulls = [_queue(status, "pull"), *([_queue(status, "ack")] if _has(status, "ack") else [])]
    timer = (
        f"{status.get('timerReadBehind', '0')}-{status.get('timerOffsetBehind', '0')}"
        f"({int(status.get('timerCongestNum') or 0) / 10_000:.1f}w, "
        f"{float(status.get('timerEnqueueTps') or 0):.1f}, "
        f"{float(status.get('timerDequeueTps') or 0):.1f})"
    )
    oldest_ms = int(status.get("earliestMessageTimeStamp") or 0)
    hours = (call.now_ms - oldest_ms) / 3_600_000 if oldest_ms > 0 else 0.0
    return [
        *start,
        status.get("brokerVersionDesc", ""),
        send,
        f"{_first(went)}({'|'.join(pulls)})",
        timer,
        status.get("pageCacheLockTimeMills", "0"),
        f"{hours:.2f}",
        f"{float(status.get('commitLogDiskRatio') or 0):.4f}",
        status.get("brokerActive", ""),
    ]


def _first(rates: str) -> str:
    return f"{float((rates.split() or ['0'])[0]):.2f}"


def _has(status: dict[str, str], pool: str) -> bool:
    return f"{pool}ThreadPoolQueueSize" in status


def _queue(status: dict[str, str], pool: str) -> str:
    waits = status.get(f"{pool}ThreadPoolQueueHeadWaitTimeMills", "0")
    return f"{status.get(f'{pool}ThreadPoolQueueSize', '0')},{waits}ms"


def _more_row(member: BrokerMembers, status: dict[str, str] | str) -> list[object]:
    if isinstance(status, str):
        return [member.cluster, member.name, "-", "-", "-", "-"]

    def count(key: str) -> int:
        return int(status.get(key) or 0)

    return [
        member.cluster,
        member.name,
        count("msgPutTotalTodayMorning") - count("msgPutTotalYesterdayMorning"),
        count("msgGetTotalTodayMorning") - count("msgGetTotalYesterdayMorning"),
        count("msgPutTotalTodayNow") - count("msgPutTotalTodayMorning"),
        count("msgGetTotalTodayNow") - count("msgGetTotalTodayMorning"),
    ]


# One broker


async def broker_status(call: Call) -> Shown:
    """28."""
    found = {address: await call.admin.broker_status(address) for address in await targets(call)}
    return Shown(found, _sections(found, ":"))


async def broker_config(call: Call) -> Shown:
    """26."""
    found = {address: await call.admin.broker_config(address) for address in await targets(call)}
    return Shown(found, _sections(found, "="))


def _sections(found: dict[str, dict[str, str]], between: str) -> str:
    if len(found) == 1:
        return key_lines(next(iter(found.values())), between)
    return "\n".join(
        f"{address.center(60, '=')}\n{key_lines(settings, between)}\n"
        for address, settings in found.items()
    ).rstrip()


def _change_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", "--key", required=True)
    parser.add_argument("-v", "--value", required=True)


def _update_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    parser.add_argument(
        "-a", "--updateAllBroker", dest="slaves_too", type=on_or_off, default=False,
        metavar="true|false", help="with -c: slaves too",
    )  # fmt: skip
    _change_options(parser)


async def update_broker_config(call: Call) -> Shown:
    """25."""
    addresses = await targets(call)
    if call.arguments.slaves_too and call.arguments.cluster:
        members = await call.admin.cluster(call.arguments.cluster)
        addresses = [at for each in members.values() for at in each.addresses.values()]
    key, value = call.arguments.key, call.arguments.value
    for address in addresses:
        await call.admin.update_broker_config(address, {key: value})
    lines = [f"update broker config success, {address}" for address in addresses]
    return Shown({"key": key, "value": value, "brokers": addresses}, "\n".join(lines))


def _maintain_options(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-b", "--brokerAddr", dest="broker", metavar="HOST:PORT")
    either.add_argument(
        "-c", "--cluster", metavar="CLUSTER", help="without -b and -c: every master"
    )


def _maintaining(
    order: Callable[[Admin, str], Awaitable[None]],
) -> Callable[[Call], Awaitable[Shown]]:
    async def run(call: Call) -> Shown:
        addresses = await targets(call)
        for address in addresses:
            await order(call.admin, address)
        return Shown({"brokers": addresses}, "success")

    return run


def _flush_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--brokerAddr", dest="broker", required=True, metavar="HOST:PORT")
    parser.add_argument("-o", "--offset", type=int, required=True, metavar="BYTES")


async def reset_flush_offset(call: Call) -> Shown:
    """908."""
    address, offset = call.arguments.broker, call.arguments.offset
    await call.admin.reset_master_flush_offset(address, offset)
    text = f"reset master flush offset to {offset} success, {address}"
    return Shown({"broker": address, "offset": offset}, text)


def _ha_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    interval_option(parser)


async def ha_status(call: Call) -> Shown:
    """907."""
    found = {address: await call.admin.replica_state(address) for address in await targets(call)}
    return Shown(found, "\n\n".join(_replica(at, state) for at, state in found.items()))


def _replica(address: str, state: ReplicaState) -> str:
    if not state.is_master:
        return (
            f"#MasterAddr\t{state.master_address}\n"
            f"#CommitLogMaxOffset\t{state.received_offset}\n"
            f"#TransferSpeed(KB/s)\t{state.bytes_per_second / 1024:.2f}\n"
            f"#LastReadTime\t{clock_text(state.last_read_ms)}\n"
            f"#LastWriteTime\t{clock_text(state.last_write_ms)}\n"
            f"#MasterFlushOffset\t{state.master_flushed_offset}"
        )
    rows = [
        (
            each.address,
            each.acked_offset,
            each.behind_bytes,
            f"{each.bytes_per_second / 1024:.2f}",
            "OK" if each.in_sync else "Fall Behind",
            each.sent_from,
        )
        for each in state.slaves
    ]
    head = ["SlaveAddr", "SlaveAckOffset", "Diff", "TransferSpeed(KB/s)", "Status"]
    return (
        f"#MasterAddr\t{address}\n#MasterCommitLogMaxOffset\t{state.max_offset}\n"
        f"#SlaveNum\t{len(state.slaves)}\n#InSyncSlaveNum\t{state.in_sync_count}\n"
        + hash_table([*head, "TransferFromWhere"], rows)
    )


# Name servers


def _name_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")


async def wipe_write_perm(call: Call) -> Shown:
    """205 to each name server."""
    return _perms(call, "wipe", await call.admin.wipe_write_perm(call.arguments.name))


async def add_write_perm(call: Call) -> Shown:
    """327 to each name server."""
    return _perms(call, "add", await call.admin.add_write_perm(call.arguments.name))


def _perms(call: Call, word: str, counts: dict[str, int]) -> Shown:
    lines = [
        f"{word} write perm of broker[{call.arguments.name}] in name server[{at}] OK, {count}"
        for at, count in counts.items()
    ]
    return Shown(counts, "\n".join(lines))


def _kv_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--namespace", required=True)
    parser.add_argument("-k", "--key", required=True)


def _kv_value_options(parser: argparse.ArgumentParser) -> None:
    _kv_options(parser)
    parser.add_argument("-v", "--value", required=True)


async def update_kv(call: Call) -> Shown:
    """100 to each name server."""
    arguments = call.arguments
    await call.admin.put_kv(arguments.namespace, arguments.key, arguments.value)
    value = {"namespace": arguments.namespace, "key": arguments.key, "value": arguments.value}
    return Shown(value, "create or update kv config to namespace success.")


async def delete_kv(call: Call) -> Shown:
    """102 to each name server."""
    arguments = call.arguments
    await call.admin.delete_kv(arguments.namespace, arguments.key)
    value = {"namespace": arguments.namespace, "key": arguments.key}
    return Shown(value, "delete kv config from namespace success.")


async def name_server_config(call: Call) -> Shown:
    """319 to each name server."""
    found = await call.admin.name_server_config()
    text = "\n".join(
        f"{address.center(60, '=')}\n{key_lines(settings)}" for address, settings in found.items()
    )
    return Shown(found, text)


async def update_name_server_config(call: Call) -> Shown:
    """318 to each name server."""
    key, value = call.arguments.key, call.arguments.value
    await call.admin.update_name_server_config({key: value})
    lines = [f"update name server config success, {at}" for at in call.admin.name_servers]
    return Shown({"key": key, "value": value}, "\n".join(lines))


# Exports


def _export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--clusterName", dest="cluster", required=True, metavar="CLUSTER")
    _export_path(parser)


def _export_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--filePath", dest="directory", type=Path, metavar="DIR",
        help="write the file there instead of printing it",
    )  # fmt: skip


def _metadata_options(parser: argparse.ArgumentParser) -> None:
    broker_or_cluster(parser)
    _export_path(parser)
    parser.add_argument("-t", "--topic", dest="topics", action="store_true", help="topics only")
    parser.add_argument(
        "-g", "--subscriptionGroup", dest="groups", action="store_true", help="groups only"
    )
    special = "retry and dead-letter topics too"
    parser.add_argument("-s", "--specialTopic", dest="special", action="store_true", help=special)


async def export_metadata(call: Call) -> Shown:
    """21 and 201: topics and groups of one broker, or of a cluster's masters together."""
    if call.arguments.topics and call.arguments.groups:
        raise usage("-t and -g exclude each other; leave both out for everything")
    topics: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for address in await targets(call):
        if not call.arguments.groups:
            for name, settings in (await call.admin.all_topic_settings(address)).items():
                if call.arguments.special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                    topics[name] = tree(settings)
        if not call.arguments.topics:
            for name, group in (await call.admin.all_group_settings(address)).items():
                groups[name] = tree(group)
    found: dict[str, Any] = {"exportTime": call.now_ms}
    if not call.arguments.groups:
        found["topicConfigTable"] = topics
    if not call.arguments.topics:
        found["subscriptionGroupTable"] = groups
    return _exported(call, "metadata.json", found)


async def export_configs(call: Call) -> Shown:
    """26 and 319."""
    masters = await call.admin.masters(call.arguments.cluster)
    brokers = {name: await call.admin.broker_config(at) for name, at in masters.items()}
    found = {
        "clusterScale": {"namesrvSize": len(call.admin.name_servers), "brokerSize": len(masters)},
        "brokerConfigs": brokers,
        "namesrvConfigs": await call.admin.name_server_config(),
    }
    return _exported(call, "configs.json", found)


async def export_metrics(call: Call) -> Shown:
    """28, 21 and 201."""
    found: dict[str, Any] = {}
    for name, address in (await call.admin.masters(call.arguments.cluster)).items():
        topics = await call.admin.all_topic_settings(address)
        found[name] = {
            "runtime": await call.admin.broker_status(address),
            "topicSize": len(topics),
            "groupSize": len(await call.admin.all_group_settings(address)),
            "progress": {
                group: {"behind": each.behind, "queues": len(each.queues)}
                for group, each in (await call.admin.broker_progress(address)).items()
            },
        }
    return _exported(call, "metrics.json", {"brokers": found})


def _exported(call: Call, name: str, found: dict[str, Any]) -> Shown:
    text = json.dumps(plain(found), indent=2)
    directory: Path | None = call.arguments.directory
    if directory is None:
        return Shown(found, text)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text + "\n", encoding="utf-8")
    return Shown({"file": str(path)}, f"export {path} success")


COMMANDS = (
    asks(
        "clusterList", "every broker: version, load, disk", "clusterList -i 5", _list_options,
        cluster_list,
    ),
    asks(
        "brokerStatus", "what brokers say they are doing", "brokerStatus -b 127.0.0.1:10911",
        broker_or_cluster, broker_status,
    ),
    asks(
        "getBrokerConfig", "settings in force", "getBrokerConfig -b 127.0.0.1:10911",
        broker_or_cluster, broker_config,
    ),
    orders(
        "updateBrokerConfig", "change a setting of running brokers",
        "updateBrokerConfig -b 127.0.0.1:10911 -k fileReservedTime -v 72", _update_options,
        update_broker_config,
    ),
    orders(
        "cleanExpiredCQ", "delete consume queues whose messages have all expired",
        "cleanExpiredCQ -b 127.0.0.1:10911", _maintain_options,
        _maintaining(lambda admin, at: admin.clean_expired_queues(at)),
    ),
    orders(
        "cleanUnusedTopic", "delete consume queues of topics that no longer exist",
        "cleanUnusedTopic -c TandemCluster", _maintain_options,
        _maintaining(lambda admin, at: admin.clean_unused_topics(at)),
    ),
    orders(
        "deleteExpiredCommitLog", "delete expired CommitLog files now",
        "deleteExpiredCommitLog -c TandemCluster", _maintain_options,
        _maintaining(lambda admin, at: admin.delete_expired_log(at)),
    ),
    asks(
        "haStatus", "how replication stands", "haStatus -c TandemCluster", _ha_options, ha_status
    ),
    orders(
        "resetMasterFlushOffset", "tell a slave how far its master has flushed",
        "resetMasterFlushOffset -b 127.0.0.1:10921 -o 0", _flush_options, reset_flush_offset,
    ),
    orders(
        "wipeWritePerm", "keep producers away from a broker, until it registers anew",
        "wipeWritePerm -b broker-a", _name_options, wipe_write_perm,
    ),
    orders(
        "addWritePerm", "undo wipeWritePerm", "addWritePerm -b broker-a", _name_options,
        add_write_perm,
    ),
    orders(
        "updateKvConfig", "set a value in the name servers' table",
        "updateKvConfig -s NAMESPACE -k key -v value", _kv_value_options, update_kv,
    ),
    orders(
        "deleteKvConfig", "delete a value from the name servers' table",
        "deleteKvConfig -s NAMESPACE -k key", _kv_options, delete_kv,
    ),
    asks(
        "getNamesrvConfig", "settings of every name server of -n", "getNamesrvConfig",
        no_arguments, name_server_config,
    ),
    orders(
        "updateNamesrvConfig", "change a setting of every name server of -n",
        "updateNamesrvConfig -k orderMessageEnable -v true", _change_options,
        update_name_server_config,
    ),
    asks(
        "exportMetadata", "topics and groups as JSON", "exportMetadata -c TandemCluster -f .",
        _metadata_options, export_metadata,
    ),
    asks(
        "exportConfigs", "settings of brokers and name servers as JSON",
        "exportConfigs -c TandemCluster -f .", _export_options, export_configs,
    ),
    asks(
        "exportMetrics", "what brokers are doing, as JSON", "exportMetrics -c TandemCluster -f .",
        _export_options, export_metrics,
    ),
)  # fmt: skip
