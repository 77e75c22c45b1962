"""Refuses fields that no model reads, for requests with `"strict": true`.

A decoder drops such fields in its one pass, at no cost. Clients rely on it: they send fields of the
next model before it is there. But a misspelled name is dropped as well, and the model answers as
if the field were absent. So a client may ask for a check, in its tests or for a share of its
requests. The body is then parsed a second time.

*Refused:* naming the dropped fields in every answer. It would cost each request a second pass, and
no client reads every answer.
"""

import msgspec

from headrace.ingest.features.unknown_fields import first_unknown
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.undecodable import UNDECODABLE


def check_known(body: bytes, known: frozenset[str]) -> None:
    """Refuse a decoded request if a field is not known. Raises RequestRefused (422)."""
    try:
        request = msgspec.json.decode(body)
    except UNDECODABLE as error:  # in a value that the first pass dropped
        raise RequestRefused(422, "", "JSON in UTF-8 in every field", str(error)) from error
    rows = (
        (f"{key}[{i}]", row)
        for key in ("candidates", "instances")
        for i, row in enumerate(request.get(key) or ())
    )
    unknown = first_unknown(request.get("context") or (), rows, known)
    if unknown:
        raise RequestRefused(422, *unknown)
