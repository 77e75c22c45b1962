"""Shows and changes aliases over HTTP.

    GET    /v1/aliases
    PUT    /v1/aliases/{alias}            {"model": "news-2", "expected": "news"}
    PUT    /v1/aliases/{alias}            {"model": "news=95 news-2=5 by user_id"}
    POST   /v1/aliases/{alias}:revert
    DELETE /v1/aliases/{alias}

Changes need an admin token. A token for predictions is not enough: a client must not choose the
model that answers it. The line of an admin token may limit its changes per second, its aliases and
the models that it may give them (`runtime.http.token_grants`). Without admin tokens, only a server
on a loopback address accepts changes, and only those that no page of another site can send.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

import msgspec
from fastapi import FastAPI, Request, Response

from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.local_senders import is_foreign
from headrace.runtime.http.token_grants import TokenLimits
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.api.load_shedding import LoadShedder, read_body
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.errors import BadAlias
from headrace.serving.models.aliases import Alias, Aliases
from headrace.serving.models.traffic_split import models_of
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.refusals import JSON, encode

_LIMITS = RequestLimits(body_bytes=4096)


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a PUT: the model, or models with weights, of an alias from now on."""

    model: str
    expected: str | None = None
    """Refuse (409) unless the alias points to this model. Empty: unless it does not exist."""


_decode = msgspec.json.Decoder(Switch).decode


class AdminAdmission:
    """Decides which changes are allowed, and counts those of each client."""

    def __init__(
        self, tokens: Tokens, limits: TokenLimits, metrics: RequestMetrics, *, open_to_all: bool
    ) -> None:
        """Keep the limits, in the order of `tokens`.

        open_to_all: whether changes need no token where `tokens` is empty.
        """
        self._tokens, self._limits, self._metrics = tokens, limits, metrics
        self._open_to_all = open_to_all

    def check(self, request: Request, alias: str) -> int | None:
        """Return the number of the token that may change the alias. Raises RequestRefused."""
        token = _check_change(request, self._tokens, self._open_to_all)
        with self._counting_refusals(token):
            self._limits.admit(token, alias)
        return token

    def check_models(self, token: int | None, target: str) -> None:
        """Check that the token may name the models of an alias. Raises RequestRefused (403)."""
        try:
            models = models_of(target)
        except BadAlias:
            return  # the change itself refuses it, with the reason
        with self._counting_refusals(token):
            self._limits.check_models(token, *models)

    def count(self, token: int | None, status: int) -> None:
        """Count a change, or its refusal."""
        self._metrics.alias_change(self._limits.name(token), status)

    @contextmanager
    def _counting_refusals(self, token: int | None) -> Iterator[None]:
        try:
            yield
        except RequestRefused as refused:
            self.count(token, refused.status)
            raise


def add_admin(app: FastAPI, aliases: Aliases, admission: AdminAdmission) -> None:
    """Add the routes. The application answers what they refuse."""
    tags: list[str | Enum] = ["aliases"]

    @app.get("/v1/aliases", tags=tags, summary="List aliases")
    async def show() -> Response:
        return Response(encode({"aliases": aliases.table}), media_type=JSON)

    def changed(token: int | None, change: Callable[[], Alias | None]) -> Response:
        try:
            now = change()
        except BadAlias as error:
            admission.count(token, 409)
            raise RequestRefused(409, "alias", "a valid change", str(error)) from error
        admission.count(token, 200)
        return Response(encode({"aliases": aliases.table} if now is None else now), media_type=JSON)

    @app.put("/v1/aliases/{alias}", tags=tags, summary="Point an alias at a model")
    async def switch(alias: str, request: Request) -> Response:
        token = admission.check(request, alias)
        switch = _switch(await read_body(request, LoadShedder(_LIMITS)))
        admission.check_models(token, switch.model)
        return changed(token, lambda: aliases.switch(alias, switch.model, switch.expected))

    @app.post(
        "/v1/aliases/{alias}:revert", tags=tags, summary="Point an alias at its previous model"
    )
    async def revert(alias: str, request: Request) -> Response:
        token = admission.check(request, alias)
        return changed(token, lambda: aliases.revert(alias))

    @app.delete("/v1/aliases/{alias}", tags=tags, summary="Remove an alias")
    async def remove(alias: str, request: Request) -> Response:
        token = admission.check(request, alias)
        return changed(token, lambda: aliases.remove(alias))


def _check_change(request: Request, tokens: Tokens, open_to_all: bool) -> int | None:
    """Refuse a change without a token, or without a sender on this machine."""
    if tokens:
        return tokens.check(request.headers.get("authorization"))
    if not open_to_all:
        expected = "a server with --admin-tokens, or one on a loopback address"
        raise RequestRefused(403, "", expected, "neither")
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if is_foreign(host, origin):  # a page of another site, in a browser of this machine
        expected = "a request from this machine to a loopback address, or --admin-tokens"
        raise RequestRefused(403, "", expected, f"Host {host!r}, Origin {origin!r}")
    return None


def _switch(body: bytes) -> Switch:
    try:
        return _decode(body)
    except UNDECODABLE as error:
        raise RequestRefused(422, "", '{"model": NAME}', str(error)) from error
