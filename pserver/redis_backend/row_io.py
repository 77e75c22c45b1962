"""Encodes rows for the functions that write them, and reads rows from their sub-hashes.

A bucket's rows are in sub-hashes that are small enough for a server to keep each as one flat piece
of memory (see pserver.rows.row_codec). Many sub-hashes are read in one pipeline, and a large one is
scanned.

`look_rows` reads single rows of many buckets and the end of each log, in one call a bucket. A
function does it for two reasons. Its answer is of one moment, so no fold, trim or failover comes
between rows and log. And thousands of rows in as many sub-hashes are one command; plain HMGETs
would cost the client ten times what they cost the server. It runs as FCALL_RO, which read-only
users may call. The function exists on the server, because the process that wrote the model loaded
it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import Unreachable
from headrace.pserver.redis_backend.commands import RedisCommands, RowsByNode, checked
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.rows.row_codec import (
    FoldedRows,
    StoredRows,
    pack_rows,
    sub_hash_of,
    unpack_rows,
)

ROWS_A_CHUNK = 16_384
"""Rows read at a time: a few MB, so that neither side is busy for long."""


class BucketLayout(NamedTuple):
    """The distribution of a model's rows over buckets and sub-hashes."""

    buckets: int
    sub_hashes: int
    """Of each bucket; a power of two."""
    width: int


def written(
    version: int, rows: FoldedRows, gone: npt.NDArray[np.uint64], layout: BucketLayout
) -> RowsByNode:
    """Return the words that write `rows`, folded up to `version`, and remove the rows `gone`."""
    place = sub_hash_of(rows.ids, layout.buckets, layout.sub_hashes)
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        place, rows = place[order], rows.chosen(order)
    gone_place = sub_hash_of(gone, layout.buckets, layout.sub_hashes)
    gone = gone[np.argsort(gone_place, kind="stable")]
    gets = np.bincount(place, minlength=layout.sub_hashes)
    loses = np.bincount(gone_place, minlength=layout.sub_hashes)
    subs = np.flatnonzero(gets + loses)
    counts = np.stack([gets[subs], loses[subs]], axis=1)
    ids, blobs = pack_rows(version, rows)
    tail = _framed_rows(ids, blobs) + framed_ids(gone)
    words = 2 * ids.shape[0] + gone.shape[0]
    return RowsByNode(subs, counts, tail, words)


def read_bucket(
    calls: RedisCommands, bucket: int, layout: BucketLayout, rows_a_chunk: int = ROWS_A_CHUNK
) -> Iterator[StoredRows]:
    """Yield all rows of a bucket in chunks. Raises Unreachable."""
    keys = [calls.key(bucket, f"rows:{n}") for n in range(layout.sub_hashes)]
    trimmed = _Trimmed(calls, bucket)
    counts = trimmed.after([Call(key, ("HLEN", key)) for key in keys])
    yield unpack_rows([], [], layout.width)._replace(trimmed=trimmed.version)
    chunk: list[bytes] = []
    rows_of_chunk = 0
    for key, count in zip(keys, counts, strict=True):
        if count > rows_a_chunk:
            yield from _scan(trimmed, key, layout.width, rows_a_chunk // 4)
        elif count:
            if rows_of_chunk + count > rows_a_chunk:
                yield _read_whole(trimmed, chunk, layout.width)
                chunk, rows_of_chunk = [], 0
            chunk.append(key)
            rows_of_chunk += count
    if chunk:
        yield _read_whole(trimmed, chunk, layout.width)


class _Trimmed:
    """The trimmed version of a bucket's log, read behind other commands of one pipeline. All of
    them are answered by one server, before or after a failover.
    """

    def __init__(self, calls: RedisCommands, bucket: int) -> None:
        self._calls = calls
        marks = calls.key(bucket, "marks")
        self._call = Call(marks, ("HMGET", marks, "trimmed"))
        self.version = 0

    def after(self, calls: Sequence[Call]) -> list[Any]:
        """Return the replies; `version` is then what was trimmed right after them."""
        *replies, [trimmed] = self._calls.all([*calls, self._call])
        self.version = int(trimmed or 0)
        return replies


def _read_whole(trimmed: _Trimmed, keys: Sequence[bytes], width: int) -> StoredRows:
    replies = trimmed.after([Call(key, ("HGETALL", key)) for key in keys])
    flat = list(itertools.chain.from_iterable(replies))
    return unpack_rows(flat[::2], flat[1::2], width)._replace(trimmed=trimmed.version)


def _scan(trimmed: _Trimmed, key: bytes, width: int, rows_a_page: int) -> Iterator[StoredRows]:
    cursor = b"0"
    while True:
        scan = Call(key, ("HSCAN", key, cursor, "COUNT", rows_a_page))
        [(cursor, flat)] = trimmed.after([scan])
        found = dict(zip(flat[::2], flat[1::2], strict=True))  # may name a row twice
        rows = unpack_rows(list(found), list(found.values()), width)
        yield rows._replace(trimmed=trimmed.version)
        if cursor == b"0":
            return


def framed_ids(ids: npt.NDArray[np.uint64]) -> bytes:
    """Return ids as command arguments on the wire."""
    framed = np.empty(ids.shape[0], np.dtype([("head", "S4"), ("id", "<u8"), ("end", "S2")]))
    framed["head"], framed["id"], framed["end"] = b"$8\r\n", ids, b"\r\n"
    return framed.tobytes()


def _framed_rows(ids: npt.NDArray[np.void], blobs: npt.NDArray[np.void]) -> bytes:
    """Return ids and blobs in turns, as command arguments on the wire."""
    size = blobs.dtype.itemsize
    heads = b"$8\r\n", b"\r\n$%d\r\n" % size
    layout = [("a", f"S{len(heads[0])}"), ("id", "V8"), ("b", f"S{len(heads[1])}")]
    framed = np.empty(ids.shape[0], np.dtype([*layout, ("row", f"V{size}"), ("c", "S2")]))
    framed["a"], framed["b"], framed["c"] = *heads, b"\r\n"
    framed["id"], framed["row"] = ids, blobs
    return framed.tobytes()


_ROWS_A_CALL = 1000
"""Some milliseconds of the server's time, which other calls wait for."""


class RowsSeen(NamedTuple):
    """The answers of one bucket's calls."""

    rows: StoredRows
    head: tuple[bytes, bytes, bytes]
    """Version and nonce as of the last row read, trimmed as of the first."""
    entries: Any
    """As XRANGE answers them."""


class _RowRequest(NamedTuple):
    bucket: int
    names: list[bytes]
    """Ids of the rows, in the order of the answer."""


def look_rows(
    calls: RedisCommands,
    wanted: Mapping[int, npt.NDArray[np.uint64]],
    after: Mapping[int, int],
    limit: int,
    layout: BucketLayout,
) -> list[RowsSeen | Unreachable]:
    """Return the answers of each bucket, in the order of `wanted`. Raises MissingBucket."""
    requests: list[_RowRequest] = []
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
            words = RowsByNode(subs, counts, framed_ids(some), some.shape[0])
            arguments = (first, limit if last else 0)
            sent.append(calls.scattered("look", bucket, arguments, words, "FCALL_RO"))
            names_of_some = np.ascontiguousarray(some, "<u8").view("V8").tolist()
            requests.append(_RowRequest(bucket, names_of_some))
    parts: dict[int, list[Any]] = {bucket: [] for bucket in wanted}
    names: dict[int, list[bytes]] = {bucket: [] for bucket in wanted}
    for request, reply in zip(requests, map(checked, calls.nodes.run(sent)), strict=True):
        parts[request.bucket].append(reply)
        names[request.bucket] += request.names
    return [_seen(parts[bucket], names[bucket], layout.width) for bucket in wanted]


def _runs(
    ascending: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct numbers, and the count of each."""
    stops = np.append(np.flatnonzero(ascending[1:] != ascending[:-1]) + 1, ascending.shape[0])
    if not ascending.shape[0]:
        return ascending, ascending
    return ascending[stops - 1], np.diff(stops, prepend=0)


def _seen(replies: list[Any], names: list[bytes], width: int) -> RowsSeen | Unreachable:
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
    return RowsSeen(rows, (version, nonce, replies[0][2]), replies[-1][3])
