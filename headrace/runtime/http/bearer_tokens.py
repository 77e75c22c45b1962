"""Bearer tokens that a client needs to send requests.

Several tokens are valid at once, so that one can be replaced: add the new one, let clients change
over, remove the old one (`token_files`). Only digests are kept, and they are compared in constant
time. Neither a log, a traceback nor the time of an answer reveals a token.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from headrace.runtime.http.http_errors import BadTokens, RequestRefused

_SHORTEST = 16
"""Characters; shorter tokens can be guessed."""
_REMOVED = b""
"""Equals no digest."""


class Tokens:
    """The valid tokens. An empty list admits every request. Raises BadTokens."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = _digests(tokens)

    def renew(self, tokens: Iterable[str]) -> None:
        """Replace the tokens; those that stay keep their numbers. Raises BadTokens.

        Safe in another thread than that of the requests.
        """
        valid, before = _digests(tokens), self._digests
        self._digests = [each if each in valid else _REMOVED for each in before] + [
            each for each in valid if each not in before
        ]

    def __bool__(self) -> bool:
        """Whether requests need a token."""
        return bool(self._digests)

    def check(self, authorization: str | None) -> int | None:
        """Return the number of the token in the Authorization header; None if none is needed.

        Raises RequestRefused (401).
        """
        digests = self._digests
        if not digests:
            return None
        scheme, _, token = (authorization or "").partition(" ")
        given = _digest(token.strip().encode())
        # compare all: equal time for every token
        equal = [hmac.compare_digest(digest, given) for digest in digests]
        if not (any(equal) and scheme.lower() == "bearer"):
            found = "another one" if authorization else "none"
            raise RequestRefused(401, "Authorization", "Bearer and a valid token", found)
        return equal.index(True)


def token_lines(path: Path) -> list[str]:
    """Return the lines of a file of tokens, without blank lines and lines that begin with #.

    A line has a token and its limits (`token_grants`). Raises BadTokens.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTokens(f"expected a file of tokens, one a line, got: {error}") from error
    tokens = [line.strip() for line in lines]
    tokens = [token for token in tokens if token and not token.startswith("#")]
    if not tokens:
        raise BadTokens(f"expected a token in {path}, got an empty file")
    return tokens


def _digests(tokens: Iterable[str]) -> list[bytes]:
    found = []
    for token in tokens:
        if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
            raise BadTokens(
                f"expected tokens of {_SHORTEST} printable ASCII characters or more, "
                f"got one of {len(token)}"
            )
        found.append(_digest(token.encode()))
    return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
