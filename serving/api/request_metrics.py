"""Prometheus metrics of requests: counts, latencies, candidates, prediction log and shadows.

`RequestMetrics` keeps plain numbers and turns them into metrics when Prometheus scrapes.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headrace.serving.api.load_shedding import LoadShedder


class RequestMetrics(Collector):
    """Requests and candidates of one server.

    The client library takes a lock per counter and searches histogram bounds linearly: 5 % of the
    work of a short request. Here a single thread counts, so plain numbers are enough.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answered: dict[str, _AnsweredTotals] = {}
        self._refused: dict[tuple[str, int], int] = {}
        self._aliased: dict[tuple[str, str], int] = {}
        self._of_clients: dict[tuple[str, str, int], int] = {}
        self._for_clients: dict[tuple[str, str], int] = {}
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
        if client:
            self._of_client(client, model, 200)
            key = client, model
            self._for_clients[key] = self._for_clients.get(key, 0) + candidates
        if alias:
            self._aliased[alias, model] = self._aliased.get((alias, model), 0) + 1
        counts = self._answered.get(model)
        if counts is None:
            counts = self._answered[model] = _AnsweredTotals()
        counts.candidates += candidates
        counts.seconds += seconds
        counts.within[bisect_left(_REQUEST_S, seconds)] += 1

    def refused(self, model: str, status: int, client: str = "") -> None:
        """Count a refused request; `model` is empty if the request named an unknown one.

        Call it on the event loop's thread only.
        """
        self._refused[model, status] = self._refused.get((model, status), 0) + 1
        if client:
            self._of_client(client, model, status)

    def _of_client(self, client: str, model: str, status: int) -> None:
        key = client, model, status
        self._of_clients[key] = self._of_clients.get(key, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        requests = CounterMetricFamily(
            "headrace_server_requests",
            "Prediction requests by model and HTTP status.",
            labels=["model", "code"],
        )
        times = HistogramMetricFamily(
            "headrace_server_request_seconds",
            "Time to answer a prediction request after its body was read.",
            labels=["model"],
        )
        candidates = CounterMetricFamily(
            "headrace_server_candidates", "Candidates scored.", labels=["model"]
        )
        for model, counts in list(self._answered.items()):
            sums = list(itertools.accumulate(counts.within))
            requests.add_metric([model, "200"], sums[-1])
            times.add_metric([model], list(zip(_BOUNDS, sums, strict=True)), counts.seconds)
            candidates.add_metric([model], counts.candidates)
        for (model, status), count in list(self._refused.items()):
            requests.add_metric([model, str(status)], count)
        aliased = CounterMetricFamily(
            "headrace_server_alias_requests",
            "Answered requests to an alias, by the model that answered.",
            labels=["alias", "model"],
        )
        for (alias, model), count in list(self._aliased.items()):
            aliased.add_metric([alias, model], count)
        yield from (requests, times, candidates, aliased, *self._clients())

    def _clients(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "headrace_server_client_requests",
            "Prediction requests by client (the name of its token), model and HTTP status.",
            labels=["client", "model", "code"],
        )
        for (client, model, status), count in list(self._of_clients.items()):
            requests.add_metric([client, model, str(status)], count)
        candidates = CounterMetricFamily(
            "headrace_server_client_candidates",
            "Candidates scored, by client (the name of its token) and model.",
            labels=["client", "model"],
        )
        for (client, model), count in list(self._for_clients.items()):
            candidates.add_metric([client, model], count)
        yield from (requests, candidates)


_REQUEST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0)


_BOUNDS = (*map(str, _REQUEST_S), "+Inf")


class _AnsweredTotals:
    """Totals of the answered requests to one model."""

    __slots__ = ("candidates", "seconds", "within")

    def __init__(self) -> None:
        self.candidates, self.seconds = 0, 0.0
        self.within = [0] * (len(_REQUEST_S) + 1)
        """Requests per bucket of the histogram; `collect` makes them cumulative."""
