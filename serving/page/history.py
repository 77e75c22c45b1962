"""Turns the metrics of all processes into curves, tiles and tables. Pure.

Counters become rates and histograms become quantiles, over the last `SMOOTHED_MS`. (Two seconds
have few clicks, so a quantile over them would jump.) Gauges stay as they are. Processes of one kind
are added up, or the worst of them counts. A process that reported its end, or was silent for
`SILENT_MS`, is shown as gone and adds nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.ingest.status import MetricSample, ProcessStatus
from headrace.serving.page.field_coverage import field_coverage

STEP_MS = 2_000
KEPT_MS = 3_600_000
SILENT_MS = 10_000
SMOOTHED_MS = 10_000

_MINUTES = {"m": 1, "h": 60, "d": 1440}
_ACCURACY = {
    f"headrace_evaluation_{name}": figure
    for name, figure in (
        ("auc_ratio", "auc"),
        ("request_auc_ratio", "request_auc"),
        ("log_loss_nats", "log_loss"),
        ("calibration_ratio", "calibration"),
        ("scored_impressions", "scored"),
    )
}

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


@dataclass(slots=True)
class _Process:
    status: ProcessStatus
    now: Samples
    past: deque[tuple[int, Samples]] = field(default_factory=deque)
    """Samples of the last `SMOOTHED_MS`, oldest first."""

    def take(self, status: ProcessStatus, samples: Samples) -> None:
        self.past.append((self.status.time_ms, self.now))
        if any(samples.get(key, 0.0) < was for key, was in self.now.items() if _counts(key[0])):
            self.past.clear()  # a counter fell: the process was restarted under its name
        self.status, self.now = status, samples
        while self.past and self.past[0][0] < status.time_ms - SMOOTHED_MS:
            self.past.popleft()

    def rates(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the rate per second of each sample of a counter."""
        if not self.past:
            return
        began_ms, before = self.past[0]
        seconds = (self.status.time_ms - began_ms) / 1000
        for key, value in self.now.items():
            if key[0] == name:
                yield dict(key[1]), (value - before.get(key, 0.0)) / seconds

    def gauges(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        for (each, labels), value in self.now.items():
            if each == name:
                yield dict(labels), value


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart."""

    chart: str
    name: str
    of: Callable[[History], float | None]


class History:
    """The last metrics of every process, and the curves of the last hour."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        self.curves = tuple(curves)
        self.processes: dict[tuple[str, str], _Process] = {}
        self.times: deque[int] = deque(maxlen=KEPT_MS // STEP_MS)
        self.points: list[deque[float | None]] = [
            deque(maxlen=KEPT_MS // STEP_MS) for _ in self.curves
        ]
        self._now_ms = 0

    def take(self, status: ProcessStatus) -> None:
        """Record the status of a process. A message older than the last one is ignored."""
        key = status.process, status.instance
        known = self.processes.get(key)
        if known is not None and known.status.time_ms >= status.time_ms:
            return
        now = _samples(status.figures)
        if known is None or status.time_ms - known.status.time_ms > SILENT_MS:
            self.processes[key] = _Process(status, now)
        else:
            known.take(status, now)

    def step(self, now_ms: int) -> None:
        """Add a point to every curve, and drop processes that are long gone."""
        self._now_ms = now_ms
        for key in [k for k, p in self.processes.items() if now_ms - p.status.time_ms > KEPT_MS]:
            del self.processes[key]
        self.times.append(now_ms)
        for curve, points in zip(self.curves, self.points, strict=True):
            points.append(curve.of(self))

    def living(self) -> Iterator[_Process]:
        """Yield the processes that are running."""
        for each in self.processes.values():
            if not self._gone(each.status):
                yield each

    def _gone(self, status: ProcessStatus) -> bool:
        return status.ended or self._now_ms - status.time_ms > SILENT_MS

    # -------------------------------------------------------------- what curves are made of

    def rate(self, name: str, **labels: str) -> float | None:
        """Return the rate per second of a counter, summed over all processes."""
        return _sum(v for p in self.living() for of, v in p.rates(name) if _has(of, labels))

    def total(self, name: str, **labels: str) -> float | None:
        """Return a gauge or counter, summed over all processes."""
        return _sum(v for p in self.living() for of, v in p.gauges(name) if _has(of, labels))

    def worst(self, name: str, **labels: str) -> float | None:
        """Return the largest value of a gauge over all processes."""
        return max(
            (v for p in self.living() for of, v in p.gauges(name) if _has(of, labels)),
            default=None,
        )

    def quantile(self, name: str, share: float) -> float | None:
        """Return a quantile of a histogram over its recent counts in all processes."""
        counts: dict[float, float] = {}
        for process in self.living():
            for of, rate in process.rates(f"{name}_bucket"):
                edge = float(of["le"])
                counts[edge] = counts.get(edge, 0.0) + rate
        edges = sorted(counts)
        if not edges or counts[edges[-1]] <= 0:
            return None
        wanted, below, lower = share * counts[edges[-1]], 0.0, 0.0
        for edge in edges:
            if counts[edge] >= wanted:
                inside = counts[edge] - below
                if edge == float("inf") or inside <= 0:
                    return lower
                return lower + (edge - lower) * (wanted - below) / inside
            below, lower = counts[edge], edge
        return lower

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return a gauge or counter by the values of a label, summed over all processes."""
        found: dict[str, float] = {}
        for process in self.living():
            for of, value in process.gauges(name):
                if label in of:
                    found[of[label]] = found.get(of[label], 0.0) + value
        return found

    def gauges(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels and values of a gauge or counter in all living processes."""
        for process in self.living():
            yield from process.gauges(name)

    # -------------------------------------------------------------------------- the answer

    def answer(self, since_ms: int) -> dict[str, Any]:
        """Return the data of the page: points after `since_ms`, tables and processes."""
        fresh = [i for i, at in enumerate(self.times) if at > since_ms]
        first = fresh[0] if fresh else len(self.times)
        return {
            "now_ms": self._now_ms,
            "times": list(self.times)[first:],
            "curves": [
                {"chart": curve.chart, "name": curve.name, "points": list(points)[first:]}
                for curve, points in zip(self.curves, self.points, strict=True)
                if any(point is not None for point in points)
            ],
            "processes": sorted(
                (self._described(process.status) for process in self.processes.values()),
                key=lambda each: (each["process"], each["instance"]),
            ),
            "partitions": self._partitions(),
            "dead_letters": self.by("headrace_joiner_dead_letters_total", "reason"),
            "parked": self._parked(),
            "shards": self._shards(),
            "accuracy": self._accuracy(),
            "traffic": self._traffic(),
            "coverage": field_coverage(self.gauges),
        }

    def _parked(self) -> list[dict[str, Any]]:
        """Return the partitions of models that have parked examples."""
        return [
            {
                "model": of["model"],
                "partition": int(of["partition"]),
                "cause": of.get("cause", "unknown"),
                "examples": int(examples),
            }
            for of, examples in self.gauges("headrace_learner_parked_examples")
            if examples > 0
        ]

    def _described(self, status: ProcessStatus) -> dict[str, Any]:
        state = "stopped" if status.ended else "silent" if self._gone(status) else "here"
        return {
            "process": status.process,
            "instance": status.instance,
            "state": state,
            "seconds_ago": max(0.0, (self._now_ms - status.time_ms) / 1000),
        }

    def _accuracy(self) -> list[dict[str, Any]]:
        """Return the metrics of each window without slices, short ones first: settled, or open."""
        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        for process in self.living():
            for name, figure in _ACCURACY.items():
                for of, value in process.gauges(name):
                    if of["slice"] == "all" and of["until"] in ("settled", "open"):
                        key = of["alias"], of["window"], of["until"]
                        found.setdefault(key, {})[figure] = value
        return [
            {"alias": alias, "window": window, "until": until, **figures}
            for (alias, window, until), figures in sorted(found.items(), key=_by_length)
            if "auc" in figures
            and (until == "settled" or "auc" not in found.get((alias, window, "settled"), {}))
        ]

    def _traffic(self) -> list[dict[str, Any]]:
        """Return the recent requests per second to each alias, by the model that answered.

        The share is that of the alias's requests, 0 to 1; None without recent requests.
        """
        rates: dict[tuple[str, str], float] = {}
        for process in self.living():
            for of, rate in process.rates("headrace_server_alias_requests_total"):
                key = of["alias"], of["model"]
                rates[key] = rates.get(key, 0.0) + rate
        sums: dict[str, float] = {}
        for (alias, _), rate in rates.items():
            sums[alias] = sums.get(alias, 0.0) + rate
        return [
            {
                "alias": alias,
                "model": model,
                "requests_s": rate,
                "share": rate / sums[alias] if sums[alias] > 0 else None,
            }
            for (alias, model), rate in sorted(rates.items())
        ]

    def _partitions(self) -> list[dict[str, Any]]:
        reached = self.by("headrace_joiner_watermark_seconds", "partition")
        return [
            {"partition": int(number), "watermark_s": seconds}
            for number, seconds in sorted(reached.items(), key=lambda each: int(each[0]))
        ]

    def _shards(self) -> dict[str, float | None]:
        return {
            "buckets": self.worst("headrace_server_buckets"),
            "unreachable": self.worst("headrace_server_unreachable_buckets"),
            "kept": self.total("headrace_keeper_buckets_held"),
            "log_bytes": self.total("headrace_keeper_log_bytes"),
            "rows": self.worst("headrace_server_rows"),
            "oldest_age_s": self.worst("headrace_server_age_seconds", bucket="oldest"),
            "newest_age_s": self.worst("headrace_server_age_seconds", bucket="newest"),
        }


def _by_length(found: tuple[tuple[str, str, str], object]) -> tuple[str, int, str, str]:
    """Sort by alias and length of window; a window is named like 10m or 1h."""
    (alias, window, until), _ = found
    number, unit = window[:-1], window[-1:]
    minutes = int(number) * _MINUTES[unit] if number.isdigit() and unit in _MINUTES else 0
    return alias, minutes, window, until


def _samples(figures: Iterable[MetricSample]) -> Samples:
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in figures}


def _counts(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count"))


def _has(of: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(of.get(name) == value for name, value in labels.items())


def _sum(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) if found else None
