"""Column profiles: the values and the name of a column decide how a model reads it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.learner.suggestion.column_profile import profile_of

ROWS = 20_000
SEED = 3
NO_CLICKS = np.zeros(ROWS, np.bool_)
Column = tuple[Any, np.ndarray]


def clicks(dice: np.random.Generator, rates: Any) -> np.ndarray:
    return np.asarray(dice.random(ROWS) < rates)


def zipf(dice: np.random.Generator, values: int) -> np.ndarray:
    """Places of values, the first ones being frequent."""
    weights = 1.0 / np.arange(1, values + 1)
    return dice.choice(values, ROWS, p=weights / weights.sum())


def hashed(dice: np.random.Generator) -> Column:
    return dice.choice(10_000_000, 800, replace=False)[zipf(dice, 800)], NO_CLICKS


def hashed_text(dice: np.random.Generator) -> Column:
    values, labels = hashed(dice)
    return [str(each) for each in values], labels


def zip_code(dice: np.random.Generator) -> Column:
    return [f"{each:05d}" for each in dice.integers(1_000, 99_999, ROWS)], NO_CLICKS


def hashed_or_missing(dice: np.random.Generator) -> Column:
    values, labels = hashed(dice)
    return np.where(dice.random(ROWS) < 0.3, -1, values), labels


def dense(dice: np.random.Generator) -> Column:
    """Ids from 1 up, each with a click rate of its own."""
    values = dice.permutation(300)[zipf(dice, 300)]
    return values + 1, clicks(dice, dice.beta(1, 4, 300)[values])


def price_in_cents(dice: np.random.Generator) -> Column:
    catalogue = np.round(np.exp(dice.normal(7.5, 1.0, 700))) // 10 * 10 + 9
    values = catalogue[zipf(dice, 700)]
    return values.astype(np.int64), clicks(dice, np.clip(300 / values, 0, 0.9))


def age(dice: np.random.Generator) -> Column:
    values = np.clip(dice.normal(38, 14, ROWS), 13, 99).astype(np.int64)
    return values, clicks(dice, values / 250)


def count(dice: np.random.Generator) -> Column:
    values = dice.geometric(0.01, ROWS)
    return values, clicks(dice, 1 / np.log2(2 + values) / 2)


def time_since(dice: np.random.Generator) -> Column:
    values = dice.exponential(5_000.0, ROWS).astype(np.int64)
    return np.where(dice.random(ROWS) < 0.2, -1, values), clicks(dice, np.exp(-values / 9_000) / 3)


def second_of_day(dice: np.random.Generator) -> Column:
    values = dice.integers(0, 86_400, ROWS)
    return values, clicks(dice, 0.1 + 0.1 * np.sin(values / 13_000))


def read_time(dice: np.random.Generator) -> Column:
    return np.arange(ROWS) // 5 + 1_700_000_000, clicks(dice, 0.1)


def amount(dice: np.random.Generator) -> Column:
    return dice.exponential(50.0, ROWS).round(2), NO_CLICKS


def balance(dice: np.random.Generator) -> Column:
    return dice.choice(9_000_000, 800)[zipf(dice, 800)] - 4_000_000, NO_CLICKS


@pytest.mark.parametrize(
    ("made", "transform", "reason"),
    [
        (hashed, "id", "ids with gaps"),
        (hashed_text, "id", "ids with gaps"),
        (hashed_or_missing, "id", "ids with gaps"),
        (zip_code, "id", "leading zeros"),
        (dense, "id", "single values predict clicks"),
        (price_in_cents, "log_bucket", "most are small"),
        (age, "log_bucket", "numbers from 13"),
        (count, "log_bucket", "no better as ids"),
        (time_since, "log_bucket", "most are small"),
        (second_of_day, "log_bucket", "no better as ids"),
        (read_time, "log_bucket", "numbers from"),
        (amount, "log_bucket", "numbers from"),
        (balance, "log_bucket", "numbers from -"),
    ],
)
def test_numbers_are_ids_or_magnitudes_by_their_values_and_clicks(
    made: Callable[[np.random.Generator], Column], transform: str, reason: str
) -> None:
    values, labels = made(np.random.default_rng(SEED))
    found = profile_of("column", pa.array(values), labels)
    assert found.transform == transform, found.reason
    assert reason in found.reason


@pytest.mark.parametrize("name", ["listener.id", "listener_id", "listenerId", "episode.ID", "id"])
def test_whole_numbers_of_a_column_named_like_an_id_are_ids(name: str) -> None:
    numbers = pa.array([i % 500 for i in range(ROWS)])
    assert profile_of(name, numbers, NO_CLICKS).transform == "id"


@pytest.mark.parametrize("name", ["seconds", "paid", "Bid", "episode.seconds", "humidity"])
def test_names_that_only_end_in_id_make_no_ids(name: str) -> None:
    numbers = pa.array([i % 500 for i in range(ROWS)])
    assert profile_of(name, numbers, NO_CLICKS).transform == "log_bucket"


@pytest.mark.parametrize(
    ("numbers", "transform"),
    [
        ([i // 5 % 400 + 1 for i in range(ROWS)], "id"),  # people, a number each
        ([i // 5 % 400 + 1 if i % 115 > 4 else None for i in range(ROWS)], "id"),  # some unknown
        ([i % 400 + 1 for i in range(ROWS)], "log_bucket"),  # differs among candidates
        ([10 * (i // 5 % 400) for i in range(ROWS)], "log_bucket"),  # numbers left out
        ([int(400 * (i // 5 % 400 / 400) ** 3) for i in range(ROWS)], "log_bucket"),  # most small
    ],
)
def test_numbers_that_a_request_shares_are_ids_if_none_is_left_out_and_all_are_as_frequent(
    numbers: list[int | None], transform: str
) -> None:
    requests = np.arange(ROWS) // 5
    assert profile_of("person", pa.array(numbers), NO_CLICKS, requests).transform == transform
    without = profile_of("person", pa.array(numbers), NO_CLICKS)
    assert without.transform == "log_bucket"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *((name, False) for name in ("propensity_score", "policy", "pscore", "action_prob")),
        *((name, False) for name in ("model_version", "log.policy_name", "served_score", "pCTR")),
        *((name, True) for name in ("score", "policy_type", "model", "probability", "version")),
    ],
)
def test_columns_of_the_logging_system_are_left_out_by_name(name: str, known: bool) -> None:
    found = profile_of(name, pa.array([f"v{i % 9}" for i in range(ROWS)]), NO_CLICKS)
    assert bool(found.transform) == known
    assert known or "only the logging system" in found.reason
