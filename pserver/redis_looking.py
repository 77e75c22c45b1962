"""Single rows of many buckets, each with its log's end, in one call a bucket.

A function reads them, though it only reads: what it answers is of one moment, so no fold, trim or
failover comes between rows and log; and thousands of rows in as many sub-hashes are one command,
where plain HMGETs would cost the client ten times what they cost the server. It runs as FCALL_RO,
which a user that may only read is allowed; the function must be there, though, and is, since
whoever wrote the model loaded it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pserver.errors import Unreachable
from pserver.redis_calls import Scattered, checked
from pserver.redis_rows import framed_ids
from pserver.rows import StoredRows, sub_hash_of, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from pserver.nodes import Call
    from pserver.redis_calls import Calls
    from pserver.redis_rows import Layout

_ROWS_A_CALL = 1000
"""Some milliseconds of the server's time: others wait no longer than that."""


class Seen(NamedTuple):
    """What one bucket's calls answered."""

    rows: StoredRows
    head: tuple[bytes, bytes, bytes]
    """Version and nonce as they were when the last row was read, trimmed as it was at the first."""
    entries: Any
    """As XRANGE answers them."""


class _Asked(NamedTuple):
    bucket: int
    names: list[bytes]
    """Of the rows, in the order of the answer."""


def look_rows(
    calls: Calls,
    wanted: Mapping[int, npt.NDArray[np.uint64]],
    after: Mapping[int, int],
    limit: int,
    layout: Layout,
) -> list[Seen | Unreachable]:
    """Return what each bucket answered, in the order of `wanted`. Raises MissingBucket."""
    asked: list[_Asked] = []
    sent: list[Call] = []
    for bucket, unsorted in wanted.items():
        ids = unsorted
        place = sub_hash_of(ids, layout.buckets, layout.sub_hashes)
        if (place[1:] < place[:-1]).any():
            order = np.argsort(place, kind="stable")
            place, ids = place[order], ids[order]
        first = f"{after[bucket] + 1}-0"
        for start in range(0, max(1, ids.shape[0]), _ROWS_A_CALL):
            some = ids[start : start + _ROWS_A_CALL]
            subs, counts = _runs(place[start : start + _ROWS_A_CALL])
            last = start + _ROWS_A_CALL >= ids.shape[0]
            words = Scattered(subs, counts, framed_ids(some), some.shape[0])
            arguments = (first, limit if last else 0)
            sent.append(calls.scattered("look", bucket, arguments, words, "FCALL_RO"))
            asked.append(_Asked(bucket, np.ascontiguousarray(some, "<u8").view("V8").tolist()))
    parts: dict[int, list[Any]] = {bucket: [] for bucket in wanted}
    names: dict[int, list[bytes]] = {bucket: [] for bucket in wanted}
    for one, reply in zip(asked, map(checked, calls.nodes.run(sent)), strict=True):
        parts[one.bucket].append(reply)
        names[one.bucket] += one.names
    return [_seen(parts[bucket], names[bucket], layout.width) for bucket in wanted]


def _runs(
    ascending: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the different numbers, and how often each is there."""
    stops = np.append(np.flatnonzero(ascending[1:] != ascending[:-1]) + 1, ascending.shape[0])
    if not ascending.shape[0]:
        return ascending, ascending
    return ascending[stops - 1], np.diff(stops, prepend=0)


def _seen(replies: list[Any], names: list[bytes], width: int) -> Seen | Unreachable:
    blobs: list[bytes | None] = []
    for reply in replies:
        if isinstance(reply, Unreachable):
            return reply
        blobs += reply[4:]
    if None in blobs:
        there = [index for index, blob in enumerate(blobs) if blob is not None]
        names, blobs = [names[index] for index in there], [blobs[index] for index in there]
    version, nonce = replies[-1][:2]
    rows = unpack_rows(names, blobs, width)  # type: ignore[arg-type]
    return Seen(rows, (version, nonce, replies[0][2]), replies[-1][3])
