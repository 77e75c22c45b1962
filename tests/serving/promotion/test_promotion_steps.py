"""The state machine of promotions: laws over random figures, and each rule by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.models.traffic_split import split_of
from headrace.serving.promotion.promotion_checks import ServedFigures
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage, deployments_of
from headrace.serving.promotion.promotion_steps import PromotionFigures, next_promotion, waits_for

RULES = PromotionRules(
    steps=(1.0, 10.0, 50.0, 100.0), shadow_s=60, step_s=60, longest_s=600, quarantined=1
)
GOOD = ServedFigures(-0.002, -0.001, 400, 400.0, 1.0, 20.0, 1.0, 1)
MODEL, CONTROL = "news-fast", "news"


def begun() -> Promotion:
    return Promotion.begin(MODEL, "spec", CONTROL, RULES, 0)


def figures(state: Promotion, served: ServedFigures = GOOD, **how: Any) -> PromotionFigures:
    known = {
        "target": state.target,
        "age_ms": 0,
        "rows_ready": True,
        "behind_s": 1.0,
        "servers": 2,
        "servers_ready": 2,
        "served": served,
    }
    return PromotionFigures(**{**known, **how})


def at(stage: PromotionStage, step: int = 0) -> Promotion:
    return begun().moved(stage, "for a test", 0, step)


def canary(step: int = 0) -> Promotion:
    return at(PromotionStage.CANARY, step)


def served_share(deployments: Deployments) -> float:
    """Return the share of the model under the alias."""
    target = deployments.aliases.get("production", CONTROL)
    split = split_of(target)
    weights = {target: 1.0} if split is None else dict(split.weights)
    return weights.get(MODEL, 0.0) / sum(weights.values())


NUMBERS = st.one_of(st.none(), st.floats(-0.1, 100.0), st.just(float("nan")))
SERVED = st.one_of(
    st.just(GOOD),
    st.builds(
        ServedFigures,
        *(NUMBERS, NUMBERS, st.integers(0, 10_000), st.floats(0, 10_000), NUMBERS, NUMBERS),
        *(NUMBERS, st.one_of(st.none(), st.integers(0, 3))),
    ),
)
LOOKS = st.lists(
    st.tuples(
        st.integers(0, 400_000),
        st.builds(
            lambda served, age, ready, behind, servers, loaded: {
                "served": served,
                "age_ms": age,
                "rows_ready": ready,
                "behind_s": behind,
                "servers": servers,
                "servers_ready": min(servers, loaded),
            },
            *(SERVED, st.sampled_from([0, 0, 0, 90_000]), st.booleans(), NUMBERS),
            *(st.integers(0, 3), st.sampled_from([0, 3, 3])),
        ),
    ),
    max_size=25,
)


@given(LOOKS)
def test_traffic_rises_by_one_step_at_a_time_and_never_returns_after_a_rollback(
    looks: list[tuple[int, dict[str, Any]]],
) -> None:
    state, now_ms, deployments = begun(), 0, Deployments()
    shares = [0.0, *(each / 100 for each in RULES.steps), 1.0]
    for passed_ms, how in looks:
        now_ms += passed_ms
        before, share = state, served_share(deployments)
        served = how.pop("served")
        state = next_promotion(state, figures(state, served, **how), now_ms)
        for key, value in deployments_of(state):
            deployments = deployments.after(key, value)
        assert served_share(deployments) == pytest.approx(state.share, abs=1e-12)
        if state is before:
            continue
        assert not before.ended, "a promotion that ended goes on"
        assert state.decisions[-1].reason
        if state.share > share:
            assert shares.index(state.share) == shares.index(share) + 1
            assert now_ms - before.since_ms >= 60_000
        else:
            assert state.share in (0.0, share)
        if state.stage is PromotionStage.ROLLED_BACK:
            assert deployments.aliases == {"production": CONTROL}
            assert not deployments.models


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss_low": 0.002, "loss_high": 0.003}, "loss: +0.00200 to +0.00300"),
        ({"clicks": 400, "expected_clicks": 800.0}, "calibration: 800.0 expected clicks"),
        ({"level": 0.1}, "level: 0.1 of the control's mean score"),
        ({"level": float("nan")}, "level: nan"),
        ({"p99_ms": 51.0}, "p99: 51 ms, expected at most 50"),
        ({"freshness_s": float("inf")}, "freshness: more than 10 s, expected at most 10"),
        ({"p99_ms": float("inf")}, "p99: more than 1000 ms, expected at most 50"),
        ({"quarantined": 2}, "quarantined: 2 batches, expected at most 1"),
    ],
)
@pytest.mark.parametrize("stage", [PromotionStage.SHADOW, PromotionStage.CANARY])
def test_a_violated_check_rolls_back_at_the_first_look(
    change: dict[str, Any], reason: str, stage: PromotionStage
) -> None:
    state = next_promotion(at(stage), figures(at(stage), GOOD._replace(**change)), 1)
    assert (state.stage, state.target) == (PromotionStage.ROLLED_BACK, CONTROL)
    assert reason in state.decisions[-1].reason


@pytest.mark.parametrize(
    "change",
    [
        {"loss_low": -0.01, "loss_high": 0.01},
        {"loss_low": None},
        {"clicks": 3, "expected_clicks": 9.0},
        {"p99_ms": None},
        {"level": None},
        {"quarantined": None},
    ],
)
def test_a_canary_waits_for_figures_that_are_not_certain_and_then_gives_up(
    change: dict[str, Any],
) -> None:
    served = GOOD._replace(**change)
    waiting = next_promotion(canary(), figures(canary(), served), 500_000)
    assert waiting.stage is PromotionStage.CANARY
    assert waits_for(waiting, figures(waiting, served), 500_000)
    ended = next_promotion(waiting, figures(waiting, served), 601_000)
    assert ended.stage is PromotionStage.ROLLED_BACK
    assert "canary lasted 601 s, expected 600" in ended.decisions[-1].reason


def test_the_last_step_needs_no_figures_of_the_control() -> None:
    last = canary(len(RULES.steps) - 1)
    state = next_promotion(last, figures(last, GOOD._replace(level=None)), 60_000)
    assert state.stage is PromotionStage.PROMOTED


def test_a_canary_without_current_figures_is_rolled_back() -> None:
    state = next_promotion(canary(1), figures(canary(1), age_ms=61_000), 1)
    assert state.stage is PromotionStage.ROLLED_BACK
    assert "figures: 61 s old" in state.decisions[-1].reason


def test_a_canary_waits_for_servers_that_have_not_loaded_the_model() -> None:
    shadow = at(PromotionStage.SHADOW)
    counts: list[dict[str, Any]] = [{"servers_ready": 1}, {"servers": 0, "servers_ready": 0}]
    for how in counts:
        assert next_promotion(shadow, figures(shadow, **how), 60_000) is shadow
    assert next_promotion(shadow, figures(shadow), 60_000).stage is PromotionStage.CANARY


@pytest.mark.parametrize(
    "stage", [PromotionStage.PREPARING, PromotionStage.CATCHING_UP, PromotionStage.SHADOW]
)
def test_servers_that_do_not_follow_deployments_are_named_with_the_way_to_change_it(
    stage: PromotionStage,
) -> None:
    state = at(stage)
    waiting = waits_for(state, figures(state, servers_ready=0, not_following=("a-7", "b-9")), 1)
    assert (
        "servers that do not follow the topic deployments: a-7, b-9 (restart them with "
        "headrace serving run --deployments)"
    ) in waiting
    assert "do not follow" not in waits_for(state, figures(state, servers_ready=0), 1)


@pytest.mark.parametrize(
    ("stage", "missing", "waiting"),
    [
        (PromotionStage.PREPARING, {"rows_ready": False}, "rows in the parameter server"),
        (PromotionStage.CATCHING_UP, {"behind_s": 100.0}, "learners, 100.0 s behind"),
    ],
)
def test_an_arm_that_never_gets_rows_or_catches_up_is_rolled_back_with_what_it_waited_for(
    stage: PromotionStage, missing: dict[str, Any], waiting: str
) -> None:
    state = at(stage)
    late = figures(state, ServedFigures(), **missing)
    assert next_promotion(state, late, 600_000) is state
    assert waits_for(state, late, 1) == waiting
    ended = next_promotion(state, late, 601_000)
    assert ended.stage is PromotionStage.ROLLED_BACK
    reason = ended.decisions[-1].reason
    assert reason == f"{state.stage} lasted 601 s, expected 600: {waiting}"
