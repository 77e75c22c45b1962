"""TODO."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry, Metric

    from headrace.serving.api.load_shedding import LoadShedder


class RequestMetrics(Collector):
    """Requests and candidates of one server.

    The client library's own counters take a lock each, and its histogram looks at one bound after
    the other: for a short request that is a twentieth of the work. One thread counts here, so what
    is counted stands in plain numbers until Prometheus asks.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answered: dict[str, _AnsweredTotals] = {}
        self._refused: dict[tuple[str, int], int] = {}
        registry.register(self)
        self._waiting = Gauge(
            "headrace_server_waiting_seconds",
            "Work that is ahead of a request that comes now.",
            registry=registry,
        )
        self._under_way = Gauge(
            "headrace_server_requests_under_way",
            "Prediction requests being read, waiting or computed.",
            registry=registry,
        )
        self._logged = Counter(
            "headrace_server_predictions",
            "Candidates that were served: logged, dropped under pressure, or left out by chance.",
            ("outcome",),
            registry=registry,
        )
        self._shadowed = Counter(
            "headrace_server_shadow_requests",
            "Requests for a shadow model to score: scored, dropped under pressure, or refused.",
            ("model", "outcome"),
            registry=registry,
        )

    def watch(self, room: LoadShedder) -> None:
        """Tell from now on how full `room` is."""
        self._waiting.set_function(lambda: room.waiting_s)
        self._under_way.set_function(lambda: room.requests)

    def logged(self, outcome: str, candidates: int) -> None:
        """Count what became of candidates in the log of predictions."""
        self._logged.labels(outcome).inc(candidates)

    def shadowed(self, model: str, outcome: str) -> None:
        """Count what became of a request that a shadow was to score."""
        self._shadowed.labels(model, outcome).inc()

    def answered(self, model: str, seconds: float, candidates: int) -> None:
        """Count a request that got its predictions. Of the event loop's thread alone."""
        counts = self._answered.get(model)
        if counts is None:
            counts = self._answered[model] = _AnsweredTotals()
        counts.candidates += candidates
        counts.seconds += seconds
        counts.within[bisect_left(_REQUEST_S, seconds)] += 1

    def refused(self, model: str, status: int) -> None:
        """Count a request that got none; `model` is empty if it named an unknown one.

        Of the event loop's thread alone.
        """
        self._refused[model, status] = self._refused.get((model, status), 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield what was counted so far."""
        requests = CounterMetricFamily(
            "headrace_server_requests",
            "Prediction requests by model and HTTP status.",
            labels=["model", "code"],
        )
        times = HistogramMetricFamily(
            "headrace_server_request_seconds",
            "Time to answer a prediction request, once its body was read.",
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
        yield from (requests, times, candidates)


_REQUEST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0)


_BOUNDS = (*map(str, _REQUEST_S), "+Inf")


class _AnsweredTotals:
    """The requests to one model that got their predictions."""

    __slots__ = ("candidates", "seconds", "within")

    def __init__(self) -> None:
        self.candidates, self.seconds = 0, 0.0
        self.within = [0] * (len(_REQUEST_S) + 1)
        """Of each bucket of the histogram alone: Prometheus wants the sums."""
