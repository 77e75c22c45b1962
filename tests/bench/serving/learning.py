"""Pushes updates into real shards while a server is measured, as a learner would.

A process of its own creates the model, fills it, and then pushes as much as a learner of 2,000
examples a second would. The pushes are made beforehand, so their cost is that of the shards and of
the processes that follow them.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import FieldSet
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, SourceReached, pack
from headrace.pserver.store import OffsetSpan, Push, Shape

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BUCKETS = 16
ROWS = 250_000
PUSHES_PER_S = 20
EXAMPLES_A_PUSH = 100
_ROUNDS = 100
"""Made beforehand, and pushed again and again: a learner's hot rows are the same as well."""


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def push_to(url: str, path: Path, parent: Connection) -> None:
    """Make and fill the model; tell the parent; push until the parent says so, or is gone."""
    pushing = Pushing(load_spec(path), url)
    pushing.fill()
    rounds = list(pushing.rounds(_ROUNDS))
    stop = threading.Event()

    def obey() -> None:
        with contextlib.suppress(EOFError):
            parent.recv()
        stop.set()

    threading.Thread(target=obey, daemon=True).start()
    parent.send("filled")
    due = time.monotonic()
    for k in range(1_000_000):
        if stop.wait(max(0.0, due - time.monotonic())):
            return
        pushing.push(rounds[k % _ROUNDS])
        due += 1 / PUSHES_PER_S


class Pushing:
    """A learner's pushes: rounds of one entry a bucket."""

    def __init__(self, spec: ModelSpec, url: str) -> None:
        self._spec, self._dice = spec, np.random.default_rng(11)
        self._store = open_store(url, spec.name)
        self._shape = Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, spec.text)
        self._store.create(self._shape)
        self._offset = 0

    def fill(self) -> None:
        """Push the rows that the model starts with."""
        ids = self._dice.integers(0, 2**63, ROWS).astype(np.uint64) << np.uint64(1)
        for part in np.array_split(ids, 25):
            self.push(self._deltas_of(part))

    def rounds(self, count: int) -> Iterator[RowDeltas]:
        """Yield what each of so many rounds carries."""
        encoder, fields = Encoder(self._spec.fields), self._spec.fields
        for _ in range(count):
            made = encoder.encode(events(fields, EXAMPLES_A_PUSH, self._dice))
            yield self._deltas_of(np.concatenate([made.ids.reshape(-1), made.bag_ids]))

    def push(self, deltas: RowDeltas) -> None:
        """Push these deltas now."""
        start, self._offset = self._offset, self._offset + 1
        of_row, append_ms = self._shape.bucket_of(deltas.ids), now_ms()
        span = OffsetSpan("bench/0", start, self._offset)
        reached = [SourceReached("bench/0", start, self._offset, append_ms)]
        pushes = []
        for bucket in range(BUCKETS):
            part = deltas.chosen(of_row == bucket)
            header = EntryHeader(self._shape.width, len(part.ids), append_ms, append_ms, reached)
            pushes.append(Push(bucket, (span,), secrets.token_bytes(8), pack(header, part)))
        for answer in self._store.push(pushes):
            if isinstance(answer, Exception):
                raise answer

    def _deltas_of(self, ids: np.ndarray) -> RowDeltas:
        """Return what rows gain from an example each or so: no accumulator ever shrinks."""
        unique = np.unique(ids)
        count, second = unique.shape[0], np.uint32(time.time())
        seconds = np.full(count, second, np.uint32)
        values = np.abs(self._dice.normal(0.0, 0.05, (count, self._shape.width)))
        shows, clicks = np.ones(count, np.uint32), np.zeros(count, np.uint32)
        return RowDeltas(unique, shows, clicks, seconds, seconds, values.astype(np.float32))


def events(fields: FieldSet, count: int, dice: np.random.Generator) -> list[dict[str, int]]:
    """Return events whose values follow Zipf's law, as those of users and articles do."""
    sources = {each.source for each in (*fields.singles, *fields.bags, *fields.numbers)} - {""}
    columns = {source: dice.zipf(1.2, count) % 1_000_000 for source in sorted(sources)}
    return [
        {"timestamp_ms": now_ms()} | {source: int(column[i]) for source, column in columns.items()}
        for i in range(count)
    ]
