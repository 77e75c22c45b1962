"""Prometheus metrics of a live experiment."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from headrace.learner.experiments.history import ExperimentProgress


class ExperimentCollector(Collector):
    """The metrics of one experiment, labelled with its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.progress: ExperimentProgress | None = None
        """The newest."""

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        now = self.progress
        steps = CounterMetricFamily(
            "headrace_experiment_examples",
            "Examples learned by the arms of an experiment, all arms and the control together.",
            labels=["experiment"],
        )
        steps.add_metric([self._name], now.steps if now else 0)
        yield steps
