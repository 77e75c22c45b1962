"""Vowpal Wabbit's automl as a search over interactions, on the stream of the other searches.

automl accepts contextual bandits only. A click is therefore a choice between two actions, whose
features are those of the example, one set for each action. The logged action is drawn with
probability 1/2, and earns 1 if it is the outcome. automl begins with all pairs of fields as
interactions, and tries configurations that leave one pair out.

The arms differ from those of the other searches, so the regret has another base: plain Vowpal
Wabbit learns the whole stream with the chosen configuration, and with each one that automl can
reach in a single step. A step of the budget is one example learned by one live configuration.
"""

import itertools
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from vowpalwabbit import Workspace

from headrace.ingest.examples.batch import Examples
from tests.bench.experiments.rung_rules import Spent
from tests.bench.experiments.swinging_stream import places_of

Pair = tuple[str, str]
_NAMES = "ABCDEFGHIJ"
LIVE = 3
"""Configurations that learn at the same time: the champion and two challengers."""
_AUTOML = f"--quiet --cb_explore_adf --automl {LIVE} --default_lease 500 --random_seed 1 -b 20"
_PLAIN = "--quiet --no_stdin --loss_function logistic --link logistic -b 20"


class Found(NamedTuple):
    """The choice of automl."""

    left_out: frozenset[Pair]
    examples: int
    spent: Spent
    switches: int
    """Of the champion."""


def search_interactions(blocks: Sequence[Examples], fields: int, most: int, seed: int) -> Found:
    """Let automl learn the first examples. most: examples; seed: of the logged actions."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        model, metrics = Path(folder, "model.txt"), Path(folder, "metrics.json")
        workspace = Workspace(f"{_AUTOML} --readable_model {model} --extra_metrics {metrics}")
        began, learned = Spent.now(), 0
        for row, label in itertools.islice(places_of(blocks, fields), most):
            logged = int(random.integers(2))
            reward = f"{logged}:{-1 if logged == label else 0}:0.5 "
            workspace.learn(
                [
                    (reward if action == logged else "")
                    + " ".join(f"|{_NAMES[k]} {action}_{each}" for k, each in enumerate(row))
                    for action in (0, 1)
                ]
            )
            learned += 1
        spent = Spent.since(began)
        workspace.finish()
        told = json.loads(metrics.read_text())["automl"]
        switches = told["total_champ_switches"]
        champion = told[f"estimator_{told['current_champ']}"]["self"]["conf_idx"]
        return Found(left_out_pairs(model.read_text(), champion), learned, spent, switches)


def left_out_pairs(model: str, configuration: int) -> frozenset[Pair]:
    """Return the pairs that a configuration excludes, from the text of the model."""
    found = re.findall(rf"configs\[{configuration}\]_exclusions\[\d+\]\[(\d+)\] = (\d+)", model)
    letters = [chr(int(code)) for _, code in found]
    return frozenset(zip(letters[::2], letters[1::2], strict=True))


def whole_losses(
    blocks: Sequence[Examples], fields: int, chosen: frozenset[Pair]
) -> tuple[float, float]:
    """Return the log loss of plain Vowpal Wabbit as chosen, and of the best in reach."""
    pairs = list(itertools.combinations_with_replacement(_NAMES[:fields], 2))
    single = [frozenset[Pair]()] + [frozenset([pair]) for pair in pairs]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        path, predicted = Path(folder, "examples.txt"), Path(folder, "scores.txt")
        labels = np.concatenate([block.labels for block in blocks]) > 0
        with path.open("w") as file:
            for row, label in places_of(blocks, fields):
                ids = " ".join(f"|{_NAMES[k]} {each}" for k, each in enumerate(row))
                file.write(f"{1 if label else -1} {ids}\n")
        losses = {}
        for left_out in {chosen, *single}:
            crossed = " ".join(f"--interactions {a}{b}" for a, b in pairs if (a, b) not in left_out)
            Workspace(f"{_PLAIN} {crossed} -d {path} -p {predicted}").finish()
            chance = np.clip(np.loadtxt(predicted), 1e-15, 1.0 - 1e-15)
            losses[left_out] = float(-np.log(np.where(labels, chance, 1.0 - chance)).mean())
    return losses[chosen], min(losses.values())
