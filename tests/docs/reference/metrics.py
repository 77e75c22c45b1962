"""Lists the metrics of every process, from the objects that make them."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.metrics import MetricWrapperBase

from headrace.ingest.archive.archiver import full_of, rows_written
from headrace.ingest.collector.collector_metrics import CollectorMetrics
from headrace.ingest.features.example_weights import ExampleWeights
from headrace.ingest.features.recent_coverage import CoverageCounts
from headrace.ingest.joiner.joiner_metrics import JoinerCollector
from headrace.ingest.joiner.loop import JoinerTotals
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.learner.experiments.live.live_process import ExperimentCollector
from headrace.learner.loop.outputs import LearnerTotals
from headrace.learner.loop.pushes import PushTotals
from headrace.learner.loop.row_prefetcher import PrefetchUsage
from headrace.learner.metrics import LearnerCollector
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.keeper.store_collectors import NewestSnapshotCollector, StoreMemoryCollector
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.deployments.deployment_status import DeploymentCollector, DeploymentStatus
from headrace.serving.evaluation.evaluation_metrics import EvaluationCollector
from headrace.serving.evaluation.feeder import FeedFigures
from headrace.serving.observers.request_coverage import RequestCoverage
from headrace.serving.observers.score_sums import ScoreSums
from headrace.serving.relaying.relay_process import RelayCollector
from headrace.serving.replicas.replica_metrics import (
    CacheMetrics,
    FreshnessMetrics,
    ReplicaCollector,
)
from headrace.serving.scoring.loop import ScoringTotals
from headrace.serving.scoring.scoring_process import ScoringCollector

HEAD = """# Metrics

Each process serves these metrics on `--metrics-port` in the format of Prometheus, with those of the
process itself (`process_*`, `python_*`). Names end in their unit, those of counters in `_total`.
"""


def described(registry: CollectorRegistry) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """The metrics that a registry's objects make, with their labels."""
    for each in registry._collector_to_names:
        if not isinstance(each, MetricWrapperBase):
            yield from collected(each.collect())
            continue
        [metric] = each.describe()
        yield metric, tuple(each._labelnames)


def collected(metrics: Iterable[Metric]) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Metrics that were collected, with their labels."""
    for metric in metrics:
        yield metric, tuple(cast("Any", metric)._labelnames)


def joiner() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    durations = Histogram("durations", "of transactions", registry=None)
    fields = SimpleNamespace(weights=ExampleWeights())
    coverage = SimpleNamespace(recent=lambda: CoverageCounts(0, {}), fields=())
    loop = SimpleNamespace(
        figures=JoinerTotals(), partitions={}, durations=durations, fields=fields, coverage=coverage
    )
    yield from collected(JoinerCollector("m", cast("Any", loop)).collect())
    yield from collected(ReadLag("headrace_joiner_lag", {"model": "m"}).collect())


def learner() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    loop = SimpleNamespace(
        figures=LearnerTotals(),
        tally=PushTotals(),
        messages=SimpleNamespace(skipped=0),
        progress=SimpleNamespace(append_ms=1, event_ms=1),
        intake=SimpleNamespace(gap_offsets=0, committed={Source("examples", 0): 0}),
        rows=SimpleNamespace(usage=PrefetchUsage(), tail_bytes=0),
        view=[],
    )
    collector = LearnerCollector(
        "m",
        cast("Any", loop),
        lambda: 2,
        lambda: cast("Any", (0, 0)),
        lambda: {Source("examples", 0): (0, 1)},
    )
    yield from collected(collector.collect())
    yield from collected(ReadLag("headrace_learner_lag", {"model": "m"}).collect())


def experiment() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    yield from collected(ExperimentCollector("e").collect())
    yield from collected(ReadLag("headrace_experiment_lag", {"experiment": "e"}).collect())


def keeper() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    registry = CollectorRegistry()
    KeeperMetrics("m", registry)
    yield from described(registry)
    yield from collected(StoreMemoryCollector("m", list).collect())
    yield from collected(NewestSnapshotCollector("m", lambda: 0).collect())


def collector() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    registry = CollectorRegistry()
    metrics = CollectorMetrics(registry)
    metrics.watch(cast("Any", None), cast("Any", None))
    yield from described(registry)


def sink() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    registry = CollectorRegistry()
    rows_written(registry)
    full_of(registry)
    registry.register(ReadLag("headrace_sink_lag"))
    yield from described(registry)


def server() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    registry = CollectorRegistry()
    RequestMetrics(registry)
    FreshnessMetrics(registry)
    CacheMetrics(registry)
    yield from described(registry)
    yield from collected(ReplicaCollector([], lambda: 0).collect())
    status = DeploymentStatus(settled=True)
    yield from collected(DeploymentCollector(lambda: status).collect())
    yield from collected(ScoreSums().collect())
    yield from collected(RequestCoverage(cast("Any", []), lambda: 0).collect())


def evaluation() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    folded = SimpleNamespace(state=SimpleNamespace(late=0), open={}, reached_ms=lambda: 0)
    keeper = SimpleNamespace(figures=[], evaluation=folded)
    collector = EvaluationCollector("m", cast("Any", keeper), FeedFigures)
    yield from collected(collector.collect())
    yield from collected(ReadLag("headrace_evaluation_lag", {"model": "m"}).collect())


def scorer() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    yield from collected(ScoringCollector("m", ScoringTotals(newest_ms=1)).collect())
    yield from collected(ReadLag("headrace_scorer_lag", {"model": "m"}).collect())


def relay() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    totals = SimpleNamespace(blocks_written=0, failed_writes=0, unwritten_s=0.0)
    yield from collected(RelayCollector("m", cast("Any", totals)).collect())


PROCESSES = {
    "collector (`headrace ingest collect`)": collector,
    "joiner (`headrace ingest join`)": joiner,
    "learner (`headrace learner run`)": learner,
    "experiment (`headrace experiment run`, without files)": experiment,
    "keeper (`headrace pserver keep`)": keeper,
    "server (`headrace serving run`)": server,
    "scorer (`headrace serving score`), in addition to a server's metrics of its rows": scorer,
    "relay (`headrace serving relay`)": relay,
    "evaluation (`headrace evaluate run`)": evaluation,
    "sink (`headrace ingest sink`)": sink,
}


def sample_name(metric: Metric) -> str:
    """The name as Prometheus shows it."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def page() -> str:
    """Return the page of metrics."""
    parts = [HEAD]
    for process, metrics in PROCESSES.items():
        parts += [
            f"\n## {process[0].upper()}{process[1:]}\n",
            "\n| metric | type | labels | |\n|---|---|---|---|\n",
        ]
        rows = sorted((sample_name(metric), metric, labels) for metric, labels in metrics())
        for name, metric, labels in rows:
            named = ", ".join(f"`{label}`" for label in labels)
            parts.append(f"| `{name}` | {metric.type} | {named} | {metric.documentation} |\n")
    return "".join(parts)
