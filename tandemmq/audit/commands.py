"""`tandem audit`: are the replicas of a broker's log equal, and if not, where and how do they differ?

Exit codes are AuditExit's, for every action: scripts and cron jobs decide by them.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tandemmq.audit import words
from tandemmq.command.exits import CommandFailed
from tandemmq.command.extras import INSTALL_SERVER, SERVER_MODULES
from tandemmq.command.screen import coloured, table

if TYPE_CHECKING:
    from tandemmq.replication.audit.live import Access
    from tandemmq.replication.audit.plan import Engine, Options, Outcome
    from tandemmq.replication.audit.tables import AuditRun

ROWS_SHOWN: Final = 30


class AuditExit(enum.IntEnum):
    """How an audit ends. 3 never means equal."""

    EQUAL = 0
    DIVERGENT = 1
    WARNINGS = 2  # lag beyond the threshold, derived files that a restart mends
    INCOMPLETE = 3  # something could not be read, or a role changed meanwhile: no result
    USAGE = 64  # bad arguments, no store, no replicas of one broker


class _Parser(argparse.ArgumentParser):
    """Leaves with 64, not 2: 2 is a result here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(AuditExit.USAGE, f"{self.prog}: {message}\n")


@dataclass(frozen=True, slots=True)
class _Action:
    """One action of `tandem audit`."""

    name: str
    function: Callable[[argparse.Namespace], int]
    summary: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]


def run_audit(arguments: argparse.Namespace) -> int:
    """Run one action; returns its AuditExit."""
    parsed = _parser().parse_args(arguments.words)
    try:
        errors = importlib.import_module("tandemmq.replication.audit.errors")
        storage_errors = importlib.import_module("tandemmq.storage.errors")
    except ImportError as problem:
        return _fail(f"the audit needs its extra: pip install 'tandemmq[audit]' ({problem})")
    try:
        code: int = parsed.function(parsed)
        return code
    except errors.BadInput as problem:
        return _fail(str(problem))
    except (errors.AuditIncomplete, storage_errors.StorageError) as problem:
        _mark_incomplete(parsed)
        return _fail(str(problem), AuditExit.INCOMPLETE)
    except (CommandFailed, ValueError) as problem:  # of --namesrv, --ca, TANDEM_ACCESS_KEY
        return _fail(str(problem))
    except ModuleNotFoundError as problem:
        if problem.name in SERVER_MODULES:
            return _fail(f"{problem.name} is not installed: {INSTALL_SERVER}")
        if problem.name not in {"pyarrow", "pyspark", "numpy"}:
            raise
        return _fail(f"{problem.name} is not installed: pip install 'tandemmq[audit]'")
    except OSError as problem:
        _mark_incomplete(parsed)
        return _fail(_told(problem), AuditExit.INCOMPLETE)


def _mark_incomplete(parsed: argparse.Namespace) -> None:
    """An audit that could not even begin says so in its metrics, of all that were audited before."""
    metrics: Path | None = getattr(parsed, "metrics", None)
    if metrics is not None and metrics.exists():
        exposition = importlib.import_module("tandemmq.replication.audit.exposition")
        exposition.write_metrics([], exposition.references(metrics), metrics)


def _told(problem: Exception) -> str:
    if not isinstance(problem, OSError):
        return str(problem)
    place = f"{problem.filename}: " if problem.filename else ""
    return f"{place}{problem.strerror or problem}"


def _fail(text: str, code: AuditExit = AuditExit.USAGE) -> int:
    print(f"tandem audit: {text}", file=sys.stderr)
    return code


# --- run ------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    plan = importlib.import_module("tandemmq.replication.audit.plan")
    errors = importlib.import_module("tandemmq.replication.audit.errors")
    storage_errors = importlib.import_module("tandemmq.storage.errors")
    access = _access(arguments)
    options = _options(arguments, plan.Options, access)
    outcomes: list[Outcome] = []
    failed: list[str] = []
    for places in _audited(arguments, access):
        run_id = plan.new_run_id(time.time_ns() // 1_000_000)
        out = arguments.out / run_id if arguments.out is not None else None
        engine = _engine(arguments, places, access, out)
        try:
            outcome: Outcome = plan.audit(places, engine, options, run_id)
        except (errors.AuditIncomplete, storage_errors.StorageError, OSError) as problem:
            _fail(_told(problem))
            failed.append(next(iter(places)))
            continue
        finally:
            engine.close()
        outcomes.append(outcome)
        _leave_behind(outcome, out)
        if arguments.json:
            print(json.dumps(summary(outcome)))
        else:
            _show(outcome)
    if arguments.metrics is not None:
        exposition = importlib.import_module("tandemmq.replication.audit.exposition")
        exposition.write_metrics(outcomes, failed, arguments.metrics)
    codes = {outcome.exit_code for outcome in outcomes} | (
        {AuditExit.INCOMPLETE} if failed else set()
    )
    return next(code for code in _WORST_FIRST if code in codes)


#: of several groups: what is known to be damaged is told before what could not be read
_WORST_FIRST: Final = (
    AuditExit.DIVERGENT, AuditExit.INCOMPLETE, AuditExit.WARNINGS, AuditExit.EQUAL
)  # fmt: skip


def _audited(arguments: argparse.Namespace, access: Access) -> list[dict[str, str]]:
    """The places of each audit: one of those given, or one per group of a live cluster."""
    if not arguments.namesrv:
        return [_places(arguments.places)]
    if arguments.places:
        _bad_input("give places or --namesrv, not both")
    replicas = importlib.import_module("tandemmq.audit.replicas")
    reach = importlib.import_module("tandemmq.command.reach")
    config = reach.reach(arguments)
    groups = replicas.find_groups(config, arguments.cluster, arguments.group, access)
    return [dict(group.places) for group in groups]


def _access(arguments: argparse.Namespace) -> Access:
    """How running brokers are read: the token of --token-file or the environment."""
    live = importlib.import_module("tandemmq.replication.audit.live")
    token = os.environ.get(words.HTTP_TOKEN, "")
    if arguments.token_file is not None:
        try:
            token = arguments.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or "holds no token"
            _bad_input(f"--token-file {arguments.token_file}: {why}")
    if not token.isascii() or not token.isprintable():
        _bad_input("the token must be printable ASCII")
    authority = ""
    if arguments.ca is not None:
        try:
            authority = Path(arguments.ca).read_text("ascii")
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or "is no PEM file"
            _bad_input(f"--ca {arguments.ca}: {why}")
    access: Access = live.Access(token, authority)
    return access


def _bad_input(text: str) -> NoReturn:
    raise importlib.import_module("tandemmq.replication.audit.errors").BadInput(text)


def _places(given: Sequence[str]) -> dict[str, str]:
    """NAME=PLACE or PLACE, the reference first; a place without a name is called by its directory."""
    pairs = [_named(word) for word in given]
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        names = ["master", *(f"replica-{number}" for number in range(1, len(pairs)))]
    return dict(zip(names, (place for _, place in pairs), strict=True))


def _named(word: str) -> tuple[str, str]:
    name, equals, place = word.partition("=")
    if equals and name and "/" not in name:
        return name, place
    return word.rstrip("/").rsplit("/", 1)[-1] or word, word


def _options(arguments: argparse.Namespace, kind: type[Options], access: Access) -> Options:
    return kind(
        until=arguments.until,
        start=arguments.start,
        levels=tuple(int(level) for level in arguments.levels.split(",")),
        lag_warn_bytes=arguments.lag_warn,
        index_slots=arguments.index_slots,
        access=access,
        **({"delay_levels": arguments.delay_levels} if arguments.delay_levels else {}),
    )


def _engine(
    arguments: argparse.Namespace, places: dict[str, str], access: Access, out: Path | None = None
) -> Engine:
    local = importlib.import_module("tandemmq.replication.audit.local")
    name = arguments.engine
    if name == "auto":
        size = sum(_log_bytes(place, access) for place in places.values())
        name = "spark" if arguments.spark_master or size > local.LOCAL_BYTES_MAX else "local"
    if name == "spark":
        return _spark_engine(arguments, places, access, out)
    engine: Engine = local.LocalEngine(arguments.workers)
    return engine


def _log_bytes(place: str, access: Access) -> int:
    """How much log a place holds; 0 where that is not worth asking."""
    live = importlib.import_module("tandemmq.replication.audit.live")
    if live.is_live(place):
        port = live.BrokerPort(place, access)
        try:
            standing = port.standing()
        finally:
            port.close()
        size: int = standing.confirmed - standing.start
        return size
    directory = Path(place) / "commitlog"
    return sum(file.stat().st_size for file in directory.iterdir()) if directory.is_dir() else 0


def _spark_engine(
    arguments: argparse.Namespace, places: dict[str, str], access: Access, out: Path | None
) -> Engine:
    session = importlib.import_module("tandemmq.audit.sparkling")
    absolute = {
        name: place if "://" in place else str(Path(place).absolute())
        for name, place in places.items()
    }
    engine: Engine = session.spark_engine(
        arguments.spark_master, arguments.jit, absolute, access, out, arguments.spark_archive
    )
    return engine


def _leave_behind(outcome: Outcome, out: Path | None) -> None:
    """The tables, if they are wanted."""
    if out is None:
        return
    tables = importlib.import_module("tandemmq.replication.audit.tables")
    for name, rows in outcome.tables().items():
        if rows or name != "block_digest":  # the Spark engine writes those it did not collect
            tables.write_parquet(out, name, rows)
    print(f"tables: {out}", file=sys.stderr)


def summary(outcome: Outcome) -> dict[str, Any]:
    """The run for programs: its row, then every divergence and finding."""
    tables = importlib.import_module("tandemmq.replication.audit.tables")
    return {
        **tables.as_dict(outcome.run),
        "divergence_rows": [tables.as_dict(row) for row in outcome.divergences],
        "finding_rows": [tables.as_dict(row) for row in outcome.findings],
    }


_COLOUR_OF: Final = {0: "green", 1: "red", 2: "yellow", 3: "red"}


def _show(outcome: Outcome) -> None:
    report = importlib.import_module("tandemmq.replication.audit.report")
    print(coloured(report.sentence(outcome), _COLOUR_OF[outcome.exit_code]))
    rows = [
        (row.kind, row.severity, row.replica, f"{row.start}-{row.end}", row.fields, row.detail)
        for row in outcome.divergences
    ]
    if rows:
        print(
            table(
                ("class", "severity", "replica", "offsets", "fields", "detail"), rows[:ROWS_SHOWN]
            )
        )
        _more(len(rows))
    rows = [
        (row.check, row.severity, row.replica, _queue(row.topic, row.queue_id, row.queue_offset),
         str(row.physical_offset), row.detail)
        for row in outcome.findings
    ]  # fmt: skip
    if rows:
        heads = ("check", "severity", "store", "queue", "offset", "detail")
        print(table(heads, rows[:ROWS_SHOWN]))
        _more(len(rows))


def _more(count: int) -> None:
    if count > ROWS_SHOWN:
        print(f"... and {count - ROWS_SHOWN} more; --json or --out tell all")


def _queue(topic: str, queue_id: int, queue_offset: int) -> str:
    if not topic:
        return ""
    return f"{topic}-{queue_id}" + (f"@{queue_offset}" if queue_offset >= 0 else "")


# --- digest, compare ------------------------------------------------------------------------------


def _digest(arguments: argparse.Namespace) -> int:
    digests = importlib.import_module("tandemmq.replication.audit.digests")
    blocks = importlib.import_module("tandemmq.replication.audit.blocks")
    pace = blocks.rate_limit(arguments.max_mb_s * 1e6) if arguments.max_mb_s else None
    name = arguments.name or _named(arguments.store)[0]
    taken = digests.take_digest(arguments.store, name, arguments.until, pace, _access(arguments))
    digests.write_digest(taken, arguments.out)
    print(f"{arguments.out}: {len(taken.blocks)} blocks of {name}, up to offset {taken.end}")
    return AuditExit.EQUAL


def _compare(arguments: argparse.Namespace) -> int:
    digests = importlib.import_module("tandemmq.replication.audit.digests")
    taken = [digests.read_digest(path) for path in arguments.digests]
    found = digests.compare_digests(taken)
    differ = any(ranges for _, ranges in found)
    if arguments.json:
        rows = {name: [[r.start, r.end] for r in ranges] for name, ranges in found}
        print(json.dumps({"reference": taken[0].name, "equal": not differ, "differing": rows}))
        return AuditExit.DIVERGENT if differ else AuditExit.EQUAL
    for name, ranges in found:
        if not ranges:
            print(f"{name} equals {taken[0].name} up to offset {min(d.end for d in taken)}")
        for piece in ranges[:ROWS_SHOWN]:
            print(f"{name} differs from {taken[0].name} in {piece.start}-{piece.end}")
        _more(len(ranges))
    return AuditExit.DIVERGENT if differ else AuditExit.EQUAL


# --- explain, report, repair ----------------------------------------------------------------------


def _explain(arguments: argparse.Namespace) -> int:
    explaining = importlib.import_module("tandemmq.replication.audit.explaining")
    lines, known = explaining.explain(arguments.run, arguments.offset, _access(arguments))
    for line in lines:
        print(line)
    return AuditExit.DIVERGENT if known else AuditExit.EQUAL


def _report(arguments: argparse.Namespace) -> int:
    explaining = importlib.import_module("tandemmq.replication.audit.explaining")
    report = importlib.import_module("tandemmq.replication.audit.report")
    outcome = explaining.load_outcome(arguments.run)
    history: list[AuditRun] = explaining.earlier_runs(arguments.run)
    path: Path = arguments.html or arguments.run / "report.html"
    path.write_text(report.html_page(outcome, history), encoding="utf-8")
    print(path)
    return AuditExit.EQUAL


def _repair(arguments: argparse.Namespace) -> int:
    repair = importlib.import_module("tandemmq.replication.audit.repair")
    plan = importlib.import_module("tandemmq.replication.audit.plan")
    access = _access(arguments)
    run, rows = repair.load_run(arguments.run)
    repair.move_places(run, dict(_named(word) for word in arguments.at))
    steps = repair.plan_repair(run, rows, access)
    for step in steps:
        what = f"{step.row.kind} {step.row.start}-{step.row.end}"
        if step.why_not:
            print(f"cannot repair {what}: {step.why_not}")
        else:
            size = step.row.end - step.row.start
            print(f"{what}: {size} bytes of {step.target} from {step.source}")
    if not steps:
        print("nothing to repair")
        return AuditExit.EQUAL
    if not arguments.yes:
        print("nothing was changed; --yes replaces these ranges (the former bytes are kept)")
        return AuditExit.DIVERGENT
    kept = arguments.run / "replaced"
    for done in repair.apply_repair(run, steps, kept, access):
        print(f"{done.target}: {done.start}-{done.end} replaced, former bytes in {done.kept}")
    options = plan.Options(**json.loads(run.options), access=access)
    outcome: Outcome = plan.audit(json.loads(run.places), _engine(_DEFAULTS, {}, access), options)
    _show(outcome)
    return outcome.exit_code


def _watch(arguments: argparse.Namespace) -> int:
    session = importlib.import_module("tandemmq.audit.sparkling")
    access = _access(arguments)
    found = _audited(arguments, access)
    if len(found) > 1:
        _bad_input("watch follows one group: choose with --group")
    places = found[0]
    if arguments.replica:
        if arguments.replica not in list(places)[1:]:
            _bad_input(f"no replica {arguments.replica!r}; there is {', '.join(list(places)[1:])}")
        places = {name: places[name] for name in (next(iter(places)), arguments.replica)}
    code: int = session.watch(places, arguments, access)
    return code


# --- arguments ------------------------------------------------------------------------------------

_DEFAULTS: Final = argparse.Namespace(engine="local", workers=2, spark_master="", jit="c1")


def _parser() -> _Parser:
    parser = _Parser(
        prog="tandem audit",
        description="Are the replicas of a broker's log equal? Finds, names and explains differences.",
        epilog="example:\n  tandem audit run ./store/master ./store/slave\n\nexit codes:\n"
        + "\n".join(f"  {c.value:3}  {c.name}" for c in AuditExit),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action in ACTIONS:
        added = actions.add_parser(
            action.name,
            help=action.summary,
            description=action.summary[0].upper() + action.summary[1:] + ".",
            epilog=f"example:\n{action.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        action.arguments(added)
        added.set_defaults(function=action.function)
    return parser


ACTIONS: Final = (
    _Action(
        "run", _run, "compare a master's store with its replicas'",
        "  tandem audit run ./store/master ./store/slave --out ./audits\n"
        "  tandem audit run --namesrv 127.0.0.1:9876 --token-file ./http.token", words.run_arguments,
    ),
    _Action(
        "digest", _digest, "read one store on its host and write its block digests",
        "  tandem audit digest ./store --name broker-a --out broker-a.parquet --max-mb-s 200",
        words.digest_arguments,
    ),
    _Action(
        "compare", _compare, "compare digest files of several hosts",
        "  tandem audit compare master.parquet slave.parquet", words.compare_arguments,
    ),
    _Action(
        "explain", _explain, "tell what a run knows of a place in the log, with both sides' bytes",
        "  tandem audit explain ./audits/RUN 1073741824", words.explain_arguments,
    ),
    _Action(
        "report", _report, "write a run as one page of HTML with pictures",
        "  tandem audit report ./audits/RUN", words.report_arguments,
    ),
    _Action(
        "repair", _repair, "fetch damaged ranges of a stopped replica from a sound one",
        "  tandem audit repair ./audits/RUN --yes", words.repair_arguments,
    ),
    _Action(
        "watch", _watch, "compare what is appended to growing logs, with Spark",
        "  tandem audit watch ./store/master ./store/slave --out ./audits", words.watch_arguments,
    ),
)  # fmt: skip
