"""Makes JSON values that decoders of events and of requests might take for each other.

Numbers at the bounds of 64 bits and of doubles, escapes, texts that look like numbers, and texts
that JSON almost allows.
"""

import random
from collections.abc import Sequence

_NUMBERS = (
    *("0", "-0", "-0.0", "1", "1.0", "1e3", "1E+3", "1e-3", "0.1", "00", "01", "+1", ".5", "1."),
    *("123456789012345678901", "18446744073709551615", "18446744073709551616", "1e", "-", "NaN"),
    *("-9223372036854775808", "-9223372036854775809", "9007199254740993", "1e400", "-1e400"),
    *("1e308", "5e-324", "1e-400", "0.30000000000000004", "Infinity", "1_0", "1700000000000.0"),
    *("17e11", "1700000000000.5", "946684799999", "1" * 50, "1" * 310, "1" * 400, "1" * 5000),
    *("0." + "3" * 400, "1e" + "0" * 50 + "3", "1.7976931348623157e308", "1e23", "1e16"),
)
_STRINGS = (
    *('""', '"a"', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\udc00\\ud800"', '"é"'),
    *('"\\n"', '"\\/"', '"\\x"', '"\\u12"', '"1"', '"1.0"', '" 1 "', '"1_0"', '"NaN"', '"inf"'),
    *('"٣"', '"' + "z" * 300 + '"', '"\t"', '"\x7f"', '"\\""', '"a\\\\"', '"null"', '"0x10"'),
)
_OTHERS = (
    *("true", "false", "null", "True", "nul", "[]", "{}", '[1,2,"a"]', "[null]", "[[1]]", "[{}]"),
    *('{"a":1}', "[1,]", "[,1]", "[1 2]", "[true,null,1.0,1]", "[" + ",".join(["1"] * 300) + "]"),
    *("[" * 50 + "]" * 50, "[" * 3000 + "]" * 3000, '{"a":' * 1500 + "1" + "}" * 1500, "[1e400]"),
)
_SPACES = ("", "", "", "", " ", "\n", "\t", "\r", "\x0b", "\x0c", "\xa0", "\ufeff")


def value(dice: random.Random) -> str:
    """Return the text of a value."""
    draw = dice.random()
    return dice.choice(_NUMBERS if draw < 0.4 else _STRINGS if draw < 0.75 else _OTHERS)


def spaced(dice: random.Random, parts: Sequence[str]) -> str:
    """Return the parts with white space between them; some of it is not JSON's."""
    return "".join(dice.choice(_SPACES) + part for part in parts)


def changed(dice: random.Random, text: str) -> bytes:
    """Return the bytes of a text; one in three has changes."""
    blob = bytearray(text.encode("utf-8", "surrogatepass"))
    draw, at = dice.random(), dice.randrange(len(text))
    if draw < 0.15:
        for _ in range(dice.randrange(1, 4)):
            blob[dice.randrange(len(blob))] = dice.randrange(256)
    elif draw < 0.25:
        del blob[at:]
    elif draw < 0.3:
        blob[at:at] = dice.randbytes(1)
    elif draw < 0.35:
        del blob[at : at + dice.randrange(20)]
    return bytes(blob)
