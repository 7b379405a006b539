"""A Prometheus that asks every second: all are up, every query of dashboards and rules is answered with data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watched import WINDOW, Prometheus
from watchedcluster import LocalCluster

from grafana.generate import VARIABLES
from grafana.tables import DASHBOARDS
from tandemmq.chaos.processes import wait_until

SECONDS = 8
ANSWERED_S = 90
SCRAPE_S = 0.2


def queries() -> Iterator[tuple[str, str]]:
    """(where it stands, the query with everything chosen)."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                expr = query.expr.replace("$__rate_interval", WINDOW)
                yield f"{dashboard.title}: {panel.title}", re.sub(r"\$\w+", ".*", expr)


def test_every_target_is_up_and_asked_each_second(
    prometheus: Prometheus, cluster: LocalCluster
) -> None:
    wanted = set(cluster.targets())

    def up() -> set[str]:
        return {labels["instance"] for labels, value in prometheus.ask('up{job="tandem"}') if value}

    wait_until(lambda: up() == wanted, 30, "all targets are up", every_s=0.3)
    often = f'count_over_time(up{{job="tandem"}}[{SECONDS}s])'
    wait_until(
        lambda: all(count >= SECONDS * 3 // 4 for _, count in prometheus.ask(often)),
        SECONDS * 3, "each is asked each second", every_s=1,
    )  # fmt: skip
    slow = prometheus.ask(
        f'quantile_over_time(0.5, scrape_duration_seconds{{job="tandem"}}[{SECONDS}s])'
    )
    assert max(value for _, value in slow) < SCRAPE_S, slow


def test_every_query_of_every_dashboard_is_answered(
    prometheus: Prometheus, cluster: LocalCluster
) -> None:
    empty = dict(enumerate(queries()))

    def all_answered() -> bool:
        for number, (_, expr) in list(empty.items()):
            if prometheus.ask(expr):
                del empty[number]
        return not empty

    try:
        wait_until(all_answered, ANSWERED_S, "every query has an answer", every_s=1)
    except AssertionError:
        raise AssertionError(
            "\n".join(f"{where}: {expr}" for where, expr in empty.values())
        ) from None


def test_every_variable_of_a_dashboard_has_values(
    prometheus: Prometheus, cluster: LocalCluster
) -> None:
    for query in VARIABLES.values():
        found = re.fullmatch(r"label_values\((\S+), (\w+)\)", query)
        assert found, query
        selector = re.sub(r"\$\w+", ".*", found[1])
        assert any(labels.get(found[2]) for labels, _ in prometheus.ask(selector)), query


def test_every_rule_is_sound_and_every_recorded_series_is_there(
    prometheus: Prometheus, cluster: LocalCluster
) -> None:
    def rules() -> list[dict[str, str]]:
        return [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(each["health"] == "ok" for each in rules()), 30, "rules were evaluated")
    assert not [each for each in rules() if each.get("lastError")]
    recorded = [each["name"] for each in rules() if each["type"] == "recording"]
    assert len(recorded) >= 10
    passing = {
        "tandem:refused_sends:rate1m",
        "tandem:unsafe_answers:rate1m",
    }  # nothing of it happened
    for name in recorded:
        if name not in passing:
            wait_until(lambda name=name: prometheus.ask(name), ANSWERED_S, f"{name} has a value")  # type: ignore[misc]


def test_nothing_that_is_not_meant_to_fires(prometheus: Prometheus, cluster: LocalCluster) -> None:
    wait_until(
        lambda: not [each for each in prometheus.api("alerts")["alerts"] if each["state"] == "firing"],
        60, f"quiet: {prometheus.api('alerts')}", every_s=1,
    )  # fmt: skip
