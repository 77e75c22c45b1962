"""Loss and clicks of a promotion, from the topic of live evaluation.

The confidence sequence of `headrace evaluate compare` covers the minutes since the first step of
the canary, in batches of event time (`batch_s`). Traffic is split by a hash, so both models serve a
random part of the requests of each minute.
"""

from collections.abc import Sequence

from headrace.serving.evaluation.served_arms import compare_arms
from headrace.serving.evaluation.windows import WindowMetrics
from headrace.serving.promotion.promotion_checks import ServedFigures
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage

LEAST_BATCHES = 10
"""Fewest batches that prove a model good enough; half of it prove it worse. Means of few batches
are not nearly normal."""


def canary_began_ms(promotion: Promotion) -> int | None:
    """Return the time of the first step; None before it."""
    for each in promotion.decisions:
        if each.stage is PromotionStage.CANARY:
            return each.time_ms
    return None


def served_loss(minutes: Sequence[WindowMetrics], promotion: Promotion) -> ServedFigures:
    """Return the loss and clicks of the model over these settled minutes of its alias."""
    began_ms = canary_began_ms(promotion)
    if began_ms is None:
        return ServedFigures()
    rules = promotion.rules
    both = promotion.model, promotion.control
    own = [each for each in minutes if each.begin_ms >= began_ms and each.model in both]
    batch_ms, minute_ms = 1000 * rules.batch_s, 1000 * rules.window_s
    arms = compare_arms(
        own, rules.alias, promotion.control, rules.alpha, batch_ms, batch_ms, minute_ms
    )
    found = next((each for each in arms if each.model == promotion.model), None)
    mine = {each.begin_ms: each for each in own if each.model == promotion.model}.values()
    expected = sum(each.ctr_predicted * each.scored for each in mine if each.ctr_predicted)
    batches = 0 if found is None else found.batches
    return ServedFigures(
        found.low if found is not None and 2 * batches >= LEAST_BATCHES else None,
        found.high if found is not None and batches >= LEAST_BATCHES else None,
        sum(each.clicks for each in mine),
        expected,
    )
