"""Says which cells of a column are a click: 0 and 1, -1 and 1, words, counts, and times.

A cell is a click, no click, or neither. A word that is neither is refused by name: it may mean
either, and a guess would teach a model the opposite without a message. Never the truth of a text,
by which `"0"` were a click.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.ingest.events.contract import EARLIEST_MS
from headrace.ingest.features.cells.times import ISO, milliseconds_of
from headrace.ingest.features.cells.values import are_numbers, cell_of, plain, text_of

_NO = (
    *("", "false", "f", "no", "n", "off", "none", "null", "na", "n/a", "nan", "nat", "\\n", "-"),
    *("nein", "non", "nee", "nej", "nei", "nie", "ei", "não"),
)
_YES = (
    *("true", "t", "yes", "y", "on", "x"),
    *("ja", "j", "oui", "si", "sì", "sí", "sim", "tak", "kyllä"),
)
WORDS = frozenset((*_NO, *_YES, "0", "1", "0.0", "1.0", "-1", "-1.0"))
"""Texts that say whether there was a click, in lower case."""
_UNKNOWN = 2
ANY = "*"
"""Among the texts of a click: each text that does not mean no click."""
_LAST_YEAR_MS = 253_370_764_800_000
"""The year 9999, which databases write for "never"."""


class UnknownWord(ValueError):
    """A text that is neither a click nor none, and the row, from 0, that has it."""

    def __init__(self, word: str, row: int) -> None:
        super().__init__(
            "expected a click or none, as 1 or 0, a count, true or false, yes or no, a time or an "
            f"empty value, got {word!r}"
        )
        self.word, self.row = word, row


def clicked_in(column: pa.Array, given: Sequence[Any] = ()) -> npt.NDArray[np.bool_]:
    """Return which cells are a click; shape (n,).

    given: the values that mean a click, in any case; all others mean none. Raises UnknownWord.
    """
    column = plain(column)
    if pt.is_null(column.type):
        return np.zeros(len(column), np.bool_)
    if given and ANY not in given:
        return _among(column, given)
    if pt.is_boolean(column.type):
        return _bools(column)
    if pt.is_integer(column.type) or pt.is_floating(column.type):
        return _bools(pc.greater(column, 0))
    if pt.is_temporal(column.type):
        return _since_2000(milliseconds_of(column, ISO))
    found = column.cast(pa.string()).dictionary_encode()
    said = _of_texts(found.dictionary, unknown=1 if ANY in given else _UNKNOWN)
    places = found.indices.fill_null(len(said)).to_numpy(zero_copy_only=False)
    clicked = np.append(said, 0)[places]
    if (clicked == _UNKNOWN).any():
        row = int(np.argmax(clicked == _UNKNOWN))
        raise UnknownWord(str(cell_of(column, row)), row)
    chosen: npt.NDArray[np.bool_] = clicked.astype(np.bool_)
    return chosen


def are_labels(column: pa.Array) -> bool:
    """Whether all cells of a column that is not empty say it in a word, or as 1, 0 or below."""
    if pt.is_nested(column.type) or pt.is_temporal(column.type):
        return False
    found = {_canonical(text_of(each)) for each in pc.unique(column.drop_null()).to_pylist()}
    below = {each for each in found if each.startswith("-") and each[1:].isdigit()}
    return len(found) <= len(WORDS) and found - below <= WORDS


def _of_texts(texts: pa.Array, unknown: int) -> npt.NDArray[np.int8]:
    """Return 1 for each text of a click, 0 for each text of no click, `unknown` for others."""
    said = np.full(len(texts), unknown, np.int8)
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    numeric = are_numbers(lower)
    values = pc.if_else(pa.array(numeric), lower, pa.scalar(None, pa.string())).cast(pa.float64())
    said[numeric] = _bools(pc.greater(values, 0))[numeric]
    times = milliseconds_of(texts, ISO)
    timed = times.is_valid().to_numpy(zero_copy_only=False)
    said[timed] = _since_2000(times)[timed]
    said[_bools(pc.is_in(lower, pa.array(_YES)))] = 1
    said[_bools(pc.is_in(lower, pa.array(_NO)))] = 0
    return said


def _since_2000(times: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which times are those of an event: 1970 and 9999 are written for "never"."""
    return _bools(pc.and_(pc.greater_equal(times, EARLIEST_MS), pc.less(times, _LAST_YEAR_MS)))


def _among(column: pa.Array, given: Sequence[Any]) -> npt.NDArray[np.bool_]:
    wanted = {_canonical(text_of(each)) for each in given}
    found = column.dictionary_encode()
    said = [_canonical(text_of(each)) in wanted for each in found.dictionary.to_pylist()]
    places = found.indices.fill_null(len(said)).to_numpy(zero_copy_only=False)
    chosen: npt.NDArray[np.bool_] = np.array([*said, False], np.bool_)[places]
    return chosen


def _canonical(text: str) -> str:
    """Return a text in lower case, and 1.00 as 1."""
    text = text.strip().lower()
    try:
        return text_of(float(text))
    except (ValueError, OverflowError):
        return text


def _bools(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return found


_MOST_COUNTED = 1_000
_MOST_SHOWN = 4
_LONGEST_SHOWN = 24


class ClickWords:
    """The different texts of one column of clicks, with their counts, for messages."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, column: pa.Array) -> None:
        """Count the values of a block of rows; a column of many different values is cut off."""
        if pt.is_nested(column.type) or len(self._counts) > _MOST_COUNTED:
            return
        for pair in pc.value_counts(pc.utf8_trim_whitespace(column.cast(pa.string()))).to_pylist():
            self._counts[pair["values"] or ""] += pair["counts"]

    @property
    def given(self) -> list[str]:
        """The texts that are not empty, in alphabetical order."""
        return sorted(each for each in self._counts if each)

    def in_words(self) -> str:
        """Return the most frequent texts with their counts, as `nein (54,569), ja (5,438)`."""
        shown = [
            f"{' '.join(word[:_LONGEST_SHOWN].split()) or 'empty'} ({count:,})"
            for word, count in self._counts.most_common(_MOST_SHOWN)
        ]
        return ", ".join(shown) + (" …" if len(self._counts) > _MOST_SHOWN else "")
