"""What a log of events on disk holds, as far as a report or a demo has to know."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
import pyarrow as pa
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Head(msgspec.Struct):
    impression_id: str
    timestamp_ms: int | float


_decode_head = msgspec.json.Decoder(_Head)


def impression_lines(directory: Path) -> Iterator[bytes]:
    """Yield the lines of `impressions.ndjson.zst`, or of `impressions.ndjson`."""
    packed = directory / "impressions.ndjson.zst"
    plain = directory / "impressions.ndjson"
    file = zstandard.open(packed, "rb") if packed.is_file() else plain.open("rb")
    with io.BufferedReader(file, 1 << 20) as lines:
        yield from lines


def _heads(directory: Path) -> Iterator[_Head]:
    for line in impression_lines(directory):
        try:
            yield _decode_head.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # a dead letter: no impression


def impression_ids_of(directory: Path) -> pa.Array:
    """Return the ids of all impressions, as large_string."""
    return pa.array([head.impression_id for head in _heads(directory)], pa.large_string())


def span_ms(directory: Path) -> float:
    """Return the time between the first impression and the last."""
    first = last = None
    for head in _heads(directory):
        first = head.timestamp_ms if first is None else first
        last = head.timestamp_ms
    return 0.0 if first is None or last is None else last - first


def first_impressions(directory: Path, count: int) -> list[dict[str, Any]]:
    """Return the first impressions, whole; fewer if there are not so many."""
    found: list[dict[str, Any]] = []
    for line in impression_lines(directory):
        try:
            _decode_head.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        found.append(orjson.loads(line))
        if len(found) == count:
            break
    return found
