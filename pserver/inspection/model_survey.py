"""What a store is found to be like: every server, every bucket, without copying a row.

For people who look after it (`headrace pserver inspect`, `doctor`, `drop`). Everything that can be
away, a server, a bucket, the model itself, is away in the answer instead of ending it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pserver.errors import StoreError
from headrace.pserver.inspection.buckets import BucketSurvey, survey_buckets
from headrace.pserver.inspection.nodes import NodeSurvey, survey_nodes
from headrace.pserver.redis_backend import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.pserver.redis_backend import ClusterClient, RedisStore
    from headrace.pserver.store import Shape

_SCANNED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Survey:
    """A model and the servers that it lies on."""

    model: str
    at_ms: float
    """By our clock."""
    nodes: Sequence[NodeSurvey]
    buckets: Sequence[BucketSurvey]
    shape: Shape | None
    """None: see `trouble`."""
    trouble: StoreError | None = None
    """Why the shape could not be read. The buckets are then those that keys were found of."""


def survey(
    store: RedisStore, model: str, now_ms: Callable[[], float] = lambda: time.time() * 1000
) -> Survey:
    """Look at everything once. Raises Unreachable if no server answers at all."""
    nodes = survey_nodes(store.nodes, now_ms)
    at_ms = now_ms()
    try:
        shape = store.shape()
    except StoreError as error:
        buckets, sub_hashes = _guess(store.nodes, model, nodes)
        found = survey_buckets(store, range(buckets), sub_hashes)
        return Survey(model, at_ms, nodes, found, None, error)
    found = survey_buckets(store, range(shape.buckets), store.sub_hashes)
    return Survey(model, at_ms, nodes, found, shape)


def drop_leftovers(nodes: ClusterClient, model: str, found: Sequence[NodeSurvey]) -> None:
    """Remove what keys there are of a model's buckets, for a model whose shape is lost or gone.

    Raises Unreachable.
    """
    for node in found:
        if not node.replica:
            keys = list(_scan(nodes, node, f"{{{model}:*}}:*"))
            for reply in nodes.run([Call(key, ("UNLINK", key)) for key in keys]):
                if isinstance(reply, StoreError):
                    raise reply


def _guess(nodes: ClusterClient, model: str, found: Sequence[NodeSurvey]) -> tuple[int, int]:
    """Return how many buckets and sub-hashes a model seems to have, from the keys that are there.

    Both are powers of two and filled evenly, so that a part of the keys tells unless it is tiny.
    """
    buckets, subs = -1, -1
    key_of = re.compile(rb"\{[^:{}]+:(?P<bucket>\d+)\}:(?:marks|log|rows:(?P<sub>\d+))")
    for node in found:
        if node.answers and not node.replica:
            for key in _scan(nodes, node, f"{{{model}:*}}:*"):
                if match := key_of.fullmatch(key):
                    buckets = max(buckets, int(match["bucket"]))
                    subs = max(subs, int(match["sub"] or -1))
    return _power_of_two_above(buckets), max(1, _power_of_two_above(subs))


def _scan(nodes: ClusterClient, node: NodeSurvey, pattern: str) -> Iterator[bytes]:
    place, cursor = node.member.place, b"0"
    while True:
        try:
            cursor, keys = nodes.ask(
                place, "SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE
            )
        except StoreError:  # died meanwhile, or does not let us: then it tells nothing
            return
        yield from keys
        if cursor == b"0":
            return


def _power_of_two_above(most: int) -> int:
    return 0 if most < 0 else 1 << most.bit_length()
