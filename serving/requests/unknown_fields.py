"""Refuses fields that no model reads, for requests with `"strict": true`.

A decoder drops such fields in its one pass, at no cost. Clients rely on it: they send fields of the
next model before it is there. But a misspelled name is dropped as well, and the model answers as
if the field were absent. So a client may ask for a check, in its tests or for a share of its
requests. The body is then parsed a second time.

*Refused:* naming the dropped fields in every answer. It would cost each request a second pass, and
no client reads every answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.ingest.events import TIME
from headrace.ingest.features import one_of
from headrace.ingest.http import RequestRefused
from headrace.serving.requests.candidates import ID, REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.ingest.features import FieldSet

_MOST_SHOWN = 5


def known_fields(fields: FieldSet) -> frozenset[str]:
    """Return the fields that a strict request may have: those that the spec names."""
    read = {each.source for each in (*fields.singles, *fields.bags, *fields.numbers)}
    others = {*fields.slice_by, fields.weights.source, ID, REQUEST_ID, TIME}
    return frozenset((read | others) - {""})


def check_known(body: bytes, known: frozenset[str]) -> None:
    """Refuse a decoded request if a field is not known. Raises RequestRefused (422)."""
    found = dict[str, str]()
    for path, name in _fields(msgspec.json.decode(body)):
        if name not in known:
            found.setdefault(name, path)
    if not found:
        return
    first, *more = found
    others = f"; also unknown: {_listed(more)}" if more else ""
    expected = f"a field of the model, {one_of(known, first)}"
    raise RequestRefused(422, found[first], expected, f"an unknown field{others}")


def _fields(request: Any) -> Iterator[tuple[str, str]]:
    """Yield path and name of each field of the context and of the candidates."""
    for name in request.get("context") or ():
        yield f"context.{name}", name
    for rows in ("candidates", "instances"):
        for i, row in enumerate(request.get(rows) or ()):
            for name in row:
                yield f"{rows}[{i}].{name}", name


def _listed(names: Iterable[str]) -> str:
    *shown, last = [*names][: _MOST_SHOWN + 1]
    if len(shown) == _MOST_SHOWN:
        last = "and more"
    return ", ".join([*shown, last])
