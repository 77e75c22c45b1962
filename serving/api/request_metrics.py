"""Prometheus metrics of requests: counts, latencies, candidates, prediction log and shadows.

The client library takes a lock per counter and searches histogram bounds linearly: 5 % of the work
of a short request. Requests are counted on a single thread, so `RequestMetrics` keeps plain numbers
for them, and turns them into metrics when Prometheus scrapes.
"""

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headrace.serving.api.load_shedding import LoadShedder

_REQUEST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0)
_BOUNDS = (*map(str, _REQUEST_S), "+Inf")
_COUNTERS = {
    "requests": ("Prediction requests by model and HTTP status.", ("model", "code")),
    "candidates": ("Candidates scored.", ("model",)),
    "alias_requests": (
        "Answered requests to an alias, by the model that answered.",
        ("alias", "model"),
    ),
    "client_requests": (
        "Prediction requests by client (the name of its token), model and HTTP status.",
        ("client", "model", "code"),
    ),
    "client_candidates": (
        "Candidates scored, by client (the name of its token) and model.",
        ("client", "model"),
    ),
}
"""Name without its prefix -> help and labels."""


class RequestMetrics(Collector):
    """Requests and candidates of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts = {name: defaultdict[tuple[str, ...], int](int) for name in _COUNTERS}
        self._within: dict[str, list[int]] = {}
        """By model: requests per bucket of the histogram; `collect` makes them cumulative."""
        self._seconds: defaultdict[str, float] = defaultdict(float)
        registry.register(self)
        self._under_way = Gauge(
            "headrace_server_requests_under_way",
            "Prediction requests being read, queued or computed.",
            registry=registry,
        )
        self._logged = Counter(
            "headrace_server_predictions",
            "Served candidates: logged, dropped under pressure, not sampled, or failed.",
            ("outcome",),
            registry=registry,
        )
        self._alias_changes = Counter(
            "headrace_server_alias_changes",
            "Changes of aliases over HTTP, by the name of the admin token and HTTP status.",
            ("client", "code"),
            registry=registry,
        )
        self._shadowed = Counter(
            "headrace_server_shadow_requests",
            "Requests to shadow models: scored, dropped under pressure, refused, or failed.",
            ("model", "outcome"),
            registry=registry,
        )

    def watch(self, shedder: LoadShedder) -> None:
        """Export the load of `shedder`."""
        self._under_way.set_function(lambda: shedder.requests)

    def logged(self, outcome: str, candidates: int) -> None:
        """Count candidates by their outcome in the prediction log."""
        self._logged.labels(outcome).inc(candidates)

    def shadowed(self, model: str, outcome: str) -> None:
        """Count a request to a shadow model by its outcome."""
        self._shadowed.labels(model, outcome).inc()

    def alias_change(self, client: str, status: int) -> None:
        """Count a change of an alias, or its refusal. client: empty without a name."""
        self._alias_changes.labels(client, str(status)).inc()

    def answered(
        self, model: str, seconds: float, candidates: int, alias: str = "", client: str = ""
    ) -> None:
        """Count an answered request. Call it on the event loop's thread only.

        alias: the alias that the request named; empty if it named the model. client: the name of
        its token; empty without one.
        """
        counts = self._counts
        counts["requests"][model, "200"] += 1
        counts["candidates"][model,] += candidates
        if alias:
            counts["alias_requests"][alias, model] += 1
        if client:
            counts["client_requests"][client, model, "200"] += 1
            counts["client_candidates"][client, model] += candidates
        within = self._within.get(model)
        if within is None:
            within = self._within[model] = [0] * len(_BOUNDS)
        within[bisect_left(_REQUEST_S, seconds)] += 1
        self._seconds[model] += seconds

    def refused(self, model: str, status: int, client: str = "") -> None:
        """Count a refused request; `model` is empty if the request named an unknown one.

        Call it on the event loop's thread only.
        """
        self._counts["requests"][model, str(status)] += 1
        if client:
            self._counts["client_requests"][client, model, str(status)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for name, (text, labels) in _COUNTERS.items():
            counter = CounterMetricFamily(f"headrace_server_{name}", text, labels=labels)
            for of, count in list(self._counts[name].items()):
                counter.add_metric(of, count)
            yield counter
        times = HistogramMetricFamily(
            "headrace_server_request_seconds",
            "Time to answer a prediction request after its body was read.",
            labels=["model"],
        )
        for model, within in list(self._within.items()):
            sums = itertools.accumulate(within)
            times.add_metric([model], list(zip(_BOUNDS, sums, strict=True)), self._seconds[model])
        yield times
