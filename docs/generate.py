"""Write docs/config.md, metrics.md, errors.md, client-reference.md and README's lists from the code they describe.

    .venv/bin/python -m docs.generate            # write them
    .venv/bin/python -m docs.generate --check    # exit 1 and name the file that is out of step

A test runs the check, so the pages cannot go stale.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from docs import client_reference, missing
from tandemmq.chaos import survival
from tandemmq.cluster.access.startup import AccessConfig
from tandemmq.cluster.broker import replies
from tandemmq.cluster.broker.settings.access import RightsConfig
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.settings.known_keys import WITHOUT_EFFECT
from tandemmq.cluster.broker.settings.shown import FIXED
from tandemmq.cluster.config import keys_of
from tandemmq.cluster.controller import ControllerConfig
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.metrics import METRICS
from tandemmq.cluster.nameserver.config import NameServerConfig
from tandemmq.cluster.tlssettings import TlsConfig
from tandemmq.command.exits import ExitCode
from tandemmq.replication import LeaseTimes, StreamRules
from tandemmq.storage import StorageConfig

DOCS = Path(__file__).parent
GENERATED = "<!-- written by docs/generate.py; change the code it names, then run it -->\n"


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A default as broker.conf would spell it."""
    if isinstance(value, enum.Enum):
        return shown(value.value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else "(empty)"


def settings(struct: type[msgspec.Struct]) -> Iterator[tuple[str, ...]]:
    """(key, default, name inside) of every setting that a file may hold."""
    for field in msgspec.structs.fields(struct):
        if field.encode_name not in keys_of(struct):
            continue
        if field.default is not msgspec.NODEFAULT:
            default = shown(field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            default = "(this machine's)"
        else:
            default = "(required)"
        yield f"`{field.encode_name}`", default, f"`{field.name}`"


def config_page() -> str:
    """Every setting, from the structs that hold them."""
    heads = ("key", "default", "inside")
    by_reason: dict[str, list[str]] = {}
    for key, reason in WITHOUT_EFFECT.items():
        if key in FIXED:
            continue
        by_reason.setdefault(reason, []).append(key)
    ignored = "\n".join(
        f"* {reason}: " + ", ".join(f"`{key}`" for key in sorted(keys)) + "."
        for reason, keys in by_reason.items()
    )
    return (
        GENERATED
        + "# Settings\n\nRocketMQ's `broker.conf` and `namesrv.conf` work unchanged. An unknown key warns; a bad value "
        "stops the start\nand names key, value and what is allowed. `tandem check-config FILE` says what a file means. "
        "*Inside* is the name\nin the code, unit last.\n\n## Broker (`cluster/broker/settings/config.py`)\n\n"
        + table(heads, list(settings(BrokerConfig)))
        + "\n## Store, in the same file (`storage/config.py`)\n\n"
        + table(heads, list(settings(StorageConfig)))
        + "\n## Replication, in the same file (`replication/config.py`)\n\n"
        + table(heads, [*settings(StreamRules), *settings(LeaseTimes)])
        + "\n## Access control, in the same file (`cluster/access/startup.py`, `cluster/broker/settings/access.py`)\n\n"
        + "[How to](howto/access-control.md). Name servers and controllers take the first five, too.\n\n"
        + table(heads, [*settings(AccessConfig), *settings(RightsConfig)])
        + "\n## Encryption, in each file (`cluster/tlssettings.py`)\n\n"
        + "[How to](howto/tls.md). Brokers, name servers and controllers take all of them.\n\n"
        + table(heads, list(settings(TlsConfig)))
        + "\n## HTTP, in each file (`cluster/httpsettings.py`)\n\n"
        + "[How to](howto/http.md). Brokers, name servers and controllers take all of them; a controller in a name "
        "server's process\nshares its port. `httpReadersMax` and `httpBytesPerSecondMax` are a broker's alone.\n\n"
        + table(heads, list(settings(HttpConfig)))
        + "\n## Name server (`cluster/nameserver/config.py`)\n\n"
        + table(heads, list(settings(NameServerConfig)))
        + "\n## Controller (`cluster/controller/config.py`), in a file of its own or in the name server's\n\n"
        + table(heads, [*settings(ControllerConfig), *settings(LeaseTimes)])
        + "\n## RocketMQ's settings with one value here (`cluster/broker/settings/shown.py`)\n\n"
        + "Whatever a file says; `getBrokerConfig` shows this value. A feature that is not here is off.\n\n"
        + table(
            ("key", "value"), [(f"`{key}`", shown(value)) for key, value in sorted(FIXED.items())]
        )
        + "\n## Accepted without effect (`cluster/broker/settings/known_keys.py`)\n\n"
        + "Everything else that RocketMQ knows. `getBrokerConfig` shows these only where the file has them.\n\n"
        + ignored
        + "\n"
    )


def metrics_page() -> str:
    """Every metric, from the one table."""
    rows = [
        (f"`{m.name}`", m.kind, m.unit or "-", ", ".join(m.labels) or "-", m.help) for m in METRICS
    ]
    return (
        GENERATED + "# Metrics\n\nPath `/metrics` of the HTTP port (`httpPort`) of every process; "
        "`metricsExporterType=PROM` serves them on\n"
        "`metricsPromExporterPort` (5557; a controller's is 5558), too. Names that begin with `rocketmq_` are those "
        "of RocketMQ 5\nand of its exporter, in their units. The table is `cluster/metrictable.py`; "
        "[watch a cluster](howto/watch.md) has the dashboards\nand alerts made of them.\n\n"
        "Histograms are added to once per commit, flush or request, never per message. A metric shows 5,000 series "
        "at most. On a\nslave there is nothing of topics and groups: its master counts them. The page is made in "
        "slices of a millisecond beside\nother work; one that cost more than 20 ms of processor time is given again "
        "for ten times as long.\n\n" + table(("name", "kind", "unit", "labels", "meaning"), rows)
    )


def first_line(cls: type[Any]) -> str:
    return (cls.__doc__ or "").strip().split("\n")[0]


STORED_UNSURE = """
A send that is answered with one of the codes above is not stored. One that is answered with one of these *is* stored,
with the fields of a success, and its safety is not known (INV-7): it stays, or it goes with this broker. No answer at
all means the same.

"""
UNSURE = [
    (
        "10 FLUSH_DISK_TIMEOUT",
        "this broker's disk did not have it within `syncFlushTimeout`, or this broker failed before it had",
    ),
    ("11 SLAVE_NOT_AVAILABLE", "classic replication: there is no slave to wait for"),
    (
        "12 FLUSH_SLAVE_TIMEOUT",
        "the slaves did not have it within `slaveTimeout`; or the master was deposed, or the broker stopped, while it "
        'waited: then the remark begins with "stored, fate unknown"',
    ),
]


def errors_page() -> str:
    """Which refusal becomes which response code, and how processes end."""
    codes = [
        (f"`{cls.__module__}.{cls.__name__}`", f"{code.value} {code.name}", first_line(cls))
        for cls, code in replies.CODES.items()
    ]
    exits = (
        Path(sys.modules[ExitCode.__module__].__file__ or "")
        .read_text(encoding="utf-8")
        .split("\n")
    )
    meaning = {
        line.split("=")[0].strip(): line.partition("#")[2].strip()
        for line in exits
        if " = " in line and "#" in line
    }
    endings = [(str(code.value), code.name, meaning.get(code.name, "success")) for code in ExitCode]
    return (
        GENERATED
        + "# Errors\n\n## What a client is told\n\nOne table, `cluster/broker/replies.py`, maps exceptions to response "
        "codes; a class without a row has its base's.\n\n"
        + table(("exception", "response code", "when"), codes)
        + STORED_UNSURE
        + table(("code", "of a stored message"), UNSURE)
        + "\n## How `tandem` ends\n\n"
        + table(("exit code", "name", "meaning"), endings)
    )


def reference_page() -> str:
    """Every public name of the client, from signatures and docstrings."""
    return GENERATED + client_reference.page()


PROMISES = "<!-- the table is written by docs/generate.py from chaos/survival.py -->\n\n"


def readme() -> str:
    """The README with its table of promises as the checkers know it, and what is not here as the handlers do."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    before, mark, after = text.partition(PROMISES)
    if not mark:
        raise ValueError(f"README.md lacks the line {PROMISES!r}")
    text = before + mark + survival.table() + after[after.index("\n\n") + 1 :]
    before, begins, after = text.partition(missing.BEGINS)
    if not begins:
        raise ValueError(f"README.md lacks the line {begins!r}")
    return before + missing.sentence() + after[after.index("\n\n") :]


PAGES = {
    "config.md": config_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
    "client-reference.md": reference_page,
    "../README.md": readme,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check compare them."""
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        text = page()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(
            f"docs/{name} is out of step with the code: run python -m docs.generate",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
