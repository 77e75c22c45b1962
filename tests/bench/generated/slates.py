"""Measures what a model learns from requests of 5, 40 and 200 candidates that share rows.

    python -m tests.bench.slates [--quick] [--json] [--architecture NAME]

The logs are those of `log_generator`, five of them, each with 5, 40 and 200 candidates to a request
and a click rate of at most 5 %. The candidates share half of the fields, and the bag. The specs are
suggested ones, with rates of up to four fields, at a half, once and twice the suggested `alpha`.
The first 2,000 impressions are not counted. `--quick` takes two logs, and `alpha` as suggested.

Figures, means over the logs: the normalized entropy (`generated_logs`), AUC, AUC within a request,
the mean prediction over the click rate, and the impressions learned per second.
"""

import itertools
import re
import time
from collections.abc import Sequence

import numpy as np

from headrace.learner.validation.progressive import progressive
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.generated.contenders import ARCHITECTURES, FIRST, learn_ours, spec_text
from tests.bench.generated.log_generator import GeneratedLog, generate, plans

CANDIDATES = (5, 40, 200)
_LOGS, _QUICK_LOGS = (0, 3, 6, 9, 12), (0, 3)
_TIMES = (0.5, 1.0, 2.0)
_IMPRESSIONS, _QUICK_IMPRESSIONS = 40_000, 15_000
_MOST_RATE = 0.05
_MOST_RATES = 4
_FIRST_STATISTIC = 200


def slate_text(log: GeneratedLog, name: str, policy: str, times: float) -> str:
    """Return the suggested spec with rates, for a label policy and so many times its `alpha`."""
    sizes = enumerate(log.plan.cardinalities)
    counted = [field for field, size in sizes if 10 <= size <= 5_000][-_MOST_RATES:]
    rates = "".join(
        f'f{field}_rate = {{ number = {_FIRST_STATISTIC + field}, statistic = "rate", '
        f'of = "f{field}" }}\n'
        for field in counted
    )
    text = spec_text(log, name).replace("[label]", f'[label]\npolicy = "{policy}"', 1)
    if rates:
        text = text.replace("[optimizer]", f"[statistics]\n{rates}[optimizer]", 1)
    scaled = re.sub(
        r"(\[optimizer\]\nalpha = )(\S+)",
        lambda found: f"{found[1]}{float(found[2]) * times}",
        text,
    )
    assert times == 1.0 or scaled != text
    return scaled


def measure(name: str, candidates: int, policy: str, times: float, *, quick: bool) -> list[float]:
    """Return the figures of a model on requests of so many candidates."""
    found = []
    for plan in plans():
        if plan.number not in (_QUICK_LOGS if quick else _LOGS):
            continue
        own = plan._replace(candidates=candidates, base_rate=min(plan.base_rate, _MOST_RATE))
        log = generate(own, _QUICK_IMPRESSIONS if quick else _IMPRESSIONS)
        text = slate_text(log, name, policy, times)
        began = time.perf_counter()
        scores = learn_ours(log, text).scores
        rate = len(log) / (time.perf_counter() - began)
        counted = slice(FIRST, None)
        labels = log.labels.astype(np.uint8)
        figures = progressive(labels[counted], scores[counted], log.requests[counted])
        found.append(
            (
                *(figures.normalized_entropy, figures.auc, figures.request_auc),
                *(figures.calibration, rate),
            )
        )
    return [round(float(each), 4) for each in np.mean(found, axis=0)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("slates", __doc__, quick="two short logs, within a minute")
    parser.add_argument("--architecture", choices=tuple(ARCHITECTURES), default="lr")
    chosen = parser.parse_args(arguments)
    times = (1.0,) if chosen.quick else _TIMES
    names = ("normalized_entropy", "auc", "request_auc", "calibration", "impressions_per_second")
    rows = []
    for run in itertools.product(CANDIDATES, ("immediate", "window"), times):
        figures = measure(chosen.architecture, *run, quick=chosen.quick)
        keys = ("candidates", "policy", "alpha_times", *names)
        rows.append(dict(zip(keys, (*run, *figures), strict=True)))
        if not chosen.json:
            print(*run, *figures, flush=True)
    print_figures({"architecture": chosen.architecture, "rows": rows}, as_json=chosen.json)


if __name__ == "__main__":
    main()
