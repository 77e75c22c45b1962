"""Makes cases from sound bytes: mutants of binary formats and of texts.

The dice decide everything, so a seed repeats a case.
"""

import random
import re
from collections.abc import Callable, Sequence

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_WORDS = (b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f", bytes(4), b"\1\0\0\0")
_LONGS = (b"\xff" * 8, bytes(7) + b"\x80", b"\xff" * 7 + b"\x7f", bytes(8))
_VALUES = (
    *(b"-1", b"0", b"-0", b"1.5", b"65537", b"1e400", b"nan", b"inf", b"null", b"true"),
    *(b'"x"', b"[]", b"{}", b'"\xff"', b'"\\ud800"', b"4611686018427387904"),
    *(b"9223372036854775808", b"-9223372036854775809", b"1" * 30, b"1" * 5000),
    *(b"[" * 200 + b"]" * 200, b"[" * 5000 + b"]" * 5000, b'{"a":' * 2000 + b"1" + b"}" * 2000),
)


def mutant(dice: random.Random, sound: bytes) -> bytes:
    """Return bytes with a few changes: flips, cuts, insertions, copies and extreme integers."""
    blob = bytearray(sound)
    for _ in range(dice.choice((1, 1, 2, 4, 8))):
        if not blob:
            break
        at, change = dice.randrange(len(blob)), dice.randrange(8)
        if change == 0:
            blob[at] = dice.randrange(256)
        elif change == 1:
            blob[at] ^= 1 << dice.randrange(8)
        elif change == 2:
            del blob[at : at + dice.randrange(1, 30)]
        elif change == 3:
            blob[at:at] = dice.randbytes(dice.randrange(1, 9))
        elif change == 4:
            blob[at : at + 4] = dice.choice(_WORDS)
        elif change == 5:
            blob[at : at + 8] = dice.choice(_LONGS)
        elif change == 6:
            source, size = dice.randrange(len(blob)), dice.randrange(1, 40)
            blob[at : at + size] = blob[source : source + size]
        else:
            del blob[at:]
    return bytes(blob)


def text_mutant(dice: random.Random, sound: bytes) -> bytes:
    """Return a text with another value, with lines moved, or with changed bytes."""
    draw = dice.random()
    if draw < 0.5 and (found := list(_NUMBER.finditer(sound))):
        place = dice.choice(found)
        sound = sound[: place.start()] + dice.choice(_VALUES) + sound[place.end() :]
    elif draw < 0.75:
        lines = sound.split(b"\n")
        one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        if dice.random() < 0.4 and b"=" in lines[one]:
            lines[one] = lines[one].split(b"=")[0] + b"= " + dice.choice(_VALUES)
        else:
            lines[one], lines[other] = lines[other], lines[one]
        sound = b"\n".join(lines)
    return sound if dice.random() < 0.5 else mutant(dice, sound)


def mutants_of(corpus: Sequence[bytes], *, text: bool = False) -> Callable[[random.Random], bytes]:
    """Return a function that makes a case; a few are sound."""

    def case(dice: random.Random) -> bytes:
        sound = dice.choice(corpus)
        if dice.random() < 0.02:
            return sound
        return text_mutant(dice, sound) if text and dice.random() < 0.8 else mutant(dice, sound)

    return case
