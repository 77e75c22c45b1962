"""Compares the fields of events with those of requests, over all processes. Pure.

A field counts as different if its coverage in events and in requests differ by a fifth of all, and
if there are a hundred of each: a few requests of one user have a field always or never, by chance.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict

Gauges = Callable[[str], Iterable[tuple[Mapping[str, str], float]]]

DIFFERENT = 0.2
LEAST = 100
"""Events, and candidates in requests, below which shares are not compared."""
MISSING_IN_EVENTS = "missing in events"
MISSING_IN_REQUESTS = "missing in requests"
DIFFERS = "differs"
UNKNOWN = "not in the spec"


class CoveredField(TypedDict):
    """Coverage of one field. A share is from 0 to 1, and None without events or requests."""

    model: str
    field: str
    """With the raw field that it is read from, if that has another name."""
    events: float | None
    requests: float | None
    note: str
    """The fault that this may be; empty without one."""


def field_coverage(gauges: Gauges) -> list[CoveredField]:
    """Return the fields of each model, as declared, then the unknown fields of requests.

    gauges: returns the labels and values of a metric in all living processes.
    """
    of_events = _totals(gauges, "headrace_joiner_recent_impressions")
    of_requests = _totals(gauges, "headrace_server_recent_candidates")
    events = _shares(gauges, of_events, "headrace_joiner_recent_values")
    requests = _shares(gauges, of_requests, "headrace_server_recent_values")
    unknown = _shares(gauges, of_requests, "headrace_server_recent_unknown_values")

    def comparable(model: str) -> bool:
        return min(of_events.get(model, 0.0), of_requests.get(model, 0.0)) >= LEAST

    rows = [
        _covered(
            *(model, field, events.get((model, field)), requests.get((model, field))),
            comparable=comparable(model),
        )
        for model, field in dict.fromkeys((*events, *requests))
    ]
    rows += [
        CoveredField(model=model, field=field, events=None, requests=share, note=UNKNOWN)
        for (model, field), share in unknown.items()
        if share
    ]
    return sorted(rows, key=lambda row: row["model"])


def _covered(
    model: str, field: str, events: float | None, requests: float | None, *, comparable: bool
) -> CoveredField:
    if events == 0:
        note = MISSING_IN_EVENTS
    elif requests == 0:
        note = MISSING_IN_REQUESTS
    elif comparable and abs((events or 0.0) - (requests or 0.0)) >= DIFFERENT:
        note = DIFFERS
    else:
        note = ""
    return CoveredField(model=model, field=field, events=events, requests=requests, note=note)


def _shares(
    gauges: Gauges, totals: Mapping[str, float], values: str
) -> dict[tuple[str, str], float | None]:
    """Return a share by model and field; None without events or candidates. totals: by model."""
    counts: dict[tuple[str, str], float] = {}
    for of, value in gauges(values):
        key = of["model"], _shown(of["field"], of.get("source", ""))
        counts[key] = counts.get(key, 0.0) + value
    return {
        (model, field): count / totals[model] if totals.get(model) else None
        for (model, field), count in counts.items()
    }


def _totals(gauges: Gauges, total: str) -> dict[str, float]:
    """Return the sum over processes of a metric, by model."""
    totals: dict[str, float] = {}
    for of, value in gauges(total):
        totals[of["model"]] = totals.get(of["model"], 0.0) + value
    return totals


def _shown(field: str, source: str) -> str:
    known = not source or source == field or field.startswith(f"{source} (")
    return field if known else f"{field} ({source})"
