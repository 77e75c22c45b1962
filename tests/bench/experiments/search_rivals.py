"""The rung rule of experiments beside those of Optuna, River and Vowpal Wabbit.

    python -m tests.bench.search_rivals [--quick] [--week] [--json]

Each search gets the same stream, the same twelve learning rates of logistic regression and the same
budget of example-steps: a quarter of what whole runs of all arms take. A step is one example
learned by one arm. `regret` is the log loss of the chosen arm over the whole stream, divided by
that of the best arm, minus 1. `budget_share` is the steps that were used, divided by those of whole
runs. The stream is `swinging_stream`; with --week, the first 100,000 impressions of the sample week
with the ids of `news.toml`, without statistics and with one example an impression. --quick learns
one stream instead of twenty.

- `headrace` begins all arms at once, `headrace_slots` in four slots. Later arms learn the log from
  its first example. It has no setting for the budget: its rungs determine `budget_share`.
- `optuna` and `optuna_slots` are the SuccessiveHalvingPruner over the same models, on the log loss;
  `optuna_slots_paired` is the pruner on the paired difference. Arms in freed slots begin with the
  next example. Missing if the package optuna is.
- `river` is the SuccessiveHalvingClassifier over River's own logistic regression, with the same
  settings. Its base is the best of River's models.
- `vowpal_wabbit` is automl, which searches interactions and not learning rates (`vowpal_automl`).
  Its base is the best set of interactions in reach. It learns at most 4,000 examples (quick:
  1,500), since it is slow. Its share of the budget is relative to whole runs of all sets.

`wall_s` and `processor_s` are the seconds of the search alone, with its models. On a busy machine,
compare processor seconds.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from headrace.deploy.models.shipped import path_of
from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.splitting import part_of
from headrace.learner.batch.event_source import EventLogSource
from headrace.learner.batch.sources import FilePosition
from headrace.learner.experiments.space import changed_spec
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.bench.ebnerd.week import WEEK
from tests.bench.experiments.rung_rules import (
    Chosen,
    Task,
    middle,
    search_headrace,
    search_optuna,
    search_river,
    whole_losses,
    whole_river_losses,
)
from tests.bench.experiments.swinging_stream import swinging_spec, swinging_stream
from tests.bench.learner.stream import batches_of

ARMS, SLOTS, FACTOR, BUDGET = 12, 4, 4, 0.25
_RATES = tuple(float(f"{rate:.4g}") for rate in np.geomspace(0.005, 2.0, ARMS))
_BLOCK = 250
_QUICK_EXAMPLES, _EXAMPLES, _SEEDS = 8000, 20_000, 20
_WEEK_EXAMPLES = 100_000
_VOWPAL_QUICK, _VOWPAL = 1500, 4000
_FIELDS = {"swinging": 5, "week": 4}
"""Fields of which Vowpal Wabbit crosses pairs: the first ones."""


class Figures(NamedTuple):
    """The result of one search, or the mean of several."""

    regret: float
    budget_share: float
    wall_s: float
    processor_s: float
    arms: float
    """Begun."""


def swinging_task(examples: int, seed: int) -> Task:
    """Return the search on the synthetic stream."""
    spec = swinging_spec(middle(_RATES))
    blocks = batches_of(spec, swinging_stream(examples, seed), _BLOCK)
    return _task(spec, blocks, seed, examples // 32)


def week_task(seed: int) -> Task:
    """Return the search on the sample week."""
    text = path_of("news").read_text()
    fields, _, rest = text.partition("# Statistics")
    text = fields.replace('"immediate"', '"window"') + rest[rest.index("[optimizer]") :]
    spec = parse_spec(
        changed_spec(text, {"optimizer.alpha": middle(_RATES), "optimizer.l2": 1.0}, "control"),
        "news.toml",
    )
    source = EventLogSource([WEEK], spec)
    blocks, examples = list[Examples](), 0
    for block in source.blocks(FilePosition()):
        # blocks of the log are longer than the first rung, at which each search ranks
        for begin in range(0, len(block.examples), _BLOCK):
            end = min(begin + _BLOCK, len(block.examples))
            blocks.append(part_of(block.examples, begin, end))
        examples += len(block.examples)
        if examples >= _WEEK_EXAMPLES:
            break
    return _task(spec, blocks, seed, examples // 32)


def _task(spec: ModelSpec, blocks: Sequence[Examples], seed: int, first: int) -> Task:
    rates = tuple(np.random.default_rng(seed).permutation(_RATES).tolist())
    budget = int(BUDGET * ARMS * sum(map(len, blocks)))
    return Task(spec, blocks, rates, first, FACTOR, budget)


def compare(task: Task, fields: int, vowpal: int, seed: int) -> dict[str, Figures]:
    """Run all searches that are installed over one stream. vowpal: most examples."""
    losses = whole_losses(task)
    searches: dict[str, Callable[[], Chosen]] = {
        "headrace": lambda: search_headrace(task, ARMS),
        "headrace_slots": lambda: search_headrace(task, SLOTS),
    }
    if importlib.util.find_spec("optuna"):
        searches |= {
            "optuna": lambda: search_optuna(task, ARMS, paired=False),
            "optuna_slots": lambda: search_optuna(task, SLOTS, paired=False),
            "optuna_slots_paired": lambda: search_optuna(task, SLOTS, paired=True),
        }
    found = {name: _figures(task, search(), losses) for name, search in searches.items()}
    if importlib.util.find_spec("river"):
        found["river"] = _figures(task, search_river(task), whole_river_losses(task))
    if importlib.util.find_spec("vowpalwabbit"):
        found["vowpal_wabbit"] = _vowpal(task, fields, vowpal, seed)
    return found


def _figures(task: Task, chosen: Chosen, losses: dict[float, float]) -> Figures:
    regret = losses[chosen.rate] / min(losses.values()) - 1.0
    return Figures(regret, chosen.steps / (ARMS * task.examples), *chosen.spent, chosen.arms)


def _vowpal(task: Task, fields: int, most: int, seed: int) -> Figures:
    from tests.bench.experiments import vowpal_automl

    found = vowpal_automl.search_interactions(task.blocks, fields, most, seed)
    loss, best = vowpal_automl.whole_losses(task.blocks, fields, found.left_out)
    sets = 1 + fields * (fields + 1) // 2
    share = found.examples * vowpal_automl.LIVE / (sets * task.examples)
    return Figures(loss / best - 1.0, share, *found.spent, vowpal_automl.LIVE)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Searches over live arms, side by side.")
    parser.add_argument("--quick", action="store_true", help="one stream of 8,000 examples")
    parser.add_argument("--week", action="store_true", help="the sample week")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.week and not WEEK.is_dir():
        sys.exit(f"expected the sample week in {WEEK}; set HEADRACE_WEEK")
    name = "week" if options.week else "swinging"
    runs: list[dict[str, Figures]] = []
    for seed in range(1, 2 if options.quick else _SEEDS + 1):
        examples = _QUICK_EXAMPLES if options.quick else _EXAMPLES
        task = week_task(seed) if options.week else swinging_task(examples, seed)
        vowpal = _VOWPAL_QUICK if options.quick else _VOWPAL
        runs.append(compare(task, _FIELDS[name], vowpal, seed))
        if options.week:
            break
    shown = {"stream": name, "examples": task.examples, "streams": len(runs)}
    figures = {each: _mean([run[each] for run in runs]) for each in runs[0]}
    if options.json:
        print(json.dumps(shown | {each: row._asdict() for each, row in figures.items()}))
        return
    print(shown)
    for each, row in figures.items():
        print(f"{each:20} regret {row.regret:.3%} steps {row.budget_share:.1%} {row.wall_s:.1f} s")


def _mean(rows: Sequence[Figures]) -> Figures:
    return Figures(*(round(float(value), 5) for value in np.mean(np.array(rows), axis=0)))


if __name__ == "__main__":
    main()
