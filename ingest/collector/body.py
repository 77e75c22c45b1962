"""Reads the body of a request: unpacks and splits it into events, within bounds.

Events stay bytes, including the spelling of their numbers. Only array boundaries are parsed here.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from headrace.runtime.counted_nouns import counted
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.undecodable import UNDECODABLE

if TYPE_CHECKING:
    from headrace.ingest.collector.backpressure import CollectorLimits

JSON = "application/json"
NDJSON = "application/x-ndjson"
_NDJSON_TYPES = frozenset({NDJSON, "application/ndjson", "application/jsonl"})
_GZIP_WINDOW = 31  # zlib's largest window, with the header of gzip
_WHITE = b" \t\r\n"

_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def content_type(header: str) -> str:
    """Return JSON or NDJSON for a Content-Type. Raises RequestRefused (415)."""
    named = header.partition(";")[0].strip().lower()
    if named in _NDJSON_TYPES:
        return NDJSON
    if named == JSON:
        return JSON
    expected = f"{JSON} or {NDJSON} (navigator.sendBeacon: a Blob of this type)"
    raise RequestRefused(415, "Content-Type", expected, named or "none")


def check_encoding(header: str) -> bool:
    """Return whether a Content-Encoding is gzip. Raises RequestRefused (415)."""
    named = header.strip().lower()
    if named not in ("", "identity", "gzip"):
        raise RequestRefused(415, "Content-Encoding", "gzip or none", named)
    return named == "gzip"


def content_length(header: str | None, limits: CollectorLimits) -> int:
    """Return the bytes of a Content-Length, 0 without one. Raises RequestRefused (400, 413)."""
    if header is None:
        return 0
    if not (header.isascii() and header.isdigit()):
        raise RequestRefused(400, "Content-Length", "a number of bytes", header)
    if len(header) > 18 or int(header) > limits.body_bytes:
        raise too_large(limits, header)
    return int(header)


def too_large(limits: CollectorLimits, found: str) -> RequestRefused:
    """Return the refusal of a body beyond the limit."""
    return RequestRefused(413, "", f"a body of at most {limits.body_bytes} bytes", found)


def unpack_gzip(body: bytes, limits: CollectorLimits) -> bytes:
    """Return the content of a gzip body. Raises RequestRefused (400, 413)."""
    unpacking = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        unpacked = unpacking.decompress(body, limits.body_bytes + 1)
    except zlib.error as error:
        raise RequestRefused(
            400, "", "a body in gzip, as Content-Encoding says", str(error)
        ) from None
    if len(unpacked) > limits.body_bytes:
        raise too_large(limits, "more, unpacked")
    if not unpacking.eof:
        raise RequestRefused(400, "", "a complete body in gzip", "a truncated one")
    if unpacking.unused_data:
        raise RequestRefused(
            400, "", "one gzip member", f"{len(unpacking.unused_data)} bytes after it"
        )
    return unpacked


def split(body: bytes, kind: str, limits: CollectorLimits) -> list[bytes]:
    """Return the events of a body, in order. Raises RequestRefused (400, 413).

    JSON is one event or an array of events, NDJSON one event a line; blank lines are skipped. The
    events themselves are not parsed yet.
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
            except UNDECODABLE as error:
                found = f"{len(body)} bytes that are not: {error}"
                raise RequestRefused(400, "", "an array of JSON objects", found) from None
    if not events:
        raise RequestRefused(400, "", "at least one event", "an empty body")
    if len(events) > limits.batch_events:
        raise RequestRefused(
            413, "", f"at most {counted(limits.batch_events, 'event')}", str(len(events))
        )
    return events
