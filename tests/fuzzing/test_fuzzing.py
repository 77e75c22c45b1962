"""Every decoder of bytes from outside returns or raises its declared error."""

import os
import random
from collections.abc import Callable

import pytest

from tests.effort import LONG, QUICK
from tests.fuzzing.decoders import message_decoders
from tests.fuzzing.http_decoders import http_decoders
from tests.fuzzing.isolated import Decoder, explore

CASES = 100_000 if LONG else 300 if QUICK else 3_000
"""About a minute of each decoder in `make test-long`, a few seconds of all in `make test`."""
DECODERS = [*message_decoders(), *http_decoders()]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_a_decoder_returns_or_raises_its_declared_error_in_bounded_time_and_memory(
    decoder: Decoder,
) -> None:
    seed = str(random.randrange(1 << 30)) if LONG else "1"
    found = explore(decoder, seed, CASES)
    assert found.failure == ""
    assert found.accepted > 0, "no case was sound, so the decoder was not tested"
    assert found.refused > 0 or not decoder.declared


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        (lambda _: os.kill(os.getpid(), 11), "killed by signal 11"),
        (lambda blob: {b"": 1}[blob], "KeyError is not declared"),
        (lambda _: bytearray(2 << 30), "MemoryError is not declared"),
    ],
)
def test_a_violation_of_the_law_is_reported_with_its_case(
    decode: Callable[[bytes], object], said: str
) -> None:
    decoder = Decoder("x", lambda dice: b"%d" % dice.randrange(9), decode)
    found = explore(decoder, "1", 5)
    assert found.failure.startswith(f"x, seed 1/0, case 0, 1 bytes: {said}")
