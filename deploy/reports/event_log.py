"""Reads a log of events on disk, and makes requests to a server of its impressions."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from headrace.deploy.errors import BadOption
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import Line, NoEventsError
from headrace.ingest.logs.opening import open_log
from headrace.learner.spec.model_spec import ModelSpec

_SAMPLED = 1_000
"""Impressions at the start of a log that `sample_request` reads."""


def check_log(path: Path, layout: LogLayout | None = None) -> None:
    """Check that the log exists, before anything is started.

    With a layout, the check reads the first rows of a file. Raises BadOption, and with a layout
    SpecError.
    """
    if layout is None and path.is_file():
        raise BadOption(
            f"--data: expected a layout for the file {path}, got none: add --layout auto, or "
            "write one (docs/guides/own_data.md)"
        )
    try:
        log = open_log(path, layout)
    except NoEventsError as error:
        raise BadOption(f"--data: {error}") from error
    if layout is not None:
        next(iter(log.lines()), None)


def _impressions(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the impressions that are no dead letters."""
    return (line for line in lines if not line.is_click and line.key is not None)


def impression_ids_of(path: Path, layout: LogLayout | None = None) -> pa.Array:
    """Return the ids of all impressions as large_string."""
    ids = [line.key for line in _impressions(open_log(path, layout).lines())]
    return pa.array(ids, pa.large_binary()).cast(pa.large_string())


def sample_request(
    path: Path, fields: Collection[str], layout: LogLayout | None = None
) -> list[dict[str, Any]]:
    """Return the impressions of one of the first requests, to show what a request contains.

    Many logs begin with a visitor without an id. The choice is therefore the request of which two
    impressions have the most of these `fields`; these two come first. If no request has two
    impressions, the choice is among all impressions.
    """
    requests: dict[str | None, list[dict[str, Any]]] = {}
    for line in islice(_impressions(open_log(path, layout).lines()), _SAMPLED):
        event = orjson.loads(line.value)
        requests.setdefault(event.get("request_id"), []).append(event)

    def present(event: dict[str, Any]) -> int:
        return sum(event.get(name) is not None for name in fields)

    choices = [found for found in requests.values() if len(found) > 1]
    choices = choices or [[event for found in requests.values() for event in found]]
    choices = [sorted(found, key=present, reverse=True) for found in choices]
    return max(choices, key=lambda found: sum(map(present, found[:2])))


def fields_of_requests(fields: FieldSet) -> list[str]:
    """Return the fields of events that the model reads, in the order of the spec."""
    sources = [each.source for each in (*fields.singles, *fields.bags, *fields.numbers)]
    return [name for name in dict.fromkeys(sources) if name and name != "timestamp_ms"]


def requests_of(lines: Iterable[Line], fields: FieldSet) -> list[bytes]:
    """Return the requests of the impressions among these lines, as bodies for the server.

    Malformed lines are skipped, and fields that the model does not read are left out.
    """
    names = fields_of_requests(fields)
    shown: dict[str, list[dict[str, Any]]] = {}
    for line in _impressions(lines):
        event = orjson.loads(line.value)
        request_id = event.get("request_id") or event["impression_id"]
        shown.setdefault(str(request_id), []).append(event)
    return [
        orjson.dumps(
            {
                "request_id": request_id,
                "timestamp_ms": int(events[0]["timestamp_ms"]),
                **_context_and_candidates(events, names, ["impression_id"]),
            }
        )
        for request_id, events in shown.items()
    ]


def curl_of(address: str, spec: ModelSpec, events: Sequence[dict[str, Any]]) -> str:
    """Return a curl command that requests predictions for the first two of these impressions.

    With more than two, a value that two items share by chance stays with the items.
    """
    if not events:
        raise BadOption("expected a log with impressions, got an empty one")
    request = _context_and_candidates(events, fields_of_requests(spec.fields))
    request["candidates"] = request["candidates"][:2]
    body = orjson.dumps(request).decode().replace("'", "\\u0027")
    return f"curl -s {address}/v1/models/{spec.name}:predict -d '{body}'"


def _context_and_candidates(
    events: Sequence[dict[str, Any]], names: Sequence[str], own: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the values that all events share as the context, and the others as candidates.

    names: fields to take. own: further ones, which only candidates have.
    """
    known = [{name: each[name] for name in names if each.get(name) is not None} for each in events]
    context = {
        name: value
        for name, value in known[0].items()
        if all(name in each and each[name] == value for each in known)
    }
    candidates = [
        {name: each[name] for name in own}
        | {name: value for name, value in values.items() if name not in context}
        for each, values in zip(events, known, strict=True)
    ]
    return {"context": context, "candidates": candidates}
