"""Tests that the JSON scanner finds the same values as the plain decoder.

`read_event` and the encoder over Python values are the reference: slow, obvious and tested apart.
Both read texts that JSON allows, nearly allows and does not allow.
"""

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import typeof

from headrace.ingest.decoding.decoder import Decoder
from headrace.ingest.decoding.json_scanner import ODD
from headrace.ingest.events.contract import IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import _no_chunk
from tests.effort import LONG, examples
from tests.ingest.decoding.both_decoders import DECLARED, FIELDS, NOW_MS, SPEC, agree, block

NOTABLE_NUMBERS = [
    *("-0", "-0.0", "-0.00", "0.0", "0.00", "1.0", "1.50", "12.00", "-1.5", "-12.50", "100.0"),
    *("01", "1.", ".5", "+1", "-", "1-1", "00", "0x1", "NaN", "Infinity", "1e3", "1E3", "1e-7"),
    *("1e400", "0.0001", "0.00001", "0.00012", "4.35", "1.15", "0.30000000000000004"),
    *("123456789012345.0", "1234567890123456.5", "0.1234567890123456", "9007199254740993"),
    *("999999999999999999", "1000000000000000000", "18446744073709551616"),
    "-9223372036854775808",
]
NUMBERS = st.one_of(
    st.integers(-20, 20).map(str),
    st.integers().map(str),
    st.integers(10**14, 10**20).map(str),
    st.floats().map(repr),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.4f}"),
    st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=0, max_value=1).map(str),
    st.sampled_from(NOTABLE_NUMBERS),
)
STRINGS = st.one_of(
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(max_size=4).map(json.dumps),
    NUMBERS.map(lambda number: f'"{number}"'),
    st.sampled_from(
        [
            *(
                '""',
                '"a b"',
                '"\\n"',
                '"\\u00e6"',
                '"\\ud83d\\ude00"',
                '"\\ud800"',
                '"\\x"',
                '"\\u12"',
            ),
            *('" 1"', '"1_0"', '"nan"', '"inf"', '"\u0661"', '"\x7f"', '"\t"', '"æ"', '"😀"', '"'),
        ]
    ),
)
SCALARS = st.one_of(
    NUMBERS, STRINGS, st.sampled_from(["true", "false", "null", "tru", "nul", "truex", ""])
)
SPACE = st.sampled_from(["", "", "", " ", "\n\t", "\r ", "\x0b", "\u00a0"])
VALUES = st.one_of(
    SCALARS,
    st.builds(
        lambda items, space: "[" + space + f"{space},{space}".join(items) + space + "]",
        st.lists(SCALARS, max_size=4),
        SPACE,
    ),
    st.sampled_from(
        ["[", "]", "[]", "[ ]", "[,]", "[1,]", "[[]]", "[[1]]", "{}", '{"a":1}', "[{}]"]
    ),
)
KEYS = st.one_of(
    st.sampled_from(DECLARED).map(json.dumps),
    st.sampled_from(DECLARED).map(lambda name: f'"{name}"'),
    st.sampled_from([IMPRESSION_ID, TIME, REQUEST_ID]).map(json.dumps),
    st.text(max_size=5).map(json.dumps),
)
IDENTITIES = st.sampled_from(['"i1"', '"i1"', '"æ-2"', '"a\\/b"', '""', "7", "null", "[1]", "{}"])
TIMES = st.sampled_from(
    [
        *(str(NOW_MS), str(NOW_MS + 5), str(NOW_MS), f"{NOW_MS}.0", f'"{NOW_MS}"', "1.7e12", "-5"),
        *("null", "12", "true", "[1]", "1700000000000.5", "9" * 19, str(NOW_MS + 10**9)),
    ]
)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    pairs = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    if draw(st.integers(0, 9)):
        pairs.append((json.dumps(IMPRESSION_ID), draw(IDENTITIES)))
    if draw(st.integers(0, 9)):
        pairs.append((json.dumps(TIME), draw(TIMES)))
    pairs = draw(st.permutations(pairs))
    space = draw(SPACE)
    text = f",{space}".join(f"{key}{space}:{space}{value}" for key, value in pairs)
    value = f"{space}{{{text}{space}}}{space}".encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:  # a corrupted byte
        at = draw(st.integers(0, len(value)))
        broken = draw(st.binary(max_size=2))
        value = value[:at] + broken + value[at + draw(st.integers(0, 2)) :]
    return value


@pytest.mark.timeout(1800)
@settings(max_examples=30_000 if LONG else examples(400))
@given(st.lists(events(), min_size=1, max_size=6), st.sampled_from([NOW_MS, 0, -1]))
def test_the_json_scanner_finds_what_the_plain_decoder_finds(
    values: list[bytes], append_ms: int
) -> None:
    agree(values, append_ms)


@settings(max_examples=examples(300))
@given(NUMBERS, st.sampled_from(["word", "amount", "plain", "both", "tags", "device"]))
def test_every_way_to_write_a_number_is_scanned_like_the_plain_decoder(
    number: str, name: str
) -> None:
    start = f'{{"impression_id":"i","timestamp_ms":{NOW_MS},"{name}":'
    agree([f"{start}{number}}}".encode(), f'{start}"{number}"}}'.encode()])


PLAIN: list[dict[str, Any]] = [
    {"word": "a", "amount": 3, "plain": 2.5, "both": "12", "tags": ["x", 1, None], "device": True},
    {"word": "hello world", "both": 12.0, "amount": -4, "other": [1, 2], "request_id": 17},
    {"word": "ærø 😀", "both": None, "tags": [], "other": 'a\\b"c', "request_id": "r"},
    {},
]


def test_plain_events_never_reach_the_plain_decoder() -> None:
    values = [
        dumped
        for event in PLAIN
        for whole in [{"impression_id": "i", "timestamp_ms": NOW_MS, **event}]
        for dumped in (orjson.dumps(whole), json.dumps(whole, ensure_ascii=False).encode())
    ]
    values.append(orjson.dumps({"timestamp_ms": NOW_MS}))
    decoder = Decoder(FIELDS)
    found = decoder.decode(values, np.full(len(values), NOW_MS)).found
    assert not (found.states == ODD).any()
    agree(values)


def test_the_json_scanner_accepts_another_order_of_names_in_each_event() -> None:
    names = [f'"{name}":"{name}"' for name in ("word", "both", "device")]
    names += ['"impression_id":"i"', f'"timestamp_ms":{NOW_MS}']
    orders = [names, names[::-1], names[2:] + names[:2], names[1:], names[::2] + names[1::2]]
    agree([f"{{{','.join(order)}}}".encode() for order in orders * 2])


def test_the_last_value_of_a_repeated_name_counts() -> None:
    start = f'{{"impression_id":"i","timestamp_ms":{NOW_MS},'
    doubles = ['"word":1,"word":2', '"word":1,"word":null', '"tags":["a"],"tags":["b","c"]']
    doubles += ['"amount":5,"amount":[]', '"plain":"x","plain":3', '"word":{},"word":1']
    doubles += ['"impression_id":"j"', '"timestamp_ms":1', '"impression_id":null']
    agree([f"{start}{double}}}".encode() for double in doubles])


def test_events_with_many_or_long_names_are_scanned() -> None:
    many = {f"name {i}": i for i in range(200)} | {"word": "w", "device": "d"}
    long = {"x" * 10_000: "y" * 10_000, "word": "z" * 10_000}
    base = {"impression_id": "i", "timestamp_ms": NOW_MS}
    agree([orjson.dumps(base | many), orjson.dumps(long | base), orjson.dumps(many | base)])


def test_every_truncation_of_an_event_is_refused_by_both_decoders() -> None:
    whole = orjson.dumps({"impression_id": "æ", "timestamp_ms": NOW_MS, "tags": [1.5, "x", True]})
    agree([whole[:size] for size in range(len(whole) + 1)])


def test_plain_decimals_are_scanned_to_the_nearest_float() -> None:
    dice = np.random.default_rng(3)
    written = [f"{dice.integers(0, 10**9)}.{dice.integers(0, 10**6)}" for _ in range(2_000)]
    base = f'{{"impression_id":"i","timestamp_ms":{NOW_MS},"amount":'
    values = [f"{base}{text}}}".encode() for text in written]
    found = Decoder(FIELDS).decode(values, np.full(len(values), NOW_MS))
    assert found.reals("amount").tolist() == [float(text) for text in written]
    assert not any(map(math.isnan, found.reals("amount")))


_ONE_ID = """
[fields.word]
number = 1
transform = "id"
"""
_ONE_NUMBER = """
[fields.plain]
number = 1
transform = "number"
"""
_WEIGHED = """
[examples]
weight = "amount"
[fields.plain]
number = 1
transform = "number"
"""


def test_chunks_have_one_numba_type_for_all_specs_and_events() -> None:
    event = b'{"impression_id":"a","timestamp_ms":1,"amount":2,"tags":["b"]}'
    blocks = [block([event] * 3), block([event]), block([b"[]"])]
    chunks = [_no_chunk(side) for side in EventSide]
    for text in (SPEC, _ONE_ID, _ONE_NUMBER, _WEIGHED):
        where = SpecText("test.toml", text)
        reader = ChunkReader(parse_fields(where.tables(), where))
        for side in EventSide:
            chunks += [reader.read(side, each) for each in blocks]
    kinds: set[object] = {typeof((chunk.arrays, chunk.rows)) for chunk in chunks}  # type: ignore[no-untyped-call]
    assert len(kinds) == 1
