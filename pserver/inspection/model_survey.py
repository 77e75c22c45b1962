"""A survey of a store: every server and every bucket, without copying a row.

For operators (`headrace pserver inspect`, `doctor`, `drop`). If a server, a bucket or the model
itself is missing, the survey says so, and does not fail.
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
    """A model and its servers."""

    model: str
    at_ms: float
    """By the clock of this process."""
    nodes: Sequence[NodeSurvey]
    buckets: Sequence[BucketSurvey]
    shape: Shape | None
    """None if it could not be read; see `trouble`."""
    trouble: StoreError | None = None
    """The error of reading the shape. The buckets are then those of which keys were found."""


def survey(
    store: RedisStore, model: str, now_ms: Callable[[], float] = lambda: time.time() * 1000
) -> Survey:
    """Survey all servers and buckets once. Raises Unreachable if no server answers."""
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
    """Remove the remaining keys of a model's buckets, for a model whose shape is lost.

    Raises Unreachable.
    """
    for node in found:
        if not node.replica:
            keys = list(_scan(nodes, node, f"{{{model}:*}}:*"))
            for reply in nodes.run([Call(key, ("UNLINK", key)) for key in keys]):
                if isinstance(reply, StoreError):
                    raise reply


def _guess(nodes: ClusterClient, model: str, found: Sequence[NodeSurvey]) -> tuple[int, int]:
    """Return the probable numbers of buckets and sub-hashes of a model, from its keys.

    Both are powers of two and filled evenly, so a part of the keys suffices unless it is tiny.
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
        except StoreError:  # died meanwhile, or does not permit it
            return
        yield from keys
        if cursor == b"0":
            return


def _power_of_two_above(most: int) -> int:
    return 0 if most < 0 else 1 << most.bit_length()
