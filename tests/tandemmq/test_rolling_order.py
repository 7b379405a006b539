"""tandemmq/rolling: who is restarted next, whether the one before is back, and by which command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.cluster.client import ReplicaSet
from tandemmq.cluster.client.admin.values import Replica
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.rolling import rollout
from tandemmq.rolling.commands import by_command, filled, split
from tandemmq.rolling.order import (
    HandOver,
    Restart,
    Server,
    Wait,
    classic_order,
    next_step,
    not_back,
    refusal,
)

SERVER = Server("broker", "broker-a", 2, "10.0.0.2:10911")


def group(
    master: int | None, in_sync: Iterable[int], away: Iterable[int] = (), *, alive: bool = True
) -> ReplicaSet:
    def member(n: int, lives: bool = True) -> Replica:
        return Replica(broker_id=n, address=f"10.0.0.{n}:10911", alive=lives)

    return ReplicaSet(
        broker_name="broker-a", master_id=master, master_address="", epoch=1, set_epoch=1,
        in_sync=tuple(map(member, in_sync)), out_of_sync=tuple(member(n, alive) for n in away),
    )  # fmt: skip


def walked(master: int, members: list[int]) -> list[str]:
    """Every step of a restart in which all goes well."""
    left, steps = set(members), []
    while (step := next_step(group(master, members), left)) is not None:
        if isinstance(step, HandOver):
            steps.append(f"{master} to {step.to}")
            master = step.to
        else:
            assert isinstance(step, Restart)
            steps.append(str(step.server.broker_id))
            left.discard(step.server.broker_id)
    return steps


def test_followers_first_then_the_master_hands_over_and_is_the_last() -> None:
    assert walked(1, [1, 2]) == ["2", "1 to 2", "1"]
    assert walked(2, [1, 2, 3]) == ["1", "3", "2 to 1", "2"]


def test_one_that_is_alone_is_restarted_all_the_same() -> None:
    assert walked(1, [1]) == ["1"]


def test_nobody_is_restarted_while_somebody_is_not_in_sync_or_nobody_leads() -> None:
    for state in (
        group(1, [1], [2]),
        group(1, [1], [2], alive=False),
        group(None, [1, 2]),
        group(1, [1, 2]),
    ):
        step = next_step(state, {1, 2})
        assert isinstance(step, Wait) is (state != group(1, [1, 2])), state
    waits = next_step(group(1, [1], [2]), {1})
    assert isinstance(waits, Wait) and "2 (10.0.0.2:10911) of broker-a is not in sync" in waits.why


def test_a_failover_in_between_changes_the_order_and_not_the_outcome() -> None:
    """2 was restarted, then 1 died and came back: 2 leads already, and 1 is still to be restarted."""
    step = next_step(group(2, [1, 2]), {1})
    assert isinstance(step, Restart) and step.server.broker_id == 1


def test_a_member_that_is_forgotten_meanwhile_stops_it() -> None:
    assert isinstance(next_step(group(1, [1]), {2}), Wait)


def test_a_group_that_would_refuse_sends_meanwhile_is_left_alone() -> None:
    assert "minInSyncReplicas=2" in refusal(group(1, [1, 2]), {"minInSyncReplicas": "2"})
    assert refusal(group(1, [1, 2, 3]), {"minInSyncReplicas": "2"}) == ""
    assert refusal(group(1, [1, 2]), {"minInSyncReplicas": "1"}) == ""
    assert refusal(group(1, [1, 2]), {}) == ""


def test_slaves_of_fixed_roles_come_before_their_master() -> None:
    shown = classic_order("a", {0: "h:1", 1: "h:2", 2: "h:3"})
    assert [each.broker_id for each in shown] == [1, 2, 0]


def test_one_is_back_when_another_process_answers_has_a_role_and_is_registered() -> None:
    before, after = {"bootTimestamp": "1"}, {"bootTimestamp": "2"}
    assert "does not answer" in not_back(before, {}, registered=True)
    assert "same process" in not_back(before, before, registered=True)
    assert "waiting" in not_back(before, {**after, "replicaState": "waiting"}, registered=True)
    assert "not registered" in not_back(before, after, registered=False)
    assert not_back(before, {**after, "replicaState": "following"}, registered=True) == ""
    assert not_back({}, after, registered=True) == "", "it was away before"


def test_the_command_is_told_whom_to_restart_and_no_shell_reads_it() -> None:
    words = split("ssh {host} 'restart {name}@{id}' {address} {port} {role}")
    assert filled(words, SERVER) == [
        "ssh", "10.0.0.2", "restart broker-a@2", "10.0.0.2:10911", "10911", "broker",
    ]  # fmt: skip
    evil = Server("broker", "a; touch /tmp/x", 1, "h:1")
    assert filled(split("restart {name}"), evil) == ["restart", "a; touch /tmp/x"]


@pytest.mark.parametrize("command", ["", "restart {nobody}", "restart 'x", "restart {0}"])
def test_a_command_that_cannot_be_used_is_refused_before_anything_is_done(command: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        split(command)
    assert refused.value.code is ExitCode.USAGE


def test_a_command_that_fails_hangs_or_is_not_there_is_told(tmp_path: Path) -> None:
    def restarted(command: str, timeout_s: float = 30) -> None:
        async def restart() -> None:
            await by_command(split(command), timeout_s)(SERVER)

        asyncio.run(restart())

    seen = tmp_path / "seen"
    restarted(f"sh -c 'echo $TANDEM_ROLE $TANDEM_NAME $TANDEM_ID $TANDEM_ADDRESS >{seen}'")
    assert seen.read_text() == "broker broker-a 2 10.0.0.2:10911\n"
    with pytest.raises(CommandFailed, match="ended with 3: no such unit"):
        restarted("sh -c 'echo no such unit; exit 3'")
    with pytest.raises(CommandFailed, match=r"not done within 0\.1 s"):
        restarted("sleep 60", 0.1)
    with pytest.raises(CommandFailed, match="No such file") as refused:
        restarted("/nobody/restarts {name}")
    assert refused.value.code is ExitCode.MISSING


class _Told:
    """What name servers are told of a broker's write permission."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def wipe_write_perm(self, name: str) -> None:
        self.said.append(f"wipe {name}")


async def test_a_topic_that_changes_meanwhile_does_not_bring_producers_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout, "WIPE_S", 0.01)
    told: Any = _Told()
    nobody: Any = None
    limits = rollout.Limits(drain_s=0.05)
    steps = rollout.Rollout(told, nobody, nobody, limits, lambda line: None)
    await steps._kept_away("broker-a")
    assert len(told.said) >= 3 and set(told.said) == {"wipe broker-a"}
    assert steps.done[0].seconds >= 0.05
