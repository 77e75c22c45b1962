"""Checks the facts of Python that `ingest.decoding.json_scanner` relies on.

The scanner takes the canonical text of a number from the bytes of the message. That is right only
as long as Python writes floats the way it does today.
"""

import random

import orjson

from headrace.ingest.decoding import json_tokens
from headrace.ingest.features.hashing import canonical


def test_repr_returns_every_decimal_of_at_most_fifteen_digits() -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    for _ in range(2_000):
        digits = dice.randint(2, json_tokens._EXACT_DIGITS)
        mantissa = str(dice.randint(1, 9)) + "".join(dice.choices("0123456789", k=digits - 2)) + "7"
        point = dice.randint(1, digits - 1)
        text = f"{mantissa[:point]}.{mantissa[point:]}"
        assert canonical(orjson.loads(text)) == text, (
            f"seed {seed}: expected Python to write {text} back, got another text: the scanner "
            "would hash other bytes than the fallback"
        )


def test_repr_writes_an_exponent_only_below_a_ten_thousandth() -> None:
    zeros = json_tokens._MOST_ZEROS
    assert repr(float(f"0.{'0' * zeros}1")) == f"0.{'0' * zeros}1"
    assert "e" in repr(float(f"0.{'0' * (zeros + 1)}1")), (
        "expected repr to write an exponent here, got none: the scanner's bound is too strict"
    )
