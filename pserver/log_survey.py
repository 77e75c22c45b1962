"""How many rows lie in the logs alone, as no keeper has folded them yet: read while logs are small.

A model that begins has all its rows there for a minute, and one without keepers for good; a count
of the folded ones alone would say that it had none. Deletions in a log count when they are folded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pserver.errors import StoreError
from pserver.gains import Gains, unpack_entry
from pserver.store import Polled

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pserver.bucket_survey import FoundBucket
    from pserver.redis_store import RedisStore

MOST_BYTES = 64 << 20
"""Of all logs together: a second's reading. Where there is more, it is left."""
_ENTRIES_A_POLL = 64


def count_in_logs(store: RedisStore, found: Sequence[FoundBucket]) -> list[FoundBucket]:
    """Fill in `rows_in_log`, where the logs are small enough. Needs the model's shape."""
    there = [each for each in found if each.there]
    if sum(each.log_bytes for each in there) > MOST_BYTES:
        return list(found)
    try:
        ids = _ids_in_logs(store, there)
        folded = store.find(ids)
    except StoreError:  # a bucket or a server went meanwhile
        return list(found)
    counts = {
        bucket: wanted.shape[0] - rows.rows.ids.shape[0]
        for (bucket, wanted), rows in zip(ids.items(), folded, strict=True)
        if not isinstance(rows, StoreError)
    }
    return [replace(each, rows_in_log=counts.get(each.bucket)) for each in found]


def _ids_in_logs(
    store: RedisStore, found: Sequence[FoundBucket]
) -> dict[int, npt.NDArray[np.uint64]]:
    ids: dict[int, list[npt.NDArray[np.uint64]]] = {each.bucket: [] for each in found}
    goals = {each.bucket: each.version for each in found}
    after = {each.bucket: each.trimmed for each in found if each.version > each.trimmed}
    while after:
        for answer in store.poll(after, _ENTRIES_A_POLL):
            if not isinstance(answer, Polled):
                raise answer
            for entry in answer.entries:
                content = unpack_entry(entry.blob)[1]
                if isinstance(content, Gains):
                    ids[answer.bucket].append(content.ids)
                after[answer.bucket] = entry.version
            if not answer.entries or after[answer.bucket] >= goals[answer.bucket]:
                del after[answer.bucket]
    none = np.zeros(0, np.uint64)
    return {bucket: np.unique(np.concatenate([none, *each])) for bucket, each in ids.items()}
