"""Simulated experiments: how often equal arms are promoted, and how soon better ones are found.

Differences of loss are simulated by the minute, with dependence between minutes where the scenario
has any, and looked at after every minute. A batch closes each hour, a cycle is a day. So most looks
repeat the one before, and only the ends of batches are computed.
"""

import math
from typing import NamedTuple

import numpy as np

from headrace.learner.experiments.confidence import half_width
from headrace.learner.experiments.decisions import DecisionRules
from tests.learner.experiments.moments import running_moments

MINUTE_EVENTS = 1000
SMALL_SITE = 27
"""Events a minute of the sample week. On a large site, ten batches hold more than needed."""
DEVIATION = 0.1
"""Standard deviation of the paired difference of one event, with a click rate of 9 %."""
LOSS = 0.2623
HOUR, DAY = 60, 1440
HOUR_MS = 3_600_000
RULES = DecisionRules(alpha=0.05, arms=1, batch_ms=HOUR_MS, cycle_ms=24 * HOUR_MS)
SCENARIOS = ("independent", "dependent minutes", "day and night", "dependent, traffic by hour")


class Detection(NamedTuple):
    """Events until a true difference is found."""

    median: float
    found: float
    """Share of experiments in which it was found at all."""
    without_cycle: float
    """Median if promotions did not wait for the end of a cycle."""
    t_test: float
    """Events that a t-test of a fixed horizon needs, for a power of 80 % at 5 %."""


def minutes(
    scenario: str, runs: int, days: int, seed: int, minute_events: int = MINUTE_EVENTS
) -> tuple[np.ndarray, np.ndarray]:
    """Return summed differences (runs, minutes) between equal arms, and events (minutes,)."""
    dice, count = np.random.default_rng(seed), days * DAY
    hour = np.arange(count) / HOUR
    events = np.full(count, float(minute_events))
    if scenario.endswith("traffic by hour"):
        events *= 1.0 - 0.9 * np.cos(2 * np.pi * hour / 24)
    noise = dice.standard_normal((runs, count), np.float32)
    if scenario.startswith("dependent"):
        for now in range(1, count):
            noise[:, now] = 0.8 * noise[:, now - 1] + 0.6 * noise[:, now]
    sums = noise * (np.sqrt(events) * DEVIATION)
    if scenario == "day and night":
        sums = sums + events * 0.002 * np.sin(2 * np.pi * hour / 24)
    return sums, events


def promoted_at(
    sums: np.ndarray, events: np.ndarray, rules: DecisionRules = RULES, *, cycles: bool = True
) -> np.ndarray:
    """Return after how many batches each experiment promotes; 0: never. shape (runs,)"""
    runs = sums.shape[0]
    batches = sums.reshape(runs, -1, HOUR).sum(2, dtype=np.float64)
    weights = np.cumsum(events.reshape(-1, HOUR).sum(1))
    counts, means, deviations = running_moments(batches)
    scale = counts / weights
    high = means * scale + half_width(counts, deviations * scale, rules.arm_alpha, rules.precision)
    allowed = counts >= rules.least_batches
    if cycles:
        allowed &= counts % rules.cycle_batches == 0
    found = (high < 0) & allowed
    return np.where(found.any(1), found.argmax(1) + 1, 0)


def false_promotions(scenario: str, runs: int = 1000, days: int = 14, seed: int = 1) -> float:
    """Return the share of experiments between equal arms that promote."""
    found = [
        promoted_at(*minutes(scenario, min(runs - begin, 250), days, seed + begin))
        for begin in range(0, runs, 250)
    ]
    return float((np.concatenate(found) > 0).mean())


def detection(gain: float = 0.005, runs: int = 400, days: int = 14, seed: int = 5) -> Detection:
    """Return how many events of a small site a relative gain of log loss takes."""
    effect = gain * LOSS
    sums, events = minutes("independent", runs, days, seed, SMALL_SITE)
    sums = sums - effect * events
    hour_events = SMALL_SITE * HOUR
    found = promoted_at(sums, events)
    soon = promoted_at(sums, events, cycles=False)
    fixed = (1.959964 + 0.841621) ** 2 * (DEVIATION / effect) ** 2
    return Detection(
        float(np.median(np.where(found > 0, found, math.inf))) * hour_events,
        float((found > 0).mean()),
        float(np.median(np.where(soon > 0, soon, math.inf))) * hour_events,
        fixed,
    )
