"""A model and events of any number of fields, for measurements.

The fields are ids whose values occur as a plan assumes (`planning.distinct_values`). In a request,
the context has one half of the fields and each candidate the other.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np
import orjson

from headrace.deploy.operations.planning import values_of_fields
from headrace.learner.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.learner.spec import ModelSpec

ROWS = 2_000_000
SKEW = 1.1
START_MS = 1_700_000_000_000
CLICK_SHARE = 0.05
_PAIRS = "factorization_machine", "field_weighted_fm"


def trial_spec(architecture: str, fields: int, dimensions: int = 8) -> ModelSpec:
    """Return a model with so many fields of ids. Raises SpecError for an unknown architecture."""
    lines = ["[model]", 'name = "trial"', f'architecture = "{architecture}"']
    if architecture != "logistic_regression":
        lines.append(f"dimensions = {dimensions}")
    if architecture not in ("logistic_regression", *_PAIRS):
        lines.append("mini_batch = 128")
    lines += ["[label]", 'policy = "immediate"', "window_s = 600"]
    for number in range(1, fields + 1):
        lines += [f"[fields.f{number}]", f"number = {number}", 'transform = "id"']
    return parse_spec("\n".join([*lines, ""]), "trial.toml")


class TrialEvents:
    """Impressions, clicks and requests with the fields of a trial model."""

    def __init__(self, fields: int, rows: float = ROWS, seed: int = 1) -> None:
        self._dice = np.random.default_rng(seed)
        self._values = values_of_fields(rows, fields)
        self._names = [f"f{number}" for number in range(1, fields + 1)]
        self._now_ms = START_MS

    def drawn(self, count: int) -> list[list[int]]:
        """Return a value of each field for so many examples."""
        columns = []
        for values in self._values:
            uniform, power = self._dice.random(count), 1.0 - SKEW
            ranks = (((values + 1.0) ** power - 1.0) * uniform + 1.0) ** (1.0 / power)
            columns.append(ranks.astype(np.int64))
        drawn: list[list[int]] = np.stack(columns, axis=1).tolist()
        return drawn

    def events(self, count: int) -> tuple[list[bytes], list[bytes]]:
        """Return so many impressions, one for each millisecond, and clicks on some of them."""
        impressions, clicks = [], []
        clicked = self._dice.random(count) < CLICK_SHARE
        for values, is_clicked in zip(self.drawn(count), clicked, strict=True):
            self._now_ms += 1
            named = {"impression_id": secrets.token_hex(12), "timestamp_ms": self._now_ms}
            fields = dict(zip(self._names, values, strict=True))
            impressions.append(orjson.dumps(named | fields))
            if is_clicked:
                clicks.append(orjson.dumps(named))
        return impressions, clicks

    def request(self, candidates: int) -> bytes:
        """Return the body of a request."""
        drawn = self.drawn(candidates)
        half = len(self._names) // 2
        own: Sequence[dict[str, int]] = [
            dict(zip(self._names[half:], values[half:], strict=True)) for values in drawn
        ]
        context = dict(zip(self._names[:half], drawn[0][:half], strict=True))
        return orjson.dumps({"context": context, "candidates": own})
