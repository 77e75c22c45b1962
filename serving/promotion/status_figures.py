"""Figures of a promotion from the statuses of servers and learners.

Every process publishes its metrics to the topic `status` every two seconds. Rates and percentiles
are of the recent past: differences of counters between the newest status of a process and an older
one. A process that restarted begins its counters at 0, so its newest values are the difference.

- The level covers the last 10 s, so that a bad model is noticed soon.
- p99 and freshness cover the last minute, since a canary has few requests.
- With too few scores, requests or clicks in this time, a figure covers twice the time, and so on up
  to an hour. The canary of a small site would otherwise never have figures.

A percentile is interpolated between the bounds of its bucket, as Prometheus does. A rule such as
`p99_ms = 60` between two bounds would otherwise act as the lower one.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from headrace.ingest.status import ProcessStatus

LEVEL_MS, WINDOW_MS, LONGEST_MS = 10_000, 60_000, 3_600_000
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
        """By process and instance, oldest first, of the last minute."""
        self._older: dict[tuple[str, str], deque[_Moment]] = defaultdict(deque)
        """The moments before them, one a minute."""
        self._counted: dict[str, float] = {}
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
            self._older.pop(key, None)
            return
        values = {
            (each.name, each.labels["model"], _detail(each.labels)): each.value
            for each in status.figures
            if each.labels.get("model") in (self.model, self.control)
        }
        if status.process == "server":
            names = {each.name for each in status.figures}
            self._following[status.instance] = _FOLLOWING in names
        self._keep(key, _Moment(status.time_ms, values))
        counted = values.get((f"{_LEARNER}_held_batches_total", self.model, ""))
        if counted is not None:
            before = self._counted.get(status.instance, counted)
            restarted = counted < before  # from 0
            self._quarantined += counted if restarted else counted - before
            self._counted[status.instance] = counted

    def _keep(self, key: tuple[str, str], moment: _Moment) -> None:
        moments, older = self._moments[key], self._older[key]
        moments.append(moment)
        while len(moments) > 2 and moments[1].time_ms < moment.time_ms - WINDOW_MS:
            passed = moments.popleft()
            if not older or passed.time_ms - older[-1].time_ms >= WINDOW_MS:
                older.append(passed)
        while len(older) > 1 and older[1].time_ms < moment.time_ms - LONGEST_MS:
            older.popleft()

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
        counts = [(f"{_SERVER}_scores_total", name, "") for name in (self.model, self.control)]
        gained = self._gained_enough(now_ms, LEVEL_MS, LEAST_SCORES, counts)
        if gained is None:
            return None
        means = [gained[f"{_SERVER}_score_sum_total", *of[1:]] / gained[of] for of in counts]
        return means[0] / means[1] if means[1] else math.inf

    def p99_ms(self, now_ms: int) -> float | None:
        """Return the 99th percentile of the time to answer; None: too few requests."""
        found = self._percentile(f"{_SERVER}_request_seconds_bucket", now_ms)
        return None if found is None else 1000 * found

    def freshness_s(self, now_ms: int) -> float | None:
        """Return the 99th percentile of freshness; None: too few clicks."""
        return self._percentile(f"{_SERVER}_freshness_seconds_bucket", now_ms)

    def _percentile(self, name: str, now_ms: int) -> float | None:
        every = [(name, self.model, "+Inf")]
        gained = self._gained_enough(now_ms, WINDOW_MS, LEAST_REQUESTS, every)
        if gained is None:
            return None
        buckets = sorted(
            (float(bound), count)
            for (each, model, bound), count in gained.items()
            if (each, model) == (name, self.model) and bound
        )
        return _interpolated(buckets, 0.99)

    def _gained_enough(
        self, now_ms: int, window_ms: int, least: int, counts: Sequence[SampleKey]
    ) -> Mapping[SampleKey, float] | None:
        """Return the growth over the shortest time in which each count grew by `least`.

        The time is `window_ms` or more, and `LONGEST_MS` at most. None: it did not grow enough.
        """
        while True:
            gained = self._gained(now_ms, window_ms)
            if all(gained[each] >= least for each in counts):
                return gained
            if window_ms >= LONGEST_MS:
                return None
            window_ms = min(2 * window_ms, LONGEST_MS)

    def _gained(self, now_ms: int, window_ms: int) -> Mapping[SampleKey, float]:
        """Return the growth of all counters of servers over the last `window_ms`."""
        gained: dict[SampleKey, float] = defaultdict(float)
        for key, moments in self._moments.items():
            if key[0] != "server" or now_ms - moments[-1].time_ms > GONE_MS:
                continue
            known = chain(self._older[key], moments)
            before = _before(known, moments[-1].time_ms - window_ms)
            for sample, value in moments[-1].values.items():
                old = before.get(sample, 0.0)
                gained[sample] += value if value < old else value - old
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


def _interpolated(buckets: Sequence[tuple[float, float]], share: float) -> float:
    """Return a quantile of a histogram; infinite above its last finite bound.

    buckets: (bound, count up to it), rising; the last bound is infinite and has all.
    """
    wanted = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            part = (wanted - below) / (count - below) if count > below else 1.0
            return bound if math.isinf(bound) else low + part * (bound - low)
        low, below = bound, count
    return math.inf


def _detail(labels: Mapping[str, str]) -> str:
    return labels.get("le") or labels.get("stage") or ""
