"""Request metrics equal those of the client library's counters and histogram."""

import numpy as np
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from headrace.serving.api.request_metrics import RequestMetrics

_SECONDS = "headrace_server_request_seconds"


def test_request_times_fall_into_the_same_buckets_as_with_the_client_library() -> None:
    registry, theirs = CollectorRegistry(), CollectorRegistry()
    metrics = RequestMetrics(registry)
    metrics.answered("news", 0.0, 1)
    [times] = [each for each in metrics.collect() if each.name == _SECONDS]
    bounds = [each.labels["le"] for each in times.samples if "le" in each.labels]
    histogram = Histogram(
        *(_SECONDS, "Time.", ("model",)), buckets=list(map(float, bounds)), registry=theirs
    ).labels("news")
    histogram.observe(0.0)
    seed = np.random.default_rng(5)
    for seconds in [*seed.exponential(0.01, 500).tolist(), *map(float, bounds[:-1]), 7.0]:
        metrics.answered("news", seconds, 1)
        histogram.observe(seconds)

    def exposed(of: CollectorRegistry) -> list[str]:
        lines = generate_latest(of).decode().splitlines()
        return sorted(line for line in lines if line.startswith(_SECONDS) and "_sum" not in line)

    assert exposed(registry) == [line for line in exposed(theirs) if "_created" not in line]
    total = registry.get_sample_value(f"{_SECONDS}_sum", {"model": "news"})
    assert total is not None
    found = theirs.get_sample_value(f"{_SECONDS}_sum", {"model": "news"})
    assert total == found


def test_requests_are_counted_by_model_and_status() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    metrics.answered("news", 0.001, 1)
    metrics.answered("news", 0.001, 200, "production")
    for status in (422, 503, 422):
        metrics.refused("news", status)
    metrics.refused("", 404)

    def requests(model: str, code: str) -> float | None:
        labels = {"model": model, "code": code}
        return registry.get_sample_value("headrace_server_requests_total", labels)

    found = [requests(*each) for each in (("news", "200"), ("news", "422"), ("", "404"))]
    assert found == [2, 2, 1]
    assert requests("news", "503") == 1
    of_alias = {"alias": "production", "model": "news"}
    assert registry.get_sample_value("headrace_server_alias_requests_total", of_alias) == 1
    named = {"model": "news"}
    assert registry.get_sample_value("headrace_server_candidates_total", named) == 201
