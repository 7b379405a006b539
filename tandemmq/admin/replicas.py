"""mqadmin's commands about controllers and replicated groups, and a planned switchover of our own."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from tandemmq.admin.shape import (
    Call,
    Shown,
    asks,
    hash_table,
    interval_option,
    key_lines,
    missing,
    orders,
    usage,
)
from tandemmq.cluster.client import ClientError
from tandemmq.cluster.client.admin.values import (
    Election,
    EpochHistory,
    Replica,
    ReplicaSet,
    Switchover,
)
from tandemmq.command.exits import ExitCode
from tandemmq.command.screen import coloured


def _controller_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-a", "--controllerAddress", dest="controllers", metavar="HOST:PORT[;HOST:PORT]",
        help="default: the controllers that the brokers' settings name",
    )  # fmt: skip


def _cluster_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--clusterName", dest="cluster", metavar="CLUSTER",
        help="default: the one that the broker name is registered in",
    )  # fmt: skip


def _group_options(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-c", "--clusterName", dest="cluster", metavar="CLUSTER")
    either.add_argument(
        "-b", "--brokerName", dest="name", metavar="BROKER_NAME", help="without -b and -c: all"
    )
    interval_option(parser)


# What is


def _sync_options(parser: argparse.ArgumentParser) -> None:
    _controller_option(parser)
    _group_options(parser)


async def sync_state_set(call: Call) -> Shown:
    """1005, then 1006 to the controller that leads."""
    arguments = call.arguments
    found = await call.admin.replica_sets(
        arguments.name, cluster=arguments.cluster, controllers=arguments.controllers
    )
    if arguments.name is not None and arguments.name not in found:
        raise missing(f"the controller knows no group {arguments.name}")
    return Shown(list(found.values()), "\n\n".join(map(_set_text, found.values())))


def _set_text(group: ReplicaSet) -> str:
    head = key_lines(
        {
            "#brokerName": group.broker_name,
            "#MasterBrokerId": "none" if group.master_id is None else str(group.master_id),
            "#MasterAddr": group.master_address or "none",
            "#MasterEpoch": str(group.epoch),
            "#SyncStateSetEpoch": str(group.set_epoch),
            "#SyncStateSetNums": str(len(group.in_sync)),
        },
        between=" ",
    )
    rows = [
        ("InSync" if inside else coloured("NotInSync", "yellow"), each.broker_id, each.address,
         "true" if each.alive else coloured("false", "red"))
        for inside, members in ((True, group.in_sync), (False, group.out_of_sync))
        for each in members
    ]  # fmt: skip
    return f"{head}\n{hash_table(['Replica', 'BrokerId', 'Addr', 'Alive'], rows)}"


async def broker_epoch(call: Call) -> Shown:
    """1007 to each member. One that does not answer is shown, and fails the command."""
    members = await call.admin.cluster(call.arguments.cluster)
    name = call.arguments.name
    if name is not None and name not in members:
        raise missing(f"no broker named {name} is registered")
    chosen = [members[name]] if name is not None else list(members.values())
    shown: list[str] = []
    values: list[object] = []
    silent = False
    for address in (at for each in chosen for at in each.addresses.values()):
        try:
            history = await call.admin.epoch_history(address)
        except ClientError as problem:
            silent = True
            shown.append(coloured(f"#brokerAddr  {address}\n{problem}", "red"))
            values.append({"address": address, "problem": str(problem)})
        else:
            shown.append(_history_text(history, address))
            values.append({"address": address, "history": history})
    return Shown(values, "\n\n".join(shown), ExitCode.UNREACHABLE if silent else ExitCode.OK)


def _history_text(history: EpochHistory, address: str) -> str:
    head = key_lines(
        {
            "#clusterName": history.cluster,
            "#brokerName": history.broker_name,
            "#brokerAddr": address,
            "#brokerId": str(history.broker_id),
        },
        between=" ",
    )
    rows = [
        (
            each.epoch,
            each.start_offset,
            history.max_offset if each.end_offset is None else each.end_offset,
        )
        for each in history.epochs
    ]
    return f"{head}\n{hash_table(['Epoch', 'StartOffset', 'EndOffset'], rows)}"


async def controller_metadata(call: Call) -> Shown:
    """1005 to each controller."""
    found = {}
    for address in await _controllers(call):
        found[address] = await call.admin.controller_state(address)
    texts = []
    for state in found.values():
        lines = [
            f"#ControllerGroup\t{state.group}",
            f"#ControllerLeaderId\t{state.leader_id}",
            f"#ControllerLeaderAddress\t{state.leader_address}",
        ]
        lines += [f"#Peer:\t{name}:{address}" for name, address in state.peers.items()]
        texts.append("\n".join(lines))
    return Shown(found, "\n\n".join(texts))


async def controller_config(call: Call) -> Shown:
    """1010 to each controller."""
    found = {at: await call.admin.controller_config(at) for at in await _controllers(call)}
    text = "\n".join(
        f"{address.center(60, '=')}\n{key_lines(settings)}" for address, settings in found.items()
    )
    return Shown(found, text)


def _config_options(parser: argparse.ArgumentParser) -> None:
    _controller_option(parser)
    parser.add_argument("-k", "--key", required=True)
    parser.add_argument("-v", "--value", required=True)


async def update_controller_config(call: Call) -> Shown:
    """1009 to each controller."""
    key, value = call.arguments.key, call.arguments.value
    addresses = await _controllers(call)
    for address in addresses:
        await call.admin.update_controller_config(address, {key: value})
    lines = [f"update controller config success, {address}" for address in addresses]
    return Shown({"key": key, "value": value, "controllers": addresses}, "\n".join(lines))


async def _controllers(call: Call) -> list[str]:
    given: str | None = call.arguments.controllers
    if given is None:
        return list(await call.admin.controllers())
    found = [each.strip() for each in given.split(";") if each.strip()]
    if not found:
        raise usage("-a names no controller")
    return found


# Orders


def _elect_options(parser: argparse.ArgumentParser) -> None:
    _controller_option(parser)
    parser.add_argument("-b", "--brokerId", dest="broker_id", type=int, required=True, metavar="ID")
    parser.add_argument("-bn", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")
    _cluster_option(parser)
    loss = (
        "elect it although it is not in the sync-state-set, when nobody leads: "
        "acknowledged messages that only others hold ARE LOST. Without it the refusal says how far "
        "each log that is there reaches"
    )
    parser.add_argument("--unclean", action="store_true", help=loss)


async def elect_master(call: Call) -> Shown:
    """1005, then 1002 with designateElect to the controller that leads."""
    arguments = call.arguments
    found = await call.admin.elect_master(
        arguments.name,
        arguments.broker_id,
        cluster=arguments.cluster,
        controllers=arguments.controllers,
        unclean=arguments.unclean,
    )
    led = found.master_id == arguments.broker_id
    text = _election_text(found)
    if not led:
        text += coloured(f"\n{found.master_id} leads, not {arguments.broker_id}", "red")
    return Shown(found, text, ExitCode.OK if led else ExitCode.FAILED)


def _election_text(found: Election) -> str:
    lines = [
        f"#BrokerName\t{found.broker_name}",
        f"#BrokerMasterAddr\t{found.master_address or 'none'}",
        f"#MasterEpoch\t{found.epoch}",
        f"#SyncStateSetEpoch\t{found.set_epoch}",
    ]
    lines += [f"\t{number}\t{address}" for number, address in found.addresses.items()]
    return "\n".join(lines)


def _clean_options(parser: argparse.ArgumentParser) -> None:
    _controller_option(parser)
    parser.add_argument(
        "-b", "--brokerControllerIdsToClean", dest="ids", type=_ids, default=(), metavar="ID;ID",
        help="without it the whole group",
    )  # fmt: skip
    parser.add_argument("-bn", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")
    _cluster_option(parser)
    parser.add_argument(
        "-l", "--cleanLivingBroker", dest="living", action="store_true", help="living ones, too"
    )


def _ids(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(each) for each in text.split(";") if each.strip())
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"ids separated by ;, e.g. 1;3, got {text!r}")
    return found


async def clean_broker_metadata(call: Call) -> Shown:
    """1005, then 1011 to the controller that leads."""
    arguments = call.arguments
    await call.admin.clean_broker_metadata(
        arguments.name,
        arguments.ids,
        cluster=arguments.cluster,
        controllers=arguments.controllers,
        living_too=arguments.living,
    )
    value = {"broker": arguments.name, "ids": list(arguments.ids)}
    return Shown(value, f"clear broker {arguments.name} metadata from controller success!")


def _switch_options(parser: argparse.ArgumentParser) -> None:
    _controller_option(parser)
    parser.add_argument("-bn", "--brokerName", dest="name", required=True, metavar="BROKER_NAME")
    parser.add_argument(
        "-b", "--brokerId", dest="broker_id", type=int, metavar="ID",
        help="who is to lead; default: the living member in sync with the lowest id",
    )  # fmt: skip
    _cluster_option(parser)


async def switchover(call: Call) -> Shown:
    """1006, then 1002 with designateElect, then 106 until name servers have it."""
    arguments = call.arguments
    found = await call.admin.switchover(
        arguments.name,
        arguments.broker_id,
        cluster=arguments.cluster,
        controllers=arguments.controllers,
    )
    code = ExitCode.FAILED if found.announced_ms is None else ExitCode.OK
    return Shown(found, _switchover_text(found), code)


def _switchover_text(found: Switchover) -> str:
    before, after = found.before, found.after
    lines = [
        f"{before.broker_name}: {_name(before.master_id, before.replicas.values())} handed over to "
        f"{_name(after.master_id, before.replicas.values())}, epoch {before.epoch} -> {after.epoch}",
        f"elected after {found.elected_ms} ms",
    ]
    if found.announced_ms is None:
        lines.append(coloured("the name server does not send clients there yet", "red"))
    else:
        lines.append(f"clients are sent there after {found.announced_ms} ms")
    return "\n".join(lines)


def _name(broker_id: int | None, replicas: Iterable[Replica]) -> str:
    address = next((each.address for each in replicas if each.broker_id == broker_id), "")
    return f"{broker_id} ({address})"


COMMANDS = (
    asks(
        "getSyncStateSet", "who leads each group, and who holds everything acknowledged",
        "getSyncStateSet -b broker-a", _sync_options, sync_state_set,
    ),
    asks(
        "getBrokerEpoch", "which master wrote which part of each member's log",
        "getBrokerEpoch -b broker-a", _group_options, broker_epoch,
    ),
    asks(
        "getControllerMetaData", "who leads the controllers",
        "getControllerMetaData -a 127.0.0.1:9877", _controller_option, controller_metadata,
    ),
    asks(
        "getControllerConfig", "settings of every controller",
        "getControllerConfig -a 127.0.0.1:9877", _controller_option, controller_config,
    ),
    orders(
        "updateControllerConfig", "change a setting of every controller",
        "updateControllerConfig -k enableElectUncleanMaster -v false", _config_options,
        update_controller_config,
    ),
    orders(
        "electMaster", "make a member of the sync-state-set master",
        "electMaster -bn broker-a -b 2 -c TandemCluster", _elect_options, elect_master,
    ),
    orders(
        "cleanBrokerMetadata", "make the controller forget members that will not come back",
        "cleanBrokerMetadata -bn broker-a -b 3", _clean_options, clean_broker_metadata,
    ),
    orders(
        "switchover", "hand a group over to another member, without losing a message",
        "switchover -bn broker-a", _switch_options, switchover, ours=True,
    ),
)  # fmt: skip
