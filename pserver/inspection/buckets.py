"""The content of each bucket of a model, in figures and without copying a row.

A survey costs a count for each sub-hash and the newest entry of each log. If a node does not
answer, or does not permit a command to this user, only the figures of its buckets are missing.

`count_in_logs` counts rows that only the logs have, because no keeper has folded them yet. It reads
logs while they are small. A new model has all its rows there for a minute, and one without keepers
for good; a count of folded rows alone would report an empty model. Deletions in a log count once
they are folded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import AccessRefused, CorruptEntry, StoreError, Unreachable
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore
from headrace.pserver.rows.deltas import RowDeltas, unpack_entry
from headrace.pserver.store import ENTRIES_A_POLL, OWN_FIELDS, PollResult

_MEASURED = 16
"""Sub-hashes of a bucket whose memory is measured. Ids are hashes, so all sub-hashes are alike."""
_CALLS_AT_ONCE = 2_048
"""Some 5 ms of a server's time."""


@dataclass(frozen=True, slots=True)
class BucketSurvey:
    """The figures of one bucket; zeros unless it is `there`."""

    bucket: int
    node: str
    trouble: str | None = None
    """The error of its node, if that did not answer."""
    missing: bool = False
    """Whether its node answers, but has no such bucket."""
    loading: bool = False
    """Whether it is missing, and a restore fills it now or was interrupted."""
    version: int = 0
    trimmed: int = 0
    log_bytes: int = 0
    keeper: str = ""
    """The keeper that holds or last held the lease; empty once it was released."""
    lease_left_ms: int | None = None
    """By the clock of its node; negative: time since it ended; None: there never was a lease."""
    rows: int = 0
    """Folded rows."""
    rows_in_log: int | None = None
    """Rows that only the log has; None: not counted, see `count_in_logs`."""
    rows_of_fullest: int = 0
    """Rows of the largest sub-hash."""
    rows_bytes: int | None = None
    """Memory of all rows, estimated from a sample of sub-hashes; None: not permitted to this user.
    """
    log_memory_bytes: int | None = None
    """Memory of the log: more than `log_bytes`."""
    marks: Mapping[str, int] = field(default_factory=dict)
    append_ms: int = 0
    """Kafka's append time of the newest event learned from; 0: unknown, the log is empty."""
    read_ms: int = 0
    """When the version and the marks were read, by the clock of its node."""

    @property
    def there(self) -> bool:
        """Whether the bucket exists and its node answered."""
        return not (self.missing or self.trouble)


def survey_buckets(
    store: RedisStore, buckets: Sequence[int], sub_hashes: int
) -> list[BucketSurvey]:
    """Survey these buckets, some at a time. Nodes and buckets that are away raise nothing."""
    found: list[BucketSurvey] = []
    a_round = max(1, _CALLS_AT_ONCE // sub_hashes)
    for start in range(0, len(buckets), a_round):
        found += _survey_round(store, buckets[start : start + a_round], sub_hashes)
    return found


def _survey_round(store: RedisStore, buckets: Sequence[int], sub_hashes: int) -> list[BucketSurvey]:
    calls: list[Call] = []
    for bucket in buckets:
        marks, log = store.key(bucket, "marks"), store.key(bucket, "log")
        subs = [store.key(bucket, f"rows:{n}") for n in range(sub_hashes)]
        calls += (Call(marks, ("HGETALL", marks)), Call(marks, ("TIME",)))
        calls += [Call(log, ("MEMORY", "USAGE", log))]
        calls += [Call(key, ("HLEN", key)) for key in subs]
    replies = _run(store, calls)
    size = len(calls) // len(buckets)
    found = []
    for place, bucket in enumerate(buckets):
        head, clock, log, *lengths = replies[place * size : (place + 1) * size]
        looked = _headed(BucketSurvey(bucket, store.node_of(bucket)), head, clock)
        if looked.there:
            sample = _sample(lengths)
            keys = [store.key(bucket, f"rows:{n}") for n in sample]
            memory = store.nodes.run([Call(key, ("MEMORY", "USAGE", key)) for key in keys])
            looked = _sized(looked, lengths, [lengths[n] for n in sample], memory, log)
        found.append(looked)
    return _dated(store, found)


def _run(store: RedisStore, calls: Sequence[Call]) -> list[Any]:
    """Send the calls, some at a time; return the replies."""
    found: list[Any] = []
    for start in range(0, len(calls), _CALLS_AT_ONCE):
        found += store.nodes.run(calls[start : start + _CALLS_AT_ONCE])
    return found


def _sample(lengths: Sequence[Any]) -> list[int]:
    """Return the sub-hashes to measure, spread evenly over those that have rows."""
    full = [n for n, each in enumerate(lengths) if not isinstance(each, StoreError) and int(each)]
    return full[:: -(-len(full) // _MEASURED)] if full else []


def _headed(found: BucketSurvey, head: Any, clock: Any) -> BucketSurvey:
    """Add the fields of marks."""
    for reply in (head, clock):
        if isinstance(reply, StoreError):
            return replace(found, trouble=str(reply))
    fields = dict(zip(head[::2], head[1::2], strict=True))
    if b"version" not in fields:
        return replace(found, missing=True, loading=b"loading" in fields)
    now_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000
    lease_ms = int(fields[b"lease_ms"])
    named = {name.decode(): value for name, value in fields.items()}
    return replace(
        found,
        version=int(fields[b"version"]),
        trimmed=int(fields[b"trimmed"]),
        log_bytes=int(fields[b"appended_bytes"]) - int(fields[b"trimmed_bytes"]),
        keeper=fields[b"keeper"].decode(),
        lease_left_ms=lease_ms - now_ms if lease_ms else None,
        read_ms=now_ms,
        marks={name: int(mark) for name, mark in named.items() if name not in OWN_FIELDS},
    )


def _sized(
    found: BucketSurvey,
    lengths: Sequence[Any],
    sample: Sequence[Any],
    memory: Sequence[Any],
    log: Any,
) -> BucketSurvey:
    """Add counts and memory: sizes of all sub-hashes, and the memory of a sample of them."""
    for reply in (*lengths, *memory, log):
        if isinstance(reply, Unreachable):
            return replace(found, trouble=str(reply))
    rows, sampled = sum(map(int, lengths)), sum(map(int, sample))
    found = replace(found, rows=rows, rows_of_fullest=max(map(int, lengths)))
    if any(isinstance(reply, AccessRefused) for reply in (*memory, log)):
        return found
    sampled_bytes = sum(size or 0 for size in memory)  # None: removed meanwhile
    return replace(
        found,
        rows_bytes=round(sampled_bytes * rows / sampled) if sampled else 0,
        log_memory_bytes=log or 0,
    )


def _dated(store: RedisStore, found: Sequence[BucketSurvey]) -> list[BucketSurvey]:
    """Add the append time of the newest event in the logs."""
    calls = []
    for each in found:
        log, entry = store.key(each.bucket, "log"), f"{each.version}-0"
        calls.append(Call(log, ("XRANGE", log, entry, entry)))
    dated = []
    for each, reply in zip(found, store.nodes.run(calls), strict=True):
        append_ms = 0
        if each.there and not isinstance(reply, StoreError) and reply:
            try:
                append_ms = unpack_entry(reply[0][1][5])[0].append_ms
            except CorruptEntry as error:
                dated.append(replace(each, trouble=str(error)))
                continue
        dated.append(replace(each, append_ms=append_ms))
    return dated


MOST_BYTES = 64 << 20
"""Most bytes of all logs together to read: a second's work. Larger logs are not counted."""


def count_in_logs(store: RedisStore, found: Sequence[BucketSurvey]) -> list[BucketSurvey]:
    """Fill in `rows_in_log` if the logs are small enough. Needs the model's shape."""
    there = [each for each in found if each.there]
    if sum(each.log_bytes for each in there) > MOST_BYTES:
        return list(found)
    try:
        ids = _ids_in_logs(store, there)
        folded = store.look(ids, {each.bucket: each.version for each in there}, 1)
    except StoreError:  # a bucket or a server was lost meanwhile
        return list(found)
    counts = {
        bucket: wanted.shape[0] - looked.rows.rows.ids.shape[0]
        for (bucket, wanted), looked in zip(ids.items(), folded, strict=True)
        if not isinstance(looked, StoreError)
    }
    return [replace(each, rows_in_log=counts.get(each.bucket)) for each in found]


def _ids_in_logs(
    store: RedisStore, found: Sequence[BucketSurvey]
) -> dict[int, npt.NDArray[np.uint64]]:
    ids: dict[int, list[npt.NDArray[np.uint64]]] = {each.bucket: [] for each in found}
    goals = {each.bucket: each.version for each in found}
    after = {each.bucket: each.trimmed for each in found if each.version > each.trimmed}
    while after:
        for answer in store.poll(after, ENTRIES_A_POLL):
            if not isinstance(answer, PollResult):
                raise answer
            for entry in answer.entries:
                content = unpack_entry(entry.blob)[1]
                if isinstance(content, RowDeltas):
                    ids[answer.bucket].append(content.ids)
                after[answer.bucket] = entry.version
            if not answer.entries or after[answer.bucket] >= goals[answer.bucket]:
                del after[answer.bucket]
    none = np.zeros(0, np.uint64)
    return {bucket: np.unique(np.concatenate([none, *each])) for bucket, each in ids.items()}
