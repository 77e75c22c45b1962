"""Who may send events: those who have one of the tokens.

Several tokens are good at once, so that one can be replaced: add the new one, restart, let clients
change over, take the old one out. Tokens are kept and compared as digests in constant time, so
that neither a log, a traceback nor the time of an answer tells one.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from headrace.ingest.http.http_errors import BadTokens, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SHORTEST = 16
"""Characters; what is shorter can be guessed."""


class Tokens:
    """The tokens that are good. None at all: everybody may. Raises BadTokens."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = []
        for token in tokens:
            if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
                raise BadTokens(
                    f"expected tokens of {_SHORTEST} printable ASCII characters or more, "
                    f"found one of {len(token)}"
                )
            self._digests.append(_digest(token.encode()))

    def __bool__(self) -> bool:
        """Whether a token is asked for."""
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Return if an Authorization header has a good token, or none is asked for.

        Raises RequestRefused (401).
        """
        if not self._digests:
            return
        scheme, _, token = (authorization or "").partition(" ")
        given = _digest(token.strip().encode())
        good = False
        for digest in self._digests:
            good |= hmac.compare_digest(digest, given)  # each, whether an earlier one was it or not
        if not (good and scheme.lower() == "bearer"):
            found = "another one" if authorization else "none"
            raise RequestRefused(
                401, "Authorization", "Bearer and a token that is good here", found
            )


def read_tokens(path: Path) -> list[str]:
    """Return the tokens of a file: one a line; blank lines and those with # in front do not count.

    Raises BadTokens.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTokens(f"expected a file of tokens, one a line, found: {error}") from error
    tokens = [line.strip() for line in lines]
    tokens = [token for token in tokens if token and not token.startswith("#")]
    if not tokens:
        raise BadTokens(f"expected a token in {path}, found none")
    return tokens


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
