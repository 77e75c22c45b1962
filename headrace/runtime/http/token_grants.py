"""Limits of clients, by their token: requests per second and models.

Servers, collectors and the administration of aliases read the same lines.

A line of the file of tokens is a token, and may give the client a name and limits:

    a-long-enough-secret name=search requests_per_second=200 models=news,news-live

Tokens with one name are one client, which is how a token is replaced: both count together, and
their limits must be equal. A client without a name is not in the metrics.

Requests are admitted by a token bucket that holds the requests of one second, at least one. So a
client may send a second's requests at once, and never more than its rate for long. `models` names
models and aliases. An alias admits every model that it splits its requests to. An admin token with
`models` changes only the aliases among them, and only to models among them. A collector refuses
`models` at its start, because its events belong to no model.

*Refused:* one count for all processes. Each worker and each replica counts for itself, so that no
request waits for a shared counter. The limit of a client is therefore that of one process.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.runtime.http.bearer_tokens import token_lines
from headrace.runtime.http.http_errors import BadTokens, RequestRefused


class TokenGrant(NamedTuple):
    """A token, and the limits of the client that sends it."""

    token: str
    name: str = ""
    """The client's name in metrics; empty: it is not in the metrics."""
    requests_per_second: float = 0.0
    """0: no limit."""
    models: tuple[str, ...] = ()
    """Models and aliases that it may ask; empty: all."""


class TokenLimits:
    """The clients of one server process. For one thread."""

    def __init__(
        self, grants: Sequence[TokenGrant], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """grants: in the order of the server's tokens. Raises BadTokens."""
        _check_equal(grants)
        self._grants, self._now_s = list(grants), now_s
        self._buckets: dict[str, _Bucket] = {}

    def renew(self, grants: Sequence[TokenGrant]) -> None:
        """Replace the grants; tokens that stay keep their places. Raises BadTokens.

        Safe in another thread than that of the requests.
        """
        _check_equal(grants)
        new, before = {each.token: each for each in grants}, self._grants
        known = {each.token for each in before}
        # a removed token keeps its limits for requests under way; no other one gets its place
        self._grants = [new.get(each.token, each._replace(token="")) for each in before] + [
            each for each in grants if each.token not in known
        ]
        self._buckets = {}

    def name(self, place: int | None) -> str:
        """Return the name of the client with this token; empty without one."""
        return self._grants[place].name if place is not None and place < len(self._grants) else ""

    def admit(self, place: int | None, *models: str) -> None:
        """Count a request that names models and aliases. Raises RequestRefused (403, 429)."""
        if place is None or place >= len(self._grants):
            return
        grant = self._grants[place]
        self.check_models(place, *models)
        if grant.requests_per_second > 0.0:
            bucket = self._buckets.setdefault(
                grant.name or grant.token, _Bucket(grant.requests_per_second, self._now_s())
            )
            bucket.take(self._now_s())

    def check_models(self, place: int | None, *models: str) -> None:
        """Check that a client may name these models and aliases. Raises RequestRefused (403)."""
        if place is None or place >= len(self._grants):
            return
        allowed = self._grants[place].models
        for model in models:
            if allowed and model not in allowed:
                expected = f"one of {', '.join(allowed)}, which this token may name"
                raise RequestRefused(403, "Authorization", expected, model)


def _check_equal(grants: Sequence[TokenGrant]) -> None:
    limits: dict[str, tuple[float, tuple[str, ...]]] = {}
    for each in grants:
        own = each.requests_per_second, each.models
        if each.name and limits.setdefault(each.name, own) != own:
            raise BadTokens(f"expected equal limits of all tokens of {each.name}, got several")


class _Bucket:
    """The requests that a client may send now."""

    def __init__(self, per_second: float, now_s: float) -> None:
        self._per_second, self._most = per_second, max(1.0, per_second)
        self._left, self._at_s = self._most, now_s

    def take(self, now_s: float) -> None:
        """Take a request out. Raises RequestRefused (429)."""
        passed_s = max(0.0, now_s - self._at_s)
        self._left = min(self._most, self._left + passed_s * self._per_second)
        self._at_s = now_s
        if self._left < 1.0:
            expected = f"at most {self._per_second:g} requests per second with this token"
            wait_s = math.ceil((1.0 - self._left) / self._per_second)
            raise RequestRefused(429, "Authorization", expected, "more", retry_s=max(1, wait_s))
        self._left -= 1.0


def read_grants(path: Path) -> list[TokenGrant]:
    """Return the tokens of a file with their limits. Raises BadTokens."""
    return [_grant(line, path) for line in token_lines(path)]


def plain_grants(tokens: Iterable[str]) -> list[TokenGrant]:
    """Return tokens without limits."""
    return [TokenGrant(token) for token in tokens]


def _grant(line: str, path: Path) -> TokenGrant:
    """Return the grant of a line. No message contains the token."""
    token, *settings = line.split()
    grant = TokenGrant(token)
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "name" and value:
            grant = grant._replace(name=value)
        elif key == "models" and all(value.split(",")):
            grant = grant._replace(models=tuple(value.split(",")))
        elif key == "requests_per_second" and _positive(value):
            grant = grant._replace(requests_per_second=float(value))
        else:
            raise BadTokens(
                f"{path}: expected a token, then name=NAME, requests_per_second=NUMBER above 0 or "
                f"models=NAME,NAME, got a setting that begins with {key[:20]!r}"
            )
    return grant


def _positive(value: str) -> bool:
    try:
        return 0.0 < float(value) < math.inf
    except ValueError:
        return False
