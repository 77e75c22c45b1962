"""Tells ids that are written in digits from magnitudes, such as prices and counts.

A magnitude belongs in a bucket with its neighbours; an id has no neighbours. The text of a value
settles it if it has leading zeros, a fraction or a sign. Otherwise three things tell:

- Ids are spread evenly between the least and the greatest one, and so are hashes. Most of the
  different magnitudes are small. Evenly spread values with far wider gaps than values are ids, if
  they come again.
- The clicks of a magnitude follow its size. So the values of the earlier half as categories, with a
  rate for each, predict the later half hardly better than bins of neighbours. Those of ids do.
- A value that all candidates of a request share says nothing about which of them is clicked. There,
  whole numbers from 0 or 1 on are ids if hardly any is missing and all are about equally frequent.
  Most magnitudes of a log are small ones, or ones in the middle.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells.values import texts_of
from headrace.learner.validation.progressive import log_losses

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Labels = npt.NDArray[np.bool_]

_ABSENT = -1.0
"""A number that logs of ids and of magnitudes write for "none"."""
_EVEN = 0.25
"""Share of the different values in the upper half of their range, from which on they are spread."""
_SKEWED = 0.1
"""The same share of magnitudes, at most."""
_NUMBERS_A_VALUE = 50
"""Of ids with gaps: whole numbers between the least and the greatest, for each value."""
_COMES_AGAIN = 0.5
"""Share of the rows of the later half whose value the earlier half has."""
_DENSE = 0.9
"""Share of the whole numbers up to the greatest that numbered things have."""
_TAILS = 0.2
"""Least share of the rows in the lowest quarter of the numbers, and in the highest."""
_BINS = 32
_PRIOR_SHOWS = 20.0
_LEAST_CLICKS = 100
"""In each half, so that rates say something."""
_BETTER = 1.25
_LEAST_Z = 3.0


class DigitIds(NamedTuple):
    """Whether a column of numbers has ids, and what decided."""

    found: bool
    reason: str


def digit_ids(
    column: pa.Array, numbers: Floats, labels: Labels, requests: Ints | None = None
) -> DigitIds:
    """Return whether the numbers of a column are ids.

    numbers: of the present rows. labels, requests: (n,) of all rows, the latter -1 without one.
    """
    known = numbers[numbers != _ABSENT]
    if not known.size or bool((known != np.floor(known)).any()) or known.min() < 0:
        return DigitIds(False, "")
    if pa.types.is_string(column.type) and _leading_zeros(column):
        return DigitIds(True, "ids with leading zeros")
    values = np.unique(known)
    low, high = float(values[0]), float(values[-1])
    upper = float((values > (low + high) / 2).mean())
    if upper < _SKEWED:
        return DigitIds(False, "most are small")
    present = pc.is_valid(column).to_numpy(zero_copy_only=False)
    rows = np.full(present.shape[0], np.nan)
    rows[present] = numbers
    half = rows.shape[0] // 2
    again = float(np.isin(rows[half:], rows[:half]).mean())
    gaps = (high - low) / values.size > _NUMBERS_A_VALUE
    if gaps and upper > _EVEN and again > _COMES_AGAIN:
        return DigitIds(True, f"ids with gaps, from {low:.0f} to {high:.0f}")
    if _predict_better(rows, labels):
        return DigitIds(True, "ids: single values predict clicks, their size does not")
    dense = low <= 1 and values.size > _DENSE * (high - low)
    if dense and requests is not None and _shared(rows, requests) and _even(known, low, high):
        return DigitIds(True, f"ids of requests, from {low:.0f} to {high:.0f}")
    return DigitIds(False, "no better as ids")


def early_rates(codes: npt.NDArray[np.integer], labels: Labels, prior_shows: float) -> Floats:
    """Return the click rate of each row's value in the earlier half of the rows; shape (rows,).

    prior_shows: impressions at the rate of that half, which each value has besides its own.
    """
    half, size = labels.shape[0] // 2, int(codes.max()) + 1
    rate = float(labels[:half].mean())
    shows = np.bincount(codes[:half], minlength=size)
    clicks = np.bincount(codes[:half], weights=labels[:half], minlength=size)
    rates = (clicks + prior_shows * rate) / (shows + prior_shows)
    of_rows: Floats = rates[codes]
    return of_rows


def later_losses(rates: Floats, labels: Labels) -> Floats:
    """Return the log loss of each row of the later half; shape (rows - rows // 2,)."""
    half = labels.shape[0] // 2
    least = 1 / (half + 2)
    return log_losses(labels[half:].view(np.uint8), np.clip(rates[half:], least, 1 - least))


def _leading_zeros(column: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts_of(column), r"^0\d")).as_py())


def _shared(rows: Floats, requests: Ints) -> bool:
    """Whether the log has requests of several candidates, all with the same value."""
    order = np.argsort(requests, kind="stable")
    order = order[requests[order] >= 0]
    together = requests[order][1:] == requests[order][:-1]
    values = np.nan_to_num(rows[order], nan=_ABSENT)
    same = values[1:] == values[:-1]
    return bool(together.any() and same[together].all())


def _even(known: Floats, low: float, high: float) -> bool:
    """Whether about as many rows have low numbers as high ones, and as numbers in the middle."""
    quarter = (high - low) / 4
    low_share, high_share = (known < low + quarter).mean(), (known > high - quarter).mean()
    return bool(min(low_share, high_share) > _TAILS)


def _predict_better(rows: Floats, labels: Labels) -> bool:
    """Whether single values predict the clicks of the later half better than bins of them."""
    half = labels.shape[0] // 2
    if min(int(labels[:half].sum()), int(labels[half:].sum())) < _LEAST_CLICKS:
        return False
    known = rows[~np.isnan(rows)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = np.where(np.isnan(rows), 0, 1 + np.searchsorted(edges, rows, "right"))
    _, values = np.unique(rows, return_inverse=True)
    constant = later_losses(np.full(labels.shape[0], labels[:half].mean()), labels)
    losses = [
        later_losses(early_rates(each, labels, _PRIOR_SHOWS), labels) for each in (bins, values)
    ]
    of_bins, of_values = (float((constant - each).mean()) for each in losses)
    saved = losses[0] - losses[1]
    z = float(saved.mean()) / max(float(saved.std()) / np.sqrt(saved.size), 1e-12)
    return z > _LEAST_Z and of_values > _BETTER * max(of_bins, 0.0)
