"""Finds columns that are known only after the outcome, such as a second label.

A log that was written after the fact often has them: whether an item was bought, how long it was
read, what was paid. A model that learns them looks perfect in every test, and fails when it
predicts before the outcome. Such a column alone predicts the later half of the sample almost
without error, which no honest input does; see Kaufman et al., "Leakage in Data Mining", KDD 2011.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells.values import is_list, numbers_of, texts_of
from headrace.learner.suggestion.column_profile import ColumnProfile
from headrace.learner.suggestion.digit_ids import Labels, early_rates, later_losses

_LEAST_CLICKS = 50
"""In each half, and impressions without a click."""
_MOST_REMOVED = 0.5
"""Share of the log loss. The best column of the logs that were looked at removes a tenth."""
_BINS = 32
_PRIOR_SHOWS = 1.0
_MOST_ITEMS = 64
"""The most frequent items of a bag that are tried."""


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

    The rates of the column's values come from the earlier half. The best view of the column counts:
    its values, whether a row has one, its most frequent one, or an item of a bag. 0 if either half
    has too few impressions with or without a click.
    """
    half = labels.shape[0] // 2
    clicks = (int(labels[:half].sum()), int(labels[half:].sum()))
    rest = (half - clicks[0], labels.shape[0] - half - clicks[1])
    if min(*clicks, *rest) < _LEAST_CLICKS:
        return 0.0
    before = later_losses(np.full(labels.shape[0], labels[:half].mean()), labels).mean()
    views = [_codes(profile, column), *_views(column)]
    rates = (early_rates(codes, labels, _PRIOR_SHOWS) for codes in views)
    return float(1 - min(later_losses(each, labels).mean() for each in rates) / before)


def _views(column: pa.Array) -> Iterator[npt.NDArray[np.int64]]:
    """Yield views of a column that outlive its values, each 0 or 1 for a row.

    Values after a click, such as ids of orders or times, never repeat. But whether there is one at
    all repeats, and so do an item of a bag and a value that stands for "none".
    """
    yield pc.is_valid(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
    cells, rows = column, np.arange(len(column))
    if is_list(column.type):
        cells, rows = column.flatten(), pc.list_parent_indices(column).to_numpy()
    found = texts_of(cells).dictionary_encode()
    places = pc.fill_null(found.indices, -1).to_numpy(zero_copy_only=False)
    counts = np.bincount(places[places >= 0])
    for place in np.argsort(-counts)[: _MOST_ITEMS if cells is not column else 1]:
        codes = np.zeros(len(column), np.int64)
        codes[rows[places == place]] = 1
        yield codes


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
