"""Compares the defaults on twenty generated logs with the best of thirty settings and other tools.

    python -m tests.bench.generated_logs [--quick] [--json] [--log NUMBER ...] [--only NAME ...]
        [--progress FOLDER]

The logs differ in base rate, fields, cardinalities, bags, drift and delays (`log_generator.py`).
Each contender scores an impression before it learns it; the first 2,000 are not counted. Figures:

    ne          normalized entropy (He et al., ADKDD 2014): the log loss over that of a constant
                that knows the click rate of what is counted
    worst_ne    the same in the worst window, over a constant that knows the rate of that window
    above       the windows above 1, each with its parts (`loss_split.py`): what a shift of its
                log-odds would gain, what a factor would gain, and the rest; and by how much the
                true click rate exceeds 1 there by chance in one of twenty windows
    to_own_rate     for each window, by how many standard errors its log loss is above that of the
                    constant that knows the rate of the window, paired by impression
    to_rate_so_far  the same with the click rate before each impression, which a stream knows
                    (`constant`)
    held_back   batches that the guard would have quarantined

`lr`, `fm`, `deepfm`, `dcn_v2` are headrace with the constants that `headrace suggest` takes from
the first 2,000 impressions; `plain_lr` and so on with a spec that names fields and nothing else.
`best_lr` is the best of thirty settings of [optimizer] for logistic regression, chosen per log in
hindsight, from the same base rate; `vw` the best of six of Vowpal Wabbit, likewise; `river` River's
logistic regression by default; `constant` the click rate so far; `known_rate` the true mean
probability of each window, which no model knows. `to_best` is the log loss of `lr` over that of
`best_lr`.
A quick run makes short logs, and asks the others only on every fourth of them.

`--progress` keeps the figures of each log and contender in a file of this folder, with the size of
the run and the texts of the specs or the options that it learned by. A stopped run continues there.
Figures of another size, spec or option are measured again. The code is not compared: a changed
learner needs another folder.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from tests.bench.bench_options import bench_parser
from tests.bench.generated.contenders import (
    ARCHITECTURES,
    FIRST,
    VOWPAL_WABBIT,
    constant_of,
    learn_ours,
    learn_river,
    learn_vowpal_wabbit,
    plain_text,
    spec_text,
)
from tests.bench.generated.log_generator import GeneratedLog, generate, plans
from tests.bench.generated.loss_split import chance_excess, excess_in_errors, split_loss

Floats = npt.NDArray[np.float64]

PLAIN = {f"plain_{name}": name for name in ARCHITECTURES}
EXPENSIVE = ("best_lr", "vw", "river")
OTHERS = (*EXPENSIVE, "constant", "known_rate")
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
_SHOWN = (
    *("logs", "mean_ne", "worst_ne", "logs_above_1"),
    *("windows_above_1", "windows_above_chance", "windows_above_own_rate"),
    *("windows_above_rate_so_far", "held_back"),
)
"""Figures of a contender that the table shows."""


_ERRORS = 2.0
"""Standard errors beyond which a window counts as worse than a constant."""


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


def figures(log: GeneratedLog, scores: Floats, size: Size) -> dict[str, Any]:
    """Return the figures of scores of the first impressions of a log."""
    labels = log.labels[: scores.shape[0]]
    losses = log_loss(scores, labels)
    so_far = log_loss(constant_of(log)[: scores.shape[0]], labels)
    each, above, own_errors, so_far_errors = [], [], [], []
    for begin, end in windows(labels, size):
        clicked, part = labels[begin:end], losses[begin:end]
        own = log_loss(np.full(end - begin, clicked.mean()), clicked)
        each.append(round(float(part.mean()) / entropy(clicked), 4))
        own_errors.append(round(excess_in_errors(part, own), 2))
        so_far_errors.append(round(excess_in_errors(part, so_far[begin:end]), 2))
        if each[-1] > 1.0:
            parts = split_loss(scores[begin:end], labels[begin:end])._asdict()
            parts["chance"] = chance_excess(labels[begin:end])
            rounded = {name: round(value, 4) for name, value in parts.items()}
            above.append({"window": len(each) - 1, "ne": each[-1]} | rounded)
    return {
        "ne": round(float(losses[FIRST:].mean()) / entropy(labels[FIRST:]), 4),
        "worst_ne": max(each),
        "windows": each,
        "above": above,
        "to_own_rate": own_errors,
        "to_rate_so_far": so_far_errors,
    }


def known_rate_of(log: GeneratedLog, size: Size) -> Floats:
    """Return the true mean probability of the window of each impression."""
    found = np.full(len(log), log.truth[:FIRST].mean())
    for begin, end in windows(log.labels, size):
        found[begin:end] = log.truth[begin:end].mean()
    return found


def trials_of(log: GeneratedLog, name: str, size: Size) -> tuple[str, ...]:
    """Return what a contender is tried with on a log: texts of specs, options or a limit."""
    if name in ARCHITECTURES:
        return (spec_text(log, name),)
    if name in PLAIN:
        return (plain_text(log, PLAIN[name]),)
    if name == "best_lr":
        return tuple(spec_text(log, "lr", setting) for setting in SETTINGS)
    if name == "vw":
        return VOWPAL_WABBIT
    return (f"the first {size.river}",) if name == "river" else ("",)


def measure_trial(log: GeneratedLog, name: str, trial: str, size: Size) -> dict[str, Any]:
    """Return the figures of one trial of a contender."""
    if name in ARCHITECTURES or name in PLAIN or name == "best_lr":
        learned = learn_ours(log, trial)
        return figures(log, learned.scores, size) | {"held_back": learned.held_back}
    if name == "vw":
        return figures(log, learn_vowpal_wabbit(log, trial), size)
    if name == "river":
        return figures(log, learn_river(log, size.river), size)
    known = name == "known_rate"
    return figures(log, known_rate_of(log, size) if known else constant_of(log), size)


class Progress:
    """The figures that earlier runs left in a folder, one file for each log."""

    def __init__(self, folder: Path | None, number: int, size: Size) -> None:
        self._path = folder / f"log-{number:02}.json" if folder else None
        self._size = list(size)
        self._kept: dict[str, dict[str, Any]] = {}
        if self._path and self._path.exists():
            kept = json.loads(self._path.read_text())
            if kept["size"] == self._size:
                kept = kept["contenders"].items()
                whole = {k: v for k, v in kept if "to_own_rate" in v["figures"]}
                self._kept = whole  # earlier versions kept fewer figures

    def figures(self, name: str, trials: Sequence[str]) -> dict[str, Any] | None:
        """Return the figures of a contender, if it was measured with just these trials."""
        kept = self._kept.get(name)
        return kept["figures"] if kept and kept["trials"] == list(trials) else None

    def keep(self, name: str, trials: Sequence[str], figures: dict[str, Any]) -> None:
        """Add the figures of a contender; a run killed meanwhile leaves the old file whole."""
        self._kept[name] = {"trials": list(trials), "figures": figures}
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written = self._path.with_suffix(".part")
            written.write_text(json.dumps({"size": self._size, "contenders": self._kept}))
            written.replace(self._path)


def measure(
    numbers: Sequence[int],
    names: Sequence[str],
    size: Size,
    tell: Console,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Return the figures of each log."""
    found = []
    for plan in plans():
        if numbers and plan.number not in numbers:
            continue
        began = time.perf_counter()
        log = generate(plan, plan.examples(size.least, size.most, size.clicks))
        progress = Progress(folder, plan.number, size)
        contenders: dict[str, dict[str, Any]] = {}
        for name in names:
            if name in EXPENSIVE and plan.number % size.every:
                continue
            trials = trials_of(log, name, size)
            kept = progress.figures(name, trials)
            if kept is None:
                tried = [measure_trial(log, name, trial, size) for trial in trials]
                kept = min(tried, key=lambda found: found["ne"])
                progress.keep(name, trials, kept)
            contenders[name] = kept
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


def _beyond_errors(each: Sequence[dict[str, Any]], key: str, sign: int = 1) -> int:
    """Return how many windows are worse than a constant by more than two standard errors.

    sign: -1 counts the windows that are better.
    """
    return sum(sign * errors > _ERRORS for one in each for errors in one[key])


def summary(logs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all logs have together, per contender."""
    found: dict[str, Any] = {}
    for name in (*ARCHITECTURES, *PLAIN, *OTHERS):
        each = [log["contenders"][name] for log in logs if name in log["contenders"]]
        if each:
            above = [window for one in each for window in one["above"]]
            found[name] = {
                "mean_ne": round(float(np.mean([one["ne"] for one in each])), 4),
                "worst_ne": max(one["worst_ne"] for one in each),
                "logs_above_1": sum(one["worst_ne"] > 1.0 for one in each),
                "windows": sum(len(one["windows"]) for one in each),
                "windows_above_1": len(above),
                "windows_above_1.01": sum(window["ne"] > 1.01 for window in above),
                "windows_above_chance": sum(w["ne"] > 1.0 + w["chance"] for w in above),
                "windows_above_own_rate": _beyond_errors(each, "to_own_rate"),
                "windows_above_rate_so_far": _beyond_errors(each, "to_rate_so_far"),
                "windows_below_rate_so_far": _beyond_errors(each, "to_rate_so_far", -1),
                "parts_above_1": {
                    part: round(float(np.mean([window[part] for window in above])), 4)
                    for part in ("level", "slope", "refinement")
                    if above
                },
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
    everyone = (*ARCHITECTURES, *PLAIN, *OTHERS)
    parser.add_argument("--log", type=int, action="append", help="may be repeated")
    parser.add_argument("--only", choices=everyone, action="append", help="may be repeated")
    parser.add_argument("--progress", type=Path, metavar="FOLDER", help="continues a stopped run")
    chosen = parser.parse_args(arguments)
    tell, size = Console(stderr=True, width=160), QUICK if chosen.quick else FULL
    names = chosen.only or everyone
    logs = measure(chosen.log or (), names, size, tell, chosen.progress)
    found: dict[str, Any] = {"logs": logs, "summary": summary(logs)}
    if chosen.json:
        print(json.dumps(found))
        return
    columns = ("contender", "logs", "mean NE", "worst window", "logs above 1", "windows above 1")
    table = Table(*columns, "above chance", "2 errors", "2 errors so far", "quarantined")
    for name, each in found["summary"].items():
        if name in everyone:
            table.add_row(name, *(str(each[column]) for column in _SHOWN))
    Console().print(table)
    if "to_best" in found["summary"]:
        Console().print(f"lr by default to the best of thirty: {found['summary']['to_best']}")


if __name__ == "__main__":
    main()
