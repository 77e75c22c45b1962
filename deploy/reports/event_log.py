"""Reads a log of events on disk, as far as a report or a demo needs it."""

import io
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import zstandard

from headrace.deploy.errors import BadOption
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import CLICKS, IMPRESSIONS, NoEventsError, path_of
from headrace.ingest.logs.table_log import TableLog
from headrace.runtime.undecodable import UNDECODABLE


class _ImpressionHead(msgspec.Struct):
    impression_id: str
    timestamp_ms: int | float


_SAMPLED = 1_000
"""Impressions at the start of a log that `sample_request` reads."""

_decode_head = msgspec.json.Decoder(_ImpressionHead)


def check_log(directory: Path, layout: LogLayout | None = None) -> None:
    """Check that the log exists, before anything is started.

    With a layout, `directory` is a file, and the check reads its first rows. Raises BadOption, and
    with a layout SpecError.
    """
    if layout is not None:
        next(iter(TableLog(directory, layout).lines()), None)
        return
    if directory.is_file():
        raise BadOption(
            f"--data: expected a layout for the file {directory}, got none: add --layout auto, or "
            "write one (docs/guides/own_data.md)"
        )
    for stem in (IMPRESSIONS, CLICKS):
        try:
            path_of(directory, stem)
        except NoEventsError as error:
            raise BadOption(f"--data: {error}") from error


def _lines(directory: Path, stem: str, layout: LogLayout | None = None) -> Iterator[bytes]:
    if layout is not None:
        for line in TableLog(directory, layout).lines():
            if line.is_click == (stem == CLICKS):
                yield line.value
        return
    packed = directory / f"{stem}.ndjson.zst"
    plain = directory / f"{stem}.ndjson"
    file = zstandard.open(packed, "rb") if packed.is_file() else plain.open("rb")
    with io.BufferedReader(file, 1 << 20) as lines:
        yield from lines


def _heads(
    directory: Path, stem: str, layout: LogLayout | None = None
) -> Iterator[_ImpressionHead]:
    for line in _lines(directory, stem, layout):
        try:
            yield _decode_head.decode(line)
        except UNDECODABLE:
            continue  # a dead letter


def impression_ids_of(directory: Path, layout: LogLayout | None = None) -> pa.Array:
    """Return the ids of all impressions as large_string."""
    heads = _heads(directory, IMPRESSIONS, layout)
    return pa.array([head.impression_id for head in heads], pa.large_string())


def sample_request(
    directory: Path, fields: Collection[str], layout: LogLayout | None = None
) -> list[dict[str, Any]]:
    """Return the impressions of one of the first requests, to show what a request contains.

    Many logs begin with a visitor without an id. The choice is therefore the request of which two
    impressions have the most of these `fields`; these two come first. If no request has two
    impressions, the choice is among all impressions.
    """
    requests: dict[str | None, list[dict[str, Any]]] = {}
    for event in islice(_impressions(directory, layout), _SAMPLED):
        requests.setdefault(event.get("request_id"), []).append(event)

    def present(event: dict[str, Any]) -> int:
        return sum(event.get(name) is not None for name in fields)

    choices = [found for found in requests.values() if len(found) > 1]
    choices = choices or [[event for found in requests.values() for event in found]]
    choices = [sorted(found, key=present, reverse=True) for found in choices]
    return max(choices, key=lambda found: sum(map(present, found[:2])))


def _impressions(directory: Path, layout: LogLayout | None) -> Iterator[dict[str, Any]]:
    for line in _lines(directory, IMPRESSIONS, layout):
        try:
            _decode_head.decode(line)
        except UNDECODABLE:
            continue
        yield orjson.loads(line)
