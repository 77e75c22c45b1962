"""Counts the words of a click column, so that messages can show them.

A column such as `geklickt` says a click in words that headrace may not read. A message with the
words and their counts lets a user name those that mean a click, as [click] `values` of a layout.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

_MOST_COUNTED = 1_000
_MOST_SHOWN = 4
_LONGEST_SHOWN = 24


class ClickWords:
    """The different texts of one column, with their counts."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, column: pa.Array) -> None:
        """Count the values of a block of rows; a column of many different values is cut off."""
        if pa.types.is_nested(column.type) or len(self._counts) > _MOST_COUNTED:
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


def all_clicked(rows: int, column: str | None, words: str) -> str:
    """Return the message about a log in which every impression has a click.

    column: that of the clicks, if the layout names one; words: its texts with their counts.
    """
    found = f"expected impressions with and without a click, got a click for all {rows:,}"
    if column is None:
        return f"{found}: a model learns only that everything is clicked. Compare the click times"
    return (
        f"{found}: the column {column!r} has the values {words}. Name the words that mean a click "
        'in the layout: [click] values = ["…"]'
    )
