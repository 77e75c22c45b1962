"""Finds fields that a model does not read, for callers that ask for this check.

The encoder ignores such fields, so clients can send the fields of the next model in advance. It
ignores a misspelled name as well, and the model answers as if the field were absent. Servers check
requests with `"strict": true`, and `LocalModel.predict` does so with `strict=True`, with one
wording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.events.contract import IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.spec_text import one_of

if TYPE_CHECKING:
    from headrace.ingest.features.fields import FieldSet

_MOST_SHOWN = 5


class UnknownField(NamedTuple):
    """The first field that a model does not read, in the words of a refusal."""

    path: str
    """Its place in the request, such as `candidates[3].colour`."""
    expected: str
    """The known names, with the one most like it."""
    found: str
    """Names of further unknown fields."""


def known_fields(fields: FieldSet) -> frozenset[str]:
    """Return the fields that a strict request may have: those that the spec names."""
    read = {each.source for each in (*fields.singles, *fields.bags, *fields.numbers)}
    others = {*fields.slice_by, fields.weights.source, IMPRESSION_ID, REQUEST_ID, TIME}
    return frozenset((read | others) - {""})


def first_unknown(
    context: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]], known: frozenset[str]
) -> UnknownField | None:
    """Return the first field of a request that is not known; None if all are.

    context: its field names. rows: path and field names of each candidate.
    """
    found = dict[str, str]()
    for path, name in _paths(context, rows):
        if name not in known:
            found.setdefault(name, path)
    if not found:
        return None
    first, *more = found
    others = f"; also unknown: {_listed(more)}" if more else ""
    expected = f"a field of the model, {one_of(known, first)}"
    return UnknownField(found[first], expected, f"an unknown field{others}")


def _paths(
    context: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]
) -> Iterator[tuple[str, str]]:
    """Yield path and name of each field."""
    for name in context:
        yield f"context.{name}", name
    for path, names in rows:
        for name in names:
            yield f"{path}.{name}", name


def _listed(names: Iterable[str]) -> str:
    *shown, last = [*names][: _MOST_SHOWN + 1]
    if len(shown) == _MOST_SHOWN:
        last = "and more"
    return ", ".join([*shown, last])
