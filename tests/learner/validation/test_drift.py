"""The benchmark on a drifting stream measures regret against the true probabilities."""

import numpy as np

from tests.bench.learner.drift import WORLD, Day, make_days, regret, regrets, spec_of

SEED = 5


def test_only_the_true_probabilities_have_no_regret() -> None:
    random = np.random.default_rng(SEED)
    truth = random.uniform(0.01, 0.9, 1000)
    assert abs(regret(truth, truth)) < 1e-15
    assert regret(truth, truth * 0.9) > 0.0
    assert regret(truth, np.full(1000, truth.mean())) > regret(truth, truth * 0.9)


def test_regret_is_the_excess_log_loss_over_many_draws() -> None:
    random = np.random.default_rng(SEED)
    truth, said = np.full(400_000, 0.2), np.full(400_000, 0.3)
    clicked = random.random(truth.shape[0]) < truth

    def loss(scores: np.ndarray) -> float:
        return float(-np.log(np.where(clicked, scores, 1.0 - scores)).mean())

    assert abs(loss(said) - loss(truth) - regret(truth, said)) < 3e-3, f"seed {SEED}"


def test_on_a_drifting_stream_online_learning_regrets_less_than_a_frozen_model() -> None:
    days = make_days(WORLD, 5, 4_000, SEED)
    spec = spec_of("logistic regression")
    online, frozen = (regrets(spec, days, way) for way in ("online", "frozen"))
    assert np.mean(online) < np.mean(frozen), f"seed {SEED}: {online} {frozen}"
    assert frozen[-1] > frozen[0], f"seed {SEED}: {frozen}"
    assert max(online) < max(frozen), f"seed {SEED}: {online} {frozen}"


def test_nightly_retraining_uses_all_days_before_and_daily_the_last_one() -> None:
    days = make_days(WORLD, 4, 2_000, SEED)
    spec = spec_of("logistic regression")
    frozen, daily, nightly = (regrets(spec, days, way) for way in ("frozen", "daily", "nightly"))
    assert nightly[0] == daily[0] == frozen[0]
    for k in (2, 3):
        # which gets several days as one and stops then
        shown = [each for day in days[:k] for each in day.shown]
        truth = np.concatenate([day.truth for day in days[:k]])
        as_one = Day(shown, truth, np.concatenate([day.labels for day in days[:k]]))
        assert nightly[k - 1] == regrets(spec, [as_one, days[k]], "frozen")[0], f"seed {SEED}"
        assert daily[k - 1] == regrets(spec, days[k - 1 : k + 1], "frozen")[0], f"seed {SEED}"
    assert nightly != daily
