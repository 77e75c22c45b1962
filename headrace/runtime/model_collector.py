"""The metrics of a process that works for one model, read when Prometheus scrapes.

Such a process keeps plain totals. Its collector turns them into counters and gauges with the label
`model`, so metrics cost nothing on the hot path.
"""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class ModelCollector(Collector):
    """Metrics of one process, labelled with its model. Subclasses have `collect`."""

    def __init__(self, process: str, model: str) -> None:
        """process: part of each metric's name, such as `learner`."""
        self._process, self._model = process, model

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"headrace_{self._process}_{name}", text, labels=["model"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"headrace_{self._process}_{name}", text, labels=["model"])
        family.add_metric([self._model], value)
        return family
