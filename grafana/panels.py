"""What a dashboard is made of. The tables of panels are in tables/, the files in dashboards/ are written from them.

In queries `$cluster`, `$broker` (its broker name), `$topic` and `$group` are what a reader chose, `$__rate_interval` is
Grafana's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HERE: Final = 'cluster=~"$cluster",node_id=~"$broker"'
OF_TOPIC: Final = f'{HERE},topic=~"$topic"'
OF_GROUP: Final = f'{OF_TOPIC},consumer_group=~"$group"'
RATE: Final = "[$__rate_interval]"

#: thresholds of stats: up to the first of two values green, then orange, then red
GROWING: Final = (1.0, 1.0)


class Query(NamedTuple):
    """legend: of each series, by its labels."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One picture. The grid is 24 wide; rows fill up from the left.

    kind        timeseries, stat or table
    unit        Grafana's: short, s, bytes, Bps, cps, percentunit, dateTimeFromNow
    bad         of a stat: from the first value on it is orange, from the second on red; None: no colours
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    bad: tuple[float, float] | None = None


class Dashboard(NamedTuple):
    """One file. variables: which of cluster, broker, topic and group a reader can choose, in that order."""

    uid: str
    title: str
    description: str
    variables: tuple[str, ...]
    panels: tuple[Panel, ...]


def quantile(name: str, by: str, share: float = 0.99, labels: str = HERE) -> str:
    """A quantile of one of our histograms."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({name}_bucket{{{labels}}}{RATE})))"


def stat(title: str, description: str, expr: str, *, unit: str = "short",
          bad: tuple[float, float] | None = GROWING, width: int = 4) -> Panel:  # fmt: skip
    return Panel(title, description, (Query(expr),), unit, "stat", width, bad)
