"""The benchmark on a drifting stream measures what it says: regret against the truth."""

from __future__ import annotations

import numpy as np

from tests.bench.drift import WORLD, Day, make_days, regret, regrets, spec_of

SEED = 5


def test_the_truth_has_no_regret_and_whoever_is_beside_it_has() -> None:
    random = np.random.default_rng(SEED)
    truth = random.uniform(0.01, 0.9, 1000)
    assert abs(regret(truth, truth)) < 1e-15
    assert regret(truth, truth * 0.9) > 0.0
    assert regret(truth, np.full(1000, truth.mean())) > regret(truth, truth * 0.9)


def test_regret_is_what_log_loss_over_many_coins_exceeds_that_of_the_truth_by() -> None:
    random = np.random.default_rng(SEED)
    truth, said = np.full(400_000, 0.2), np.full(400_000, 0.3)
    clicked = random.random(truth.shape[0]) < truth

    def loss(scores: np.ndarray) -> float:
        return float(-np.log(np.where(clicked, scores, 1.0 - scores)).mean())

    assert abs(loss(said) - loss(truth) - regret(truth, said)) < 3e-3, f"seed {SEED}"


def test_in_a_world_that_drifts_who_goes_on_learning_regrets_less_than_who_stopped() -> None:
    days = make_days(WORLD, 5, 4_000, SEED)
    spec = spec_of("logistic regression")
    online, frozen = (regrets(spec, days, way) for way in ("online", "frozen"))
    assert np.mean(online) < np.mean(frozen), f"seed {SEED}: {online} {frozen}"
    assert frozen[-1] > frozen[0], f"seed {SEED}: {frozen}"
    assert max(online) < max(frozen), f"seed {SEED}: {online} {frozen}"


def test_nightly_answers_each_day_with_all_days_before_and_daily_with_yesterday() -> None:
    days = make_days(WORLD, 4, 2_000, SEED)
    spec = spec_of("logistic regression")
    frozen, daily, nightly = (regrets(spec, days, way) for way in ("frozen", "daily", "nightly"))
    assert nightly[0] == daily[0] == frozen[0]
    for k in (2, 3):
        # who is told of several days as one and stops then
        shown = [each for day in days[:k] for each in day.shown]
        truth = np.concatenate([day.truth for day in days[:k]])
        as_one = Day(shown, truth, np.concatenate([day.labels for day in days[:k]]))
        assert nightly[k - 1] == regrets(spec, [as_one, days[k]], "frozen")[0], f"seed {SEED}"
        assert daily[k - 1] == regrets(spec, days[k - 1 : k + 1], "frozen")[0], f"seed {SEED}"
    assert nightly != daily
