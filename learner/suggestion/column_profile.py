"""Decides what a column holds, and with which transform a model reads it."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells.values import is_list, numbers_of, texts_of
from headrace.learner.suggestion.digit_ids import Ints, Labels, digit_ids
from headrace.runtime.counted_nouns import counted

_ID_NAME = re.compile(
    r"(^|[_.])(id|user|item|article|ad|site|campaign|code|type|category)s?($|_id$)"
    r"|(?-i:[a-z]I[dD]s?$)",  # listenerId
    re.IGNORECASE,
)
_LOGGING_NAME = re.compile(
    r"propensity|^p_?score$|^(action|click|show|selection)_?prob(ability)?$"
    r"|^(logging|serving)?_?policy(_?(name|id))?$|^(model|ranker|policy)_?(version|name|id)$"
    r"|^(served|logged|model|ranking|predicted)_?(score|ctr|p?ctr)$|^p_?ctr$|^prediction$",
    re.IGNORECASE,
)
_FEW = 64
"""Numbers with at most so many values are categories: each value gets a weight of its own."""
_LONG_TEXT = 60
_NEARLY_ALL = 0.98
_EXACT = 1 << 53
"""Larger whole numbers are ids: a float would make one of two."""


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """One column of a sample."""

    source: str
    """Name of the event field."""
    transform: str
    """"" if the column should not be a field."""
    reason: str
    """The content of the column, in a few words."""
    distinct: int
    codes: npt.NDArray[np.int32] | None = None
    """For ids: a number for each row's value, absent being one; shape (rows,)."""


def profile_of(
    name: str, column: pa.Array, labels: Labels, requests: Ints | None = None
) -> ColumnProfile:
    """Return what a column holds.

    labels: (n,) whether each row is clicked. requests: (n,) numbers, -1 without a request.
    """
    if _LOGGING_NAME.search(name.rpartition(".")[2]):
        reason = "named like what only the logging system knows, so no request can contain it"
        return ColumnProfile(name, "", reason, 0)
    present = len(column) - column.null_count
    absent = (
        f", {100 * column.null_count / max(1, len(column)):.1f} % absent"
        if column.null_count
        else ""
    )
    if not present:
        return ColumnProfile(name, "", "always absent", 0)
    kind = column.type
    if is_list(kind):
        items = pc.list_flatten(column)
        if pa.types.is_nested(items.type):
            return ColumnProfile(name, "", "nested values, which events cannot have", 0)
        distinct = pc.count_distinct(items).as_py() if len(items) else 0
        each = len(items) / present
        return ColumnProfile(
            name, "bag", f"{each:.1f} items a row, {distinct:,} different{absent}", distinct
        )
    if pa.types.is_nested(kind):
        return ColumnProfile(name, "", "nested values, which events cannot have", 0)
    distinct = pc.count_distinct(column, mode="only_valid").as_py()
    shown = f"{counted(distinct, 'value')}{absent}"
    if distinct == 1 and not column.null_count:
        return ColumnProfile(name, "", "one value only", 1)
    numbers = numbers_of(column)
    if (
        distinct > _NEARLY_ALL * present
        and present > _FEW
        and (
            numbers is None
            or _ID_NAME.search(name)
            or (_whole(numbers) and (pa.types.is_string(kind) or numbers.max() > _EXACT))
        )
    ):
        return ColumnProfile(name, "", f"{shown}: nearly every row has its own", distinct)
    if numbers is not None and distinct > _FEW and not _ID_NAME.search(name):
        ids = digit_ids(column, numbers, labels, requests)
        if not ids.found:
            why = f"numbers from {np.nanmin(numbers):g} to {np.nanmax(numbers):g}{absent}"
            why += f", {ids.reason}" if ids.reason else ""
            return ColumnProfile(name, "log_bucket", why, distinct)
        shown += f", {ids.reason}"
    if numbers is None and (pc.mean(pc.utf8_length(texts_of(column))).as_py() or 0) > _LONG_TEXT:
        return ColumnProfile(name, "", f"{shown}, long texts", distinct)
    encoded = texts_of(column).dictionary_encode()
    codes = pc.fill_null(encoded.indices, distinct).to_numpy(zero_copy_only=False)
    return ColumnProfile(name, "id", shown, distinct, codes.astype(np.int32))


def _whole(numbers: npt.NDArray[np.float64]) -> bool:
    return bool((numbers == np.floor(numbers)).all())
