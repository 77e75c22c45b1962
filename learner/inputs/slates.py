"""Slates: the candidates of one request, which are scored together before any of them is learned.

A server scores all candidates of a request with the same weights and the same statistics. A learner
that learned each candidate right after scoring it would score the second one after it had learned
the first one as a negative. Its scores would depend on the order within the request, and would be
worse than those that users get. So kernels walk a batch slate by slate: they score every example of
a slate, and then step and count each of them, with the slope at its score. A row that several of
them share is stepped once, by the sum of their gradients.

Examples form a slate if they are neighbours, have the same request id, and were shown within
`SLATE_SPAN_MS`. A request id that lasts longer, such as that of a session, names several slates. A
click that comes alone (Kind.CLICKED) is a slate of its own, since it is not scored. So is an
example without a request id.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.hashing import ABSENT, hash_strings
from headrace.runtime.kernels.numba_kernels import inlined, kernel

Ends = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]

LONGEST_SLATE = 512
"""Examples, since working memory grows with it. A longer request is several slates."""
SLATE_SPAN_MS = 1000
"""Between the first and the last candidate of a slate: some producers stamp each by itself."""

_OPEN_SLATES = 16
"""The latest slates, which another candidate may join: more requests seldom alternate."""

_ABSENT, _CLICKED = np.uint64(ABSENT), int(Kind.CLICKED)


def slate_ends(examples: Examples) -> Ends:
    """Return the first example after the slate of each; shape (n,)."""
    ends = np.arange(1, len(examples) + 1)
    if examples.request_ids.null_count < len(examples):
        requests = hash_strings(examples.request_ids)
        _write_ends(requests, np.array(examples.kinds), np.array(examples.shown_ms), ends)
    return ends


def request_ends(request_ids: pa.StringArray, shown_ms: Times) -> Ends:
    """Return the first impression after the slate of each, all of them shown; shape (n,)."""
    ends = np.arange(1, len(request_ids) + 1)
    kinds = np.full(len(request_ids), Kind.SHOWN, np.uint8)
    _write_ends(hash_strings(request_ids), kinds, shown_ms, ends)
    return ends


@kernel
def _write_ends(requests, kinds, shown_ms, ends):  # type: ignore[no-untyped-def]
    examples, begin = ends.shape[0], 0
    while begin < examples:
        end = begin + 1
        if requests[begin] != _ABSENT and kinds[begin] != _CLICKED:
            while (
                end < examples
                and end - begin < LONGEST_SLATE
                and requests[end] == requests[begin]
                and kinds[end] != _CLICKED
                and abs(shown_ms[end] - shown_ms[begin]) <= SLATE_SPAN_MS
            ):
                end += 1
        for i in range(begin, end):
            ends[i] = end
        begin = end


def longest_slate(ends: Ends) -> int:
    """Return the length of the longest slate; 0 without examples."""
    if not ends.shape[0]:
        return 0
    begins = np.flatnonzero(np.concatenate(([True], ends[1:] != ends[:-1])))
    return int((ends[begins] - begins).max())


def last_slate(examples: Examples) -> int:
    """Return where the last slate begins; 0 if it is the only one."""
    return int(np.searchsorted(slate_ends(examples), len(examples)))


def cut_between_slates(ends: Ends, most: int) -> list[int]:
    """Return where parts of at most `most` examples begin; a longer slate is a part of its own."""
    begins = np.empty(ends.shape[0], np.int64)
    parts: list[int] = begins[: _write_parts(ends, most, begins)].tolist()
    return parts


@kernel
def _write_parts(ends, most, begins):  # type: ignore[no-untyped-def]
    """Write where parts begin; return how many."""
    begin = count = 0
    while begin < ends.shape[0]:
        begins[count] = begin
        count += 1
        begin = part_end(ends, begin, most)
    return count


def slate_order(examples: Examples) -> Ends | None:
    """Return an order in which the candidates of a request are neighbours; None: they are already.

    Events of one time come in any order, and a producer may stamp each candidate by itself. So
    examples of several requests alternate. Each example moves to the first of its slate.
    """
    count = len(examples)
    if examples.request_ids.null_count == count:
        return None
    requests = hash_strings(examples.request_ids)
    slates, begins = np.empty(count, np.int64), np.empty(count, np.int64)
    sizes = np.zeros(count, np.int64)
    columns = requests, np.array(examples.kinds), np.array(examples.shown_ms)
    if not _number_slates(*columns, slates, begins, sizes):
        return None
    return np.argsort(slates, kind="stable")


@kernel
def _number_slates(requests, kinds, shown_ms, slates, begins, sizes):  # type: ignore[no-untyped-def]
    """Write the number of each example's slate; return whether any has left its place."""
    count, moved = 0, False
    for i in range(slates.shape[0]):
        found = -1
        if requests[i] != _ABSENT and kinds[i] != _CLICKED:
            for slate in range(count - 1, max(count - _OPEN_SLATES, 0) - 1, -1):
                k = begins[slate]
                if requests[k] == requests[i] and kinds[k] != _CLICKED:
                    near = abs(shown_ms[i] - shown_ms[k]) <= SLATE_SPAN_MS
                    found = slate if near and sizes[slate] < LONGEST_SLATE else -1
                    break
        if found < 0:
            found = count
            begins[found] = i
            count += 1
        slates[i] = found
        sizes[found] += 1
        moved = moved or found < slates[max(i - 1, 0)]
    return moved


@inlined
def part_end(ends, begin, most):  # type: ignore[no-untyped-def]
    """Return the end of whole slates from `begin` on: up to `most` examples, or one slate."""
    end = ends[begin]
    while end < ends.shape[0] and ends[end] - begin <= most:
        end = ends[end]
    return end
