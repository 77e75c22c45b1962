"""Promotions in a simulated world: traffic, figures that lag, and a controller that is killed.

The world has a topic, a server that follows it, and 100 requests per second. Figures of the server
arrive some seconds late. The controller is killed before and after its transactions.
"""

import random

import pytest

from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.models.traffic_split import split_of
from headrace.serving.promotion.promotion_checks import ServedFigures
from headrace.serving.promotion.promotion_state import (
    Promotion,
    PromotionStage,
    decoded_promotion,
    deployments_of,
)
from headrace.serving.promotion.promotion_steps import PromotionFigures, next_promotion
from tests.effort import seeds

RULES = PromotionRules(steps=(1.0, 5.0, 25.0, 100.0), shadow_s=60, step_s=120, longest_s=1800)
MODEL, CONTROL = "news-fast", "news"
REQUESTS_S = 100
MINUTE_S = 60


class World:
    """One second of event time per `second`."""

    def __init__(self, seed: int, bad_from_s: int | None, kills: float) -> None:
        self.random, self.bad_from_s, self.kills = random.Random(seed), bad_from_s, kills
        self.now_s, self.met, self.down_s = 0, [0], 0
        self.deployments, self.state_record = Deployments(), b""
        self.served_since_s = 0
        self.killed = 0
        self._commit(Promotion.begin(MODEL, "spec", CONTROL, RULES, 0))

    def second(self) -> None:
        self.now_s += 1
        target = self.deployments.aliases["production"]
        split = split_of(target)
        served = [
            (target if split is None else split.choose(b"%d/%d" % (self.now_s, each))) == MODEL
            for each in range(REQUESTS_S)
        ]
        self.met.append(sum(served))
        if self.down_s:
            self.down_s -= 1
        elif self.random.random() < self.kills:
            self._die()
        else:
            self._look()

    def _look(self) -> None:
        state = self.state
        after = next_promotion(state, self._figures(state), 1000 * self.now_s)
        if after is state:
            return None
        if self.random.random() < self.kills * 10:
            return self._die()  # before its transaction
        self._commit(after)
        if self.random.random() < self.kills * 10:
            self._die()  # after it, without an acknowledgement
        return None

    def _die(self) -> None:
        self.down_s = self.random.randrange(1, 10)
        self.killed += 1

    def _commit(self, state: Promotion) -> None:
        """All records of a transaction, or none."""
        for key, value in deployments_of(state):
            self.deployments = self.deployments.after(key, value)
        self.state_record = deployments_of(state)[-1].value

    @property
    def state(self) -> Promotion:
        return decoded_promotion(self.state_record)

    def _figures(self, state: Promotion) -> PromotionFigures:
        seen_s = self.now_s - self.random.randrange(2, 12)  # figures are some seconds old
        bad = self.bad_from_s is not None and seen_s >= self.bad_from_s
        lasted_s = seen_s - state.since_ms // 1000
        scored = state.share > 0 or state.stage is PromotionStage.SHADOW
        served = ServedFigures(
            loss_low=-0.002 if lasted_s > 30 else None,
            loss_high=-0.0005 if lasted_s > 30 else None,
            clicks=10 * max(lasted_s, 0),
            expected_clicks=10.0 * max(lasted_s, 0),
            level=(0.1 if bad else 1.0) if scored and lasted_s > 0 else None,
            p99_ms=12.0,
            freshness_s=1.0,
            quarantined=0,
        )
        target = self.deployments.aliases["production"]
        return PromotionFigures(target, 1000 * (self.now_s - seen_s), True, 1.0, 3, 3, served)

    def run(self, seconds: int = 3000) -> Promotion:
        while self.now_s < seconds and not self.state.ended:
            self.second()
        return self.state

    @property
    def worst_minute(self) -> float:
        """Most requests of a minute that met the model, as a share of a minute's requests."""
        sums = [sum(self.met[at : at + MINUTE_S]) for at in range(len(self.met))]
        return max(sums) / (REQUESTS_S * MINUTE_S)


def steps(state: Promotion) -> list[tuple[PromotionStage, float]]:
    return [(each.stage, each.share) for each in state.decisions]


@pytest.mark.parametrize("seed", seeds(20))
def test_a_killed_controller_takes_the_same_steps_as_one_that_was_not(seed: int) -> None:
    quiet = World(seed, None, 0.0)
    world = World(seed, None, 0.02)
    assert quiet.run().stage is PromotionStage.PROMOTED
    assert steps(world.run()) == steps(quiet.state), f"seed {seed}"
    assert world.killed > 3


@pytest.mark.parametrize("seed", seeds(20))
def test_a_model_made_bad_is_gone_before_it_met_5_percent_of_a_minutes_requests(seed: int) -> None:
    world = World(seed, 0, 0.02)
    assert world.run().stage is PromotionStage.ROLLED_BACK, f"seed {seed}"
    assert sum(world.met) == 0, "the shadow finds it before it answers"
    turned = World(seed, 70 + 12 * (seed % 10), 0.02)  # turns bad at about its first step
    assert turned.run().stage is PromotionStage.ROLLED_BACK, f"seed {seed}"
    assert turned.worst_minute < 0.05, f"seed {seed}"
    assert turned.deployments.aliases == {"production": CONTROL}
    assert "level: 0.1" in turned.state.decisions[-1].reason


@pytest.mark.parametrize("seed", seeds(10))
def test_a_model_that_turns_bad_later_is_gone_within_a_minute(seed: int) -> None:
    bad_s = 300 + 20 * seed  # at 25 % and 100 %
    world = World(seed, bad_s, 0.02)
    assert world.run().stage is PromotionStage.ROLLED_BACK, f"seed {seed}"
    assert world.now_s - bad_s < MINUTE_S, f"seed {seed}"
