"""The coverage of each declared field in recent requests, and the names of unknown fields.

A server answers a request without the fields of the model: they are absent, as in an event. So a
client that misspells a field gets worse predictions, and no error. This observer samples requests,
and compares the fields that they have with those that the model has learned.

The decoder drops unknown fields in its one pass, so the body of a sampled request is read again for
their names.

It costs a request a comparison of two times. A model is sampled ten times a second at most, and
less often if a sample takes long: samples take at most 1/500 of the time.
"""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.ingest.features.field_sources import LEAST_ALIKE, CarriedField, input_fields
from headrace.ingest.features.recent_coverage import CoverageCounts, RecentCoverage
from headrace.runtime.printable_text import printable
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.models.absent_rows import learned_shares
from headrace.serving.models.prediction import ReceivedRequest, ScoredRequest
from headrace.serving.models.registry import ModelRegistry, Route, ServedModel
from headrace.serving.requests.candidates import some_of

log = logging.getLogger(__name__)

MOST_UNKNOWN = 20
"""Names of unknown fields of one model. Clients may send any names, and metrics have them as
labels."""
OTHERS = "(others)"
"""The label of the unknown fields beyond MOST_UNKNOWN."""
LARGEST_BODY = 128 << 10
"""Bytes of a body that is read again. A larger one would delay its answer by milliseconds."""
LONGEST_NAME = 40
"""Characters of the name of an unknown field that are kept."""
LEAST_REQUESTS = 10
"""Sampled requests from which a field without values is worth a warning."""
_EVERY_MS = 100
_TIMES_AS_LONG = 500
_CHECKED_EVERY_MS = 60_000
_LEAST_LEARNED = 0.01
"""Share of the learned impressions that have a field, from which requests should have it."""


class RequestFields(NamedTuple):
    """The fields of the recent requests to one model."""

    fields: tuple[CarriedField, ...]
    """The inputs of the model that requests should have."""
    declared: CoverageCounts
    """Of these fields."""
    unknown: Mapping[str, float]
    """Share of the candidates with each unknown field, from 0 to 1."""


class RequestCoverage(Collector):
    """Samples requests. An observer of answers."""

    def __init__(self, models: ModelRegistry, now_ms: Callable[[], int]) -> None:
        self._models, self._now_ms = models, now_ms
        self._due: dict[str, int] = {}
        self._sampled: dict[str, _ModelRequests] = {}
        self._lock = threading.Lock()

    def answered(self, scored: ScoredRequest, received: ReceivedRequest) -> None:
        """Count a request if a sample of its model is due."""
        model = scored.target.served.spec.name
        if scored.now_ms < self._due.get(model, 0):
            return
        began_s = time.perf_counter()
        with self._lock:  # long requests have a thread of their own
            self._sample(scored, received.body)
        took_ms = 1000 * (time.perf_counter() - began_s)
        self._due[model] = scored.now_ms + max(_EVERY_MS, round(_TIMES_AS_LONG * took_ms))

    def of(self, served: ServedModel) -> RequestFields:
        """Return the fields of the recent requests to a model."""
        with self._lock:
            return self._requests_of(served).recent()

    def _sample(self, scored: ScoredRequest, body: bytes) -> None:
        served = scored.target.served
        sampled = self._requests_of(served)
        total, present = scored.request.candidates.present(sampled.sources)
        sampled.add(total, present, unknown_counts(body, self._known(scored.target)))
        sampled.check(served, scored.now_ms)

    def _requests_of(self, served: ServedModel) -> _ModelRequests:
        name = served.spec.name
        found = self._sampled.get(name)
        if found is None or found.fingerprint != served.spec.fingerprint:
            found = self._sampled[name] = _ModelRequests(served, self._now_ms)
        return found

    def _known(self, target: Route) -> frozenset[str]:
        """Return the fields that some model of the alias reads, or by which it splits."""
        arms = [*self._models.arms(target), *(each.served for each in self._models.shadows(target))]
        known = frozenset[str]().union(*(each.decoder.known for each in arms))
        return known if target.split is None else known | {target.split.key}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        candidates = GaugeMetricFamily(
            "headrace_server_recent_candidates",
            "Candidates of the requests that were sampled in the last ten minutes.",
            labels=["model"],
        )
        values = GaugeMetricFamily(
            "headrace_server_recent_values",
            "Sampled candidates with a value for a declared field, read from its source.",
            labels=["model", "field", "source"],
        )
        unknown = GaugeMetricFamily(
            "headrace_server_recent_unknown_values",
            "Sampled candidates with a field that the spec does not name. Fields after the first "
            f"{MOST_UNKNOWN} count as {OTHERS}.",
            labels=["model", "field"],
        )
        for served in self._models:
            model, found = served.spec.name, self.of(served)
            candidates.add_metric([model], found.declared.total)
            for each in found.fields:
                count = found.declared.usable[each.name]
                values.add_metric([model, each.name, each.source], count)
            for name, share in found.unknown.items():
                unknown.add_metric([model, name], round(share * found.declared.total))
        yield from (candidates, values, unknown)


class _ModelRequests:
    """The sampled requests of one model."""

    def __init__(self, served: ServedModel, now_ms: Callable[[], int]) -> None:
        self.fingerprint = served.spec.fingerprint
        self._fields = input_fields(served.spec.fields)
        self.sources = [each.source for each in self._fields]
        names = [each.name for each in self._fields]
        columns = [str(i) for i in range(MOST_UNKNOWN + 1)]  # the last one is for OTHERS
        self._declared = RecentCoverage(names, now_ms)
        self._unknown = RecentCoverage(columns, now_ms)
        self._columns: dict[str, int] = {}
        self._requests = 0
        self._check_ms = 0
        self._warned: set[str] = set()

    def add(self, total: int, present: list[int], unknown: Mapping[str, int]) -> None:
        """Count a request of `total` candidates. present: by source. unknown: by name."""
        self._requests += 1
        self._declared.add(total, present)
        counts = [0] * (MOST_UNKNOWN + 1)
        for name, count in unknown.items():
            column = self._column(shown_name(name))
            counts[column] = max(counts[column], count)
        self._unknown.add(total, counts)

    def _column(self, name: str) -> int:
        if name not in self._columns and len(self._columns) < MOST_UNKNOWN:
            self._columns[name] = len(self._columns)
        return self._columns.get(name, MOST_UNKNOWN)

    def recent(self) -> RequestFields:
        """Return the counts of the last ten minutes."""
        unknown = self._unknown.recent()
        columns = {**self._columns, OTHERS: MOST_UNKNOWN}
        shares = {name: unknown.share(str(column)) for name, column in columns.items()}
        found = {name: share for name, share in shares.items() if share}
        return RequestFields(self._fields, self._declared.recent(), found)

    def check(self, served: ServedModel, now_ms: int) -> None:
        """Warn once about each field that the model has learned and no recent request has."""
        if self._requests < LEAST_REQUESTS or now_ms < self._check_ms:
            return
        self._check_ms = now_ms + _CHECKED_EVERY_MS
        _, declared, unknown = self.recent()
        missing = set(declared.missing) - self._warned
        if not missing:
            return
        learned = learned_shares(served.spec.fields, served.rows.reading(), now_ms)
        for each in self._fields:
            share = learned.get(each.name, 0.0)
            if each.name not in missing or share < _LEAST_LEARNED:
                continue
            self._warned.add(each.name)
            others = [name for name in unknown if name != OTHERS]
            close = difflib.get_close_matches(each.source, others, 1, LEAST_ALIKE)
            log.warning(
                "model %s, field %s: expected %r in requests, as in %.0f %% of the learned "
                "impressions, got none in the last %d candidates. %s",
                *(served.spec.name, each.name, each.source, 100 * share, declared.total),
                f"Requests have {close[0]!r}: rename it"
                if close
                else "Send the field in the context or in each candidate",
            )


_Row = dict[str, msgspec.Raw]


class _Names(msgspec.Struct, gc=False):
    """The part of a request with the names of its fields. The values stay unread."""

    context: _Row | None = None
    candidates: list[_Row] | None = None
    instances: list[_Row] | None = None


_decode = msgspec.json.Decoder(_Names).decode


def unknown_counts(body: bytes, known: frozenset[str]) -> dict[str, int]:
    """Return how many of the sampled candidates have each field that is not known.

    Empty if the body is too large, or is not JSON.
    """
    if len(body) > LARGEST_BODY:
        return {}
    try:
        request = _decode(body)
    except UNDECODABLE:
        return {}  # the body is of another protocol
    rows, context = some_of(request.candidates or request.instances or ()), request.context or {}
    counts = dict.fromkeys((name for name in context if name not in known), len(rows))
    for row in rows:
        for name in row:
            if name not in known and name not in context:
                counts[name] = counts.get(name, 0) + 1
    return counts


def shown_name(name: str) -> str:
    """Return a name of a client as short printable text."""
    text = printable(name)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
