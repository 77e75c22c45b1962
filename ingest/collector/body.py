"""A request's body: read within bounds, unpacked within bounds, split into events.

Events stay the bytes they came as, numbers and all: nothing is decoded here but what is needed to
find where each begins.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.http.errors import Refused

if TYPE_CHECKING:
    from headrace.ingest.collector.backpressure import Limits

JSON = "application/json"
NDJSON = "application/x-ndjson"
_NDJSON_TYPES = frozenset({NDJSON, "application/ndjson", "application/jsonl"})
_GZIP_WINDOW = 31  # zlib's largest window, with the header of gzip
_WHITE = b" \t\r\n"

_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def content_type(header: str) -> str:
    """Return the kind of body that a Content-Type names, JSON or NDJSON. Raises Refused (415)."""
    named = header.partition(";")[0].strip().lower()
    if named in _NDJSON_TYPES:
        return NDJSON
    if named == JSON:
        return JSON
    raise Refused(415, "Content-Type", f"{JSON} or {NDJSON}", named or "none")


def check_encoding(header: str) -> bool:
    """Return whether a Content-Encoding says gzip. Raises Refused (415)."""
    named = header.strip().lower()
    if named not in ("", "identity", "gzip"):
        raise Refused(415, "Content-Encoding", "gzip or none", named)
    return named == "gzip"


def content_length(header: str | None, limits: Limits) -> int:
    """Return the bytes that a Content-Length promises; 0 without one. Raises Refused (400, 413)."""
    if header is None:
        return 0
    if not (header.isascii() and header.isdigit()):
        raise Refused(400, "Content-Length", "a number of bytes", header)
    if len(header) > 18 or int(header) > limits.body_bytes:
        raise too_large(limits, header)
    return int(header)


def too_large(limits: Limits, found: str) -> Refused:
    """Return the refusal of a body that is too long."""
    return Refused(413, "", f"a body of at most {limits.body_bytes} bytes", found)


def unpack_gzip(body: bytes, limits: Limits) -> bytes:
    """Return what a gzip body holds. Raises Refused (400, 413)."""
    unpacking = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        unpacked = unpacking.decompress(body, limits.body_bytes + 1)
    except zlib.error as error:
        raise Refused(400, "", "a body in gzip, as Content-Encoding says", str(error)) from None
    if len(unpacked) > limits.body_bytes:
        raise too_large(limits, "more, unpacked")
    if not unpacking.eof:
        raise Refused(400, "", "a whole body in gzip", "one that breaks off")
    if unpacking.unused_data:
        raise Refused(400, "", "one gzip member", f"{len(unpacking.unused_data)} bytes behind it")
    return unpacked


def split(body: bytes, kind: str, limits: Limits) -> list[bytes]:
    """Return the events of a body, in order. Raises Refused (400, 413).

    JSON is one event or an array of them, NDJSON one a line; lines with nothing on them do not
    count. Whether each is an event is not known yet.
    """
    if kind == NDJSON:
        events = [line for line in body.split(b"\n") if line and not line.isspace()]
    else:
        start = body.lstrip(_WHITE)
        if not start.startswith(b"["):
            events = [body.strip(_WHITE)] if start else []
        else:
            try:
                events = [bytes(raw) for raw in _split_array(body)]
            except (msgspec.MsgspecError, RecursionError) as error:
                found = f"{len(body)} bytes that are none: {error}"
                raise Refused(400, "", "an array of JSON objects", found) from None
    if not events:
        raise Refused(400, "", "at least one event", "none")
    if len(events) > limits.batch_events:
        raise Refused(413, "", f"at most {limits.batch_events} events", str(len(events)))
    return events
