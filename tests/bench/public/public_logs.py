"""Compares what `headrace suggest` writes for three public logs with rivals that were tuned.

    python -m tests.bench.public_logs --data DIR [--quick] [--json]

`log_files` names the logs and where they come from; DIR has the unpacked packages. Without them,
the benchmark measures nothing and reports that. `--quick` takes the smallest log, and rules alone.

Each impression is scored before its label is learned, and a whole request before any of it. The
figures are those of the second half of a log: log loss, AUC, and AUC within a request.

headrace has the spec of the rules, and that of a search of a minute, learned under the label policy
of the spec. The rivals get the same columns, with numbers in twenty buckets of equal size, and each
label at the time when it is known. Vowpal Wabbit runs with and without pairs of user and item,
with its default optimizer and `--coin`, and River with Adagrad and FTRL; of these settings, the one
with the least log loss on the *first* half is reported. LightGBM, if it is installed, learns the
first half offline.
"""

import heapq
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from river import linear_model, optim
from vowpalwabbit import Workspace

from headrace.ingest.logs.layout import parse_layout
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.log_sample import sample_log
from headrace.learner.suggestion.sample_stream import SampleStream
from headrace.learner.suggestion.spec_suggestion import suggest_spec
from headrace.learner.validation.progressive import log_loss, progressive
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.public.log_files import LOGS, PublicLog, travel

Floats = npt.NDArray[np.float64]

_BUCKETS = 20
_WABBIT = tuple(" ".join(each) for each in itertools.product(("", "-q ui"), ("", "--coin")))
_RIVER = {
    "Adagrad": lambda: optim.AdaGrad(0.1),
    "FTRL": lambda: optim.FTRLProximal(alpha=0.1, beta=1.0, l1=0.0, l2=1.0),
}


class Scored(NamedTuple):
    """Scores of n impressions, NaN where a contender made none."""

    contender: str
    scores: Floats
    seconds: float


def by_suggestion(log: PublicLog, seconds: float) -> Iterator[Scored]:
    """Yield the scores by the spec of the rules, and by that of a search of so many seconds."""
    layout = parse_layout(log.layout, "layout.toml")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        path = Path(folder, f"{log.name}.csv")
        log.table.to_csv(path, index=False)
        sample = sample_log(path, layout, len(log.table))
        for name, most in (("rules", 0.0), ("suggest", seconds)):
            began = time.perf_counter()
            spec = parse_spec(suggest_spec(path, layout, seconds=most).text, name)
            scores = SampleStream(sample, spec).scores(spec)
            yield Scored(name, scores, time.perf_counter() - began)
            if not seconds:
                return


def moments(log: PublicLog) -> Iterator[tuple[bool, int]]:
    """Yield each impression when it is shown (False), and again when its label is known (True)."""
    known: list[tuple[float, int]] = []
    for i, shown in enumerate(log.shown_s):
        together = i > 0 and log.requests[i] >= 0 and log.requests[i] == log.requests[i - 1]
        while known and not together and known[0][0] <= shown:
            yield True, heapq.heappop(known)[1]
        yield False, i
        heapq.heappush(known, (log.known_s[i], i))


def bucketed(log: PublicLog) -> pd.DataFrame:
    """Return the columns that rivals read, as texts."""
    columns = log.table[log.inputs].copy()
    for name in log.numbers:
        numbers = pd.to_numeric(columns[name], errors="coerce")
        if numbers.nunique() > 4 * _BUCKETS:
            columns[name] = pd.qcut(numbers, _BUCKETS, labels=False, duplicates="drop")
    return columns.map(str)


def by_wabbit(log: PublicLog, options: str) -> Scored:
    """Return the scores of Vowpal Wabbit with user and item as namespaces."""
    columns = bucketed(log).replace(r"[\s:|]", "_", regex=True)
    own = [each for each in log.inputs if each not in log.context]
    form = " ".join(f"{each}=%s" for each in log.context)
    form = f"|u {form} |i " + " ".join(f"{each}=%s" for each in own)
    lines = [form % row for row in columns[[*log.context, *own]].itertuples(index=False, name=None)]
    began, scores = time.perf_counter(), np.empty(len(lines))
    wabbit = Workspace(f"--quiet --loss_function logistic --link logistic -b 22 {options}")
    for known, i in moments(log):
        if known:
            wabbit.learn(("1 " if log.labels[i] else "-1 ") + lines[i])
        else:
            scores[i] = wabbit.predict(lines[i])
    wabbit.finish()
    return Scored(f"Vowpal Wabbit {options}".strip(), scores, time.perf_counter() - began)


def by_river(log: PublicLog, name: str) -> Scored:
    """Return the scores of River's logistic regression."""
    columns = bucketed(log)
    rows = [
        {f"{column}={value}": 1.0 for column, value in zip(columns, row, strict=True)}
        for row in columns.itertuples(index=False)
    ]
    model: Any = linear_model.LogisticRegression(optimizer=_RIVER[name]())
    began, scores = time.perf_counter(), np.empty(len(rows))
    for known, i in moments(log):
        if known:
            model.learn_one(rows[i], bool(log.labels[i]))
        else:
            scores[i] = model.predict_proba_one(rows[i]).get(True, 0.5)
    return Scored(f"River {name}", scores, time.perf_counter() - began)


def by_trees(log: PublicLog) -> Scored | None:
    """Return the scores of the second half by LightGBM on the first; None if not installed."""
    try:
        import lightgbm  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    began = time.perf_counter()
    columns = log.table[log.inputs].copy()
    for name in log.inputs:
        numbers = name in log.numbers
        columns[name] = (
            pd.to_numeric(columns[name], errors="coerce")
            if numbers
            else columns[name].astype("category")
        )
    half = len(columns) // 2
    cut = int(0.9 * half)
    first = lightgbm.Dataset(columns[:cut], log.labels[:cut])
    last = lightgbm.Dataset(columns[cut:half], log.labels[cut:half], reference=first)
    options = {"objective": "binary", "cat_smooth": 100, "cat_l2": 50, "verbose": -1}
    stop = lightgbm.early_stopping(50, verbose=False)
    model = lightgbm.train(options, first, 2000, valid_sets=[last], callbacks=[stop])
    scores = np.full(len(columns), np.nan)
    scores[half:] = model.predict(columns[half:])
    return Scored("LightGBM offline", scores, time.perf_counter() - began)


def best(log: PublicLog, some: Sequence[Scored]) -> Scored:
    """Return the contender with the least log loss on the first half."""
    half = len(log.labels) // 2
    labels = log.labels[:half].astype(np.uint8)
    return min(some, key=lambda each: log_loss(labels, each.scores[:half]))


def measure(log: PublicLog, *, quick: bool) -> list[dict[str, object]]:
    """Return the figures of each contender."""
    found = [*by_suggestion(log, 0.0 if quick else 60.0)]
    found.append(best(log, [by_wabbit(log, each) for each in _WABBIT[: 1 if quick else None]]))
    if not quick:
        found.append(best(log, [by_river(log, name) for name in _RIVER]))
        trees = by_trees(log)
        found += [trees] if trees is not None else []
    half = slice(len(log.labels) // 2, None)
    rows = []
    for each in found:
        requests = log.requests[half]
        figures = progressive(log.labels[half].astype(np.uint8), each.scores[half], requests)
        within = figures.request_auc if log.requests[0] >= 0 else None
        rows.append(
            {
                "log": log.name,
                "contender": each.contender,
                "log_loss": round(figures.log_loss, 4),
                "auc": round(figures.auc, 4),
                "request_auc": None if within is None else round(within, 4),
                "seconds": round(each.seconds, 1),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("public_logs", __doc__, quick="the smallest log, by rules alone")
    parser.add_argument("--data", type=Path, default=Path("public_logs"), help="unpacked packages")
    chosen = parser.parse_args(arguments)
    rows: list[dict[str, object]] = []
    for read in (travel,) if chosen.quick else LOGS:
        try:
            log = read(chosen.data)
        except FileNotFoundError as error:
            print(
                f"not measured: no {error} (see tests/bench/public/log_files.py)", file=sys.stderr
            )
            continue
        for row in measure(log, quick=chosen.quick):
            rows.append(row)
            if not chosen.json:
                print(*row.values(), flush=True)
    print_figures({"rows": rows}, as_json=chosen.json)


if __name__ == "__main__":
    main()
