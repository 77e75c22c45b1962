"""Decoding of JSON requests, and refusals that name field, expected and found."""

import json

import pytest

from headrace.ingest.events.contract import Reason, read_event
from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.requests.candidates import Candidates, CheckedRequest
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.request_decoder import RequestDecoder
from tests.serving.served_models import NOW_MS, news


@pytest.fixture(scope="module")
def decoder() -> RequestDecoder:
    return RequestDecoder(news().fields, RequestLimits(body_bytes=10_000, candidates=3))


def body(**parts: object) -> bytes:
    return json.dumps({"candidates": [{}], **parts}).encode()


def shown(asked: CheckedRequest) -> Candidates:
    return asked.candidates


def test_fields_that_the_model_does_not_read_are_dropped(decoder: RequestDecoder) -> None:
    asked = decoder.decode(
        body(
            request_id="r",
            timestamp_ms=NOW_MS,
            context={"user_id": 7, "referrer": {"any": ["thing"]}},
            candidates=[{"article_id": "a", "topics": [1, "b", None], "impression_id": "i"}],
        )
    )
    assert (asked.request_id, shown(asked).timestamp_ms) == ("r", NOW_MS)
    assert shown(asked).context == {"user_id": 7}
    assert shown(asked).own == [{"article_id": "a", "topics": [1, "b", None], "impression_id": "i"}]


def test_instances_are_candidates_without_a_context(decoder: RequestDecoder) -> None:
    asked = decoder.decode(json.dumps({"instances": [{"user_id": 1}, {"user_id": 2}]}).encode())
    assert shown(asked).context == {}
    assert shown(asked).own == [{"user_id": 1}, {"user_id": 2}]


@pytest.mark.parametrize(
    "value", [None, True, 2, 2.5, "text", 123456789012345678901234567890, -0.0, "\u00e9\u4e16"]
)
def test_an_id_field_accepts_any_scalar(decoder: RequestDecoder, value: object) -> None:
    asked = decoder.decode(body(candidates=[{"article_id": value}]))
    assert shown(asked).own == [{"article_id": value}]


@pytest.mark.parametrize("value", [3, 3.5, "3.5", None])
def test_a_number_field_accepts_numeric_strings_as_in_an_event(
    decoder: RequestDecoder, value: object
) -> None:
    asked = decoder.decode(body(context={"price": value}, candidates=[{"price": value}]))
    assert shown(asked).own == [{"price": value}]


@pytest.mark.parametrize(
    ("asked", "field", "expected", "found"),
    [
        ({"context": 3}, "context", "object", "3"),
        ({"context": {"user_id": [1]}}, "context.user_id", "str", "[1]"),
        ({"candidates": []}, "candidates", "1 to 3", "0"),
        ({"candidates": [{}] * 4}, "candidates", "1 to 3", "4"),
        ({"candidates": {}}, "candidates", "array", "{}"),
        ({"candidates": [{}, 7]}, "candidates[1]", "object", "7"),
        ({"candidates": [{}, {"article_id": {"a": 1}}]}, "candidates[1].article_id", "str", "{"),
        ({"candidates": [{"topics": [[1]]}]}, "candidates[0].topics[0]", "str", "[1]"),
        ({"candidates": [{"price": True}]}, "candidates[0].price", "float", "true"),
        ({"candidates": [{"price": "dear"}]}, "candidates[0].price", "a number", '"dear"'),
        ({"candidates": [{"slate_size": "nan"}]}, "candidates[0].slate_size", "a number", '"nan"'),
        ({"context": {"price": "dear"}}, "context.price", "a number", '"dear"'),
        ({"candidates": [{"impression_id": 5}]}, "candidates[0].impression_id", "str", "5"),
        ({"timestamp_ms": 1_760_000_000}, "timestamp_ms", ">= 946684800000", "1760000000"),
        ({"timestamp_ms": 1.5}, "timestamp_ms", "int", "1.5"),
        ({"request_id": 3}, "request_id", "str", "3"),
        ({"instances": [{}]}, "candidates", "either candidates or instances", "both"),
        ({"candidates": None}, "candidates", "either candidates or instances", "neither"),
        (
            {"candidates": None, "instances": [{}], "context": {}},
            "context",
            "no context",
            "a context",
        ),
        ({"candidate": []}, "candidate", "candidates", "unknown key"),
    ],
)
def test_an_invalid_request_is_refused_naming_the_field(
    decoder: RequestDecoder, asked: dict[str, object], field: str, expected: str, found: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        decoder.decode(body(**asked))
    assert refused.value.status == 422
    refusal = refused.value.refusal
    assert refusal.field == field
    assert expected in refusal.expected
    assert found in refusal.found


@pytest.mark.parametrize(
    ("digits", "refused"),
    [
        (b"9" * 308, False),
        (b"1" + b"0" * 308, False),
        (b"2" + b"0" * 308, True),
        (b"9" * 310, True),
        (b"9" * 4_300, True),
        (b"9" * 4_301, True),
    ],
    ids=["308", "1e308", "2e308", "310", "4300", "4301"],
)
@pytest.mark.parametrize("blanks", [0, 1, 13, 31])
@pytest.mark.parametrize("form", [b"%s", b"-%s"])
def test_a_whole_number_that_is_refused_in_an_event_is_refused_in_a_request(
    decoder: RequestDecoder, digits: bytes, refused: bool, blanks: int, form: bytes
) -> None:
    number = form % digits
    event = b'{"timestamp_ms":%d,"impression_id":"i","price":%s}' % (NOW_MS, number)
    assert (read_event(event, 0) is Reason.NOT_JSON) == refused
    for field, asked in (
        ("context.price", b'{"context":{"price":%s},"candidates":[{}]}'),
        ("candidates[1].article_id", b'{"candidates":[{},{"article_id":%s}]}'),
        ("candidates[0].topics", b'{"candidates":[{"topics":["a",%s]}]}'),
        ("instances[0].user_id", b'{"instances":[{"user_id":%s}]}'),
    ):
        raw = b" " * blanks + asked % number
        if not refused:
            decoder.decode(raw)
            continue
        with pytest.raises(RequestRefused) as error:
            decoder.decode(raw)
        assert error.value.status == 422
        assert error.value.refusal.field.startswith(field)
        assert error.value.refusal.expected == "a number in the range of 64-bit floats"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        *((raw, 422) for raw in (b"", b"{", b"[]", b"\xff")),
        (b'{"candidates":[{"article_id":"\xff"}]}', 422),
        (rb'{"candidates":[{"article_id":"\ud800"}]}', 422),
        (b'{"candidates":[{"topics":' + b"[" * 4_000 + b"]" * 4_000 + b"}]}", 422),
        (b" " * 10_001, 413),
    ],
    ids=["nothing", "cut", "array", "byte", "text", "surrogate", "deep", "large"],
)
def test_a_body_that_is_no_object_of_json_or_too_large_is_refused(
    decoder: RequestDecoder, raw: bytes, status: int
) -> None:
    with pytest.raises(RequestRefused) as refused:
        decoder.decode(raw)
    assert refused.value.status == status
