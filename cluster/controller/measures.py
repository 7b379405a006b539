"""What a controller shows to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tandemmq.cluster.controller.server import Controller
from tandemmq.cluster.metrics import MetricTable, Reader
from tandemmq.replication.evidence import GroupEvidence

Series = Iterator[tuple[tuple[str, ...], float]]
_NO_LABELS: Final = ()


class Measures:
    """Readers of tandemmq.cluster.metrics for one controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def readers(self) -> Mapping[str, Reader]:
        """Metric name -> reader."""
        stats = self._controller.stats
        return {
            "tandem_controller_leading": self._leading,
            "tandem_controller_store_failing": self._failing,
            "tandem_controller_records_written_total": self._written,
            "tandem_controller_unclean_allowed": self._unclean,
            "tandem_controller_epoch": self._epochs,
            "tandem_controller_masters": self._masters,
            "tandem_controller_replicas": self._replicas,
            "tandem_controller_replicas_alive": self._alive,
            "tandem_controller_in_sync_replicas": self._in_sync,
            "tandem_controller_suspects": self._suspects,
            "tandem_controller_elections_total": lambda: self._counts(stats.elections),
            "tandem_controller_lossy_elections_total": lambda: self._counts(stats.lossy_elections),
            "tandem_controller_failed_elections_total": lambda: self._counts(stats.waits),
        }

    def _leading(self) -> Series:
        yield _NO_LABELS, self._controller.reign is not None

    def _failing(self) -> Series:
        reign = self._controller.reign
        yield _NO_LABELS, reign is not None and reign.failing_since_ms is not None

    def _written(self) -> Series:
        yield _NO_LABELS, self._controller.stats.records_written

    def _unclean(self) -> Series:
        yield _NO_LABELS, self._controller.config.unclean

    def _groups(self) -> Iterator[tuple[tuple[str, ...], GroupEvidence]]:
        reign = self._controller.reign
        if reign is not None:
            for name, group in list(reign.core.groups.items()):
                yield (name,), group

    def _epochs(self) -> Series:
        for labels, group in self._groups():
            yield labels, group.record.epoch

    def _masters(self) -> Series:
        for labels, group in self._groups():
            yield labels, self._controller.led(group)

    def _replicas(self) -> Series:
        for labels, group in self._groups():
            yield labels, len(group.record.registered)

    def _alive(self) -> Series:
        for labels, group in self._groups():
            yield labels, self._controller.alive(group)

    def _in_sync(self) -> Series:
        for labels, group in self._groups():
            yield labels, len(group.record.sync_set)

    def _counts(self, counter: Mapping[str, int]) -> Series:
        """Of every group, also what never happened: a counter that appears with its first event shows no increase."""
        for name in dict.fromkeys([*(labels[0] for labels, _ in self._groups()), *counter]):
            yield (name,), counter.get(name, 0)

    def _suspects(self) -> Series:
        for labels, group in self._groups():
            yield labels, len(group.record.suspects)


def table_of(controller: Controller) -> MetricTable:
    """The controller's metrics, under the labels that all of them have."""
    config = controller.config
    base = {"cluster": config.group, "node_type": "controller", "node_id": config.self_id}
    return MetricTable(Measures(controller).readers(), base)
