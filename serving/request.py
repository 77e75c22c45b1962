"""A prediction request: its bytes, its checks, and what is said when it fails one.

The type that the body is decoded into is made from the model spec: each raw field that the model
reads, with the JSON types that its transform can use. So one compiled pass decodes, checks and
drops what the model does not read, and a wrong type is refused by name where an event in a topic
would merely be absent: a caller can correct a request, a log cannot be corrected.

Only a refused request is looked at a second time, to say what was found.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from ingest.fields import TIME, Transform
from serving.errors import Refusal, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ingest.fields import Field, FieldSet

ID = "impression_id"
REQUEST_ID = "request_id"

Scalar = str | int | float | bool | None
Number = int | float | str | None  # the text of a number is that number, as in an event
Milliseconds = Annotated[int, msgspec.Meta(ge=946_684_800_000, le=32_503_680_000_000)]
"""Of the years 2000 to 3000: seconds or microseconds by mistake are refused."""

_NARROWNESS = {
    Transform.HOUR: 0,
    Transform.PERIOD: 0,
    Transform.NUMBER: 1,
    Transform.LOG_BUCKET: 1,
    Transform.ID: 2,
}
"""Of several transforms of one raw field the one that can use the fewest types decides."""
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected (?P<expected>.*?)(?:, got .*)?$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_STEP = re.compile(r"\[(\d+)\]|\.([^.\[]+)")
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for."""

    body_bytes: int = 4 << 20
    """A thousand candidates of a hundred fields; more is a mistake or an attack."""
    candidates: int = 5_000
    """A request is answered in one piece, and the others wait: this bounds the wait."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that passed its checks."""

    request_id: str | None
    timestamp_ms: int | None
    context: Mapping[str, object]
    """Fields that all candidates share; empty for instances."""
    candidates: Sequence[Mapping[str, object]]


class RequestDecoder:
    """Decodes requests for one model."""

    def __init__(self, fields: FieldSet, limits: Limits) -> None:
        self.limits = limits
        row = _row_type(fields)
        self.type = msgspec.defstruct(
            "PredictRequest",
            [
                (REQUEST_ID, str | None, None),
                (TIME, Milliseconds | None, None),
                ("context", row | None, None),
                ("candidates", list[row] | None, None),  # type: ignore[valid-type]
                ("instances", list[row] | None, None),  # type: ignore[valid-type]
            ],
            forbid_unknown_fields=True,
        )
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self.type).decode
        self._numeric = tuple(
            {each.source for each in _sources(fields) if _NARROWNESS.get(each.transform, 3) < 2}
            - {TIME}
        )

    def decode(self, body: bytes) -> Asked:
        """Return what the body asks for. Raises Refused (413, 422)."""
        if len(body) > self.limits.body_bytes:
            raise too_large(self.limits)
        try:
            request = self._decode(body)
        except msgspec.ValidationError as error:
            raise Refused(422, _explain(str(error), body)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = f"{len(body)} bytes that are not: {error}"
            raise _refused("", "a JSON object in UTF-8", found) from error
        except RecursionError as error:
            raise _refused("", "a flat JSON object", "one too deeply nested") from error
        rows, name = self._rows(request)
        for source in self._numeric:
            if request.context is not None:
                _check_number(request.context.get(source), f"context.{source}")
            for i, row in enumerate(rows):
                value = row.get(source)
                if type(value) is str:
                    _check_number(value, f"{name}[{i}].{source}")
        return Asked(request.request_id, request.timestamp_ms, request.context or {}, rows)

    def _rows(self, request: Any) -> tuple[list[dict[str, object]], str]:
        candidates, instances = request.candidates, request.instances
        if (candidates is None) == (instances is None):
            found = "neither" if candidates is None else "both"
            raise _refused("candidates", "either candidates or instances", found)
        name = "instances" if candidates is None else "candidates"
        rows = instances if candidates is None else candidates
        if name == "instances" and request.context is not None:
            raise _refused("context", "no context beside instances", "one")
        if not 1 <= len(rows) <= self.limits.candidates:
            expected = f"from 1 to {self.limits.candidates} of them"
            raise _refused(name, expected, f"{len(rows)}")
        return rows, name


def too_large(limits: Limits) -> Refused:
    """Return the refusal of a body that is too long."""
    expected = f"at most {limits.body_bytes} bytes"
    return Refused(413, Refusal(field="", expected=expected, found="more"))


def _refused(field: str, expected: str, found: str) -> Refused:
    return Refused(422, Refusal(field=field, expected=expected, found=found))


def _sources(fields: FieldSet) -> Iterator[Field]:
    return (each for each in (*fields.singles, *fields.bags, *fields.numbers) if each.source)


def _row_type(fields: FieldSet) -> type:
    types: dict[str, object] = {}
    ordered = sorted(_sources(fields), key=lambda each: -_NARROWNESS.get(each.transform, 3))
    for each in ordered:
        match each.transform:
            case Transform.BAG:
                types[each.source] = list[Scalar] | Scalar  # a scalar is a bag of one
            case Transform.NUMBER | Transform.LOG_BUCKET | Transform.HOUR | Transform.PERIOD:
                types[each.source] = Number
            case _:
                types[each.source] = Scalar
    types[ID] = str
    types[TIME] = Milliseconds
    return TypedDict("Fields", types, total=False)  # type: ignore[operator,no-any-return]


def _check_number(value: object, field: str) -> None:
    if type(value) is str:
        try:
            if math.isfinite(float(value)):
                return
        except ValueError:
            pass
        raise _refused(field, "a number, or text that is one", _shown(value))


def _explain(message: str, body: bytes) -> Refusal:
    """Turn msgspec's message into a refusal that also shows what was found."""
    parts = _PATH.match(message)
    assert parts is not None  # the pattern matches any text
    what, path = parts["what"], parts["path"] or ""
    field = path.removeprefix(".")
    unknown = _UNKNOWN.match(what)
    if unknown is not None:
        known = "request_id, timestamp_ms, context, candidates or instances"
        return Refusal(field=unknown["name"], expected=known, found="a key that is none of them")
    expected = _EXPECTED.match(what)
    try:
        found = _shown(_at(json.loads(body), path))
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        found = "another value"
    said = expected["expected"].replace("`", "") if expected else what
    return Refusal(field=field, expected=said, found=found)


def _at(value: object, path: str) -> object:
    for index, key in _STEP.findall(path):
        value = value[int(index)] if index else value[key]  # type: ignore[index]
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
