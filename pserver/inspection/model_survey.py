"""A survey of a store: every server and every bucket, without copying a row.

For operators (`headrace pserver inspect`, `doctor`, `drop`). If a server, a bucket or the model
itself is missing, the survey says so, and does not fail.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.pserver.errors import StoreError
from headrace.pserver.inspection.buckets import BucketSurvey, survey_buckets
from headrace.pserver.inspection.nodes import NodeSurvey, survey_nodes
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore
from headrace.pserver.store import Shape

_SCANNED_AT_ONCE = 1_000
_KEY = re.compile(
    rb"\{[^:{}]+:(?:(?P<generation>\d+)\.)?(?P<bucket>\d+)\}:"
    rb"(?P<name>marks|log|rows:(?P<sub>\d+))"
)


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
    row_limit: int = 0
    """Most rows of the model; 0: no limit, or unknown without the shape."""


def survey(
    store: RedisStore, model: str, now_ms: Callable[[], float] = lambda: time.time() * 1000
) -> Survey:
    """Survey all servers and buckets once. Raises Unreachable if no server answers."""
    nodes = survey_nodes(store.nodes, now_ms)
    at_ms = now_ms()
    try:
        shape = store.shape()
    except StoreError as error:
        guess = _guess(store, nodes)
        store.assume_generation(guess.generation)
        found = survey_buckets(store, range(guess.buckets), guess.sub_hashes)
        return Survey(model, at_ms, nodes, found, None, error)
    found = survey_buckets(store, range(shape.buckets), store.sub_hashes)
    return Survey(model, at_ms, nodes, found, shape, row_limit=store.row_limit())


def drop_leftovers(store: RedisStore, found: Sequence[NodeSurvey]) -> None:
    """Remove the remaining keys of a model's buckets, for a model whose shape is lost.

    A primary that neither answers nor has slots was replaced: its keys belong to another. Raises
    StoreError.
    """
    for node in found:
        if not node.replica and (node.answers or node.member.slots):
            keys = list(_scan(store, node))
            for reply in store.nodes.run([Call(key, ("UNLINK", key)) for key in keys]):
                if isinstance(reply, StoreError):
                    raise reply


@dataclass(frozen=True, slots=True)
class _Guess:
    """The probable numbers of buckets and sub-hashes of a model, and the generation of its keys."""

    generation: int = 0
    buckets: int = 0
    sub_hashes: int = 1


def _guess(store: RedisStore, found: Sequence[NodeSurvey]) -> _Guess:
    """Return what the keys that can be found tell of a model.

    The numbers are powers of two and filled evenly, so a part of the keys suffices unless it is
    tiny. Beside an unfinished or a finished reshard, the generation with the most buckets counts,
    the newer of two equal ones.
    """
    marks, buckets, subs = Counter[int](), Counter[int](), Counter[int]()
    for node in found:
        if node.answers and not node.replica:
            for key in _readable_keys(store, node):
                if match := _KEY.fullmatch(key):
                    generation = int(match["generation"] or 0)
                    marks[generation] += match["name"] == b"marks"
                    buckets[generation] = max(buckets[generation], int(match["bucket"]) + 1)
                    subs[generation] = max(subs[generation], int(match["sub"] or -1) + 1)
    if not marks:
        return _Guess()
    generation = max(marks, key=lambda each: (marks[each], each))
    return _Guess(
        generation, _power_of_two(buckets[generation]), max(1, _power_of_two(subs[generation]))
    )


def _readable_keys(store: RedisStore, node: NodeSurvey) -> Iterator[bytes]:
    """Yield keys until the node fails or does not permit it."""
    with suppress(StoreError):
        yield from _scan(store, node)


def _scan(store: RedisStore, node: NodeSurvey) -> Iterator[bytes]:
    """Yield the keys of the model's buckets on a node. Raises StoreError."""
    pattern = store.keys_of_buckets
    place, cursor = node.member.place, b"0"
    while True:
        cursor, keys = store.nodes.ask(
            place, "SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE
        )
        yield from keys
        if cursor == b"0":
            return


def _power_of_two(least: int) -> int:
    return 0 if least < 1 else 1 << (least - 1).bit_length()
