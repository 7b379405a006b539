"""Transcripts of the cores: what goes in, what comes out, readable in review.

scripts/*.txt; the first line names the core, `at N` sets the clock, `> event field=value` feeds it, and everything
indented is what it answered. Rewrite them with

    .venv/bin/python -m pytest tests/replication --rewrite-transcripts
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication import slave as s
from tandemmq.replication.comparing import Verdict
from tandemmq.replication.config import LeasePolicy, LeaseTimes, Mode, StreamRules
from tandemmq.replication.election import ControllerCore, GroupRecord, GroupView
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.master import MasterCore
from tandemmq.replication.replica import ReplicaCore
from tandemmq.replication.slave import SlaveCore

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def events_of(*modules: Any) -> dict[str, type]:
    found = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct):
                found[snake(value.__name__)] = value
    return found


def parsed(text: str) -> Any:
    """A field's value as scripts write it."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"\{[\d,]*\}", text):
        return frozenset(int(each) for each in text[1:-1].split(",") if each)
    if re.fullmatch(r"(\d+-\d+,?)+", text):
        entries = (each.split("-") for each in text.split(","))
        return EpochHistory(tuple(Epoch(int(number), int(start)) for number, start in entries))
    if re.fullmatch(r"\[(\d+:\d+,?)*\]", text):
        pairs = (each.split(":") for each in text[1:-1].split(",") if each)
        return tuple((int(a), int(b)) for a, b in pairs)
    if text.startswith("'"):
        return text[1:-1]
    if text.startswith("view("):
        fields = dict(each.split("=") for each in text[5:-1].split(";"))
        return GroupView(**{name: parsed(value) for name, value in fields.items()})
    constants = {
        "true": True,
        "false": False,
        "none": None,
        "none_": NotImplemented,
        "no_epochs": EpochHistory(),
        **{each.value: each for each in Verdict},
    }
    return constants.get(text, text)


def shown(value: Any) -> str:
    """A field's value as transcripts show it."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, frozenset):
        return "{" + ",".join(str(each) for each in sorted(value)) + "}"
    if isinstance(value, EpochHistory):
        return ",".join(f"{entry.number}-{entry.start}" for entry in value.entries) or "no_epochs"
    if isinstance(value, GroupRecord):
        parts = {
            "master": value.master,
            "epoch": value.epoch,
            "set": value.sync_set,
            "no": value.set_number,
        }
        optional = {
            "from": value.electing_from,
            "suspects": value.suspects,
            "lossy": value.lossy_epoch,
        }
        parts |= {name: part for name, part in optional.items() if part}
        return "(" + " ".join(f"{name}={shown(part)}" for name, part in parts.items()) + ")"
    if isinstance(value, GroupView):
        return f"(epoch={value.epoch} master={value.master} set={shown(value.members)} no={value.number})"
    if isinstance(value, tuple):
        return "[" + ",".join(shown(each) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)


def line_of(effect: Any) -> str:
    fields = []
    for field in msgspec.structs.fields(effect):
        value = getattr(effect, field.name)
        if field.default is msgspec.NODEFAULT or value != field.default:
            fields.append(f"{field.name}={shown(value)}")
    return "  " + " ".join([snake(type(effect).__name__), *fields])


RULE_NAMES = ("copies_min", "copies_wanted", "all_in_set", "lease_policy", "uncompared_followed")
RULES = StreamRules(lost_grace_ms=200, catch_up_ms_max=1500, slave_timeout_ms=2000)


def core_of(kind: str, fields: dict[str, Any]) -> tuple[Any, dict[str, type]]:
    mode = Mode(fields.pop("mode", "S0"))
    if kind == "master":
        fields.setdefault("lease_until_ms", 1_000_000)
        if "lease_policy" in fields:
            fields["lease_policy"] = LeasePolicy(fields["lease_policy"])
        rules = msgspec.structs.replace(
            RULES,
            **{n: fields.pop(n) for n in RULE_NAMES if n in fields},
        )
        return MasterCore(replica=1, mode=mode, rules=rules, **fields), events_of(m)
    if kind == "slave":
        return SlaveCore(rules=RULES, **fields), events_of(m, s)
    if kind == "replica":
        end = fields.pop("end", 0)
        slave = SlaveCore(
            rules=RULES, history=fields.pop("history", EpochHistory()), end=end, flushed=end,
            durable=mode.waits_for_disk,
        )  # fmt: skip
        core = ReplicaCore(1, 77, mode, LeaseTimes(), RULES, slave, **fields)
        return core, events_of(m, s, r)
    assert kind == "controller"
    core = ControllerCore(LeaseTimes(), **fields)
    for replica in (1, 2, 3):
        core.step(e.ApplyBrokerId(0, "c", "a", replica, f"code{replica}"), 0)
    return core, events_of(e)


def words(line: str) -> list[str]:
    return re.findall(r"(?:[^\s']|'[^']*')+", line)


def performed(script: str) -> str:
    """The transcript of a script: its comments and events, with what the core answers now."""
    core: Any = None
    events: dict[str, type] = {}
    now_ms = 0
    out = []
    for line in script.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        if not line or line.startswith("#"):
            continue
        command, *rest = words(line)
        if command == "core":
            fields = {n: parsed(v) for n, v in (each.split("=", 1) for each in rest[1:])}
            core, events = core_of(rest[0], fields)
        elif command == "at":
            now_ms = int(rest[0])
        else:
            assert command == ">", line
            fields = {n: parsed(v) for n, v in (each.split("=", 1) for each in rest[1:])}
            if rest[0] in {"register_broker", "apply_broker_id", "next_broker_id", "elect_master"}:
                fields = {"request": 0, "cluster": "c", "group": "a", **fields}
            elif rest[0] in {"alter_sync_set", "replica_info"}:
                fields = {"request": 0, "group": "a", **fields}
            elif rest[0] in {"heartbeat", "probe_answered"}:
                fields = {"group": "a", **fields}
            out += [line_of(effect) for effect in core.step(events[rest[0]](**fields), now_ms)]
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_what_the_core_does(path: Path, request: pytest.FixtureRequest) -> None:
    script = path.read_text(encoding="utf-8")
    transcript = performed(script)
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(transcript, encoding="utf-8")
    else:
        assert transcript == script, "read the difference; if it is right: --rewrite-transcripts"


def test_there_are_transcripts() -> None:
    assert len(SCRIPTS) >= 15
