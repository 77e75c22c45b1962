"""A model spec in the making: inputs without numbers, and the constants that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.learner.spec.architecture import CHOICE, LOGISTIC_REGRESSION
from headrace.learner.suggestion.robust_constants import UNSCALED, ConstantFactors, robust_constants

_FIRST_STATISTIC = 100


class DraftInput(NamedTuple):
    """A field or a statistic."""

    name: str
    keys: str
    """In TOML, without the number."""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class SpecDraft:
    """A spec whose text can be written."""

    name: str
    head: tuple[str, ...]
    """Comments on the log."""
    label: tuple[str, ...]
    """The section `[label]`."""
    shows: int
    clicks: int
    delays_s: tuple[float, ...]
    """Mean times from a show to its click of groups of equally many clicks; empty if unknown."""
    fields: tuple[DraftInput, ...]
    left_out: tuple[str, ...]
    """Comments on columns that are no fields."""
    statistics: tuple[DraftInput, ...] = ()
    candidates: float = 1.0
    """Their mean number in a request."""
    choice: bool = False
    """Whether the loss is that of a choice."""
    loss_reason: tuple[str, ...] = ()
    calibrated: bool = True
    factors: ConstantFactors = UNSCALED
    constants_reason: str = ""
    architecture: str = LOGISTIC_REGRESSION
    history: str = ""
    """Field of a user's earlier items, for architectures that read one, with `target`."""
    target: str = ""

    @property
    def inputs(self) -> int:
        """Inputs of an example; a bag is one."""
        return len(self.fields) + len(self.statistics)

    @property
    def names(self) -> frozenset[str]:
        """Names of fields and statistics."""
        return frozenset(each.name for each in (*self.fields, *self.statistics))

    def adding(
        self, fields: tuple[DraftInput, ...], statistics: tuple[DraftInput, ...]
    ) -> SpecDraft:
        """Return the draft with these inputs too, those that it lacks."""
        more = [
            tuple(each for each in some if each.name not in self.names)
            for some in (fields, statistics)
        ]
        return replace(self, fields=self.fields + more[0], statistics=self.statistics + more[1])

    def without(self, name: str) -> SpecDraft:
        """Return the draft without a statistic."""
        return replace(
            self, statistics=tuple(each for each in self.statistics if each.name != name)
        )

    def scaled(self, name: str, factor: float) -> SpecDraft:
        """Return the draft with a constant, one of `ConstantFactors`, multiplied by a factor."""
        before: float = getattr(self.factors, name)
        return replace(self, factors=self.factors._replace(**{name: before * factor}))

    def text(self) -> str:
        """Return the spec as TOML."""
        constants = robust_constants(
            *(self.architecture, self.shows, self.clicks, self.inputs, self.delays_s),
            candidates=self.candidates,
            factors=self.factors,
        )
        lines = [*self.head, "[model]", f'name = "{self.name}"']
        if self.architecture != LOGISTIC_REGRESSION:
            lines.append(f'architecture = "{self.architecture}"')
        if self.history:
            lines += [f'history = "{self.history}"', f'target = "{self.target}"']
        lines += [*constants.model, *self.loss_reason]
        if self.choice:
            lines.append(f'loss = "{CHOICE}"  # users choose one candidate or none')
        lines += ["", *self.label, "[fields]", *_numbered(self.fields, 1), *self.left_out]
        if self.statistics:
            first = max(_FIRST_STATISTIC, len(self.fields) + 1)
            lines += ["", "[statistics]", *_numbered(self.statistics, first)]
        reason = [f"# {self.constants_reason}"] if self.constants_reason else []
        lines += ["", *reason, *constants.optimizer]
        lines += ["", *constants.calibration] if self.calibrated else []
        return "\n".join(lines) + "\n"


def _numbered(inputs: tuple[DraftInput, ...], first: int) -> list[str]:
    return [
        f"{each.name} = {{ number = {number}, {each.keys} }}"
        + (f"  # {each.comment}" if each.comment else "")
        for number, each in enumerate(inputs, first)
    ]
