"""The split of an alias's traffic: shares, stability, movements of keys, and its text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.errors import BadAlias
from headrace.serving.models.traffic_split import MOST_ARMS, TrafficSplit, canonical, split_of

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=20)
WEIGHTS = st.floats(0.01, 1_000.0)
ARMS = st.dictionaries(NAMES, WEIGHTS, min_size=2, max_size=6)
KEYS = [b"user-%d" % each for each in range(300)]


def split(arms: dict[str, float], key: str = "request_id") -> TrafficSplit:
    made = split_of(" ".join(f"{name}={weight!r}" for name, weight in arms.items()) + f" by {key}")
    assert made is not None
    return made


@given(ARMS, st.integers(0, 1 << 40))
def test_each_model_answers_its_share_of_keys_within_binomial_bounds(
    arms: dict[str, float], salt: int
) -> None:
    count, made = 2_000, split(arms)
    chosen = [made.choose(b"%d/%d" % (salt, each)) for each in range(count)]
    for model, weight in arms.items():
        share = weight / math.fsum(arms.values())
        # Bernstein: exceeded with a probability below 1e-11
        bound = math.sqrt(2 * 26 * count * share * (1 - share)) + 26 * 2 / 3
        assert abs(chosen.count(model) - count * share) <= bound


@given(ARMS, st.randoms(use_true_random=False))
def test_the_order_and_the_scale_of_weights_move_no_key(arms: dict[str, float], dice) -> None:  # type: ignore[no-untyped-def]
    pairs = list(arms.items())
    dice.shuffle(pairs)
    doubled = split({name: weight * 2 for name, weight in pairs})
    assert [doubled.choose(key) for key in KEYS] == [split(arms).choose(key) for key in KEYS]


@given(ARMS, st.floats(1.0, 50.0), st.data())
def test_a_weight_that_grows_moves_keys_to_its_model_only(
    arms: dict[str, float], factor: float, data: st.DataObject
) -> None:
    grown = data.draw(st.sampled_from(sorted(arms)))
    before, after = split(arms), split({**arms, grown: arms[grown] * factor})
    for key in KEYS:
        assert after.choose(key) in {before.choose(key), grown}


@given(ARMS, NAMES, WEIGHTS)
def test_a_model_that_joins_or_leaves_moves_no_key_between_the_others(
    arms: dict[str, float], name: str, weight: float
) -> None:
    arms.pop(name, None)
    if len(arms) < 2:
        return
    less, more = split(arms), split({**arms, name: weight})
    assert all(more.choose(key) in {less.choose(key), name} for key in KEYS)


def test_keys_stay_with_their_model_in_later_versions() -> None:
    made = split({"news": 60, "news-2": 40})
    chosen = "".join("2" if made.choose(key) == "news-2" else "1" for key in KEYS[:40])
    assert chosen == "2112121122211112212212211211211112222222"


@given(ARMS, st.sampled_from(["request_id", "user_id"]))
def test_a_split_is_read_from_its_own_text(arms: dict[str, float], key: str) -> None:
    made = split(arms, key)
    assert split_of(str(made)) == made
    assert canonical(str(made)) == str(made)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("news", "news"),
        ("news=7", "news"),
        ("news-2=5 news=95", "news=95 news-2=5"),
        ("news=95,news-2=5.0", "news=95 news-2=5"),
        ("b=1  a=1 by request_id", "a=1 b=1"),
        ("news=0.95 news-2=0.05 by user_id", "news=0.95 news-2=0.05 by user_id"),
    ],
)
def test_equal_targets_of_an_alias_have_one_text(text: str, found: str) -> None:
    assert canonical(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("news=95 news-2", "expected MODEL=WEIGHT"),
        ("news news-2", "expected MODEL=WEIGHT"),
        ("news by user_id", "expected MODEL=WEIGHT"),
        ("=95 news-2=5", "expected MODEL=WEIGHT"),
        ("news=95 news=5", "got news twice"),
        ("news=95 news-2=0", "weight of news-2: expected a number above 0"),
        ("news=95 news-2=-1", "expected a number above 0"),
        ("news=95 news-2=nan", "expected a number above 0"),
        ("news=95 news-2=inf", "expected a number above 0"),
        ("news=95 news-2=5%", "got '5%'"),
        (f"news=95 news-2=5 by {'f' * 201}", "got a field of 201 characters"),
        (" ".join(f"a{each}=1" for each in range(MOST_ARMS + 1)), "at most 16 models, got 17"),
    ],
)
def test_an_invalid_split_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadAlias, match=said):
        canonical(text)
