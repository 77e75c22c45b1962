"""Decides the next step of a promotion, from its state and the figures of a moment.

A pure function: the same state, figures and time give the same decision. The rules, in this order:

1. An ended promotion stays as it is.
2. If the alias has another target than the last step wrote, an operator changed it: abandoned.
3. In the shadow and the canary, a violated check rolls back at once. In the canary, so do missing
   figures, after `blind_s`: traffic does not stay on a model that is not observed.
4. A stage or step that lasts longer than `longest_s` rolls back.
5. A stage or step that has lasted long enough, and whose checks all hold, goes on by one step. The
   confidence sequence of the loss begins with the first step, and goes on over all of them.

In the shadow the model answers nothing, so latency and loss are unknown. At 100 % the control
answers nothing, so the level is unknown. Such checks need not hold there, but they must not be
violated.
"""

from typing import NamedTuple

from headrace.serving.promotion.promotion_checks import (
    PromotionCheck,
    PromotionResult,
    ServedFigures,
    promotion_checks,
)
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage

_NEEDED_IN_SHADOW = ("level", "freshness", "quarantined")
_NEEDED_ALONE = ("calibration", "p99", "freshness", "quarantined")
_NEEDED = ("loss", "level", *_NEEDED_ALONE)


class PromotionFigures(NamedTuple):
    """Everything that a decision depends on, beside the state and the time."""

    target: str
    """The target of the alias in the topic."""
    age_ms: int
    """Age of the oldest figures."""
    rows_ready: bool
    """Whether the parameter server has the model."""
    behind_s: float | None
    """Time by which its learners are behind; None: unknown."""
    servers: int
    """Servers that answer."""
    servers_ready: int
    """Those of them that have loaded the model."""
    served: ServedFigures
    not_following: tuple[str, ...] = ()
    """Names of the servers that do not follow the topic `deployments`."""


def next_promotion(state: Promotion, figures: PromotionFigures, now_ms: int) -> Promotion:
    """Return the state after a look; the same object if nothing changed."""
    if state.ended:
        return state
    if figures.target != state.target:
        reason = f"alias {state.rules.alias}: expected {state.target}, got {figures.target}"
        return state.moved(PromotionStage.ABANDONED, reason, now_ms)
    lasted_s = max(0, now_ms - state.since_ms) / 1000
    checks = promotion_checks(state.rules, figures.served)
    reason = _reason_to_roll_back(state, figures, checks, now_ms)
    if reason:
        return state.moved(PromotionStage.ROLLED_BACK, reason, now_ms)
    match state.stage:
        case PromotionStage.PREPARING:
            if figures.rows_ready:
                return state.moved(PromotionStage.CATCHING_UP, "rows created", now_ms)
        case PromotionStage.CATCHING_UP:
            behind_s = figures.behind_s
            if behind_s is not None and behind_s <= state.rules.freshness_s:
                reason = f"caught up: {behind_s:.1f} s behind"
                return state.moved(PromotionStage.SHADOW, reason, now_ms)
        case _:
            return _after_checks(state, figures, checks, lasted_s, now_ms)
    return state


def waits_for(state: Promotion, figures: PromotionFigures, now_ms: int) -> str:
    """Return why a promotion does not go on now; empty if it ended."""
    lasted_s = max(0, now_ms - state.since_ms) / 1000
    unfollowing = _not_following(figures)
    match state.stage:
        case PromotionStage.PREPARING:
            return "; ".join(["rows in the parameter server", *unfollowing])
        case PromotionStage.CATCHING_UP:
            behind_s = figures.behind_s
            learners = "learners" if behind_s is None else f"learners, {behind_s:.1f} s behind"
            return "; ".join([learners, *unfollowing])
        case PromotionStage.SHADOW | PromotionStage.CANARY:
            open_checks = promotion_checks(state.rules, figures.served)
            return _waiting(state, figures, open_checks, lasted_s)
    return ""


def _reason_to_roll_back(
    state: Promotion, figures: PromotionFigures, checks: list[PromotionCheck], now_ms: int
) -> str:
    rules = state.rules
    lasted_s = max(0, now_ms - state.since_ms) / 1000
    if state.stage in (PromotionStage.SHADOW, PromotionStage.CANARY):
        violated = [each for each in checks if each.result is PromotionResult.VIOLATED]
        if violated:
            return "; ".join(f"{each.name}: {each.text}" for each in violated)
        if state.stage is PromotionStage.CANARY and figures.age_ms > 1000 * rules.blind_s:
            return f"figures: {figures.age_ms / 1000:.0f} s old, expected at most {rules.blind_s}"
    if lasted_s > rules.longest_s:
        waiting = waits_for(state, figures, now_ms)
        return f"{state.stage} lasted {lasted_s:.0f} s, expected {rules.longest_s}: {waiting}"
    return ""


def _after_checks(
    state: Promotion,
    figures: PromotionFigures,
    checks: list[PromotionCheck],
    lasted_s: float,
    now_ms: int,
) -> Promotion:
    """Return the state after the shadow or a step of the canary, if everything holds."""
    if _waiting(state, figures, checks, lasted_s):
        return state
    reason = "; ".join(f"{each.name}: {each.text}" for each in checks if _holds(each))
    if state.stage is PromotionStage.SHADOW:
        return state.moved(PromotionStage.CANARY, reason, now_ms, 0)
    if state.step + 1 < len(state.rules.steps):
        return state.moved(PromotionStage.CANARY, reason, now_ms, state.step + 1)
    return state.moved(PromotionStage.PROMOTED, reason, now_ms)


def _waiting(
    state: Promotion, figures: PromotionFigures, checks: list[PromotionCheck], lasted_s: float
) -> str:
    """Return what a stage still waits for; empty if nothing."""
    shadow = state.stage is PromotionStage.SHADOW
    least_s = state.rules.shadow_s if shadow else state.rules.step_s
    needed = _NEEDED_IN_SHADOW if shadow else _NEEDED if state.share < 1.0 else _NEEDED_ALONE
    missing = [
        f"{each.name}: {each.text}" for each in checks if each.name in needed and not _holds(each)
    ]
    if not figures.servers or figures.servers_ready < figures.servers:
        missing.append(f"servers: {figures.servers_ready} of {figures.servers} have the model")
        missing += _not_following(figures)
    if lasted_s < least_s:
        missing.append(f"time: {lasted_s:.0f} of {least_s} s")
    return "; ".join(missing)


def _not_following(figures: PromotionFigures) -> list[str]:
    """Return what to do about servers that never load the model; empty if all follow the topic."""
    if not figures.not_following:
        return []
    names = ", ".join(figures.not_following)
    what = f"servers that do not follow the topic deployments: {names}"
    return [f"{what} (restart them with headrace serving run --deployments)"]


def _holds(check: PromotionCheck) -> bool:
    return check.result is PromotionResult.HOLDS
