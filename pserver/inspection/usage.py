"""Signs that processes use a model, looked for before it is removed.

Processes do not register anywhere, but they leave traces. A keeper has a lease, and a learner makes
new versions. Every follower of a log reads its bucket's marks many times a second, which the server
records as the idle time of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.pserver.errors import StoreError
from headrace.pserver.redis_backend.node_connection import Call

if TYPE_CHECKING:
    from headrace.pserver.inspection.model_survey import Survey
    from headrace.pserver.redis_backend.redis_store import RedisStore

WATCH_S = 3.0
"""Servers count idle time in whole seconds; followers of a log read several times in each."""
_TOUCHED_S = 1


def signs_of_use(store: RedisStore, seen: Survey, wait: Callable[[float], object]) -> list[str]:
    """Return the signs that processes use the model, after watching it for a while.

    `seen`: a survey made just now. `wait` waits for that many seconds. A missing bucket has no
    signs.
    """
    signs = [
        f"bucket {found.bucket}: keeper {found.keeper} holds the lease, "
        f"{found.lease_left_ms / 1000:.0f} s left"
        for found in seen.buckets
        if found.there and found.keeper and found.lease_left_ms and found.lease_left_ms > 0
    ]
    if signs:
        return signs
    wait(WATCH_S)
    there = [found for found in seen.buckets if found.there]
    calls = []
    for found in there:
        marks = store.key(found.bucket, "marks")
        calls.append(Call(marks, ("OBJECT", "IDLETIME", marks)))
        calls.append(Call(marks, ("HGET", marks, "version")))
    replies = store.nodes.run(calls)
    for found, idle_s, version in zip(there, replies[::2], replies[1::2], strict=True):
        if isinstance(version, bytes) and int(version) != found.version:
            signs.append(
                f"bucket {found.bucket}: went from version {found.version} to {int(version)} "
                f"within {WATCH_S:g} s"
            )
        elif not isinstance(idle_s, StoreError) and idle_s is not None and idle_s <= _TOUCHED_S:
            signs.append(f"bucket {found.bucket}: was read less than {_TOUCHED_S + 1} s ago")
    return signs
