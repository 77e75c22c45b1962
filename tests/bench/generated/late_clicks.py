"""Measures what a new model predicts while clicks take hours, for several forms of their delays.

    python -m tests.bench.late_clicks [--quick] [--json]

Three logs of `log_generator` last a day each, with a click rate of at most 5 % and other delays:
exponential, lognormal, Weibull with a long tail, and a mixture of 30 seconds and 4 hours. The specs
are suggested ones under `immediate`. `click_delay_s` is left out, the mean, or the list that
`headrace suggest` fits, here to 300 delays. `--quick` takes one log.

Figures, means over the logs: predictions over clicks in each fifth of the day (the first is that of
the young model), and the log loss of the first fifth.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.learner.suggestion.delay_mixture import delay_mixture
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.generated.contenders import FIRST, learn_ours, spec_text
from tests.bench.generated.log_generator import GeneratedLog, generate, plans

Delays = npt.NDArray[np.float64]

_LOGS, _QUICK_LOGS = (3, 6, 9), (3,)
_IMPRESSIONS = 40_000
_MOST_RATE = 0.05
_WINDOW_DELAY_S = 14_400.0
"""The mean delay whose label window also keeps the clicks of a longer tail."""
_SAMPLE = 300
_PARTS = 5


def _mixed(rng: np.random.Generator, count: int) -> Delays:
    short, long = rng.exponential(30.0, count), rng.exponential(14_400.0, count)
    return np.where(rng.random(count) < 0.5, short, long)


FORMS: dict[str, Callable[[np.random.Generator, int], Delays]] = {
    "exponential, 1 h": lambda rng, count: rng.exponential(3_600.0, count),
    "exponential, 3 h": lambda rng, count: rng.exponential(10_800.0, count),
    "lognormal, 1 h": lambda rng, count: rng.lognormal(np.log(1_200.0), 1.5, count),
    "Weibull, 3 h": lambda rng, count: 5_400.0 * rng.weibull(0.5, count),
    "30 s and 4 h": _mixed,
}
"""Name with the mean -> draws delays in seconds."""


def _log(number: int, delays_s: Callable[[np.random.Generator, int], Delays]) -> GeneratedLog:
    [plan] = [each for each in plans() if each.number == number]
    plan = plan._replace(
        base_rate=min(plan.base_rate, _MOST_RATE), drift="slow", delay_s=_WINDOW_DELAY_S
    )
    log = generate(plan, _IMPRESSIONS)
    late_ms = (1000.0 * delays_s(np.random.default_rng(number), len(log))).astype(np.int64) + 1
    click_ms = np.where(log.click_ms >= 0, log.shown_ms + late_ms, -1)
    return GeneratedLog(
        *(log.plan, log.ids, log.bag_offsets, log.bag_ids),
        *(log.requests, log.shown_ms, click_ms, log.truth),
    )


def _figures(log: GeneratedLog, key: str) -> list[float]:
    """Return the calibration of each part, and the log loss of the first."""
    text = re.sub(r"click_delay_s = .*\n", "", spec_text(log, "lr"))
    scores = learn_ours(log, text.replace("[label]", f"{key}\n[label]", 1)).scores
    labels, span_ms = log.labels, log.shown_ms[-1] - log.shown_ms[0] + 1
    part = (log.shown_ms - log.shown_ms[0]) * _PARTS // span_ms
    found = [float(scores[part == k].mean() / labels[part == k].mean()) for k in range(_PARTS)]
    young = (part == 0) & (np.arange(len(log)) >= FIRST)
    said = np.where(labels == 1, scores, 1.0 - scores)[young]
    return [*found, float(-np.log(np.maximum(said, 1e-12)).mean())]


def measure(form: str, *, quick: bool) -> list[dict[str, object]]:
    """Return the figures of a form of delays, for each kind of `click_delay_s`."""
    draw = FORMS[form]
    sample = draw(np.random.default_rng(0), 100_000)
    listed = ", ".join(f"{each:.4g}" for each in delay_mixture(sample[:_SAMPLE]))
    keys = {
        "left out": "",
        "mean": f"click_delay_s = {sample.mean():.4g}",
        "list": f"click_delay_s = [{listed}]",
    }
    rows = []
    for kind, key in keys.items():
        logs = [_log(number, draw) for number in (_QUICK_LOGS if quick else _LOGS)]
        means = np.mean([_figures(log, key) for log in logs], axis=0)
        parts = [round(float(each), 3) for each in means[:-1]]
        rows.append(
            {
                "delays": form,
                "click_delay_s": kind,
                "calibration": parts,
                "log_loss": round(float(means[-1]), 5),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = bench_parser("late_clicks", __doc__, quick="one log").parse_args(arguments)
    rows: list[dict[str, object]] = []
    for form in FORMS:
        rows += measure(form, quick=chosen.quick)
    print_figures({"rows": rows}, as_json=chosen.json)


if __name__ == "__main__":
    main()
