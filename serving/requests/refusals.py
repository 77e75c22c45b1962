"""Why a request has no answer: one shape for every error, the collector's.

    {"error": {"field": "candidates[3].price", "expected": "a number", "found": "\"cheap\""}}

| status | why |
|---|---|
| 400, 422 | the request is wrong: which field, what was expected, what was found |
| 401, 403 | a token is missing, or not good for this |
| 404 | no such model, alias or path |
| 408, 413, 415 | the body is too slow, too long, packed |
| 412 | the request demands fresher information than this server has: another may have it |
| 503 | not now: the replica is not complete, or there is too much to do; see Retry-After |

412 rather than 503 for freshness: the server is well, the caller's condition does not hold. Whoever
balances load would take a server that says 503 for ill and send its requests to the others.
"""

from __future__ import annotations

import msgspec
from fastapi import Response

from headrace.ingest.http import RequestRefusal, RequestRefused

__all__ = ["RefusalBody", "RequestRefusal", "RequestRefused", "as_response"]

RETRY_AFTER_S = "1"
JSON = "application/json"

encode = msgspec.json.Encoder().encode


class RefusalBody(msgspec.Struct, frozen=True):
    """A refusal as it travels."""

    error: RequestRefusal


def as_response(refused: RequestRefused, body: bytes | None = None) -> Response:
    """Return the HTTP answer; `body` in place of ours, for a protocol that has its own."""
    content = encode(RefusalBody(refused.refusal)) if body is None else body
    response = Response(content, refused.status, media_type=JSON)
    if refused.status == 503:
        response.headers["Retry-After"] = RETRY_AFTER_S
    if refused.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if refused.status in (408, 413):
        response.headers["Connection"] = "close"  # the rest of the body is not waited for
    return response
