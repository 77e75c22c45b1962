"""Decodes and checks JSON prediction requests.

The decoded type is generated from the model spec: every raw field that the model reads, with the
JSON types that its transform accepts. One compiled pass therefore decodes, checks and drops fields
that the model does not read. A wrong type is refused with the field's name, whereas in an event
from a topic it would count as missing: a client can correct a request, but a log stays as it is.

`Candidates.encode` makes ids of the decoded fields, and `Predictor.predict` scores them.

Only a refused request is parsed a second time, to show the value that was found.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import msgspec

from headrace.ingest.events.contract import TIME
from headrace.ingest.features.fields import Field, FieldSet, Transform
from headrace.ingest.features.unknown_fields import known_fields
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.requests.candidates import ID, REQUEST_ID, Candidates, CheckedRequest
from headrace.serving.requests.limits import RequestLimits, too_large

Scalar = str | int | float | bool | None
Number = int | float | str | None  # a numeric string is a number, as in an event
Milliseconds = Annotated[int, msgspec.Meta(ge=946_684_800_000, le=32_503_680_000_000)]
"""Years 2000 to 3000: refuses seconds and microseconds."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
TopK = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]

_NARROWNESS = {
    Transform.HOUR: 0,
    Transform.PERIOD: 0,
    Transform.NUMBER: 1,
    Transform.LOG_BUCKET: 1,
    Transform.ID: 2,
}
"""If several transforms read one raw field, the one that accepts the fewest types decides."""
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected (?P<expected>.*?)(?:, got .*)?$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_STEP = re.compile(r"\[(\d+)\]|\.([^.\[]+)")
_LONGEST_SHOWN = 80
_SAMPLED = 32
_SAMPLED_DIGITS = re.compile(rb"[0-9]{9}")
"""Whole numbers beyond the range of a float have 309 digits or more, so 9 of each 32nd byte are
digits. Looking at these bytes costs a hundredth of the decoding."""
_IN_RANGE = "a number in the range of 64-bit floats"


class RequestDecoder:
    """Decodes requests for one model: to predict, or to rank."""

    def __init__(self, fields: FieldSet, limits: RequestLimits) -> None:
        self.limits = limits
        self.known = known_fields(fields)
        """Fields that a strict request may have."""
        row = _row_type(fields)
        common: list[tuple[str, Any, Any]] = [
            (REQUEST_ID, str | None, None),
            (TIME, Milliseconds | None, None),
            ("max_age_ms", Count | None, None),
            ("min_version", Count | None, None),
            ("snapshot", str | None, None),
            ("uncertainty", bool | None, None),
            ("explain", bool | None, None),
            ("strict", bool | None, None),
            ("context", row | None, None),
        ]
        candidates = ("candidates", list[row] | None, None)  # type: ignore[valid-type]
        instances = ("instances", list[row] | None, None)  # type: ignore[valid-type]
        self.type = msgspec.defstruct(
            "PredictRequest", [*common, candidates, instances], forbid_unknown_fields=True
        )
        self.rank_type = msgspec.defstruct(
            "RankRequest",
            [*common, ("top_k", TopK | None, None), candidates, instances],
            forbid_unknown_fields=True,
        )
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self.type).decode
        self._decode_rank: Callable[[bytes], Any] = msgspec.json.Decoder(self.rank_type).decode
        self._numeric = tuple(
            {each.source for each in _sources(fields) if _NARROWNESS.get(each.transform, 3) < 2}
            - {TIME}
        )

    def decode(self, body: bytes) -> CheckedRequest:
        """Decode a request for predictions. Raises RequestRefused (413, 422)."""
        request, candidates = self._decoded(body, self._decode, self.type)
        self._check_explained(request, len(candidates), "candidates")
        return _checked(request, candidates)

    def decode_rank(self, body: bytes) -> CheckedRequest:
        """Decode a request for a ranking. Raises RequestRefused (413, 422)."""
        request, candidates = self._decoded(body, self._decode_rank, self.rank_type)
        top_k = len(candidates) if request.top_k is None else request.top_k
        self._check_explained(request, min(top_k, len(candidates)), "top_k")
        return _checked(request, candidates, top_k)

    def _check_explained(self, request: Any, answers: int, field: str) -> None:
        if request.explain and answers > self.limits.explained:
            expected = f"at most {self.limits.explained} answers with explain"
            raise RequestRefused(422, field, expected, f"{answers}")

    def _decoded(
        self, body: bytes, decode: Callable[[bytes], Any], kind: type[msgspec.Struct]
    ) -> tuple[Any, Candidates]:
        if len(body) > self.limits.body_bytes:
            raise too_large(self.limits)
        try:
            request = decode(body)
        except msgspec.ValidationError as error:
            raise _explain(str(error), body, kind) from error
        except RecursionError as error:
            raise RequestRefused(422, "", "a flat JSON object", "one too deeply nested") from error
        except UNDECODABLE as error:
            found = f"{len(body)} bytes: {error}"
            raise RequestRefused(422, "", "a JSON object in UTF-8", found) from error
        rows, name = self._rows(request)
        context = request.context or {}
        if _SAMPLED_DIGITS.search(body[::_SAMPLED]):
            _check_range(context, "context")
            for i, row in enumerate(rows):
                _check_range(row, f"{name}[{i}]")
        for source in self._numeric:
            if type(context.get(source)) is str:
                _check_number(context[source], f"context.{source}")
            for i, row in enumerate(rows):
                value = row.get(source)
                if type(value) is str:
                    _check_number(value, f"{name}[{i}].{source}")
        return request, Candidates(context, rows, request.timestamp_ms)

    def _rows(self, request: Any) -> tuple[list[dict[str, object]], str]:
        candidates, instances = request.candidates, request.instances
        if (candidates is None) == (instances is None):
            found = "neither" if candidates is None else "both"
            raise RequestRefused(422, "candidates", "either candidates or instances", found)
        name = "instances" if candidates is None else "candidates"
        rows = instances if candidates is None else candidates
        if name == "instances" and request.context is not None:
            raise RequestRefused(422, "context", "no context together with instances", "a context")
        if not 1 <= len(rows) <= self.limits.candidates:
            expected = f"1 to {self.limits.candidates} items"
            raise RequestRefused(422, name, expected, f"{len(rows)}")
        return rows, name


def _checked(request: Any, candidates: Candidates, top_k: int | None = None) -> CheckedRequest:
    return CheckedRequest(
        candidates,
        request.request_id,
        top_k,
        request.max_age_ms,
        request.min_version,
        request.snapshot,
        bool(request.uncertainty),
        bool(request.explain),
        bool(request.strict),
    )


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
    """Refuse a string that is not a finite number. Raises RequestRefused (422)."""
    if type(value) is str:
        try:
            if math.isfinite(float(value)):
                return
        except ValueError:
            pass
        raise RequestRefused(422, field, "a number or a numeric string", _shown(value))


def _check_range(fields: dict[str, object], name: str) -> None:
    """Refuse whole numbers that the joiner refuses in events. Raises RequestRefused (422)."""
    for source, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            try:
                float(each) if type(each) is int else None
            except OverflowError:
                raise RequestRefused(422, f"{name}.{source}", _IN_RANGE, _shown(each)) from None


def _explain(message: str, body: bytes, kind: type[msgspec.Struct]) -> RequestRefused:
    """Turn msgspec's message into a refusal that also shows the value found."""
    parts = _PATH.match(message)
    assert parts is not None  # the pattern matches any text
    what, path = parts["what"], parts["path"] or ""
    field = path.removeprefix(".")
    unknown = _UNKNOWN.match(what)
    if unknown is not None:
        *others, last = kind.__struct_fields__
        known = f"{', '.join(others)} or {last}"
        return RequestRefused(422, unknown["name"], known, "an unknown key")
    expected = _EXPECTED.match(what)
    try:
        found = _shown(_at(json.loads(body), path))
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        found = "another value"
    said = expected["expected"].replace("`", "") if expected else what
    if what.endswith("out of range"):
        said = _IN_RANGE
    return RequestRefused(422, field, said, found)


def _at(value: object, path: str) -> object:
    for index, key in _STEP.findall(path):
        value = value[int(index)] if index else value[key]  # type: ignore[index]
    return value


def _shown(value: object) -> str:
    """Return a value as JSON, truncated if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
