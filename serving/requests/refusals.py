"""Responses to refused requests: one shape for every error, shared with the collector.

    {"error": {"field": "candidates[3].price", "expected": "a number", "found": "\"cheap\""}}

| status | why |
|---|---|
| 422 | the request is invalid: the field, the expected value, the value found |
| 401, 403 | the token is missing, invalid, or not sufficient for this route or model |
| 404 | no such model, alias or path |
| 408, 413, 415 | the body is late, too large, compressed |
| 412 | the request demands a fresher model than this server has; another server may have it |
| 429 | the client's token has had its requests per second; see Retry-After |
| 503 | the replica is incomplete, or the server is overloaded; see Retry-After |

Freshness gets 412 rather than 503, because the server is healthy and the client's condition fails.
A load balancer would take a server that answers 503 out of rotation.
"""

import msgspec
from fastapi import Response

from headrace.runtime.http.http_errors import RequestRefusal, RequestRefused

JSON = "application/json"

encode = msgspec.json.Encoder().encode


class RefusalBody(msgspec.Struct, frozen=True):
    """The body of a response to a refused request."""

    error: RequestRefusal


def as_response(refused: RequestRefused) -> Response:
    """Return the HTTP response."""
    response = Response(encode(RefusalBody(refused.refusal)), refused.status, media_type=JSON)
    if refused.status in (429, 503):
        response.headers["Retry-After"] = str(refused.retry_s)
    if refused.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if refused.status in (401, 408, 413):
        response.headers["Connection"] = "close"  # the rest of the body is not read
    return response
