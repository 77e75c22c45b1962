"""The experiment file: a control, arms, rungs and the rules of decisions, in TOML.

    [experiment]
    name = "rates"
    control = "news.toml"       # a spec, beside this file
    arms = 64                   # begun at most
    slots = 16                  # that learn at the same time

    [arm.slow]                  # arms by name: keys of the spec
    "optimizer.alpha" = 0.01

    [space]                     # and arms drawn from a space
    optimizer.alpha = { log = [0.01, 1.0] }

    [rungs]
    first = 10_000              # examples; then 4, 16, ... times as many
    factor = 4

    [decision]
    batch_s = 3600
    cycle_s = 86_400

`[promotion]` (`promotion_rules`) says how the best arm takes over traffic. The file is checked like
a spec: unknown keys are refused with their line, and every arm's spec is parsed.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from headrace.ingest.features.spec_sections import read_section, table_of
from headrace.ingest.features.spec_text import SpecError, SpecText, one_of
from headrace.learner.experiments.decisions import DecisionRules
from headrace.learner.experiments.promotion_rules import PromotionRules, read_promotion
from headrace.learner.experiments.space import (
    Settings,
    SpaceKey,
    changed_spec,
    random_settings,
    read_space,
)
from headrace.learner.spec.model_spec import ModelSpec, load_spec, parse_spec

CONTROL = "control"
_SECTIONS = ("experiment", "arm", "space", "rungs", "decision", "promotion")


class ExperimentSection(Struct, frozen=True, forbid_unknown_fields=True):
    """`[experiment]`."""

    name: str
    """Of the experiment: letters, digits, - and _."""
    control: str
    """The spec that arms are compared with; a path beside the experiment file."""
    arms: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Arms begun at most, the control aside. Error probabilities are divided by it."""
    slots: Annotated[int, Meta(ge=1, le=1000)] = 64
    """Arms that learn at the same time, the control aside. Memory grows with it."""
    seed: int = 1
    """Of the arms drawn from the space."""
    sampler: Literal["random", "optuna"] = "random"
    """The sampler of arms in the space. `optuna` needs the package optuna."""
    from_: datetime | None = msgspec.field(default=None, name="from")
    """Of a live experiment: examples appended to Kafka from this time on; all that Kafka still
    has if it is missing. UTC if it names no offset."""


class RungSection(Struct, frozen=True, forbid_unknown_fields=True):
    """`[rungs]`."""

    first: Annotated[int, Meta(ge=1)] = 10_000
    """Examples after which an arm is compared for the first time."""
    factor: Annotated[int, Meta(ge=2, le=100)] = 4
    """From rung to rung examples grow by it, and one of so many arms goes on."""


class DecisionSection(Struct, frozen=True, forbid_unknown_fields=True):
    """`[decision]`."""

    alpha: Annotated[float, Meta(gt=0.0, lt=0.5)] = 0.05
    """Probability of a false promotion in the whole experiment."""
    batch_s: Annotated[int, Meta(ge=1)] = 3600
    """Event time of a batch. Events further apart should hardly depend on each other."""
    cycle_s: Annotated[int, Meta(ge=1)] = 86_400
    """Event time after which traffic repeats itself; promotions wait for its end."""
    least_batches: Annotated[int, Meta(ge=10)] = 10
    """Fewest batches of a promotion."""
    least_gain: Annotated[float, Meta(ge=0.0)] = 0.0
    """Smallest gain of log loss that is worth a change."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """An arm before it begins."""

    number: int
    """From 0, which is the control."""
    name: str
    settings: Settings
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file."""

    name: str
    control: ModelSpec
    listed: Mapping[str, Settings]
    space: tuple[SpaceKey, ...]
    arms: int
    slots: int
    seed: int
    sampler: str
    rungs: RungSection
    rules: DecisionRules
    fingerprint: str
    """Of the file and the control's spec."""
    promotion: PromotionRules
    from_ms: int | None = None
    """Append time of the first examples of a live experiment."""

    def plan(self, number: int, suggested: Settings | None = None) -> ArmPlan:
        """Return arm `number`: the control, then the listed arms, then suggested ones.

        Raises SpecError if the spec of the arm is refused.
        """
        if number == 0:
            return ArmPlan(0, CONTROL, {}, self.control)
        names = list(self.listed)
        if number <= len(names):
            name, settings = names[number - 1], self.listed[names[number - 1]]
        else:
            name, settings = f"arm{number}", suggested or self.drawn(number)
        return ArmPlan(number, name, settings, self._spec(name, settings))

    def check(self, settings: Settings) -> None:
        """Raise SpecError if an arm with these settings is refused."""
        self._spec("drawn", settings)

    def drawn(self, number: int) -> Settings:
        """Return the settings of a random arm. They depend on the seed and its number alone."""
        return random_settings(self.space, np.random.default_rng([self.seed, number]))

    def _spec(self, name: str, settings: Settings) -> ModelSpec:
        text = changed_spec(self.control.text, settings, f"{self.control.name}-{name}")
        try:
            spec = parse_spec(text, f"arm {name}")
            check_fields(spec, self.control)
        except SpecError as error:
            shown = ", ".join(f"{key} = {value}" for key, value in settings.items())
            raise SpecError(f"experiment {self.name}, arm {name} ({shown}): {error}") from error
        return spec


def check_fields(spec: ModelSpec, control: ModelSpec) -> None:
    """Raise SpecError unless examples of the control can be learned by an arm of this spec."""
    own, given = spec.fields, control.fields
    known = {*given.singles, *given.bags, *given.numbers}
    for field in (*own.singles, *own.bags, *own.numbers):
        if field not in known:
            raise SpecError(
                f"[fields.{field.name}]: expected a field of the control, declared alike, since "
                "all arms learn the same examples, got another one. Add it to the control's spec"
            )
    if own.label != given.label or own.weights != given.weights:
        raise SpecError("expected [label] and [examples] of the control, got others")


def load_experiment(path: Path) -> Experiment:
    """Read an experiment file and the specs of its first arms.

    Raises SpecError naming file and line, the expected value and the value found.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: expected an experiment in TOML, found: {error}") from error
    where = SpecText(path, text)
    tables = where.tables()
    for section in tables:
        if section not in _SECTIONS:
            wanted = f"a section, {one_of(_SECTIONS, section)}"
            raise where.error((section,), wanted, f'"{section}"')
    head = read_section(
        ExperimentSection, table_of(tables, where, "experiment"), where, "experiment"
    )
    rungs = read_section(RungSection, table_of(tables, where, "rungs"), where, "rungs")
    decision = read_section(DecisionSection, table_of(tables, where, "decision"), where, "decision")
    if not head.name.replace("-", "").replace("_", "").isalnum():
        raise where.error(("experiment", "name"), "letters, digits, - and _", f'"{head.name}"')
    if decision.cycle_s % decision.batch_s:
        wanted = f"a whole multiple of batch_s = {decision.batch_s}"
        raise where.error(("decision", "cycle_s"), wanted, str(decision.cycle_s))
    listed = _listed(tables, where)
    space = read_space(table_of(tables, where, "space"), where)
    if not listed and not space:
        raise where.error(("experiment",), "arms: [arm.NAME] or [space]", "neither")
    control = load_spec(path.parent / head.control)
    digest = hashlib.sha256(f"{text}\n{control.fingerprint}".encode()).hexdigest()[:16]
    arms = head.arms if space else min(head.arms, len(listed))
    experiment = Experiment(
        name=head.name,
        control=control,
        listed=listed,
        space=space,
        arms=arms,
        slots=min(head.slots, arms),
        seed=head.seed,
        sampler=head.sampler,
        rungs=rungs,
        rules=DecisionRules(
            *(decision.alpha, arms, decision.batch_s * 1000, decision.cycle_s * 1000),
            *(decision.least_batches, decision.least_gain),
        ),
        fingerprint=digest,
        promotion=read_promotion(table_of(tables, where, "promotion"), where),
        from_ms=_unix_ms(head.from_),
    )
    _check_specs(experiment)
    return experiment


def _unix_ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _check_specs(experiment: Experiment) -> None:
    """Raise SpecError for an arm that is refused, and for a range with a bound that is."""
    plans = [experiment.plan(number) for number in range(1, experiment.arms + 1)]
    for key in experiment.space:
        drawn = next((plan for plan in plans if key.name in plan.settings), None)
        if drawn is not None and key.kind != "list":
            for bound in key.values:
                experiment.check({**drawn.settings, key.name: bound})


def _listed(tables: Mapping[str, object], where: SpecText) -> dict[str, Settings]:
    found: dict[str, Settings] = {}
    for name, table in table_of(tables, where, "arm").items():
        if not isinstance(table, dict) or not table:
            raise where.error(("arm", name), "keys of the spec with their values", "none")
        if name == CONTROL:
            raise where.error(("arm", name), "a name other than control", "control")
        found[name] = dict(_leaves(table))
    return found


def _leaves(table: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{path}{name}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def rung_examples(rungs: RungSection, rung: int) -> int:
    """Return the examples of a rung, from 0."""
    return rungs.first * math.prod([rungs.factor] * rung)
