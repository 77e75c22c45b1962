"""Samples what an operator would see: freshness, backlog, rows, and the memory of every process.

Freshness comes from the server's own metrics: the age of the stalest bucket, and the histogram of
the time from a click's append to Kafka to its arrival in the server's replica. There are two
threads, because a request to Kafka may take seconds while a broker is dead, and the other samples
must not wait for it.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from headrace.deploy.local.drain import Backlog, Drain
from headrace.ingest.errors import StreamError
from headrace.pserver.errors import StoreError

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

EVERY_S = 0.5
MEMORY_EVERY_S = 2.0
BACKLOG_EVERY_S = 1.0
_SERVER_ANSWERS_S = 0.4
_SAMPLE = re.compile(r"^(headrace_server_\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_MB = 1 << 20


@dataclass(slots=True)
class Moment:
    """One sample of freshness."""

    at_s: float
    age_s: float
    """Age of the stalest bucket; the last known age, grown older, while the server is silent."""
    answered: bool
    """Whether the server answered."""
    delays: dict[float, float] = field(default_factory=dict)
    """New clicks by the upper bound of their delay, since the last sample."""
    backlog: int | None = None
    """Events that are not joined yet. None: unknown."""
    batches: int | None = None
    """Batches of examples that not every bucket has applied."""
    sent: int = 0
    """Events sent so far."""


class Sampler:
    """Samples in threads from `start` until `stop`."""

    def __init__(
        self, fleet: Fleet, pids: Callable[[], dict[str, int]], sent: Callable[[], int]
    ) -> None:
        self._fleet, self._pids, self._sent = fleet, pids, sent
        self.began_s = time.monotonic()
        self.moments: list[Moment] = []
        self.memory: dict[str, list[tuple[float, int, float]]] = {}
        """By process: time, pid, resident MB."""
        self._backlog: tuple[float, Backlog] | None = None
        self._seen: dict[float, float] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"sampler {work.__name__}", daemon=True)
            for work in (self._sample, self._measure_backlog)
        ]

    @property
    def at_s(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.began_s

    def start(self) -> None:
        """Begin to sample."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def last(self) -> Moment | None:
        """The newest sample."""
        return self.moments[-1] if self.moments else None

    # ---------------------------------------------------------------- threads

    def _sample(self) -> None:
        weighed_s = float("-inf")
        while not self._stopping.wait(EVERY_S):
            self.moments.append(self._moment())
            if self.at_s - weighed_s >= MEMORY_EVERY_S:
                weighed_s = self.at_s
                self._weigh()

    def _measure_backlog(self) -> None:
        store = self._fleet.open_store()
        drain = Drain(self._fleet.kafka, self._fleet.spec, store)
        try:
            while not self._stopping.wait(BACKLOG_EVERY_S):
                with contextlib.suppress(StreamError, StoreError):
                    self._backlog = (self.at_s, drain.behind())
        finally:
            drain.close()
            store.close()

    def _moment(self) -> Moment:
        at_s = self.at_s
        values = self._ask_server()
        age_s = values.get(("headrace_server_age_seconds", "oldest"))
        last = self.last
        if age_s is None:
            age_s = last.age_s + at_s - last.at_s if last else 0.0
        moment = Moment(at_s, age_s, bool(values), self._new_delays(values), sent=self._sent())
        if self._backlog is not None and at_s - self._backlog[0] < 5 * BACKLOG_EVERY_S:
            moment.backlog = self._backlog[1].events
            moment.batches = self._backlog[1].batches
        return moment

    def _ask_server(self) -> dict[tuple[str, str], float]:
        try:
            url = f"{self._fleet.address}/metrics"
            with urllib.request.urlopen(url, timeout=_SERVER_ANSWERS_S) as answer:
                return read_metrics(answer.read().decode())
        except (OSError, ValueError):
            return {}

    def _new_delays(self, values: dict[tuple[str, str], float]) -> dict[float, float]:
        """Return how many clicks arrived in each interval of delays since the last sample."""
        now = {
            float(label): value
            for (name, label), value in values.items()
            if name == "headrace_server_freshness_seconds_bucket"
        }
        if not now:
            return {}
        before = self._seen if max(self._seen.values(), default=0) <= max(now.values()) else {}
        self._seen = now
        new, below = {}, 0.0
        for bound in sorted(now):
            up_to = now[bound] - before.get(bound, 0.0)
            if up_to > below:
                new[bound] = up_to - below
            below = up_to
        return new

    def _weigh(self) -> None:
        for name, pid in self._pids().items():
            with contextlib.suppress(psutil.Error):
                resident = psutil.Process(pid).memory_info().rss / _MB
                self.memory.setdefault(name, []).append((self.at_s, pid, resident))


def read_metrics(text: str) -> dict[tuple[str, str], float]:
    """Return the server's metrics by name and by the label `bucket` or `le`."""
    found: dict[tuple[str, str], float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        named: dict[str, str] = dict(_LABEL.findall(labels or ""))
        found[name, named.get("le", named.get("bucket", ""))] = float(value)
    return found
