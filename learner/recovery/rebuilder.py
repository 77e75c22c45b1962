"""Rebuilds a model as of a past moment: replays examples onto a snapshot, in memory.

It runs the learner's own loop on a store in this process, with a keeper beside it so that the log
stays short. It reads from the snapshot's marks to the offsets that the topic of examples had at
that moment, and writes the result as a snapshot, which can be restored under another name.

Accuracy: the counters of every row are exact, to the unit, and include the batches that learners
quarantined, because a rebuild quarantines nothing (docs/guides/operating.md says why). Values are
those of a learner that was restarted at the snapshot. A snapshot has no memory of impressions
(statistics of rows, kept for the label's window, and the counts of admission), so the first clicks
after it are learned with present statistics. Partitions are interleaved by event time, which may
differ from the live order, and float additions round in another order. Rows are deleted by age and
number as the spec says, by the keepers' rule, but not at the same entries of the log.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.kafka.protocols import Reader, Source
from headrace.ingest.kafka.reading.bounded_reader import BoundedReader, offsets_at
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import examples_topic
from headrace.learner.errors import RecoveryRefused
from headrace.learner.loop.exchange import DirectExchange
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.outputs import LearnerOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerPorts
from headrace.learner.models.factory import open_model
from headrace.learner.spec.compatibility import check_compatible, check_copy
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import sub_hashes_for
from headrace.pserver.snapshots.catalog import find_snapshot, list_snapshots
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.restoration import restore
from headrace.pserver.snapshots.writer import SnapshotFacts, SnapshotProgress, write_snapshot
from headrace.pserver.store import BucketAnswer, Shape
from headrace.runtime.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import SnapshotStorage

log = logging.getLogger(__name__)

BEGINNING = "beginning"
"""Instead of a snapshot's name: start without rows."""
_PACE = LearnerPacing(
    push_interval_ms=200,
    log_bytes_limit=1 << 62,  # the keeper runs between two steps, so waiting for it would never end
)
_KEEP_BYTES = 1 << 20
"""Bytes kept of each bucket's log, which no replica follows."""
_EXPIRE_EVERY_MS = 1_000
"""More often than live, because history passes faster."""
_KEEP_EVERY_MS = 200
_LOOK_EVERY_MS = 200


@dataclass(frozen=True, slots=True)
class RebuildSettings:
    """The model, and the moment."""

    as_of_ms: int
    """Examples appended to the topic before this time are learned."""
    start: str | None = None
    """Name of the snapshot to start from, BEGINNING, or None for the newest that is old enough."""
    examples_of: str = ""
    """Name of the model whose examples are read; empty for its own."""
    buckets: int = 64
    """For a model that starts without rows."""

    def topic_of(self, spec: ModelSpec) -> str:
        """Return the topic of the examples that are read."""
        return examples_topic(self.examples_of or spec.name)


class RebuildProgress(NamedTuple):
    """Progress of the replay."""

    batches: int
    """Batches of examples that every bucket has applied."""
    of: int
    examples: int


class Rebuilder:
    """A rebuild whose snapshot and offsets are chosen and checked, but not started."""

    def __init__(
        self,
        settings: RebuildSettings,
        reader: Reader,
        stops: Mapping[Source, int],
        spec: ModelSpec,
        storage: SnapshotStorage,
    ) -> None:
        """Choose where to start. Raises errors for an operator.

        reader: of the topic of examples. stops: for each partition, the first offset that is not
        learned.
        """
        self.settings, self.reader, self.stops = settings, reader, stops
        self.spec, self.storage = spec, storage
        identity = reader.topic_id(settings.topic_of(spec))
        self._sources = {f"{identity}/{each.partition}": each for each in stops}
        self.manifest = self._begin_with()
        self._starts = {
            each: self._mark(self.manifest, name) for name, each in self._sources.items()
        }
        self._check_bounds()

    def replayed(
        self, answers: Sequence[BucketAnswer | Unreachable], examples: int
    ) -> RebuildProgress:
        """Return the progress of buckets with these marks; one without an answer has none."""
        of = done = 0
        for name, source in self._sources.items():
            first, stop = self._starts[source], self.stops[source]
            marks = [
                first if isinstance(each, Exception) else each.marks.get(name, 0)
                for each in answers
            ]
            of += max(0, stop - first)
            done += max(0, min(marks) - first)
        return RebuildProgress(done, of, examples)

    @staticmethod
    def _mark(manifest: Manifest | None, name: str) -> int:
        if manifest is None:
            return 0
        return min(each.marks.get(name, 0) for each in manifest.files)

    def _begin_with(self) -> Manifest | None:
        start = self.settings.start
        if start == BEGINNING:
            return None
        if start is not None:
            manifest = find_snapshot(self.storage, self.spec.name, start)
            if manifest.model == self.spec.name:
                check_compatible(self.spec, manifest.shape)
            else:
                where = f"snapshot {start}"
                check_copy(self.spec, parse_spec(manifest.spec, where), where)
            if late := self._too_late(manifest):
                raise RecoveryRefused(
                    f"--from: expected a snapshot from before that time, got {late}"
                )
            return manifest
        for listed in reversed(list_snapshots(self.storage)):
            found = listed.manifest
            if found is None or found.model != self.spec.name:
                continue
            alike = (found.fingerprint, found.shape.width) == (
                self.spec.fingerprint,
                self.spec.width,
            )
            if listed.problems or not alike:
                why = "damaged" if listed.problems else "of another spec"
                log.warning("skipping snapshot %s: it is %s", listed.name, why)
            elif not self._too_late(found):
                return found
        return None

    def _too_late(self, manifest: Manifest) -> str:
        """Return the bucket of a snapshot that has learned later examples, or \"\"."""
        for each in manifest.files:
            for name, mark in each.marks.items():
                source = self._sources.get(name)
                if source is not None and mark > self.stops[source]:
                    return (
                        f"bucket {each.bucket} of {manifest.name} has learned partition "
                        f"{source.partition} up to offset {mark}, which had {self.stops[source]}"
                    )
        return ""

    def _check_bounds(self) -> None:
        for source, start in self._starts.items():
            first, _ = self.reader.bounds(source)
            if start < first and start < self.stops[source]:
                begin = "the beginning" if self.manifest is None else self.manifest.name
                raise RecoveryRefused(
                    f"{source.topic}/{source.partition}: expected the examples from offset {start} "
                    f"on, to start from {begin}, got a topic that begins at {first}. Start from a "
                    f"snapshot in {self.storage.url} that has learned up to there and is from "
                    "before the requested time."
                )


def open_rebuild(
    settings: RebuildSettings, kafka: KafkaSettings, spec: ModelSpec, storage: SnapshotStorage
) -> Rebuilder:
    """Choose where to start and end, and open the topic. Raises errors for an operator.

    The caller closes the reader.
    """
    topic = settings.topic_of(spec)
    stops = offsets_at(kafka, topic, settings.as_of_ms)
    reader = KafkaReader(kafka, None, [topic])
    try:
        return Rebuilder(settings, reader, stops, spec, storage)
    except BaseException:
        reader.close()
        raise


def rebuild(
    rebuilding: Rebuilder,
    headrace: str,
    *,
    stop: threading.Event,
    tell_restored: Callable[[SnapshotProgress], None],
    tell_replayed: Callable[[RebuildProgress], None],
    tell_written: Callable[[SnapshotProgress], None],
) -> Manifest | None:
    """Replay, and write the model as a snapshot; None if `stop` was set before.

    `headrace`: this version. Raises StoreError, StreamError or LearnerError, for an operator.
    """
    settings, manifest, spec = rebuilding.settings, rebuilding.manifest, rebuilding.spec
    store = MemoryStore(clock_ms=steady_ms, nonces=_nonce)
    if manifest is None:
        shape = Shape(spec.name, settings.buckets, spec.width, spec.fingerprint, spec.text)
        store.create(shape)
    else:
        shape = manifest.shape
        if manifest.model != spec.name:
            shape = Shape(spec.name, shape.buckets, spec.width, spec.fingerprint, spec.text)
        filled = restore(store, rebuilding.storage, manifest, shape, stop=stop, tell=tell_restored)
        if not filled.complete:
            return None
    if not _replay(rebuilding, store, shape, stop, tell_replayed):
        return None
    facts = SnapshotFacts(
        headrace=headrace,
        sub_hashes=sub_hashes_for(settings.buckets) if manifest is None else manifest.sub_hashes,
        as_of_ms=settings.as_of_ms,
    )
    return write_snapshot(
        store,
        rebuilding.storage,
        facts,
        now_ms=wall_ms,
        token=secrets.token_hex(2),
        stop=stop,
        tell=tell_written,
    )


def _replay(
    rebuilding: Rebuilder,
    store: MemoryStore,
    shape: Shape,
    stop: threading.Event,
    tell: Callable[[RebuildProgress], None],
) -> bool:
    """Learn up to the bounds; return False if `stop` was set before."""
    spec = rebuilding.spec
    replica = Replica(store, shape)
    while not replica.complete:
        replica.poll()
    ports = LearnerPorts(
        BoundedReader(rebuilding.reader, rebuilding.stops),
        LearnerOutputs(),  # Kafka has the scores that were made at the time
        store,
        DirectExchange(store),
    )
    learner = Learner(ports, replica, open_model(spec, shape.buckets), spec.fields, _PACE)
    keeper = Keeper(
        store,
        shape,
        name="rebuild",
        keeping=FoldPolicy(
            keep_bytes=_KEEP_BYTES,
            expiry=replace(spec.expiry, interval_ms=_EXPIRE_EVERY_MS),
        ),
        now_ms=steady_ms,
        draw_nonce=_nonce,
    )
    keep_at_ms = look_at_ms = steady_ms()
    while not stop.is_set():
        learner.step(0.05)
        now = steady_ms()
        if now >= keep_at_ms:
            keep_at_ms = now + _KEEP_EVERY_MS
            keeper.step()
        if now >= look_at_ms:
            look_at_ms = now + _LOOK_EVERY_MS
            answers = store.marks(range(shape.buckets))
            replayed = rebuilding.replayed(answers, learner.figures.examples)
            tell(replayed)
            if replayed.batches >= replayed.of:
                return True
    return False


def _nonce() -> bytes:
    return secrets.token_bytes(8)
