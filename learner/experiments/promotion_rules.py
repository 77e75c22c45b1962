"""The section `[promotion]` of an experiment file: how a winning arm takes over traffic.

    [promotion]
    alias = "production"
    shadow_s = 600              # score beside the answers, without answering
    steps = [1, 5, 25, 50, 100] # percent of the requests that the arm answers
    step_s = 600                # at each step, at least
    worse_by = 0.001            # log loss that may be lost

The first step bounds the harm of a bad model. At 1 %, a model that is detected within a minute has
met 1 % of a minute's requests. The first step is 5 % at most, so a rollback within a minute keeps
the promise of 5 % of a minute's requests.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct

from headrace.ingest.features.spec_sections import read_section
from headrace.ingest.features.spec_text import SpecText

_SECTION = "promotion"

LARGEST_FIRST_STEP = 5.0
"""Percent."""
LARGEST_P99_MS, LARGEST_FRESHNESS_S = 1_000.0, 10.0
"""Largest bounds of the histograms of servers: a longer time is not measured."""
Seconds = Annotated[int, Meta(ge=1, le=30 * 86_400)]
Percent = Annotated[float, Meta(gt=0.0, le=100.0)]


class PromotionRules(Struct, frozen=True, forbid_unknown_fields=True):
    """`[promotion]`."""

    alias: str = "production"
    """The alias whose traffic the arm takes over."""
    by: str = "request_id"
    """Field that splits requests. `user_id` shows each user one model at a time."""
    shadow_s: Seconds = 600
    """Time in the shadow, at least."""
    steps: tuple[Percent, ...] = (1.0, 5.0, 25.0, 50.0, 100.0)
    """Shares of the requests that the arm answers, rising to 100."""
    step_s: Seconds = 600
    """Time at each step, at least."""
    longest_s: Seconds = 86_400
    """Time at a step after which an arm that is not proven good enough is rolled back."""
    worse_by: Annotated[float, Meta(ge=0.0)] = 0.001
    """Log loss by which the arm may be worse, by its confidence sequence. 0 needs a proven gain."""
    alpha: Annotated[float, Meta(gt=0.0, lt=0.5)] = 0.05
    """Probability that the confidence sequence ever misses the difference."""
    batch_s: Seconds = 60
    """Event time of a batch of the confidence sequence, a multiple of `window_s`."""
    window_s: Annotated[int, Meta(ge=1, le=60)] = 60
    """Shortest window of live evaluation (`headrace evaluate run --window`)."""
    calibration: tuple[float, float] = (0.8, 1.25)
    """Bounds of expected clicks per click."""
    level: tuple[float, float] = (0.5, 2.0)
    """Bounds of the arm's mean score, divided by the control's. It needs no clicks, so it detects a
    model of nonsense within seconds."""
    p99_ms: Annotated[float, Meta(gt=0.0)] = 50.0
    """Bound of the time to answer, LARGEST_P99_MS at most."""
    freshness_s: Annotated[float, Meta(gt=0.0)] = 10.0
    """Bound of the time from a click to its arrival in the servers, LARGEST_FRESHNESS_S at most."""
    quarantined: Annotated[int, Meta(ge=0)] = 0
    """Bound of the batches that the arm's learners quarantine."""
    blind_s: Seconds = 60
    """Time without current figures after which the arm is rolled back."""

    def share(self, step: int) -> float:
        """Return the share of the requests at a step: 0 to 1."""
        return self.steps[step] / 100.0


def read_promotion(table: Mapping[str, object], where: SpecText) -> PromotionRules:
    """Return the rules of a section. Raises SpecError, also for those that contradict others."""
    rules = read_section(PromotionRules, table, where, "promotion")
    steps = rules.steps
    rising = all(before < after for before, after in pairwise(steps))
    if len(steps) < 2 or not rising or steps[-1] != 100.0:
        wanted = "two or more rising percents that end with 100"
        raise where.error((_SECTION, "steps"), wanted, str(list(steps)))
    if steps[0] > LARGEST_FIRST_STEP:
        wanted = f"a first step of {LARGEST_FIRST_STEP:g} percent at most"
        raise where.error((_SECTION, "steps"), wanted, f"{steps[0]:g}")
    if rules.longest_s < rules.step_s:
        wanted = f"step_s = {rules.step_s} or more"
        raise where.error((_SECTION, "longest_s"), wanted, str(rules.longest_s))
    if rules.batch_s % rules.window_s:
        wanted = (
            f"a multiple of {rules.window_s}, the shortest window of live evaluation (window_s)"
        )
        raise where.error((_SECTION, "batch_s"), wanted, str(rules.batch_s))
    for name, most in (("p99_ms", LARGEST_P99_MS), ("freshness_s", LARGEST_FRESHNESS_S)):
        if getattr(rules, name) > most:
            wanted = f"at most {most:g}, because servers do not measure longer times"
            raise where.error((_SECTION, name), wanted, f"{getattr(rules, name):g}")
    for name in ("calibration", "level"):
        low, high = getattr(rules, name)
        if not 0.0 < low < 1.0 < high:
            wanted = "a bound below 1 and one above"
            raise where.error((_SECTION, name), wanted, f"[{low:g}, {high:g}]")
    return rules
