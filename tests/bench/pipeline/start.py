"""Measures the freshness of a pipeline that has just started, beside its freshness later.

    python -m tests.bench.start [--quick] [--json] [--unrehearsed]

Every part of the pipeline starts as in `headrace demo`, live evaluation included, on a Kafka and a
Valkey that start with it. Once every part is ready, 2,000 events a second begin at once.
Clicks are then counted by the time since the pipeline was ready.

`server`: all clicks, by the server's histogram of the time from a click's append to its replica:
how many arrived, and the share within 500 ms. `joined`: all events, from their append to the append
of their example. `answers`: the probes of `tests.bench.freshness`,
from the click's append to the first answer that learned from it, with the part until the example
was in Kafka (`joined`) and the rest (`answered`).

`processor`: the processor time of each process, as a share of one core. A process that loads or
compiles after a start shows here, on a busy machine as well.

`--unrehearsed` starts Kafka without the rehearsal of its transactions (`BrokerRehearsal`).

The last period is long after the start. A busy machine is slow in every period, so compare with it.
"""

import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import psutil
from prometheus_client.parser import text_string_to_metric_families

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SilentSetupProgress
from headrace.ingest.examples.batch import unpack
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.topics import examples_topic
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.pipeline.freshness import SPEC, Asking, Probes, Traffic, figures, probe, times

PERIODS_S = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
QUICK_PERIODS_S = (0.0, 2.0, 5.0, 10.0)
LIMIT_S = "0.5"
"""A bound of the server's histogram."""
_METRIC = "headrace_server_freshness_seconds"


class PeriodReader(threading.Thread):
    """Reads the server's histogram and processor times at the end of each period, in a thread."""

    def __init__(self, address: str, began_s: float, ends_s: Sequence[float]) -> None:
        super().__init__(name="period reader", daemon=True)
        self._address, self._began_s, self._ends_s = address, began_s, ends_s
        self.counts = [(0.0, 0.0)]
        """Clicks that arrived, and those within the limit: at the start, and after each period."""
        self.processor_s = [processor_s()]
        """The same for the processor time of each process."""

    def run(self) -> None:
        """Read until the last period has ended."""
        with httpx.Client(base_url=self._address, timeout=60.0) as client:
            for end_s in self._ends_s:
                time.sleep(max(0.0, self._began_s + end_s - time.monotonic()))
                self.counts.append(counts_of(client.get("/metrics").text))
                self.processor_s.append(processor_s())

    def shares(self) -> list[dict[str, float]]:
        """Return the share of a core that each process took in each period."""
        bounds_s = (0.0, *self._ends_s)
        return [
            {
                name: round((seconds - before.get(name, 0.0)) / (end_s - begin_s), 2)
                for name, seconds in sorted(after.items())
            }
            for before, after, begin_s, end_s in zip(
                self.processor_s, self.processor_s[1:], bounds_s, bounds_s[1:], strict=False
            )
        ]

    def periods(self) -> list[dict[str, float | None]]:
        """Return the clicks of each period, and the share of them within the limit."""
        found: list[dict[str, float | None]] = []
        for (before, soon_before), (after, soon) in zip(self.counts, self.counts[1:], strict=False):
            clicks = after - before
            share = round((soon - soon_before) / clicks, 4) if clicks else None
            found.append({"clicks": clicks, "within_500_ms": share})
        return found


def processor_s() -> dict[str, float]:
    """Return the processor time so far of each process of the pipeline, in seconds, by its name."""
    found = dict[str, float]()
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            name = name_of(each.cmdline())
            used = each.cpu_times()
            found[name] = found.get(name, 0.0) + used.user + used.system
    return found


def name_of(command: Sequence[str]) -> str:
    """Return a part's command, such as `learner run`, or the program of another process."""
    if "headrace" in command:
        at = command.index("headrace")
        return " ".join(command[at + 1 : at + 3])
    return Path(command[0]).name if command else "ended"


def counts_of(metrics: str) -> tuple[float, float]:
    """Return how many clicks a server's metrics count, and how many within the limit."""
    count = within = 0.0
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples if family.name == _METRIC else ():
            if sample.name.endswith("_count"):
                count += sample.value
            elif sample.labels.get("le") == LIMIT_S:
                within += sample.value
    return count, within


def answers_of(
    answered: Mapping[str, float], found: Probes, ready_ms: float, bounds_s: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the percentiles of the probes that were clicked in each period."""
    periods = []
    for begin_s, end_s in itertools.pairwise(bounds_s):
        names = [
            name
            for name in found.clicked.keys() & found.joined.keys()
            if begin_s <= (found.clicked[name] - ready_ms) / 1000 < end_s
        ]
        clicked, joined = found.clicked, found.joined
        periods.append(
            {
                "clicks": len(names),
                **_figures([answered[name] - clicked[name] for name in names]),
                "joined": _figures([joined[name] - clicked[name] for name in names]),
                "answered": _figures([answered[name] - joined[name] for name in names]),
            }
        )
    return periods


def _figures(samples: Sequence[float] | npt.NDArray[np.int64]) -> dict[str, float]:
    return figures(samples) | {"most_ms": round(float(np.max(samples)), 1)} if len(samples) else {}


def joined_of(
    pipeline: LocalPipeline, ready_ms: float, bounds_s: Sequence[float]
) -> list[dict[str, float]]:
    """Return the percentiles of the times to join of the events appended in each period."""
    appended, took = [], []
    for record in read_all(pipeline.kafka, examples_topic(pipeline.spec.name)):
        append_ms = unpack(record.value, pipeline.spec.fields).append_ms
        appended.append(append_ms - ready_ms)
        took.append(record.append_ms - append_ms)
    after_s, took_ms = np.concatenate(appended) / 1000, np.concatenate(took)
    return [
        _figures(took_ms[(after_s >= begin_s) & (after_s < end_s)])
        for begin_s, end_s in itertools.pairwise(bounds_s)
    ]


def measure(bounds_s: Sequence[float], *, rehearsed: bool) -> dict[str, Any]:
    """Start a pipeline, and return its freshness in each period."""
    settings = PipelineSettings(model=SPEC, rehearsed=rehearsed)
    with LocalPipeline(settings, SilentSetupProgress()) as pipeline:
        pipeline.start(threading.Event())
        ready_ms, began_s = time.time() * 1000, time.monotonic()
        counts = PeriodReader(pipeline.address, began_s, bounds_s[1:])
        counts.start()
        with (
            Traffic(pipeline.kafka),
            httpx.Client(base_url=pipeline.address, timeout=60.0) as client,
        ):
            asking = Asking(client, pipeline.spec.name)
            answered = probe(pipeline.kafka, asking, bounds_s[-1])
            counts.join()
        found = times(pipeline, answered)
        answers = answers_of(answered, found, ready_ms, bounds_s)
        joined = joined_of(pipeline, ready_ms, bounds_s)
    return {
        f"{begin_s:g} to {end_s:g} s": dict(
            zip(("server", "joined", "answers", "processor"), each, strict=True)
        )
        for begin_s, end_s, *each in zip(
            *(bounds_s, bounds_s[1:]),
            *(counts.periods(), joined, answers, counts.shares()),
            strict=False,
        )
    }


def main() -> None:
    """Measure and print."""
    parser = bench_parser("start", __doc__, quick="the first 10 seconds only")
    parser.add_argument("--unrehearsed", action="store_true", help="without BrokerRehearsal")
    options = parser.parse_args()
    bounds_s = QUICK_PERIODS_S if options.quick else PERIODS_S
    found = measure(bounds_s, rehearsed=not options.unrehearsed)
    found["load"] = round(os.getloadavg()[0], 1)
    print_figures(found, as_json=options.json)


if __name__ == "__main__":
    main()
