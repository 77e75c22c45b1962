"""Finds the fields of a request that no model declares. Pure.

The decoder drops such fields in its one pass, so the names are read from the body again.
"""

import msgspec

from headrace.runtime.printable_text import printable
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.requests.candidates import some_of

LARGEST_BODY = 128 << 10
"""Bytes of a body that is read again. A larger one would delay its answer by milliseconds."""
LONGEST_NAME = 40
"""Characters of the name of an unknown field that are kept."""

_Row = dict[str, msgspec.Raw]


class _Names(msgspec.Struct, gc=False):
    """The part of a request with the names of its fields. The values stay unread."""

    context: _Row | None = None
    candidates: list[_Row] | None = None
    instances: list[_Row] | None = None


_decode = msgspec.json.Decoder(_Names).decode


def unknown_counts(body: bytes, known: frozenset[str]) -> dict[str, int]:
    """Return how many of the sampled candidates have each field that is not known.

    Empty if the body is too large, or is not JSON.
    """
    if len(body) > LARGEST_BODY:
        return {}
    try:
        request = _decode(body)
    except UNDECODABLE:
        return {}  # the body is of another protocol
    rows, context = some_of(request.candidates or request.instances or ()), request.context or {}
    counts = dict.fromkeys((name for name in context if name not in known), len(rows))
    for row in rows:
        for name in row:
            if name not in known and name not in context:
                counts[name] = counts.get(name, 0) + 1
    return counts


def shown_name(name: str) -> str:
    """Return a name of a client as short printable text."""
    text = printable(name)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
