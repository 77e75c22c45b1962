"""Searches among learning rates of one model: ours, Optuna's pruner and River's halving.

All choose among the same learning rates of logistic regression with FTRL, over the same examples.
Ours and Optuna's pruner step headrace's own model. River steps its own, with the same settings and
the same ids, so its regret is relative to the best of River's models.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.run_folder import RunFolder
from headrace.learner.experiments.runner import ExperimentRunner
from headrace.learner.experiments.space import changed_spec
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.bench.experiments.search import BlockLog
from tests.bench.experiments.swinging_stream import L2, dicts_of


class Task(NamedTuple):
    """The task of each search."""

    control: ModelSpec
    """Has the learning rate in the middle; it is one of the arms."""
    blocks: Sequence[Examples]
    rates: tuple[float, ...]
    """The arms, in the order in which they begin."""
    first: int
    """Examples of the first rung."""
    factor: int
    budget: int
    """Example-steps, see `Chosen.steps`."""

    @property
    def examples(self) -> int:
        """Examples of the stream."""
        return sum(map(len, self.blocks))


class Spent(NamedTuple):
    """Seconds since a moment."""

    wall: float
    processor: float

    @classmethod
    def since(cls, begin: Spent) -> Spent:
        """Return the seconds since then."""
        now = cls.now()
        return cls(now.wall - begin.wall, now.processor - begin.processor)

    @classmethod
    def now(cls) -> Spent:
        """Return the clocks."""
        return cls(time.perf_counter(), time.process_time())


class Chosen(NamedTuple):
    """The choice of a search."""

    rate: float
    steps: int
    """Examples learned, all arms together, with the control where there is one."""
    spent: Spent
    arms: int
    """Begun."""


def log_losses(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.uint8]) -> float:
    """Return the summed log loss."""
    chance = np.clip(scores, 1e-15, 1.0 - 1e-15)
    return float(-np.log(np.where(labels > 0, chance, 1.0 - chance)).sum())


class _Model:
    """A model with a learning rate, and the sum of its losses before learning."""

    def __init__(self, control: ModelSpec, rate: float) -> None:
        text = changed_spec(control.text, {"optimizer.alpha": rate}, "rival")
        self.rate, self.examples, self.loss = rate, 0, 0.0
        self._model = InMemoryModel(parse_spec(text, "rival.toml"))

    def learn(self, block: Examples) -> float:
        """Score and learn a block; return its summed loss."""
        lost = log_losses(self._model.learn(block), block.labels)
        self.loss, self.examples = self.loss + lost, self.examples + len(block)
        return lost


def whole_losses(task: Task) -> dict[float, float]:
    """Return the mean log loss of each learning rate over the whole stream."""
    found = {}
    for rate in task.rates:
        model = _Model(task.control, rate)
        for block in task.blocks:
            model.learn(block)
        found[rate] = model.loss / model.examples
    return found


def search_headrace(task: Task, slots: int) -> Chosen:
    """Run the experiment's runner, whose later arms begin with the first example, too."""
    arms = "".join(
        f'[arm.rate{k}]\n"optimizer.alpha" = {rate}\n' for k, rate in enumerate(task.rates)
    )
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        path = Path(folder)
        (path / "control.toml").write_text(task.control.text)
        (path / "experiment.toml").write_text(
            f'[experiment]\nname = "rivals"\ncontrol = "control.toml"\narms = {len(task.rates)}\n'
            f"slots = {slots}\n{arms}[rungs]\nfirst = {task.first}\nfactor = {task.factor}\n"
        )
        held = RunFolder(path / "run")
        began = Spent.now()
        runner = ExperimentRunner(
            *(load_experiment(path / "experiment.toml"), BlockLog(task.blocks), held),
            save_every_s=1e9,
        )
        found = runner.run(threading.Event(), lambda _: None)
        spent = Spent.since(began)
        held.close()
    assert found is not None
    rate = found.best.settings.get("optimizer.alpha", middle(task.rates))
    return Chosen(float(str(rate)), found.steps, spent, len(task.rates))


def search_optuna(task: Task, slots: int, *, paired: bool) -> Chosen:
    """Prune arms on a live stream: an arm in a freed slot begins with the next example.

    An arm reports its mean log loss, as Optuna's manual shows. paired: minus that of the control
    over the same examples. At the end of the stream or of the budget, the study's best trial is
    chosen among the arms that still learn.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=task.first, reduction_factor=task.factor
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    for rate in task.rates:
        study.enqueue_trial({"alpha": rate})
    began, waiting, steps = Spent.now(), list(task.rates), 0
    control = _Model(task.control, middle(task.rates)) if paired else None
    live: list[tuple[Any, _Model, list[float]]] = []
    for block in task.blocks:
        while waiting and len(live) < slots:
            trial = study.ask()
            rate = trial.suggest_float("alpha", min(task.rates), max(task.rates))
            assert rate == waiting.pop(0)
            live.append((trial, _Model(task.control, rate), [0.0]))
        if steps + len(block) * (len(live) + paired) > task.budget:
            break
        level = control.learn(block) if control is not None else 0.0
        steps += len(block) * (len(live) + paired)
        for entry in list(live):
            trial, model, total = entry
            total[0] += model.learn(block) - level
            trial.report(total[0] / model.examples, model.examples)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                live.remove(entry)
    for trial, model, total in live:
        study.tell(trial, total[0] / max(model.examples, 1))
    spent = Spent.since(began)
    return Chosen(study.best_params["alpha"], steps, spent, len(task.rates) - len(waiting))


def search_river(task: Task) -> Chosen:
    """Run River's halving with its default eta. `budget` is its own setting for steps."""
    from river import metrics, model_selection

    models = [_river_model(rate) for rate in task.rates]
    search: Any = model_selection.SuccessiveHalvingClassifier(
        models, metrics.LogLoss(), budget=task.budget
    )
    steps = 0
    began = Spent.now()
    for example, label in dicts_of(task.blocks):
        steps += search._s  # models that still learn
        if steps > task.budget:
            steps -= search._s
            break
        search.learn_one(example, label)
    spent = Spent.since(began)
    chosen = next(k for k, model in enumerate(models) if model is search.best_model)
    return Chosen(task.rates[chosen], steps, spent, len(task.rates))


def whole_river_losses(task: Task) -> dict[float, float]:
    """Return the mean log loss of River's model by learning rate over the whole stream."""
    examples = list(dicts_of(task.blocks))
    labels = np.array([label for _, label in examples], np.uint8)
    found = {}
    for rate in task.rates:
        model, scores = _river_model(rate), np.empty(len(examples))
        for k, (example, label) in enumerate(examples):
            scores[k] = model.predict_proba_one(example)[True]
            model.learn_one(example, label)
        found[rate] = log_losses(scores, labels) / len(examples)
    return found


def _river_model(rate: float) -> Any:
    from river import linear_model, optim

    ftrl = optim.FTRLProximal(alpha=rate, beta=1.0, l1=0.0, l2=L2)
    return linear_model.LogisticRegression(optimizer=ftrl)


def middle(rates: Sequence[float]) -> float:
    """Return the control's learning rate."""
    return sorted(rates)[len(rates) // 2]
