"""Tests values and their hashes: the same everywhere, forever."""

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.features.hashing import (
    ABSENT,
    canonical,
    field_id,
    field_ids,
    hash_integers,
    hash_strings,
    hash_text,
    hash_values,
    texts,
)
from tests.ingest.features.crosses import cross_ids

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=80)
)


def _known(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode(), 0)


@given(st.lists(st.none() | st.text(max_size=100)))
def test_a_column_of_strings_hashes_like_the_reference_implementation(
    strings: list[str | None],
) -> None:
    hashes = hash_strings(pa.array(strings, pa.string()))
    expected = [int(ABSENT) if text is None else _known(text) for text in strings]
    assert hashes.tolist() == expected


@given(st.lists(st.text(max_size=40), min_size=3), st.integers(0, 2))
def test_a_slice_of_a_string_column_hashes_as_the_column(strings: list[str], begin: int) -> None:
    column = pa.array(strings, pa.string())
    assert hash_strings(column[begin:]).tolist() == hash_strings(column).tolist()[begin:]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_whole_numbers_hash_as_their_decimal_text(numbers: list[int | None]) -> None:
    expected = [int(ABSENT) if number is None else _known(str(number)) for number in numbers]
    assert hash_integers(pa.array(numbers, pa.int64())).tolist() == expected


@given(st.lists(_SCALARS))
def test_a_column_of_any_values_hashes_as_each_of_them_alone(values: list[object]) -> None:
    alone = [hash_values([value])[0] for value in values]
    assert hash_values(values).tolist() == [int(each) for each in alone]
    assert texts(values).to_pylist() == [canonical(value) for value in values]


@pytest.mark.parametrize(
    "same", [[2, 2.0, "2"], [True, "true"], [False, "false"], [-3, -3.0, "-3"], [0, 0.0, -0.0, "0"]]
)
def test_all_spellings_of_a_value_have_one_hash(same: list[object]) -> None:
    assert len({int(hash_values([value])[0]) for value in same}) == 1
    assert len(set(hash_values(same).tolist())) == 1


def test_null_is_neither_an_empty_text_nor_the_word_absent() -> None:
    assert len(set(hash_values([None, "", "absent", "null", "None"]).tolist())) == 5


def test_a_value_that_is_not_a_scalar_hashes_as_absent() -> None:
    assert hash_values([[1], {"a": 1}, "x"]).tolist()[:2] == [int(ABSENT)] * 2
    assert canonical([1]) is None


def test_text_with_lone_surrogates_is_hashed_too() -> None:
    broken = hash_values(["\ud800", "x"])
    assert broken[1] == hash_text("x")


def test_the_ids_of_recorded_values_never_change() -> None:
    # the rows in parameter servers depend on these numbers
    assert int(hash_text("")) == 0xEF46DB3751D8E999
    assert field_id(hash_text("article-1"), 1) == 7759271407466675201
    ids = [np.array([field_id(hash_text(t), n)], np.uint64) for t, n in (("u", 2), ("a", 1))]
    assert int(cross_ids(ids, 10)[0]) == 814358916456783882


@given(st.text(), st.integers(1, 1000), st.integers(1, 1000))
def test_an_id_contains_its_field_and_differs_between_fields(text: str, one: int, two: int) -> None:
    first, second = field_id(hash_text(text), one), field_id(hash_text(text), two)
    assert first & 1023 == one
    assert (first >> 10 == second >> 10) == (one == two)


def test_a_cross_depends_on_the_order_of_its_parts_and_takes_one_id_for_all() -> None:
    one = field_ids(hash_values(["a"]), 1)
    two = field_ids(hash_values(["x", "y"]), 2)
    crossed = cross_ids([one, two], 3)
    assert crossed.tolist() == cross_ids([np.repeat(one, 2), two], 3).tolist()
    assert not set(crossed.tolist()) & set(cross_ids([two, one], 3).tolist())


def test_ids_are_distributed_evenly_over_buckets() -> None:
    ids = field_ids(hash_values(list(range(64_000))), 5)
    counts = np.bincount((ids >> np.uint64(58)).astype(np.int64), minlength=64)
    assert counts.min() > 850 and counts.max() < 1150  # 1000 each, standard deviation 31


@given(st.integers(-(1 << 70), 1 << 70))
def test_a_whole_number_is_one_text_in_an_event_and_in_a_request(number: int) -> None:
    text = str(number).encode()
    assert canonical(orjson.loads(text)) == canonical(msgspec.json.decode(text))


def test_a_number_that_no_event_can_hold_has_a_text_too() -> None:
    assert canonical(10**400) == str(10**400)
