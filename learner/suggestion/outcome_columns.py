"""Finds columns that are known only after the outcome, such as a second label.

A log that was written after the fact often has them: whether an item was bought, how long it was
read, what was paid. A model that is taught them looks perfect in every test, and fails when it is
asked before the outcome. Such a column alone predicts the later half of the sample almost without
error, which no honest input does; see Kaufman et al., "Leakage in Data Mining", KDD 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells import numbers_of
from headrace.learner.suggestion.column_profile import ColumnProfile, early_rates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Labels = npt.NDArray[np.bool_]

_LEAST_CLICKS = 50
"""In each half, and impressions without a click."""
_MOST_REMOVED = 0.5
"""Share of the log loss. The best column of the logs that were looked at removes a tenth."""
_BINS = 32
_PRIOR_SHOWS = 1.0


def without_outcomes(
    profiles: Sequence[ColumnProfile], columns: Mapping[str, pa.Array], labels: Labels
) -> list[ColumnProfile]:
    """Return the profiles, without a transform for columns that tell the outcome."""
    found = []
    for each in profiles:
        removed = removed_loss(each, columns[each.source], labels) if each.transform else 0.0
        if removed > _MOST_REMOVED:
            reason = f"alone it removes {100 * removed:.0f} % of the log loss: known after a click?"
            found.append(ColumnProfile(each.source, "", reason, each.distinct))
        else:
            found.append(each)
    return found


def removed_loss(profile: ColumnProfile, column: pa.Array, labels: Labels) -> float:
    """Return the share of the log loss of the later half that a column alone removes.

    The rates of the column's values come from the earlier half. 0 if either half has too few
    impressions with or without a click.
    """
    half = labels.shape[0] // 2
    clicks = (int(labels[:half].sum()), int(labels[half:].sum()))
    rest = (half - clicks[0], labels.shape[0] - half - clicks[1])
    if min(*clicks, *rest) < _LEAST_CLICKS:
        return 0.0
    rates = early_rates(_codes(profile, column), labels, _PRIOR_SHOWS)[half:]
    least = 1 / (half + 2)
    before, after = (
        float(-np.log(np.where(labels[half:], p, 1 - p)).mean())
        for p in (np.full_like(rates, labels[:half].mean()), np.clip(rates, least, 1 - least))
    )
    return 1 - after / before


def _codes(profile: ColumnProfile, column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a number for each row's value or bin; absent is one of them."""
    if profile.codes is not None:
        return profile.codes.astype(np.int64)
    present = pc.is_valid(column).to_numpy(zero_copy_only=False)
    codes = np.zeros(present.shape[0], np.int64)
    numbers = None if profile.transform == "bag" else numbers_of(column)
    if numbers is None:
        codes[present] = 1
        return codes
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
    codes[present] = 1 + np.searchsorted(edges, numbers)
    return codes
