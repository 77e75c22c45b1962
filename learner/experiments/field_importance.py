"""Measures what each field and statistic of a model is worth on a log.

One model learns with all of its inputs, and for each input one model learns without it. All of them
learn the same examples in the same order and score each example before they learn it. The worth of
an input is the paired difference of log loss: without it, minus with it. So it is the loss that the
input saves beside all others, and two inputs with the same information are both worth little.

An input is left out with everything computed from it: the crosses and statistics that name it. A
model without it is therefore the model of a producer that never sends it.

Refused: permuting the values of a field in a learned model (Breiman, "Random Forests", 2001). It
scores combinations of values that never occur, and it measures how much this model uses the field,
not how much worse a model without the field would be (Hooker et al., "Unrestricted permutation
forces extrapolation", 2021).

Sums by batch of event time give the uncertainty, as for the arms of an experiment (`losses`,
`confidence`). There is one look, at the end of the log. The error probability is divided by the
number of inputs, so all intervals hold together.
"""

import math
import threading
import tomllib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.batch.sources import BatchSource, FilePosition
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.confidence import half_width, mixture_precision
from headrace.learner.experiments.experiment_file import ArmPlan
from headrace.learner.experiments.losses import OutcomeJoin
from headrace.learner.experiments.space import OFF, Settings, changed_spec
from headrace.learner.spec.model_spec import ModelSpec, parse_spec

Reals = npt.NDArray[np.float64]

IMPORTANCE_DEFINITION = "retrained without the input, progressive log loss, paired"


class ImportanceOptions(NamedTuple):
    """The inputs to measure, and the part of the log that counts."""

    names: Sequence[str] = ()
    """Fields and statistics; empty: all of the spec."""
    batch_ms: int = 3_600_000
    """Length of a batch in event time. Examples of different batches should hardly depend on each
    other."""
    recent_ms: int | None = None
    """Event time at the end of the log whose losses count; None: the second half of the log."""
    alpha: float = 0.05
    """Probability that any interval of the report misses."""


class FieldWorth(NamedTuple):
    """The worth of one field or statistic."""

    name: str
    kind: str
    """Transform of the field, or kind of the statistic."""
    removed: tuple[str, ...]
    """Crosses and statistics that were left out with it."""
    worth: float
    """Mean log loss without it minus that of the full model; NaN if it was not measured."""
    low: float
    high: float
    """Bounds of the interval; infinite with too few batches."""
    reason: str = ""
    """Why it was not measured; empty if it was."""


class ImportanceReport(NamedTuple):
    """The worth of the inputs of a model."""

    worths: list[FieldWorth]
    """Those worth most first, those not measured last."""
    loss: float
    """Mean log loss of the full model in the part that counts."""
    weight: float
    """Summed weight of the impressions that count."""
    batches: int
    """Batches that count and have examples."""
    begin_ms: int
    """Begin of the part that counts, in event time."""
    examples: int
    """Learned by each model, in the whole log."""


def measure_importance(
    spec: ModelSpec,
    source: BatchSource,
    options: ImportanceOptions,
    stop: threading.Event,
    tell: Callable[[float, int], object],
) -> ImportanceReport | None:
    """Return the worth of inputs, or None if `stop` was set before the end of the log.

    `tell` gets the share of the log that was read, and the examples learned by all models. Raises
    LearnerError, MissingTorch.
    """
    plans, refused = _plans(spec, options.names)
    arms = [Arm(plan, spec.fields) for plan in plans]
    outcomes = OutcomeJoin(spec.fields.label.window_ms, options.batch_ms)
    examples = 0
    for block in source.blocks(FilePosition()):
        settled = outcomes.offer(block.examples)
        for arm in arms:
            arm.step(block.examples, settled)
        examples += len(block.examples)
        tell(block.read, examples * len(arms))
        if stop.is_set():
            return None
    settled = outcomes.flush()
    for arm in arms:
        arm.settle(settled)
    return _report(spec, arms, refused, options, examples)


def removed_with(spec: ModelSpec, name: str) -> tuple[str, ...]:
    """Return the crosses and statistics that are computed from a field or statistic."""
    parts = {each.name: each.of for each in spec.fields.singles}
    parts |= {each.name: (*each.of, each.item) for each in spec.fields.bags}
    parts |= {each.name: (each.of, *each.cross) for each in spec.statistics}
    gone = {name}
    while more := {each for each, of in parts.items() if each not in gone and gone & {*of}}:
        gone |= more
    return tuple(each for each in _kinds(spec) if each in gone and each != name)


def spec_without(spec: ModelSpec, name: str) -> ModelSpec:
    """Return the spec without an input and without all that is computed from it.

    Raises SpecError if another section needs the input, or if no field remains.
    """
    gone = {name, *removed_with(spec, name)}
    fields = {each for each in gone if not _is_statistic(spec, each)}
    settings: dict[str, object] = {
        f"{'fields' if each in fields else 'statistics'}.{each}": OFF for each in sorted(gone)
    }
    listed = tomllib.loads(spec.text).get("admission", {}).get("fields", [])
    if fields & {*listed}:
        kept = [each for each in listed if each not in fields]
        settings |= {"admission.fields": kept} if kept else {"admission": OFF}
    return parse_spec(changed_spec(spec.text, settings, spec.name), f"the spec without {name}")


def _is_statistic(spec: ModelSpec, name: str) -> bool:
    return any(each.name == name for each in spec.statistics)


def _kinds(spec: ModelSpec) -> dict[str, str]:
    """Return transform or kind of all inputs by name, in ascending order of number."""
    fields = (*spec.fields.singles, *spec.fields.bags, *spec.fields.numbers)
    kinds = [(each.number, each.name, each.transform.value) for each in fields]
    kinds += [(each.number, each.name, each.kind or "cross") for each in spec.statistics]
    return {name: kind for _, name, kind in sorted(kinds)}


def _plans(spec: ModelSpec, names: Sequence[str]) -> tuple[list[ArmPlan], list[FieldWorth]]:
    """Return the full model and those without an input, and the inputs that cannot be left out."""
    kinds = _kinds(spec)
    for name in names:
        if name not in kinds:
            raise LearnerError(
                f"expected a field or statistic of {spec.name}, one of {', '.join(kinds)}, "
                f"got {name}"
            )
    nothing: Settings = {}
    plans, refused = [ArmPlan(0, "", nothing, spec)], []
    for name in [each for each in kinds if not names or each in names]:
        try:
            plans.append(ArmPlan(len(plans), name, nothing, spec_without(spec, name)))
        except SpecError as error:
            nan = math.nan
            refused.append(FieldWorth(name, kinds[name], (), nan, nan, nan, str(error)))
    return plans, refused


def _report(
    spec: ModelSpec,
    arms: list[Arm],
    refused: list[FieldWorth],
    options: ImportanceOptions,
    examples: int,
) -> ImportanceReport:
    full, *others = arms
    every = full.losses.closed + 1  # the log has ended, so the newest batch is complete, too
    losses, weights = full.losses.sums(every)
    count = losses.shape[0]
    recent = options.recent_ms
    some = (count + 1) // 2 if recent is None else math.ceil(recent / options.batch_ms)
    begin = max(count - some, 0)
    kinds, worths = _kinds(spec), []
    for arm in others:
        own, _ = arm.losses.sums(every)
        mean, low, high = _interval(
            (own - losses)[begin:], weights[begin:], options.alpha / len(others)
        )
        name = arm.plan.name
        worths.append(FieldWorth(name, kinds[name], removed_with(spec, name), mean, low, high))
    worths.sort(key=lambda each: -each.worth)
    weight = float(weights[begin:].sum())
    return ImportanceReport(
        worths + refused,
        float(losses[begin:].sum()) / weight if weight else math.nan,
        weight,
        int((weights[begin:] > 0).sum()),
        (full.losses.first + begin) * options.batch_ms,
        examples,
    )


def _interval(sums: Reals, weights: Reals, alpha: float) -> tuple[float, float, float]:
    """Return the mean over examples, and the bounds of its interval."""
    weighted = weights > 0
    batches = int(weighted.sum())
    if not batches:
        return math.nan, -math.inf, math.inf
    # of totals, not of means: each example counts the same, by day and by night
    values = sums[weighted] * (batches / weights[weighted].sum())
    mean = float(values.mean())
    deviation = float(values.std(ddof=1)) if batches > 1 else 0.0
    precision = mixture_precision(alpha, batches)
    count, spread = np.array(batches, np.float64), np.array(deviation)
    width = float(half_width(count, spread, alpha, precision))
    return mean, mean - width, mean + width
