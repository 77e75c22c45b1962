"""The decoders of events and requests that clients send, each with its grammar.

Scanner and plain decoder must agree about every event. The HTTP protocol must answer, or close the
connection, however its bytes are cut.
"""

import asyncio
import gzip
import random
from typing import Any

import uvicorn

from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.body import JSON, NDJSON, content_length, split, unpack_gzip
from headrace.ingest.collector.validation import check
from headrace.ingest.features.encoder import Encoder
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.server import SingleWriteProtocol
from headrace.serving.observers.request_coverage import unknown_counts
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.request_decoder import RequestDecoder
from headrace.serving.requests.splitting_key import split_key
from headrace.serving.requests.strict_requests import check_known
from tests.fuzzing.isolated import Decoder
from tests.fuzzing.json_texts import changed, spaced, value
from tests.fuzzing.mutation import mutants_of
from tests.ingest.decoding.both_decoders import DECLARED, FIELDS, NOW_MS, agree
from tests.memory_connection import MemoryConnection

_LIMITS = CollectorLimits(body_bytes=4096)
_ENCODER, _DECODER = Encoder(FIELDS), RequestDecoder(FIELDS, RequestLimits())
_KEYS = (*DECLARED, "impression_id", "timestamp_ms", "request_id", "x", "", "\\u0077ord")


def _event(dice: random.Random) -> bytes:
    members = [f'"{dice.choice(_KEYS)}":{value(dice)}' for _ in range(dice.randrange(6))]
    if dice.random() < 0.9:
        members.append('"impression_id":"i1"')
    if dice.random() < 0.9:
        members.append(f'"timestamp_ms":{NOW_MS if dice.random() < 0.6 else value(dice)}')
    dice.shuffle(members)
    return changed(dice, spaced(dice, ("{", ",".join(members), "}", "")))


def _request(dice: random.Random) -> bytes:
    row = ",".join(f'"{dice.choice(_KEYS)}":{value(dice)}' for _ in range(dice.randrange(4)))
    more = dice.choice(("", f',"{dice.choice(("strict", "explain", "top_k", "x"))}":true'))
    return changed(
        dice,
        dice.choice(
            (
                '{"candidates":[{%s}],"timestamp_ms":%d%s}',
                '{"context":{%s},"candidates":[{},{}],"timestamp_ms":%d%s}',
                '{"instances":[{%s},{"word":"q"}],"timestamp_ms":%d%s}',
            )
        )
        % (row, NOW_MS, more),
    )


def _use_request(blob: bytes) -> None:
    split_key(blob, "word"), split_key(blob, "request_id")
    unknown_counts(blob, _DECODER.known)
    for decode in (_DECODER.decode, _DECODER.decode_rank):
        asked = decode(blob).candidates
        asked.encode(_ENCODER, NOW_MS)
        asked.names(), asked.times(NOW_MS), list(asked.events(NOW_MS)), asked.present(DECLARED)
    check_known(blob, _DECODER.known)


def _body(dice: random.Random) -> bytes:
    events = [_event(dice) for _ in range(dice.randrange(4))]
    whole = b"\n".join(events) if dice.random() < 0.5 else b"[" + b",".join(events) + b"]"
    whole = dice.choice((whole, whole, b"0" * 100_000))
    draw = dice.random()
    packed = gzip.compress(whole) if draw < 0.5 else whole
    return mutants_of([packed])(dice) if draw > 0.4 else packed


def _use_body(blob: bytes) -> None:
    content_length(str(len(blob)), _LIMITS)
    if blob[:2] == b"\x1f\x8b":
        blob = unpack_gzip(blob, _LIMITS)
        assert len(blob) <= _LIMITS.body_bytes
    for kind in (JSON, NDJSON):
        check(split(blob, kind, _LIMITS), NOW_MS, _LIMITS)


_NAMES = (
    *(b"Connection", b"connection", b"Upgrade", b"Content-Length", b"Transfer-Encoding", b"Host"),
    *(b"X", b"HTTP2-Settings", b"Expect", b"Trailer", b"Upgrade ", b"Connection\t", b"Cookie"),
)
_VALUES = (
    *(b"upgrade", b"keep-alive, Upgrade", b"Upgrade, HTTP2-Settings", b"close", b"h2c", b"", b"0"),
    *(b"5", b"05", b"+5", b"5, 5", b"chunked", b"gzip, chunked", b"identity", b"100-continue"),
    *(b"upgrade\x0b", b",upgrade", b"up grade", b"a" * 300, b"\xff"),
)
_LINES = (
    *(b"POST /a HTTP/1.1", b"GET /b HTTP/1.1", b"POST /a HTTP/1.0", b"CONNECT x:1 HTTP/1.1"),
    *(b"OPTIONS * HTTP/1.1", b"PRI * HTTP/2.0", b"POST /\xff HTTP/1.1", b"QUERY /a HTTP/1.1"),
    *(b"POST http://x/a HTTP/1.1", b"GET http://%/a HTTP/1.1", b"GET http://[/a HTTP/1.1"),
)
_BODIES = (
    *(
        b"",
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n",
    ),
    b"POST /inner HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
)


def _conversation(dice: random.Random) -> bytes:
    sent = []
    for _ in range(dice.randrange(1, 4)):
        lines, body = [dice.choice(_LINES)], dice.choice(_BODIES)
        headers = dice.randrange(1, 6)
        lines += [dice.choice(_NAMES) + b": " + dice.choice(_VALUES) for _ in range(headers)]
        if dice.random() < 0.6:
            lines.append(b"Content-Length: %d" % len(body))
        sent.append(dice.choice((b"\r\n", b"\r\n", b"\n")).join(lines) + b"\r\n\r\n" + body)
    whole = b"".join(sent)
    return mutants_of([whole])(dice) if dice.random() < 0.2 else whole


async def _ok(scope: Any, receive: Any, send: Any) -> None:
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})


async def _talk(pieces: list[bytes]) -> None:
    config = uvicorn.Config(_ok, ws="none", log_config=None, proxy_headers=False)
    config.load()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
    client = MemoryConnection(SingleWriteProtocol, config)
    for piece in pieces:
        if not client.closed:
            client.protocol.data_received(piece)
        for _ in range(8):
            await asyncio.sleep(0)
    client.protocol.connection_lost(None)
    await asyncio.sleep(0)
    assert not errors, errors


def _use_connection(blob: bytes) -> None:
    asyncio.run(_talk([blob]))
    third = max(1, len(blob) // 3)
    asyncio.run(_talk([blob[at : at + third] for at in range(0, len(blob), third)]))


def http_decoders() -> list[Decoder]:
    """Return the table."""
    refused = (RequestRefused,)
    return [
        Decoder("event", _event, lambda blob: agree([blob]), (), 0.2),
        Decoder("request", _request, _use_request, refused),
        Decoder("body of events", _body, _use_body, refused),
        Decoder("connection", _conversation, _use_connection, (), 0.1),
    ]
