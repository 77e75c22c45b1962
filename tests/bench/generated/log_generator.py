"""Generates logs of clicks that differ in all that a default has to cope with, seeds fixed.

Base rates go from 0.1 % to 30 %, fields from 3 to 40, cardinalities from 10 to a million, bags up
to 100 items, drift from none to violent, delays of clicks from seconds to hours. The candidates of
a request share its context fields. Ids follow Zipf's law. The log-odds of an impression are a sum
of weights of its ids, of one pair of fields and of the mean of its bag; some fields carry nothing.

No table of weights exists: a weight is a function of seed, field and id, so a field of a million
ids costs what its examples cost.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOGS = 20
_START_MS = 1_700_000_000_000
_SPAN_MS = 24 * 3_600_000
_SPREAD = 1.3
"""Standard deviation of the log-odds of a log, about."""
_DRIFTS = ("none", "slow", "fast", "violent")
_DELAYS_S = (5.0, 60.0, 600.0, 3600.0, 10_800.0)
_BAGS = (0, 0, 5, 20, 100)
_CANDIDATES = (1, 5, 20)
_WINDOWS_S = (60, 300, 600, 1800, 3600, 7200, 21_600, 86_400)
"""Label windows, as `headrace suggest` chooses from."""
_GOLDEN, _MIX_A, _MIX_B = (
    np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class LogPlan(NamedTuple):
    """The properties of one log."""

    number: int
    base_rate: float
    cardinalities: tuple[int, ...]
    """One for each field; the first half are of the request, the others of the candidate."""
    bag_items: int
    """Most items of a bag; 0: no bag."""
    drift: str
    delay_s: float
    """Mean delay of a click; delays are exponential."""
    candidates: int

    @property
    def window_s(self) -> int:
        """The label window that keeps 99.5 % of the clicks."""
        needed_s = self.delay_s * np.log(200.0)
        return next((each for each in _WINDOWS_S if each >= needed_s), _WINDOWS_S[-1])

    def examples(self, least: int, most: int, clicks: int) -> int:
        """Return how many impressions, from `least` to `most`, have about so many clicks."""
        return int(min(max(clicks / self.base_rate, least), most))


class GeneratedLog(NamedTuple):
    """n impressions in the order of time."""

    plan: LogPlan
    ids: Ints  # (n, fields)
    bag_offsets: Ints  # (n + 1,) or (1,)
    bag_ids: Ints
    requests: Ints  # (n,)
    shown_ms: Ints  # (n,)
    click_ms: Ints  # (n,) -1 without a click
    truth: Floats  # (n,) the true probability

    def __len__(self) -> int:
        return int(self.shown_ms.shape[0])

    @property
    def labels(self) -> npt.NDArray[np.int8]:
        """1 for a click; shape (n,)."""
        return (self.click_ms >= 0).astype(np.int8)


def plans() -> list[LogPlan]:
    """Return the plans of all logs."""
    rng = np.random.default_rng(22)
    rates = rng.permutation(np.geomspace(0.001, 0.3, LOGS))
    fields = rng.permutation(np.geomspace(3, 40, LOGS).round().astype(int))
    found = []
    for number in range(LOGS):
        cardinalities = 10.0 ** rng.uniform(1.0, 6.0, fields[number])
        found.append(
            LogPlan(
                number,
                float(rates[number]),
                tuple(int(each) for each in cardinalities),
                _BAGS[number % len(_BAGS)],
                _DRIFTS[number % len(_DRIFTS)],
                _DELAYS_S[int(rng.integers(len(_DELAYS_S)))],
                _CANDIDATES[number % len(_CANDIDATES)],
            )
        )
    return found


def generate(plan: LogPlan, count: int) -> GeneratedLog:
    """Return the first `count` impressions, about, of the log of a plan, spread over a day."""
    rng = np.random.default_rng([22, plan.number])
    requests = count // plan.candidates
    of_request = np.repeat(np.arange(requests), plan.candidates)
    count, fields = of_request.shape[0], len(plan.cardinalities)
    shown_ms = _START_MS + np.sort(rng.integers(0, _SPAN_MS, requests))[of_request]
    ids = np.empty((count, fields), np.int64)
    for field, cardinality in enumerate(plan.cardinalities):
        if field < fields // 2:
            ids[:, field] = _ranks(rng, cardinality, requests)[of_request]
        else:
            ids[:, field] = _ranks(rng, cardinality, count)
    offsets, items = _bags(plan, rng, requests, of_request)
    log_odds = _signal(plan, rng, ids, (offsets, items), (shown_ms - _START_MS) / _SPAN_MS)
    truth = 1.0 / (1.0 + np.exp(-(log_odds + _intercept(log_odds, plan.base_rate))))
    clicked = rng.random(count) < truth
    delays = (rng.exponential(plan.delay_s, count) * 1000.0).astype(np.int64) + 1
    click_ms = np.where(clicked, shown_ms + delays, -1)
    return GeneratedLog(plan, ids, offsets, items, of_request, shown_ms, click_ms, truth)


def _ranks(rng: np.random.Generator, cardinality: int, count: int) -> Ints:
    """Return ids by Zipf's law with exponent 1: the logarithm of a rank is uniform."""
    found: Ints = np.exp(rng.random(count) * np.log(cardinality + 1.0)).astype(np.int64) - 1
    return found


def _bags(
    plan: LogPlan, rng: np.random.Generator, requests: int, of_request: Ints
) -> tuple[Ints, Ints]:
    """Return offsets and items of the bags; those of a request are its candidates' too."""
    if not plan.bag_items:
        return np.zeros(1, np.int64), np.zeros(0, np.int64)
    sizes = rng.integers(0, plan.bag_items + 1, requests)
    begins = np.concatenate(([0], np.cumsum(sizes)))
    items = _ranks(rng, 20_000, int(begins[-1]))
    offsets = np.concatenate(([0], np.cumsum(sizes[of_request])))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes[of_request])
    return offsets, items[np.repeat(begins[of_request], sizes[of_request]) + place]


def _signal(
    plan: LogPlan, rng: np.random.Generator, ids: Ints, bags: tuple[Ints, Ints], when: Floats
) -> Floats:
    """Return the log-odds without the intercept. when: share of the log that has passed."""
    parts = rng.gamma(0.5, size=ids.shape[1] + 2)
    parts[-2:] += 0.2  # the pair and the bag always carry something
    scales = _SPREAD * np.sqrt(parts / parts.sum())
    found = np.zeros(ids.shape[0])
    for field in range(ids.shape[1]):
        found += scales[field] * _weights(plan, field, ids[:, field], when)
    first, second = np.argsort(plan.cardinalities)[:2]
    pair = ids[:, first] * 1_000_003 + ids[:, second]
    found += scales[-2] * _weights(plan, 900, pair, when)
    offsets, items = bags
    if items.shape[0]:
        owner = np.repeat(np.arange(ids.shape[0]), np.diff(offsets))
        total = np.bincount(owner, _weights(plan, 901, items, when[owner]), minlength=ids.shape[0])
        found += scales[-1] * total / np.sqrt(np.maximum(np.diff(offsets), 1))
    if plan.drift == "violent":
        found += np.where(when > 0.5, 1.0, 0.0)
    return found


def _weights(plan: LogPlan, field: int, ids: Ints, when: Floats) -> Floats:
    """Return the weights of ids at these times: they turn from one draw into another."""
    begun, other = _normals(plan.number, field, ids)
    if plan.drift == "none":
        return begun
    if plan.drift == "violent":
        return np.where(when > 0.5, other, begun)
    angle = when * np.pi * (0.25 if plan.drift == "slow" else 1.0)
    found: Floats = np.cos(angle) * begun + np.sin(angle) * other
    return found


def _normals(seed: int, field: int, ids: Ints) -> tuple[Floats, Floats]:
    """Return two independent normal numbers of each id (Box and Muller 1958)."""
    start = np.uint64((seed * 1_000 + field + 1) * int(_MIX_B) % 2**64)
    state = ids.astype(np.uint64) * _GOLDEN + start
    first, second = _uniform(state + _MIX_A), _uniform(state - _MIX_A)
    radius, angle = np.sqrt(-2.0 * np.log(first)), 2.0 * np.pi * second
    return radius * np.cos(angle), radius * np.sin(angle)


def _uniform(state: npt.NDArray[np.uint64]) -> Floats:
    """Return numbers in (0, 1), by splitmix64 (Steele, Lea and Flood 2014)."""
    mixed = (state ^ (state >> np.uint64(30))) * _MIX_A
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_B
    mixed ^= mixed >> np.uint64(31)
    found: Floats = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return found


def _intercept(log_odds: Floats, rate: float) -> float:
    """Return what makes the mean probability this rate, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2.0
        mean = float(np.mean(1.0 / (1.0 + np.exp(-(log_odds + middle)))))
        low, high = (middle, high) if mean < rate else (low, middle)
    return (low + high) / 2.0
