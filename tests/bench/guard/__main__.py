"""Measures the batch guard: good examples that it parks, harm that it lets through, and its cost.

    python -m tests.bench.guard [--quick] [--json]

Good streams (`good`): twenty generated logs, the synthetic site of the demo and the sample week, by
three models and both label policies, each cut into the messages of many arrivals. `parked` counts
examples of them that a statistic found suspect, `still_parked` those that the model at the end of
the stream still finds suspect, `given_up` those that were quarantined.

Faults (`faults`): after 20,000 examples of a generated log a fault lasts for some hundred
milliseconds to ten seconds. `harm` is the log loss of the next 10,000 impressions over that of a
learner without the fault, in percent: without a guard, and with the guard. `noticed` is the number
of messages until the guard refused one, -1 if it did not; `undone` how often it undid what was
learned.

`cost_us` is the processor time of the guard for a message, and `cost_percent` its share of the
time to learn the message.

The sample week is left out where it is missing. A quick run takes every seventh log, logistic
regression, and one log with faults.
"""

import copy
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from headrace.ingest.examples.splitting import part_of
from headrace.learner.loop.guard.batch_guard import BatchGuard
from tests.bench.bench_options import bench_parser
from tests.bench.ebnerd import week
from tests.bench.generated.log_generator import plans
from tests.bench.guard.arrivals import ARRIVALS, Arrival
from tests.bench.guard.faults import FAULTS
from tests.bench.guard.good_streams import Good, judged
from tests.bench.guard.guard_streams import (
    MODELS,
    POLICIES,
    BenchLearner,
    GuardStream,
    demo,
    generated,
    sample_week,
)
from tests.bench.guard.harm import GUARD, NONE, run

_WARM, _AFTER = 20_000, 10_000
_COUNT = 20_000
_SOURCE = "examples.guard"
_FAULTY = ((2, 1_000, 2_000), (5, 100, 1_000), (16, 10_000, 10_000), (14, 1_000, 2_000))
"""Logs with a fault: number, impressions a second, faulty impressions."""


def _streams(*, quick: bool) -> Iterator[GuardStream]:
    models, rate = MODELS[:1] if quick else MODELS, 1_000.0
    count = 12_000 if quick else _COUNT
    for policy in POLICIES:
        for model in models:
            for plan in plans()[:: 7 if quick else 1]:
                yield generated(plan, count, model, policy, rate)
            yield demo(count, model, policy, rate)
    if (week.WEEK / "impressions.ndjson.zst").is_file() and not quick:
        events = week.read_events(week.WEEK)
        for policy in POLICIES:
            for model in models:
                yield sample_week(events, 100_000, model, policy)


def good_figures(*, quick: bool) -> dict[str, Any]:
    """Return what the guard makes of good streams."""
    found, parking = Good(), {}
    for stream in track(_streams(quick=quick), "good streams", console=Console(stderr=True)):
        for arrival, verdicts in judged(stream, ARRIVALS):
            found = found.plus(verdicts)
            if verdicts.parked:
                policy = stream.spec.fields.label.policy
                parking[f"{stream.name}, {policy}, {arrival.name}"] = verdicts.parked
    return {**found._asdict(), "parking": parking}


def fault_figures(number: int, rate: int, faulty: int, policy: str) -> dict[str, Any]:
    """Return the harm of each fault in one log learned by logistic regression."""
    stream = generated(plans()[number], _WARM + faulty + _AFTER, "lr", policy, float(rate))
    part, arrival = slice(_WARM, _WARM + faulty), Arrival(rate)
    learner, guard = _warm(stream, arrival)
    clicked = stream.clicks.click_ms[part.stop :] >= 0

    def loss(bad: GuardStream, guard: BatchGuard | None) -> tuple[float, Any]:
        outcome = run(bad, learner, guard, part, arrival)
        scores = np.clip(outcome.scores[part.stop :], 1e-12, 1.0 - 1e-12)
        return float(-np.log(np.where(clicked, scores, 1.0 - scores)).mean()), outcome

    healthy, _ = loss(stream, None)
    found: dict[str, Any] = {}
    for name, spoil in FAULTS.items():
        bad, figures = spoil(stream, part), {}
        for kind, own in ((NONE, None), (GUARD, copy.deepcopy(guard))):
            made, outcome = loss(bad, own)
            figures[kind] = {
                "harm": round(100.0 * (made / healthy - 1.0), 2),
                "noticed": outcome.first_refused,
                "undone": outcome.undone,
                "parked": outcome.kept,
            }
        found[name] = figures
    return found


def _warm(stream: GuardStream, arrival: Arrival) -> tuple[BenchLearner, BatchGuard]:
    examples, which = stream.examples()
    end = int(np.flatnonzero(which >= _WARM)[0])
    learner = BenchLearner(stream.spec)
    guard = BatchGuard(stream.spec.fields.label.window_ms)
    for offset, (begin, until) in enumerate(arrival.messages(end)):
        batch = part_of(examples, begin, until)
        guard.before(_SOURCE, offset, batch)
        scores = learner.learn_batch(batch)
        guard.judge(_SOURCE, offset, batch, scores, 0.0)
        learner.push()
    return learner, guard


def cost_figures() -> dict[str, Any]:
    """Return the processor time of the guard and of the model, by examples of a message."""
    stream = generated(plans()[2], _COUNT, "lr", "window", 1_000.0)
    examples, _ = stream.examples()
    found = {}
    for size in (50, 500, 4096):
        learner, guard = BenchLearner(stream.spec), BatchGuard(1000)
        spent = [0.0, 0.0]
        messages = range(0, len(examples) - size, size)
        for offset, begin in enumerate(messages):
            batch = part_of(examples, begin, begin + size)
            began = time.thread_time()
            scores = learner.learn_batch(batch)
            learned = time.thread_time()
            guard.before(_SOURCE, offset, batch)
            guard.judge(_SOURCE, offset, batch, scores, 0.0)
            spent[0] += learned - began
            spent[1] += time.thread_time() - learned
            learner.push()
        found[str(size)] = {
            "cost_us": round(1e6 * spent[1] / len(messages), 1),
            "cost_percent": round(100.0 * spent[1] / spent[0], 1),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the figures."""
    given = bench_parser("guard", __doc__).parse_args(arguments)
    faulty = _FAULTY[:1] if given.quick else _FAULTY
    figures: dict[str, Any] = {
        "good": good_figures(quick=given.quick),
        "faults": {
            f"log {number}, {policy}, {rate}/s": fault_figures(number, rate, count, policy)
            for number, rate, count in faulty
            for policy in POLICIES[: 1 if given.quick else 2]
        },
        "cost": cost_figures(),
    }
    if given.json:
        print(json.dumps(figures))
    else:
        Console(soft_wrap=True).print_json(json.dumps(figures))


if __name__ == "__main__":
    main()
