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

from tandemmq.exits import CommandFailed
from tandemmq.screen import coloured, table

if TYPE_CHECKING:
    from replication.audit.live import Access
    from replication.audit.plan import Engine, Options, Outcome
    from replication.audit.tables import AuditRun

ROWS_SHOWN: Final = 30
HTTP_TOKEN: Final = "TANDEM_HTTP_TOKEN"  # of the environment: a command line is seen by everybody


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
    words: list[str] = arguments.words
    parsed = _parser().parse_args(words)
    try:
        errors = importlib.import_module("replication.audit.errors")
        storage_errors = importlib.import_module("storage.errors")
    except ImportError as problem:
        return _fail(f"the audit needs its extra: pip install 'tandemmq[audit]' ({problem})")
    try:
        code: int = parsed.function(parsed)
        return code
    except errors.BadInput as problem:
        return _fail(str(problem))
    except (errors.AuditIncomplete, storage_errors.StorageError) as problem:
        return _fail(str(problem), AuditExit.INCOMPLETE)
    except (CommandFailed, ValueError) as problem:  # of --namesrv, --ca, TANDEM_ACCESS_KEY
        return _fail(str(problem))
    except ModuleNotFoundError as problem:
        if problem.name not in {"xxhash", "pyarrow", "pyspark", "numpy"}:
            raise
        return _fail(f"{problem.name} is not installed: pip install 'tandemmq[audit]'")
    except OSError as problem:
        return _fail(_told(problem), AuditExit.INCOMPLETE)


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
    plan = importlib.import_module("replication.audit.plan")
    errors = importlib.import_module("replication.audit.errors")
    storage_errors = importlib.import_module("storage.errors")
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
        exposition = importlib.import_module("replication.audit.exposition")
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
    replicas = importlib.import_module("tandemmq.replicas")
    reach = importlib.import_module("tandemmq.reach")
    config = reach.reach(arguments)
    groups = replicas.find_groups(config, arguments.cluster, arguments.group, access)
    return [dict(group.places) for group in groups]


def _access(arguments: argparse.Namespace) -> Access:
    """How running brokers are read: the token of --token-file or the environment."""
    live = importlib.import_module("replication.audit.live")
    token = os.environ.get(HTTP_TOKEN, "")
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
    raise importlib.import_module("replication.audit.errors").BadInput(text)


def _places(words: Sequence[str]) -> dict[str, str]:
    """NAME=PLACE or PLACE, the reference first; a place without a name is called by its directory."""
    pairs = [_named(word) for word in words]
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
    local = importlib.import_module("replication.audit.local")
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
    live = importlib.import_module("replication.audit.live")
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
    session = importlib.import_module("tandemmq.sparkling")
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
    tables = importlib.import_module("replication.audit.tables")
    for name, rows in outcome.tables().items():
        if rows or name != "block_digest":  # the Spark engine writes those it did not collect
            tables.write_parquet(out, name, rows)
    print(f"tables: {out}", file=sys.stderr)


def summary(outcome: Outcome) -> dict[str, Any]:
    """The run for programs: its row, then every divergence and finding."""
    tables = importlib.import_module("replication.audit.tables")
    return {
        **tables.as_dict(outcome.run),
        "divergence_rows": [tables.as_dict(row) for row in outcome.divergences],
        "finding_rows": [tables.as_dict(row) for row in outcome.findings],
    }


_COLOUR_OF: Final = {0: "green", 1: "red", 2: "yellow", 3: "red"}


def _show(outcome: Outcome) -> None:
    report = importlib.import_module("replication.audit.report")
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
    digests = importlib.import_module("replication.audit.digests")
    blocks = importlib.import_module("replication.audit.blocks")
    pace = blocks.rate_limit(arguments.max_mb_s * 1e6) if arguments.max_mb_s else None
    name = arguments.name or _named(arguments.store)[0]
    taken = digests.take_digest(arguments.store, name, arguments.until, pace, _access(arguments))
    digests.write_digest(taken, arguments.out)
    print(f"{arguments.out}: {len(taken.blocks)} blocks of {name}, up to offset {taken.end}")
    return AuditExit.EQUAL


def _compare(arguments: argparse.Namespace) -> int:
    digests = importlib.import_module("replication.audit.digests")
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
    explaining = importlib.import_module("replication.audit.explaining")
    lines, known = explaining.explain(arguments.run, arguments.offset, _access(arguments))
    for line in lines:
        print(line)
    return AuditExit.DIVERGENT if known else AuditExit.EQUAL


def _report(arguments: argparse.Namespace) -> int:
    explaining = importlib.import_module("replication.audit.explaining")
    report = importlib.import_module("replication.audit.report")
    outcome = explaining.load_outcome(arguments.run)
    history: list[AuditRun] = explaining.earlier_runs(arguments.run)
    path: Path = arguments.html or arguments.run / "report.html"
    path.write_text(report.html_page(outcome, history), encoding="utf-8")
    print(path)
    return AuditExit.EQUAL


def _repair(arguments: argparse.Namespace) -> int:
    repair = importlib.import_module("replication.audit.repair")
    plan = importlib.import_module("replication.audit.plan")
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
    session = importlib.import_module("tandemmq.sparkling")
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
        epilog="exit codes:\n" + "\n".join(f"  {c.value:3}  {c.name}" for c in AuditExit),
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


def _size(text: str) -> int:
    """Bytes, with k, M or G."""
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    scale = units.get(text[-1:].lower(), 1)
    return int(text[:-1] if scale > 1 else text) * scale


def _levels(text: str) -> str:
    if not {*text.split(",")} <= {"1", "2", "3"} or "1" not in text:
        raise argparse.ArgumentTypeError(f"levels are 1, 2, 3, with 1 among them; got {text!r}")
    return text


def _offset(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"an offset is not negative, got {text}")
    return value


def _place_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "places",
        nargs="*",
        metavar="[NAME=]DIR",
        help="store directories, URIs (s3://, file://, ...) or running brokers' HTTP ports"
        " (http://HOST:PORT), the master's first",
    )
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT", help="a live cluster: its brokers' HTTP ports"
    )
    parser.add_argument("--group", default="", metavar="NAME", help="only this broker name")
    parser.add_argument("--cluster", default="", metavar="NAME", help="only groups of this cluster")
    _access_arguments(parser)


def _access_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"holds the brokers' httpToken; without it {HTTP_TOKEN} of the environment",
    )  # fmt: skip
    parser.add_argument("--tls", action="store_true", help="remoting encrypted, trusting anybody")
    parser.add_argument("--ca", metavar="FILE", help="encrypted, trusting these certificates (PEM)")


def _spark_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--spark-master", default="", metavar="URL", help="an existing cluster; default local[*]"
    )
    parser.add_argument(
        "--spark-archive", type=Path, metavar="FILE",
        help="a packed environment for that cluster's executors (venv-pack, conda-pack)",
    )  # fmt: skip
    parser.add_argument(
        "--jit", choices=("c1", "c2"), default="c1", help="c1 starts faster, c2 runs faster"
    )


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    _place_arguments(parser)
    parser.add_argument("--engine", choices=("auto", "local", "spark"), default="auto")
    _spark_arguments(parser)
    parser.add_argument("--levels", type=_levels, default="1,2,3", help="default 1,2,3")
    parser.add_argument("--from", dest="start", type=_offset, default=0, metavar="OFFSET")
    parser.add_argument("--until", type=_offset, metavar="OFFSET", help="default: the logs' end")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="threads, default 2")
    parser.add_argument(
        "--lag-warn", type=_size, default="64M", metavar="BYTES", help="lag that warns, default 64M"
    )
    parser.add_argument(
        "--index-slots", type=int, default=0, metavar="N", help="maxHashSlotNum of the brokers"
    )
    parser.add_argument(
        "--delay-levels", default="", metavar="TEXT", help="messageDelayLevel of the brokers"
    )
    parser.add_argument("--json", action="store_true", help="output for programs")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write tables to DIR/RUN as Parquet"
    )
    parser.add_argument(
        "--metrics", type=Path, metavar="FILE", help="for node exporter's textfile collector"
    )


def _digest_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store", metavar="STORE", help="a store directory, or a running broker's http://HOST:PORT"
    )
    _access_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.parquet")
    parser.add_argument("--name", default="", help="the replica's name; default its directory's")
    parser.add_argument("--until", type=_offset, metavar="OFFSET")
    parser.add_argument("--max-mb-s", type=float, default=0, metavar="N", help="reading rate")


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("digests", nargs="+", type=Path, metavar="FILE", help="the master's first")
    parser.add_argument("--json", action="store_true", help="output for programs")


def _run_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory, DIR/RUN of --out")


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    _run_directory(parser)
    _access_arguments(parser)
    parser.add_argument("offset", type=_offset, metavar="OFFSET")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    _run_directory(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="default RUN/report.html")


def _repair_arguments(parser: argparse.ArgumentParser) -> None:
    _run_directory(parser)
    _access_arguments(parser)
    parser.add_argument(
        "--at", action="append", default=[], metavar="NAME=DIR",
        help="where a replica's store is now: its broker was stopped since",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="really replace the ranges")


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    _place_arguments(parser)
    _spark_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="divergences, Parquet"
    )
    parser.add_argument("--replica", default="", metavar="NAME", help="which one, of --namesrv's")
    parser.add_argument(
        "--every", type=float, default=10.0, metavar="S", help="seconds, default 10"
    )
    parser.add_argument(
        "--once", action="store_true", help="what is new since last time, then stop"
    )


ACTIONS: Final = (
    _Action(
        "run", _run, "compare a master's store with its replicas'",
        "  tandem audit run ./store/master ./store/slave --out ./audits\n"
        "  tandem audit run --namesrv 127.0.0.1:9876 --token-file ./http.token", _run_arguments,
    ),
    _Action(
        "digest", _digest, "read one store on its host and write its block digests",
        "  tandem audit digest ./store --name broker-a --out broker-a.parquet --max-mb-s 200",
        _digest_arguments,
    ),
    _Action(
        "compare", _compare, "compare digest files of several hosts",
        "  tandem audit compare master.parquet slave.parquet", _compare_arguments,
    ),
    _Action(
        "explain", _explain, "tell what a run knows of a place in the log, with both sides' bytes",
        "  tandem audit explain ./audits/RUN 1073741824", _explain_arguments,
    ),
    _Action(
        "report", _report, "write a run as one page of HTML with pictures",
        "  tandem audit report ./audits/RUN", _report_arguments,
    ),
    _Action(
        "repair", _repair, "fetch damaged ranges of a stopped replica from a sound one",
        "  tandem audit repair ./audits/RUN --yes", _repair_arguments,
    ),
    _Action(
        "watch", _watch, "compare what is appended to growing logs, with Spark",
        "  tandem audit watch ./store/master ./store/slave --out ./audits", _watch_arguments,
    ),
)  # fmt: skip
