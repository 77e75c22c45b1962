"""Suggests the settings of arms by Optuna, with ask and tell.

The default is random search, which needs no state: an arm's settings depend on the seed and on its
number alone (`Experiment.drawn`).

Optuna is used as a sampler only (`pip install 'headrace[optuna]'`). An arm of an endless stream
never completes, so Optuna's pruners and `best_trial` would wait for ever. An arm that ends is
reported as pruned, with its mean paired difference, which TPE learns from. A runner that starts
again repeats all calls in their order, which rebuilds the sampler's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.space import Settings

if TYPE_CHECKING:
    from headrace.learner.experiments.experiment_file import Experiment


class _Call(NamedTuple):
    number: int
    examples: int = 0
    difference: float | None = None
    """None: asked."""


class OptunaSuggestions:
    """Samples arms by TPE. It can be pickled."""

    def __init__(self, experiment: Experiment) -> None:
        """Raises LearnerError."""
        self._experiment = experiment
        self._calls: list[_Call] = []
        self._begin()

    def _begin(self) -> None:
        try:
            import optuna
        except ImportError as error:
            raise LearnerError(
                f"experiment {self._experiment.name}: expected the package optuna, since sampler = "
                "\"optuna\", got none: pip install 'headrace[optuna]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = self._experiment.seed
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._pruned = optuna.trial.TrialState.PRUNED
        self._study = optuna.create_study(direction="minimize", sampler=sampler)
        self._trials: dict[int, Any] = {}

    def ask(self, number: int) -> Settings:
        """Return the settings of arm `number`."""
        self._calls.append(_Call(number))
        return self._ask(number)

    def _ask(self, number: int) -> Settings:
        trial = self._trials[number] = self._study.ask()
        settings: dict[str, object] = {}
        for key in self._experiment.space:
            if key.exists(settings):
                # one kind of key for Optuna too: a share of the space
                settings[key.name] = (
                    trial.suggest_categorical(key.name, key.values)
                    if key.kind == "list"
                    else key.at(trial.suggest_float(key.name, 0.0, 1.0))
                )
        return settings

    def tell(self, number: int, examples: int, difference: float) -> None:
        """Take the mean paired difference of an arm that ended."""
        self._calls.append(_Call(number, examples, difference))
        self._tell(number, examples, difference)

    def _tell(self, number: int, examples: int, difference: float) -> None:
        trial = self._trials.pop(number)
        if difference == difference:
            trial.report(difference, examples)
        self._study.tell(trial, state=self._pruned)

    def __getstate__(self) -> dict[str, Any]:
        return {"experiment": self._experiment, "calls": self._calls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._experiment, self._calls = state["experiment"], state["calls"]
        self._begin()
        for call in self._calls:
            if call.difference is None:
                self._ask(call.number)
            else:
                self._tell(call.number, call.examples, call.difference)
