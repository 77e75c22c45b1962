"""Good traffic raises no suspicion, however it is cut; each fault does, soon."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.encoder import Encoded
from headrace.learner.loop.guard.bets import (
    BetLimits,
    Capital,
    Cohorts,
    bet_on_clicks,
    bet_on_outcomes,
    bet_on_repeats,
    new_capital,
)
from headrace.learner.loop.guard.surprise import LABEL_TESTS, StreamSurprise, SurpriseLimits
from headrace.runtime.kernels.numba_kernels import read_only
from tests.learner.in_memory import cut

LIMITS = SurpriseLimits()
WINDOW_MS = 60_000
SIZES = [10, 100, 1000, 10_000]
COUNT = 20_000
SPOILED = 12_000
"""The first example of a fault."""


def _shown(
    dice: np.random.Generator,
    labels: npt.NDArray[np.uint8],
    weights: float | None = None,
    every_ms: int = 100,
) -> Examples:
    """Return impressions whose outcome is known."""
    count = labels.shape[0]
    times = np.arange(count, dtype=np.int64) * every_ms
    names = pa.array([str(each) for each in range(count)])
    ids = dice.integers(0, 100, (count, 3)).astype(np.uint64)
    numbers = dice.lognormal(0.0, 1.0, (count, 2)).astype(np.float32)
    features = Encoded(ids, np.zeros(0, np.uint64), np.zeros(1, np.int32), numbers)
    kinds = np.full(count, Kind.CLOSED, np.uint8)
    found = Examples("", 0, kinds, labels, times, times, times, names, names, features, {})
    if weights is None:
        return found
    return replace(found, weights=np.where(labels > 0, 1.0, weights).astype(np.float32))


def _scored(dice: np.random.Generator, rate: float, count: int = COUNT) -> npt.NDArray[np.float64]:
    odds = rate / (1.0 - rate) * np.exp(dice.normal(-0.5, 1.0, count))
    return odds / (1.0 + odds)


def _drawn(dice: np.random.Generator, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    return (dice.random(scores.shape[0]) < scores).astype(np.uint8)


def _first_suspect(
    examples: Examples, scores: npt.NDArray[np.float64], size: int, *, young: int = 0
) -> int | None:
    """Return the last example of the first suspect batch, or None. young: batches not judged."""
    surprise = StreamSurprise(LIMITS, WINDOW_MS)
    for number, batch in enumerate(cut(examples, size)):
        own = scores[number * size : (number + 1) * size]
        if surprise.of_inputs(batch) or surprise.of_labels(batch, own, judged=number >= young):
            return min((number + 1) * size, len(examples))
    return None


def _grown(bets: Callable[[Capital], object], opponents: int) -> npt.NDArray[np.float64]:
    """Return by what a bet on one example multiplies the capital of each opponent."""
    begin = new_capital(opponents, np.inf)
    begin.logs[:] = 100.0  # far from the floor
    bets(begin)
    return np.asarray(np.exp(begin.logs - 100.0))


@pytest.mark.parametrize("odds", [2e-4, 0.01, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("level", [0.01, 0.5])
def test_no_bet_is_expected_to_gain_while_the_odds_are_within_the_tolerance(
    odds: float, level: float
) -> None:
    bets = BetLimits(LIMITS.tolerance, LIMITS.excess, LIMITS.shortage, np.exp(LIMITS.largest_gain))
    score, shown = np.array([odds / (1.0 + odds)]), np.zeros(1, np.int64)

    def outcome(label: int) -> npt.NDArray[np.float64]:
        labels = read_only(np.array([label], np.uint8), np.uint8)
        return _grown(
            lambda capital: bet_on_outcomes(capital, bets, score, labels, 1.0, level, True),
            len(LABEL_TESTS),
        )

    def alone(kind: Kind) -> npt.NDArray[np.float64]:
        kinds = read_only(np.array([kind], np.uint8), np.uint8)
        times = read_only(shown, np.int64)
        cohorts = Cohorts(np.zeros(17), 0, 1000, -1)
        return _grown(
            lambda capital: bet_on_clicks(capital, bets, cohorts, score, kinds, times, 1.0), 1
        )

    without, click, shows, clicks = outcome(0), outcome(1), alone(Kind.SHOWN), alone(Kind.CLICKED)
    assert alone(Kind.CLOSED) == pytest.approx(shows * clicks)  # clicked within the wait
    for factor in np.geomspace(1.0 / LIMITS.tolerance, LIMITS.tolerance, 21):
        truth = odds * factor / (1.0 + odds * factor)
        assert ((1.0 - truth) * without + truth * click <= 1.0 + 1e-9).all()
        # under `immediate` a click comes after the bet on its impression, and multiplies
        assert (1.0 - truth) * shows[0] + truth * shows[0] * clicks[0] <= 1.0 + 1e-9


def test_no_bet_on_a_share_is_expected_to_gain_up_to_its_bound() -> None:
    ids = read_only(np.array([[1]], np.uint64), np.uint64)
    row = bet_on_repeats(new_capital(1, np.inf), ids, np.uint64(0), 0.02, 0.25, False)[2]

    def grown(last: np.uint64) -> float:
        bet = partial(bet_on_repeats, ids=ids, last_row=last, bound=0.02, said=0.25, judged=True)
        return float(_grown(bet, 1)[0])

    never, always = grown(np.uint64(0)), grown(np.uint64(row))
    assert never < 1.0 < always
    for share in np.linspace(0.0, 0.02, 11):
        assert (1.0 - share) * never + share * always <= 1.0 + 1e-9


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rate", [0.002, 0.05, 0.4])
@pytest.mark.parametrize("off", [0.6, 1.0, 1.8])
def test_good_traffic_is_not_suspect(size: int, rate: float, off: float) -> None:
    """Also of a model whose odds are off by some factor."""
    for seed in range(3):
        dice = np.random.default_rng(seed)
        scores = _scored(dice, rate)
        odds = off * scores / (1.0 - scores)
        examples = _shown(dice, _drawn(dice, odds / (1.0 + odds)))
        assert _first_suspect(examples, scores, size) is None, f"seed {seed}"
        kinds = np.where(examples.labels, Kind.CLOSED, Kind.SHOWN).astype(np.uint8)
        waited = replace(examples, kinds=kinds, event_ms=examples.shown_ms + 2000)
        assert _first_suspect(waited, scores, size) is None, f"seed {seed}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("fault", "within"),
    [
        *(("inverted", 200), ("clicks", 200), ("none", 3000), ("saturated", 1000), ("unit", 200)),
        ("repeated", 200),
    ],
)
def test_a_fault_is_noticed(size: int, fault: str, within: int) -> None:
    for seed in range(3):
        dice = np.random.default_rng(seed)
        scores = _scored(dice, 0.05)
        examples = _shown(dice, _drawn(dice, scores))
        labels, bad = examples.labels.copy(), slice(SPOILED, None)
        if fault == "inverted":
            labels[bad] = 1 - labels[bad]
        elif fault == "clicks":
            labels[bad] = 1
        elif fault == "none":
            labels[bad] = 0
        elif fault == "saturated":
            scores[bad] = np.where(dice.random(COUNT - SPOILED) < 0.5, 1e-30, 1.0)
        elif fault == "repeated":
            examples.features.ids[bad] = examples.features.ids[SPOILED]
        else:
            examples.features.numbers[bad] *= 1000.0
        found = _first_suspect(replace(examples, labels=labels), scores, size)
        assert found is not None and found > SPOILED, f"seed {seed}"
        assert found <= max(-(-(SPOILED + within) // size) * size, size), f"seed {seed}"


@pytest.mark.parametrize("size", [10, 1000])
def test_negatives_that_were_left_out_are_not_missed(size: int) -> None:
    """One negative in twenty was kept, with its weight: clicks are frequent, scores are not."""
    dice = np.random.default_rng(4)
    scores = _scored(dice, 0.02, 200_000)
    labels = _drawn(dice, scores)
    kept = (labels > 0) | (dice.random(labels.shape[0]) < 0.05)
    examples = _shown(dice, labels[kept], weights=20.0)
    assert _first_suspect(examples, scores[kept], size) is None


def _immediate(
    dice: np.random.Generator,
    scores: npt.NDArray[np.float64],
    labels: npt.NDArray[np.uint8],
    every_ms: int = 100,
) -> tuple[Examples, npt.NDArray[np.float64]]:
    """Return each impression as a negative, and its click twenty seconds later, about."""
    shown = _shown(dice, labels, every_ms=every_ms)
    clicked = np.flatnonzero(labels)
    late = dice.exponential(20_000.0, clicked.shape[0]).astype(np.int64).clip(1, WINDOW_MS)
    which = np.concatenate((np.arange(labels.shape[0]), clicked))
    times = np.concatenate((shown.event_ms, shown.event_ms[clicked] + late))
    order = np.argsort(times, kind="stable")
    kinds = np.repeat([Kind.SHOWN, Kind.CLICKED], [labels.shape[0], clicked.shape[0]])[order]
    which = which[order]
    features = shown.features
    encoded = Encoded(
        features.ids[which], features.bag_ids, features.bag_offsets, features.numbers[which]
    )
    examples = replace(
        shown,
        kinds=kinds.astype(np.uint8),
        labels=(kinds == Kind.CLICKED).astype(np.uint8),
        event_ms=times[order],
        shown_ms=shown.event_ms[which],
        append_ms=times[order],
        impression_ids=shown.impression_ids.take(pa.array(which)),
        request_ids=shown.request_ids.take(pa.array(which)),
        features=encoded,
    )
    return examples, np.where(kinds == Kind.CLICKED, np.nan, scores[which])


@pytest.mark.parametrize("size", SIZES)
def test_clicks_that_come_alone_are_not_suspect_even_after_the_last_impression(size: int) -> None:
    for seed in range(3):
        dice = np.random.default_rng(seed)
        scores = _scored(dice, 0.3)
        examples, own = _immediate(dice, scores, _drawn(dice, scores))
        assert _first_suspect(examples, own, size) is None, f"seed {seed}"


@pytest.mark.parametrize("size", [1000, 2 * COUNT])
def test_impressions_of_a_batch_are_credit_for_its_clicks(size: int) -> None:
    for seed in range(3):
        dice = np.random.default_rng(seed)
        scores = _scored(dice, 0.3)
        examples, own = _immediate(dice, scores, _drawn(dice, scores), every_ms=10)
        alone = np.flatnonzero(examples.kinds == Kind.SHOWN)[-1] + 1
        assert len(examples) - alone > 300
        assert _first_suspect(examples, own, size) is None, f"seed {seed}"


@pytest.mark.parametrize("size", SIZES)
def test_clicks_on_impressions_that_an_earlier_process_learned_are_not_suspect(size: int) -> None:
    for seed in range(3):
        dice = np.random.default_rng(seed)
        scores = _scored(dice, 0.3)
        examples, own = _immediate(dice, scores, _drawn(dice, scores))
        begin = int(np.flatnonzero(examples.kinds == Kind.SHOWN)[-1])
        rest = part_of(examples, begin, len(examples))
        assert rest.labels.sum() > 10
        assert _first_suspect(rest, own[begin:], size, young=1) is None, f"seed {seed}"


@pytest.mark.parametrize("size", SIZES)
def test_a_flood_of_clicks_is_noticed(size: int) -> None:
    dice = np.random.default_rng(5)
    scores = _scored(dice, 0.05)
    labels = _drawn(dice, scores)
    labels[SPOILED:] = 1
    examples, own = _immediate(dice, scores, labels)
    begins = int(np.flatnonzero(examples.shown_ms >= 100 * SPOILED)[0])
    found = _first_suspect(examples, own, size)
    assert found is not None and begins < found <= begins + max(size, 500)
