"""Admission: gives a row to ids that were seen often enough, or that win a draw.

All other ids of a field share its rare row (`rare_rows`).

Most ids of a click log are seen once or twice and never again; their rows are the larger part of a
model and learn nothing. McMahan et al. ("Ad Click Prediction: a View from the Trenches", KDD
2013, section 4.1) name two remedies, and both are here:

*count*, their Bloom filter inclusion: an id gets its row at its n-th sighting. Sightings of ids
without a row are counted in a count-min sketch with conservative update (Estan and Varghese, "New
Directions in Traffic Measurement and Accounting", SIGCOMM 2002): each id has k of m counters, only
the least of them rise, and the least is the count. It may be too high where all k are shared with
others; it is never too low.

So that it stays useful in an endless stream, there are two generations of counters, and an id's
count is the sum of both. Sightings rise in the younger; when so many of its counters are in use
that (fill)^k, the chance that an id shares all of its k, reaches half of `false_rate`, the older is
emptied and becomes the younger. Therefore at any time at most `false_rate` of sightings are counted
too high, in both generations together, and no sighting is forgotten before

    m ln(1 / (1 - fill)) / k,   fill = (false_rate / 2)^(1 / k)

more distinct ids were counted (and none is kept longer than twice that). A position holds a counter
of each generation, a byte each and side by side, because they are always read together: with k = 4
and a false rate of 1 %, 26 bytes for each remembered id, 2.6 million ids in 64 MiB.

*probability*, their Poisson inclusion: each time an id without a row is seen, it gets one with
probability p. The draw is a hash of the impression and the id, so an example that is read again
decides the same.

Each learner has its own filter, which is empty after a restart and counts only what this learner
sees. So an id may get its row some sightings later, never earlier. Impressions are
sightings, clicks are not. An example that is read again counts again in the buckets that lacked it.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.fields import FieldSet
from headrace.learner.kernels.row_ids import mix
from headrace.learner.spec.admission_and_expiry import COUNT, Admission
from headrace.pserver.intrinsics.row_prefetch import prefetch
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_NUMBERS = 1024
_FULL = np.uint8(255)
_WORD = np.uint64(0xFFFFFFFF)
_SEED = np.uint64(0xD6E8FEB86659FD93)


class CountingFilter(NamedTuple):
    """Sightings of ids, in two generations of a count-min sketch."""

    counters: npt.NDArray[np.uint8]  # (m, 2) the two generations side by side
    state: npt.NDArray[np.int64]  # (3,) the younger generation; its counters in use; rotations
    hashes: int
    limit: int
    """Counters of a generation in use at which the next one begins."""


class AdmissionGate(NamedTuple):
    """The rule of admission, as kernels take it."""

    on: bool
    guarded: npt.NDArray[np.bool_]  # (1024,) by number: fields whose ids have to earn their row
    high: np.uint64
    """The bits of an id that say its bucket."""
    sightings: int
    """0: by probability."""
    threshold: np.uint64
    """Draws up to it are admitted."""
    filter: CountingFilter
    tally: npt.NDArray[np.int64]  # (2,) ids admitted, sightings refused


class AdmissionCounts(NamedTuple):
    """Decisions of one learner's gate so far."""

    admitted: int
    """Rows made."""
    refused: int
    """Sightings of ids without a row that were counted in a rare row."""


def empty_filter(counters: int, hashes: int, false_rate: float) -> CountingFilter:
    """Return an empty filter with this many counters a generation."""
    limit = max(1, math.floor(_fill(hashes, false_rate) * counters))
    return CountingFilter(np.zeros((counters, 2), np.uint8), np.zeros(3, np.int64), hashes, limit)


def _fill(hashes: int, false_rate: float) -> float:
    return float((false_rate / 2) ** (1 / hashes))


def remembered(counters: int, hashes: int, false_rate: float) -> int:
    """Return how many distinct ids a generation takes before the next one begins."""
    return math.floor(-math.log1p(-_fill(hashes, false_rate)) * counters / hashes)


def counters_of(admission: Admission) -> int:
    """Return the counters of a generation that the filter's memory holds."""
    return admission.filter_mb * (1 << 20) // 2


def described(admission: Admission) -> str:
    """Return a line for the log: the rule of this admission, and its memory."""
    of = ", ".join(admission.fields)
    if admission.kind != COUNT:
        return f"ids of {of} get a row with probability {admission.probability:g} at each sighting"
    counters = counters_of(admission)
    ids = remembered(counters, admission.hashes, admission.false_rate)
    return (
        f"ids of {of} get a row at sighting {admission.sightings}; filter of "
        f"{admission.filter_mb} MiB, {counters:,} counters per generation, "
        f"{admission.hashes} per id: remembers the last {ids:,} to {2 * ids:,} ids without a row, "
        f"counts at most {admission.false_rate:g} of sightings too high"
    )


def gate_of(admission: Admission | None, fields: FieldSet, buckets: int) -> AdmissionGate:
    """Return the gate of a model in so many buckets (a power of two), without room to count."""
    guarded = np.zeros(_NUMBERS, np.bool_)
    sightings = threshold = 0
    if admission is not None:
        guarded[[fields[name].number for name in admission.fields]] = True
        sightings = admission.sightings
        threshold = max(0, math.floor(admission.probability * 2.0**64) - 1)
    return AdmissionGate(
        admission is not None,
        guarded,
        high_bits(max(buckets, 1)),
        sightings,
        np.uint64(threshold),
        empty_filter(0, 1, 0.5),
        np.zeros(2, np.int64),
    )


def counting(gate: AdmissionGate, admission: Admission) -> AdmissionGate:
    """Return the gate with the filter that its admission asks for, which is memory."""
    empty = empty_filter(counters_of(admission), admission.hashes, admission.false_rate)
    return gate._replace(filter=empty)


def high_bits(buckets: int) -> np.uint64:
    """Return the bits of an id that say its bucket, of so many (a power of two)."""
    return np.uint64(((1 << 64) - 1) ^ ((1 << 65 - buckets.bit_length()) - 1))


@inlined
def _position(hashed, i, counters):  # type: ignore[no-untyped-def]
    # Kirsch and Mitzenmacher, "Less Hashing, Same Performance", 2006: two hashes give any number
    word = ((hashed & _WORD) + np.uint64(i) * ((hashed >> np.uint64(32)) | np.uint64(1))) & _WORD
    return np.int64((word * np.uint64(counters)) >> np.uint64(32))


@kernel
def sighted(sketch, row_id):  # type: ignore[no-untyped-def]
    """Count one more sighting of an id; return its sightings, at least. Compiled."""
    counters, state = sketch.counters, sketch.state
    hashed, count = mix(row_id ^ _SEED), counters.shape[0]
    younger = state[0]
    least = least_older = _FULL
    for i in range(sketch.hashes):
        position = _position(hashed, i, count)
        least = min(least, counters[position, younger])
        least_older = min(least_older, counters[position, 1 - younger])
    if least < _FULL:
        for i in range(sketch.hashes):
            position = _position(hashed, i, count)
            if counters[position, younger] == least:
                counters[position, younger] = least + np.uint8(1)
                if least == 0:
                    state[1] += 1
        if state[1] >= sketch.limit:
            state[0], state[1] = 1 - younger, 0
            state[2] += 1
            for position in range(count):
                counters[position, 1 - younger] = 0
    return np.int64(least) + np.int64(least_older) + 1


@inlined
def fetch_counters(gate, row_id):  # type: ignore[no-untyped-def]
    """Prefetch what `admits` will read. Compiled."""
    if gate.sightings > 0:
        counters, hashed = gate.filter.counters, mix(row_id ^ _SEED)
        for i in range(gate.filter.hashes):
            prefetch(counters, _position(hashed, i, counters.shape[0]))


@kernel
def admits(gate, row_id, impression):  # type: ignore[no-untyped-def]
    """Return whether an id without a row, shown in this impression (a hash), gets one. Compiled."""
    if gate.sightings > 0:
        return sighted(gate.filter, row_id) >= gate.sightings
    return mix(mix(row_id) ^ impression) <= gate.threshold
