"""The report: a table for people, JSON for machines, and the ratios that are required."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.accounting import Machine, machine_as_dict
from bench.load import Load, Row
from bench.measure import TOPIC_COUNT, Plan, Results

ROCKETMQ: Final = "RocketMQ"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two rates of one load in the same measurement. `required` is None where nothing is."""

    name: str
    value: float
    required: float | None
    note: str

    @property
    def met(self) -> bool:
        """Whether the value reaches what is required."""
        return self.required is None or self.value >= self.required


#: (server, load, against): least ratio of best rates
REQUIRED_RATIOS: Final = {
    ("ours", "send-8x64-1k-json", "echo"): 0.15,
    ("ours", "send-8x64-1k-json", ROCKETMQ): 4.0,
    ("ours", "send-64x1-1k-json", ROCKETMQ): 2.0,
    ("ours", "pull-8x4-1k-json-behind", ROCKETMQ): 0.8,
    (
        "ours, pure Python",
        "send-8x64-1k-json",
        "echo",
    ): 0.03,  # 60,000/s where the echo server makes 2 million
}
#: (server, load): least rate, messages/s
REQUIRED_RATES: Final = {("ours", "pull-8x4-1k-json"): 600_000.0}
#: (server, figure): most, in the figure's unit
REQUIRED_FIGURES: Final = {
    ("ours", "start to first accepted message"): 1000.0,
    ("ours", "anonymous memory"): 60.0,
}


COLUMNS: Final = (
    "columns   best and median rate (messages/s); of the best run: the server's CPU per message,",
    "          GB/s of bodies, latency, how long the server's threads waited for a core (for its",
    "          other threads too), the generator's share of its core. ≥: the generator was the",
    "          limit. ~: others used the cores meanwhile, or the hypervisor did. Latency at depth",
    "          > 1 is queueing in a closed loop; -at-N loads are paced, counted from the due time.",
)


def find_row(rows: Iterable[Row], server: str, load: Load) -> Row | None:
    """The server's fastest row of this load: RocketMQ has one per number of cores."""
    found = [row for row in rows if row.server.startswith(server) and row.load == load and row.runs]
    if not server.startswith(ROCKETMQ):
        found = [row for row in found if row.server == server]
    return max(found, key=lambda row: row.best.rate, default=None)


def ratios(results: Results) -> list[Ratio]:
    """Ours and pure Python, each against the echo server and RocketMQ's better number of cores."""
    made = []
    for load in dict.fromkeys(row.load for row in results.rows if not row.load.rate):
        for server in ("ours", "ours, pure Python"):
            row = find_row(results.rows, server, load)
            for against in ("echo", ROCKETMQ):
                other = find_row(results.rows, against, load)
                if row is None or other is None:
                    continue
                cpu = other.best.cpu_us_per_message / row.best.cpu_us_per_message
                note = f"by CPU per message {cpu:.3g}"
                if against == ROCKETMQ:
                    note = f"{other.server} on {other.cores}; {note}"
                elif other.best.generator_bound:
                    note += "; the generator, not the echo server, was the limit: at most this"
                if row.best.contended or other.best.contended:
                    note += "; CONTENDED: measure again on a quiet machine"
                required = REQUIRED_RATIOS.get((server, load.name, against))
                made.append(
                    Ratio(
                        f"{load.name}: {server} / {against}",
                        row.best.rate / other.best.rate,
                        required,
                        note,
                    )
                )
    return made


def missed(results: Results) -> list[str]:
    """Sentences about required figures that were measured and not reached."""
    sentences = [
        f"{ratio.name} is {ratio.value:.3g}, required {ratio.required:g}"
        for ratio in ratios(results)
        if not ratio.met
    ]
    for (server, load_name), least in REQUIRED_RATES.items():
        for row in results.rows:
            if (
                (row.server, row.load.name) == (server, load_name)
                and row.runs
                and row.best.rate < least
            ):
                sentences.append(
                    f"{load_name}: {server} makes {row.best.rate:,.0f}/s, required {least:,.0f}"
                )
    for figure in results.figures:
        most = REQUIRED_FIGURES.get((figure.server, figure.name))
        if most is not None and figure.value > most:
            value = f"{figure.value:,.1f} {figure.unit}"
            sentences.append(f"{figure.server}: {figure.name} is {value}, required {most:g}")
    return sentences


def rows_text(results: Results) -> list[str]:
    """The table of loads."""
    head = f"{'load':26} {'server':18} {'on':8} {'best/s':>11} {'median/s':>11} {'us CPU':>7}"
    head += f" {'GB/s':>6} {'p50 us':>9} {'p99 us':>9} {'p99.9 us':>9} {'waited':>7} {'gen':>5}"
    lines = [head, "-" * len(head)]
    for load in dict.fromkeys(row.load for row in results.rows):
        for row in (row for row in results.rows if row.load == load and row.runs):
            best = row.best
            rate = (
                "≥" if best.generator_bound else "~" if best.contended else ""
            ) + f"{best.rate:,.0f}"
            gigabytes = best.rate * load.body_bytes / 1e9
            lines.append(
                f"{load.name:26} {row.server:18} {row.cores:8} {rate:>11} {row.median_rate:>11,.0f}"
                f" {best.cpu_us_per_message:>7.2f} {gigabytes:>6.2f}"
                f" {best.p50_us:>9,.0f} {best.p99_us:>9,.0f} {best.p999_us:>9,.0f}"
                f" {best.server_wait_share:>7.0%} {best.generator_cpu_share:>5.0%}"
            )
    return lines


def as_text(machine: Machine, plan: Plan, results: Results, command: str) -> str:
    """The report for people."""
    lines = [
        f"command   {command}",
        f"machine   {machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB,"
        f" Linux {machine.kernel}, Python {machine.python}, data on {machine.data_filesystem},"
        f" load average {machine.load_average}",
        f"runs      {plan.runs} of {plan.seconds:g} s after {plan.warmup_s:g} s; servers on core"
        f" {sorted(plan.server_cores)}, generator on core {plan.generator_core};"
        " RocketMQ also with all cores, shared with the generator",
        *COLUMNS,
        "",
        *rows_text(results),
        "",
    ]
    lines += [
        f"ratio     {ratio.name} = {ratio.value:.3g}" + required_text(ratio) + f"  ({ratio.note})"
        for ratio in ratios(results)
    ]
    lines += [
        "",
        *(
            f"figure    {figure.server}: {figure.name} {figure.value:,.1f} {figure.unit}"
            f"  ({figure.how})"
            for figure in results.figures
        ),
        "",
    ]
    lines += [f"server    {name}: {text}" for name, text in results.servers.items()]
    commands = {row.load.name: row.command for row in reversed(results.rows) if row.runs}
    lines += [f"load      {name}: {row_command}" for name, row_command in commands.items()]
    lines += [f"skipped   {text}" for text in results.skipped]
    lines += [f"REFUSED   {text}" for text in results.refused]
    lines += [f"MISSED    {text}" for text in missed(results)]
    return "\n".join(lines) + "\n"


def required_text(ratio: Ratio) -> str:
    """What is required of a ratio, and whether it is reached."""
    if ratio.required is None:
        return ""
    return f", required {ratio.required:g}: {'met' if ratio.met else 'MISSED'}"


def as_dict(machine: Machine, plan: Plan, results: Results, command: str) -> dict[str, Any]:
    """The report for machines; plain JSON types only."""
    return {
        "command": command,
        "machine": machine_as_dict(machine),
        "runs": plan.runs,
        "seconds": plan.seconds,
        "warmup_s": plan.warmup_s,
        "server_cores": sorted(plan.server_cores),
        "generator_core": plan.generator_core,
        "idle_topics": TOPIC_COUNT,
        "servers": results.servers,
        "rows": [
            {
                "load": row.load.name,
                "server": row.server,
                "cores": row.cores,
                "command": row.command,
                "median_rate": row.median_rate,
                "best": asdict(row.best),
                "runs": [asdict(run) for run in row.runs],
            }
            for row in results.rows
            if row.runs
        ],
        "ratios": [{**asdict(ratio), "met": ratio.met} for ratio in ratios(results)],
        "figures": [asdict(figure) for figure in results.figures],
        "skipped": results.skipped,
        "refused": results.refused,
        "missed": missed(results),
    }
