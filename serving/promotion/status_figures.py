"""Figures of a promotion from the statuses of servers and learners.

Every process publishes its metrics to the topic `status` every two seconds. Rates and percentiles
are of the recent past: differences of counters between the newest status of a process and an older
one. A process that restarted begins its counters at 0, so its newest values are the difference.

- The level covers the last 10 s, so that a bad model is noticed soon.
- p99 and freshness cover the last minute, since a canary has few requests.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.ingest.runtime import ProcessStatus

LEVEL_MS, WINDOW_MS = 10_000, 60_000
GONE_MS = 15_000
"""Age of the last status of a process that counts as gone."""
LEAST_SCORES, LEAST_REQUESTS = 100, 20
"""Fewest scores for a level, and fewest requests or clicks for a percentile."""
_SERVER = "headrace_server"
_LEARNER = "headrace_learner"
_FOLLOWING = f"{_SERVER}_deployments_waiting"
"""A metric that only servers with --deployments have."""

SampleKey = tuple[str, str, str]
"""Name, model, and the bound of a bucket or the stage."""


class _Moment(NamedTuple):
    time_ms: int
    values: Mapping[SampleKey, float]


class StatusFigures:
    """Folds statuses into figures of one model and its control."""

    def __init__(self, model: str, control: str) -> None:
        self.model, self.control = model, control
        self._moments: dict[tuple[str, str], deque[_Moment]] = defaultdict(deque)
        """By process and instance, oldest first."""
        self._held: dict[str, float] = {}
        """By learner: its counter of quarantined batches, at its newest status."""
        self._quarantined = 0.0
        """Batches quarantined since the first status, also by learners that restarted or ended."""
        self._following: dict[str, bool] = {}
        """By server: whether it follows the topic `deployments`, at its newest status."""

    def take(self, status: ProcessStatus) -> None:
        """Take a status."""
        key = status.process, status.instance
        if status.process not in ("server", "learner", "joiner"):
            return
        if status.ended:
            self._moments.pop(key, None)
            return
        values = {
            (each.name, each.labels["model"], _detail(each.labels)): each.value
            for each in status.figures
            if each.labels.get("model") in (self.model, self.control)
        }
        if status.process == "server":
            names = {each.name for each in status.figures}
            self._following[status.instance] = _FOLLOWING in names
        moments = self._moments[key]
        moments.append(_Moment(status.time_ms, values))
        while len(moments) > 2 and moments[1].time_ms < status.time_ms - WINDOW_MS:
            moments.popleft()
        held = values.get((f"{_LEARNER}_held_batches_total", self.model, ""))
        if held is not None:
            before = self._held.get(status.instance, held)
            self._quarantined += held if held < before else held - before  # 0 after a restart
            self._held[status.instance] = held

    def newest_ms(self) -> int:
        """Return the time of the newest status of a server; 0 without any."""
        servers = [each[-1].time_ms for key, each in self._moments.items() if key[0] == "server"]
        return max(servers, default=0)

    def servers(self, now_ms: int) -> tuple[int, int]:
        """Return the servers that answer, and those of them that have loaded the model."""
        newest = self._newest("server", now_ms)
        ready = (f"{_SERVER}_deployed_model", self.model, "ready")
        return len(newest), sum(each.get(ready, 0.0) == 1.0 for each in newest)

    def not_following(self, now_ms: int) -> tuple[str, ...]:
        """Return the servers that answer and do not follow the topic `deployments`, by name."""
        answering = [
            instance
            for (process, instance), moments in self._moments.items()
            if process == "server" and now_ms - moments[-1].time_ms <= GONE_MS
        ]
        return tuple(sorted(each for each in answering if not self._following[each]))

    def behind_s(self, now_ms: int) -> float | None:
        """Return the time by which joiners and learners of the model are behind; None: unknown."""
        learners = [
            each
            for each in self._newest("learner", now_ms)
            if (f"{_LEARNER}_lag", self.model, "") in each
        ]
        if not learners:
            return None
        lags = [each[f"{_LEARNER}_lag", self.model, ""] for each in learners]
        lags += [
            each.get(("headrace_joiner_lag", self.model, ""), 0.0)
            for each in self._newest("joiner", now_ms)
        ]
        if not any(lags):
            return 0.0
        ages = [each.get((f"{_LEARNER}_age_seconds", self.model, "")) for each in learners]
        known = [each for each in ages if each is not None]
        return max(known) if len(known) == len(ages) else None

    def quarantined(self, now_ms: int) -> int | None:
        """Return the batches quarantined since the first status; None without learners."""
        key = f"{_LEARNER}_held_batches_total", self.model, ""
        learning = any(key in each for each in self._newest("learner", now_ms))
        return int(self._quarantined) if learning else None

    def level(self, now_ms: int) -> float | None:
        """Return the mean score of the model, divided by the control's; None: too few."""
        gained = self._gained(now_ms, LEVEL_MS)
        means = []
        for name in (self.model, self.control):
            count = gained[f"{_SERVER}_scores_total", name, ""]
            if count < LEAST_SCORES:
                return None
            means.append(gained[f"{_SERVER}_score_sum_total", name, ""] / count)
        return means[0] / means[1] if means[1] else math.inf

    def p99_ms(self, now_ms: int) -> float | None:
        """Return a bound of the 99th percentile of the time to answer; None: too few requests."""
        found = self._percentile(f"{_SERVER}_request_seconds_bucket", now_ms)
        return None if found is None else 1000 * found

    def freshness_s(self, now_ms: int) -> float | None:
        """Return a bound of the 99th percentile of freshness; None: too few clicks."""
        return self._percentile(f"{_SERVER}_freshness_seconds_bucket", now_ms)

    def _percentile(self, name: str, now_ms: int) -> float | None:
        gained = self._gained(now_ms, WINDOW_MS)
        buckets = sorted(
            (float(bound), count)
            for (each, model, bound), count in gained.items()
            if (each, model) == (name, self.model) and bound
        )
        total = buckets[-1][1] if buckets else 0.0
        if total < LEAST_REQUESTS:
            return None
        return next(bound for bound, count in buckets if count >= 0.99 * total)

    def _gained(self, now_ms: int, window_ms: int) -> Mapping[SampleKey, float]:
        """Return the growth of all counters of servers over the last `window_ms`."""
        gained: dict[SampleKey, float] = defaultdict(float)
        for (process, _), moments in self._moments.items():
            if process != "server" or now_ms - moments[-1].time_ms > GONE_MS:
                continue
            before = _before(moments, moments[-1].time_ms - window_ms)
            for key, value in moments[-1].values.items():
                old = before.get(key, 0.0)
                gained[key] += value if value < old else value - old
        return gained

    def _newest(self, process: str, now_ms: int) -> list[Mapping[SampleKey, float]]:
        return [
            each[-1].values
            for key, each in self._moments.items()
            if key[0] == process and now_ms - each[-1].time_ms <= GONE_MS
        ]


def _before(moments: Iterable[_Moment], time_ms: int) -> Mapping[SampleKey, float]:
    """Return the newest values that are not newer than this, else the oldest."""
    found: _Moment | None = None
    for each in moments:
        if found is None or each.time_ms <= time_ms:
            found = each
    assert found is not None  # a process has a status
    return found.values


def _detail(labels: Mapping[str, str]) -> str:
    return labels.get("le") or labels.get("stage") or ""
