"""Compares the poolings of bags, with and without learned weights of items.

    python -m tests.bench.bag_pooling [--quick] [--json] [--model NAME ...] [--pooling NAME ...]
        [--log NAME ...] [--data DIR]

Two logs are generated. In `equal`, the log-odds are a mean of the effects of a bag's items. In
`unequal`, an item counts in this mean by an importance of its own, whose logarithm is normal with a
standard deviation of 2. `week` is the sample week with a bag of the articles that the user clicked
before, statistics and the immediate policy; its second half is reported (`tests.bench.week`). The
constants of the generated logs are those of `headrace suggest`, those of the week are those of
`tests.bench.week_table`. A lower log loss is better. `ne` is the normalized entropy.

`--quick` learns short generated logs with the models that need no torch.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.learner.spec.model_spec import parse_spec
from tests.bench.bench_options import bench_parser
from tests.bench.ebnerd.week import WEEK, Events, encode, learn, read_events
from tests.bench.ebnerd.week_table import spec_of
from tests.bench.generated.contenders import FIRST, learn_ours, spec_text
from tests.bench.generated.generated_logs import entropy, log_loss
from tests.bench.generated.log_generator import GeneratedLog, LogPlan, generate

POOLINGS = {
    "sum": "",
    "mean": 'pooling = "mean"',
    "sqrt": 'pooling = "sqrt"',
    "mean, learned": 'pooling = "mean", learned_weights = true',
    "sqrt, learned": 'pooling = "sqrt", learned_weights = true',
}
MODELS = {
    "lr": "logistic regression",
    "fm": "factorization machine",
    "deepfm": "DeepFM",
    "dcn_v2": "DCN-V2",
}
_WITHOUT_TORCH = 2
_ITEMS = 300
_SPREADS = {"equal": 0.0, "unequal": 2.0}
"""Standard deviation of the logarithm of an item's importance."""


def make_log(spread: float, impressions: int) -> GeneratedLog:
    """Return a log whose clicks depend on two fields and on a bag of up to ten of 300 items."""
    plan = LogPlan(50, 0.1, (20, 500), 10, "none", 5.0, 5)
    log, rng = generate(plan, impressions), np.random.default_rng(50)
    items, count = log.bag_ids % _ITEMS, len(log)
    owner = np.repeat(np.arange(count), np.diff(log.bag_offsets))
    effects = rng.normal(0.0, 1.5, _ITEMS)
    importances = np.exp(spread * rng.normal(0.0, 1.0, _ITEMS))
    total = np.bincount(owner, (importances * effects)[items], count)
    norm = np.bincount(owner, importances[items], count)
    log_odds = total / np.maximum(norm, 1e-9)
    for field in range(2):
        log_odds += rng.normal(0.0, 0.5, 501)[log.ids[:, field]]
    truth = 1.0 / (1.0 + np.exp(-(log_odds - 2.8)))
    clicked = rng.random(count) < truth
    click_ms = np.where(clicked, log.shown_ms + 1000, -1)
    bags = log.bag_offsets, items
    return GeneratedLog(plan, log.ids, *bags, log.requests, log.shown_ms, click_ms, truth)


def measure_generated(log: GeneratedLog, model: str, pooling: str) -> dict[str, float]:
    """Return the figures of the impressions after the first ones."""
    keys = ", ".join(each for each in ('transform = "bag"', POOLINGS[pooling]) if each)
    text = spec_text(log, model).replace('transform = "bag", pooling = "sqrt"', keys)
    losses = log_loss(learn_ours(log, text).scores, log.labels)[FIRST:]
    best = log_loss(log.truth, log.labels)[FIRST:]
    norm = entropy(log.labels[FIRST:])
    mean, least = float(losses.mean()), float(best.mean())
    return {"log_loss": mean, "ne": mean / norm, "ne_of_truth": least / norm}


def measure_week(events: Events, model: str, pooling: str) -> dict[str, float]:
    """Return the figures of the second half of the sample week."""
    text = spec_of(MODELS[model], "statistics", "immediate").text
    bag = f'[fields]\nrecent = {{ number = 60, transform = "bag", {POOLINGS[pooling]} }}\n'
    bag = bag.replace(",  }", " }")
    begin = text.index("[fields.")
    spec = parse_spec(text[:begin] + bag + text[begin:], f"{model}, {pooling}")
    half = learn(spec, events, encode(spec, events)).halves[1]
    return {"log_loss": half.log_loss, "auc": half.auc, "within": half.request_auc}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("bag_pooling", __doc__, quick="short logs, models without torch")
    parser.add_argument("--model", choices=MODELS, action="append", help="may be repeated")
    parser.add_argument("--pooling", choices=POOLINGS, action="append", help="may be repeated")
    logs = (*_SPREADS, "week")
    parser.add_argument("--log", choices=logs, action="append", help="may be repeated")
    parser.add_argument("--data", type=Path, default=WEEK)
    chosen = parser.parse_args(arguments)
    models = chosen.model or list(MODELS)[: _WITHOUT_TORCH if chosen.quick else None]
    rows: list[dict[str, Any]] = []
    for name in chosen.log or (tuple(_SPREADS) if chosen.quick else logs):
        if name == "week" and not (chosen.data / "impressions.ndjson.zst").is_file():
            print(f"week: not measured, because it is not in {chosen.data}", file=sys.stderr)
            continue
        data = (
            read_events(chosen.data)
            if name == "week"
            else make_log(_SPREADS[name], 6_000 if chosen.quick else 40_000)
        )
        for model in models:
            for pooling in chosen.pooling or POOLINGS:
                found = (
                    measure_generated(data, model, pooling)
                    if isinstance(data, GeneratedLog)
                    else measure_week(data, model, pooling)
                )
                shown = " ".join(f"{key} {value:.4f}" for key, value in found.items())
                print(f"{name} {model} {pooling}: {shown}", file=sys.stderr)
                rows.append({"log": name, "model": model, "pooling": pooling} | found)
    if chosen.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
