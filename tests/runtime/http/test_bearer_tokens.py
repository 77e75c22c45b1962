"""Tests the comparison of tokens."""

import hashlib
import itertools

import pytest

from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.http_errors import RequestRefused

VALID = "a-token-of-sixteen-characters"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@pytest.mark.parametrize("place", [0, 31])
def test_a_token_whose_digest_equals_the_valid_one_in_a_byte_is_refused(place: int) -> None:
    guesses = (f"another-token-{number}" for number in itertools.count())
    like = next(guess for guess in guesses if _digest(guess)[place] == _digest(VALID)[place])
    tokens = Tokens([VALID])
    assert tokens.check(f"Bearer {VALID}") == 0
    with pytest.raises(RequestRefused, match="expected Bearer and a valid token"):
        tokens.check(f"Bearer {like}")
