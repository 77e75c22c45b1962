"""TODO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ingest.features import one_of
from headrace.learner.spec.tables import only, real, shown

if TYPE_CHECKING:
    from headrace.ingest.features import SpecText
    from headrace.learner.spec.tables import Table


CALIBRATION_NUMBER = 1002
"""Field number of the rows of the layer."""


PLATT, ISOTONIC = "platt", "isotonic"


_ALPHA = {PLATT: 0.0005, ISOTONIC: 0.01}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The section `[calibration]`."""

    kind: str = PLATT
    alpha: float = _ALPHA[PLATT]
    """Learning rate: outcomes are forgotten after some 1 / (alpha p (1 - p)) examples: 20,000
    where a tenth is clicked; with a greater one chance moves a and b more. isotonic: the same of
    the examples of a knot, so 1,000 of these; 0.01 unless it is said."""


def parse_calibration(table: Table, where: SpecText) -> Calibration:
    """Return what the section says. Raises SpecError."""
    keys = ("calibration",)
    only(table, ("kind", "alpha"), where, *keys)
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _ALPHA:
        raise where.error((*keys, "kind"), f"kind {one_of(_ALPHA, str(kind))}", shown(kind))
    return Calibration(kind, real(table, where, keys, "alpha", _ALPHA[kind], (1e-6, 1.0)))
