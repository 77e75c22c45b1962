"""The deployments of one server, for its health route and metrics.

A model that cannot be loaded is a line here and a metric. The server stays ready, because its other
models answer.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.serving.deployments.deployment_plan import Stage


class ModelDeployment(msgspec.Struct, frozen=True):
    """A deployed model on this server."""

    stage: str
    """loading, ready or failed."""
    reason: str = ""
    """The error of a failed model; the buckets copied so far of a loading one."""


class DeploymentStatus(msgspec.Struct, frozen=True):
    """The models and aliases of the topic `deployments` on one server."""

    settled: bool
    """Whether the server has once loaded, or failed to load, all that the topic named."""
    models: dict[str, ModelDeployment] = {}
    """Models of the topic, by name."""
    waiting: dict[str, str] = {}
    """Aliases that are not switched yet, with the reason."""


class DeploymentCollector(Collector):
    """Metrics of the deployments, read during a scrape."""

    def __init__(self, status: Callable[[], DeploymentStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        now = self._status()
        models = GaugeMetricFamily(
            "headrace_server_deployed_model",
            "1 for the present stage of a model of the topic deployments (loading, ready or "
            "failed), 0 for the others.",
            labels=["model", "stage"],
        )
        for name, each in sorted(now.models.items()):
            for stage in Stage:
                models.add_metric([name, stage], float(each.stage == stage))
        counts = Counter(each.stage for each in now.models.values())
        waiting = GaugeMetricFamily(
            "headrace_server_deployments_waiting",
            "Aliases of the topic deployments that wait for their models, and models that are "
            "loading or failed.",
            labels=["kind"],
        )
        waiting.add_metric(["alias"], len(now.waiting))
        waiting.add_metric(["loading"], counts[Stage.LOADING])
        waiting.add_metric(["failed"], counts[Stage.FAILED])
        yield from (models, waiting)
