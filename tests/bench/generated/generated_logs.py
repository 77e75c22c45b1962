"""Compares the defaults on twenty generated logs with the best of thirty settings and other tools.

    python -m tests.bench.generated_logs [--quick] [--json] [--log NUMBER ...] [--only NAME ...]

The logs differ in base rate, fields, cardinalities, bags, drift and delays (`log_generator.py`).
Each contender scores an impression before it learns it; the first 2,000 are not counted. Figures:

    ne          normalized entropy (He et al., ADKDD 2014): the log loss over that of a constant
                that knows the click rate of what is counted
    worst_ne    the same in the worst window, over a constant that knows the rate of that window
    to_rate_so_far  for each window, by how many standard errors its log loss is above that of the
                    click rate before each impression (`constant`), paired by impression
    held_back   batches that the guard would have quarantined

`lr`, `fm`, `deepfm`, `dcn_v2` are headrace with the constants that `headrace suggest` takes from
the first 2,000 impressions. `best_lr` is the best of thirty settings of [optimizer] for logistic
regression, chosen per log in hindsight, from the same base rate; `vw` the best of six of Vowpal
Wabbit, likewise; `river` River's logistic regression by default; `constant` the click rate so far.
`to_best` is the log loss of `lr` over that of `best_lr`. A quick run makes short logs, and asks the
others only on every fourth of them.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.generated.contenders import (
    ARCHITECTURES,
    FIRST,
    VOWPAL_WABBIT,
    constant_of,
    learn_ours,
    learn_river,
    learn_vowpal_wabbit,
    spec_text,
)
from tests.bench.generated.log_generator import GeneratedLog, generate, plans

Floats = npt.NDArray[np.float64]

EXPENSIVE = ("best_lr", "vw", "river")
OTHERS = (*EXPENSIVE, "constant")
SETTINGS = tuple(
    f'[optimizer]\nname = "{name}"\nalpha = {alpha}\n{more}'
    for name, alphas, mores in (
        ("ftrl", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0), ("l2 = 0.0", "l2 = 1.0", "l2 = 10.0")),
        ("coin", (0.03, 0.1, 0.35, 1.0), ("beta = 1.0", "beta = 1.5")),
        ("adagrad", (0.02, 0.05, 0.1, 0.2), ("",)),
    )
    for alpha in alphas
    for more in mores
)
"""The thirty settings of logistic regression."""
_ERRORS = 2.0
"""Standard errors beyond which a window is worse or better than the click rate so far."""


class Size(NamedTuple):
    """The size of a run."""

    least: int
    """Impressions of a log."""
    most: int
    clicks: int
    """Of a log; its impressions follow from its base rate, between `least` and `most`."""
    window: int
    """Least impressions of a window."""
    window_clicks: int
    """Least clicks of a window: the entropy of fewer is noise."""
    river: int
    """Impressions that River learns: it takes the longest."""
    every: int
    """Others than headrace learn every so many logs."""


QUICK = Size(4_000, 6_000, 100, 1_000, 10, 4_000, 4)
FULL = Size(20_000, 100_000, 1_000, 2_000, 50, 20_000, 1)


def log_loss(scores: Floats, labels: npt.NDArray[np.int8]) -> Floats:
    """Return the loss of each impression, shape (n,)."""
    kept = np.clip(scores, 1e-7, 1.0 - 1e-7)
    found: Floats = -np.where(labels == 1, np.log(kept), np.log1p(-kept))
    return found


def entropy(labels: npt.NDArray[np.int8]) -> float:
    """Return the log loss of a constant that knows the click rate; NaN without both labels."""
    rate = float(labels.mean()) if labels.size else 0.0
    if not 0.0 < rate < 1.0:
        return float("nan")
    return float(-(rate * np.log(rate) + (1.0 - rate) * np.log1p(-rate)))


def windows(labels: npt.NDArray[np.int8], size: Size) -> list[tuple[int, int]]:
    """Return windows after the first impressions; the last one takes the rest."""
    found, begin, clicks = [], FIRST, np.cumsum(labels)
    before = int(clicks[FIRST - 1])
    for end in range(FIRST + size.window, len(labels) + 1):
        if end - begin >= size.window and clicks[end - 1] - before >= size.window_clicks:
            found.append((begin, end))
            begin, before = end, int(clicks[end - 1])
    if not found:
        return [(FIRST, len(labels))]
    return [*found[:-1], (found[-1][0], len(labels))]


def excess_in_errors(losses: Floats, others: Floats) -> float:
    """Return by how many standard errors the mean loss is above that of another prediction.

    The losses are paired by impression. Equal losses have 0.
    """
    gaps = losses - others
    spread = float(gaps.std(ddof=1)) if gaps.shape[0] > 1 else 0.0
    return float(gaps.mean()) / spread * gaps.shape[0] ** 0.5 if spread else 0.0


def figures(log: GeneratedLog, scores: Floats, size: Size) -> dict[str, Any]:
    """Return the figures of scores of the first impressions of a log."""
    labels = log.labels[: scores.shape[0]]
    losses = log_loss(scores, labels)
    so_far = log_loss(constant_of(log)[: scores.shape[0]], labels)
    each, errors = [], []
    for begin, end in windows(labels, size):
        own = losses[begin:end]
        each.append(round(float(own.mean()) / entropy(labels[begin:end]), 4))
        errors.append(round(excess_in_errors(own, so_far[begin:end]), 2))
    return {
        "ne": round(float(losses[FIRST:].mean()) / entropy(labels[FIRST:]), 4),
        "worst_ne": max(each),
        "windows": each,
        "to_rate_so_far": errors,
    }


def trials_of(log: GeneratedLog, name: str, size: Size) -> tuple[str, ...]:
    """Return what a contender is tried with on a log: texts of specs, options or a limit."""
    if name in ARCHITECTURES:
        return (spec_text(log, name),)
    if name == "best_lr":
        return tuple(spec_text(log, "lr", setting) for setting in SETTINGS)
    if name == "vw":
        return VOWPAL_WABBIT
    return (f"the first {size.river}",) if name == "river" else ("",)


def measure_trial(log: GeneratedLog, name: str, trial: str, size: Size) -> dict[str, Any]:
    """Return the figures of one trial of a contender."""
    if name in ARCHITECTURES or name == "best_lr":
        learned = learn_ours(log, trial)
        return figures(log, learned.scores, size) | {"held_back": learned.held_back}
    if name == "vw":
        return figures(log, learn_vowpal_wabbit(log, trial), size)
    if name == "river":
        return figures(log, learn_river(log, size.river), size)
    return figures(log, constant_of(log), size)


def measure(
    numbers: Sequence[int], names: Sequence[str], size: Size, tell: Console
) -> list[dict[str, Any]]:
    """Return the figures of each log."""
    found = []
    for plan in plans():
        if numbers and plan.number not in numbers:
            continue
        began = time.perf_counter()
        log = generate(plan, plan.examples(size.least, size.most, size.clicks))
        contenders: dict[str, dict[str, Any]] = {}
        for name in names:
            if name in EXPENSIVE and plan.number % size.every:
                continue
            trials = trials_of(log, name, size)
            tried = [measure_trial(log, name, trial, size) for trial in trials]
            contenders[name] = min(tried, key=lambda found: found["ne"])
        properties = {
            "log": plan.number,
            "base_rate": round(plan.base_rate, 4),
            "fields": len(plan.cardinalities),
            "bag_items": plan.bag_items,
            "drift": plan.drift,
            "delay_s": plan.delay_s,
            "impressions": len(log),
            "truth": figures(log, log.truth, size),
        }
        found.append(properties | {"contenders": contenders})
        shown = ", ".join(f"{name} {each['ne']:.3f}" for name, each in contenders.items())
        tell.print(f"log {plan.number}: {shown} ({time.perf_counter() - began:.0f} s)")
    return found


def summary(logs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all logs have together, per contender."""
    found: dict[str, Any] = {}
    for name in (*ARCHITECTURES, *OTHERS):
        each = [log["contenders"][name] for log in logs if name in log["contenders"]]
        if each:
            entropies = [ne for one in each for ne in one["windows"]]
            errors = [error for one in each for error in one["to_rate_so_far"]]
            found[name] = {
                "mean_ne": round(float(np.mean([one["ne"] for one in each])), 4),
                "worst_ne": max(one["worst_ne"] for one in each),
                "logs_above_1": sum(one["worst_ne"] > 1.0 for one in each),
                "windows": len(entropies),
                "windows_above_1": sum(ne > 1.0 for ne in entropies),
                "windows_above_rate_so_far": sum(error > _ERRORS for error in errors),
                "windows_below_rate_so_far": sum(error < -_ERRORS for error in errors),
                "held_back": int(sum(one.get("held_back", 0) for one in each)),
                "logs": len(each),
            }
    pairs = [log["contenders"] for log in logs if {"lr", "best_lr"} <= log["contenders"].keys()]
    if pairs:
        ratios = [pair["lr"]["ne"] / pair["best_lr"]["ne"] for pair in pairs]
        found["to_best"] = {
            "mean": round(float(np.mean(ratios)), 4),
            "worst": round(float(np.max(ratios)), 4),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("generated_logs", __doc__, quick="short logs, within a minute")
    everyone = (*ARCHITECTURES, *OTHERS)
    parser.add_argument("--log", type=int, action="append", help="may be repeated")
    parser.add_argument("--only", choices=everyone, action="append", help="may be repeated")
    chosen = parser.parse_args(arguments)
    tell, size = Console(stderr=True, width=160), QUICK if chosen.quick else FULL
    names = chosen.only or everyone
    logs = measure(chosen.log or (), names, size, tell)
    found: dict[str, Any] = {"logs": logs, "summary": summary(logs)}
    print_figures(found, as_json=chosen.json)


if __name__ == "__main__":
    main()
