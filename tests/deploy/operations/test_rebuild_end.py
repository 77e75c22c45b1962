"""A rebuild learns from the first batch after its start to the last before its end, each once.

The topic is a list. The last batches are appended only when the rebuild has reported that it
learned all batches before them. A rebuild that takes an earlier batch as its end stops without
them.
"""

import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import examples_topic
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.recovery.rebuilder import (
    BEGINNING,
    Rebuilder,
    RebuildProgress,
    RebuildSettings,
    rebuild,
)
from headrace.pserver.errors import Unreachable
from headrace.pserver.snapshots.manifest import FILE, Manifest, encode
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.store import BucketAnswer
from tests.deploy.learners.learned_model import Counts, counts_of
from tests.deploy.operations.rebuilt_rows import rows_of
from tests.learner.streams import Bench, part, random_examples, random_spec

BUCKETS, BATCHES, SIZE = 4, 9, 20


class ReplayedTopic:
    """Batches of examples dealt to two partitions, and rebuilds of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        print("seed", seed)
        drawn = np.random.default_rng(seed)
        self.spec = random_spec(drawn, "immediate", statistics=True)
        self.folder, self.storage = folder, SnapshotStorage(str(folder))
        topic = examples_topic(self.spec.name)
        self.sources = [Source(topic, 0), Source(topic, 1)]
        stream = random_examples(drawn, self.spec, BATCHES * SIZE, closed=False)
        self.batches = [part(stream, k * SIZE, (k + 1) * SIZE) for k in range(BATCHES)]

    def stops(self, batches: int) -> dict[Source, int]:
        """Return the offsets after so many batches."""
        return dict(zip(self.sources, ((batches + 1) // 2, batches // 2), strict=True))

    def filled(self, batches: int) -> ListReader:
        """Return a reader of the first batches."""
        reader = ListReader({source: [] for source in self.sources})
        for number in range(batches):
            self.append(reader, number)
        return reader

    def append(self, reader: ListReader, number: int) -> None:
        """Append one batch."""
        reader.append(self.sources[number % 2], pack(self.batches[number]))

    def counts(self, batches: int) -> Counts:
        """Return the expected counters of the first batches."""
        shows: Counter[int] = Counter()
        clicks: Counter[int] = Counter()
        for each in self.batches[:batches]:
            shown = each.kinds == Kind.SHOWN
            shows.update(each.features.ids[shown].ravel().tolist())
            clicks.update(each.features.ids[~shown].ravel().tolist())
        return {each: (shows[each], clicks[each]) for each in shows | clicks}

    def rebuilt(
        self, batches: int, *, start: str | None = BEGINNING, first: int = 0
    ) -> tuple[Manifest, list[RebuildProgress]]:
        """Rebuild the model of the first batches, the last of which are appended one by one.

        start: see RebuildSettings. first: batches that this start has learned.
        """
        appended = max(first, batches - 3)
        reader = self.filled(appended)
        settings = RebuildSettings(as_of_ms=batches, start=start, buckets=BUCKETS)
        rebuilding = Rebuilder(settings, reader, self.stops(batches), self.spec, self.storage)
        told: list[RebuildProgress] = []

        def tell(progress: RebuildProgress) -> None:
            nonlocal appended
            told.append(progress)
            if progress.batches == appended - first and appended < batches:
                self.append(reader, appended)
                appended += 1

        manifest = rebuild(
            rebuilding,
            "1.2.3",
            stop=threading.Event(),
            tell_restored=lambda _: None,
            tell_replayed=tell,
            tell_written=lambda _: None,
        )
        assert manifest is not None
        return manifest, told

    def check(self, manifest: Manifest, batches: int) -> None:
        """Check that a snapshot has learned each of the first batches once."""
        assert counts_of(rows_of(self.storage, manifest), self.spec) == self.counts(batches)
        stops = {source.partition: stop for source, stop in self.stops(batches).items() if stop}
        for file in manifest.files:
            offsets = offsets_in(file.marks)
            assert {int(name[-1]): mark for name, mark in offsets.items()} == stops


def examples_in(batches: list[Examples]) -> int:
    """Return the number of examples."""
    return sum(map(len, batches))


@pytest.fixture
def topic(tmp_path: Path) -> ReplayedTopic:
    """Return a topic of a random spec."""
    return ReplayedTopic(tmp_path / "shelf", random.randrange(1 << 30))


@pytest.mark.thorough
@pytest.mark.parametrize("batches", [1, 2, BATCHES])
def test_a_rebuild_from_the_beginning_learns_each_batch_before_its_end_once(
    topic: ReplayedTopic, batches: int
) -> None:
    manifest, told = topic.rebuilt(batches)
    topic.check(manifest, batches)
    bench = Bench(topic.spec)
    for each in topic.batches[:batches]:
        bench.learn(each)
    found, expected = rows_of(topic.storage, manifest), bench.view.everything().existing()
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-5)
    assert told[-1] == RebuildProgress(batches, batches, examples_in(topic.batches[:batches]))
    assert {each.of for each in told} == {batches}
    assert all(each.batches < batches for each in told[:-1])


@pytest.mark.thorough
def test_a_rebuild_from_a_snapshot_learns_each_batch_after_it_once(topic: ReplayedTopic) -> None:
    early, _ = topic.rebuilt(5)
    for start in (early.name, None):
        manifest, told = topic.rebuilt(BATCHES, start=start, first=5)
        topic.check(manifest, BATCHES)
        rest = topic.batches[5:]
        assert told[-1] == RebuildProgress(len(rest), len(rest), examples_in(rest))
        topic.storage.remove(manifest.name)


@pytest.mark.thorough
def test_a_rebuild_up_to_its_snapshot_learns_nothing(topic: ReplayedTopic) -> None:
    early, _ = topic.rebuilt(5)
    manifest, told = topic.rebuilt(5, start=early.name, first=5)
    topic.check(manifest, 5)
    assert told == [RebuildProgress(0, 0, 0)]


def answer(bucket: int, *marks: int) -> BucketAnswer:
    """Return the marks of a bucket in the partitions of the topic."""
    named = {f"id-of-{examples_topic('test')}/{k}": mark for k, mark in enumerate(marks)}
    return BucketAnswer(bucket, 1, b"", b"", named, 0)


def test_the_progress_of_a_rebuild_is_that_of_the_slowest_bucket(topic: ReplayedTopic) -> None:
    settings = RebuildSettings(as_of_ms=BATCHES, start=BEGINNING, buckets=BUCKETS)
    rebuilding = Rebuilder(
        settings, topic.filled(BATCHES), topic.stops(BATCHES), topic.spec, topic.storage
    )
    assert topic.stops(BATCHES) == {topic.sources[0]: 5, topic.sources[1]: 4}
    cases: list[tuple[list[BucketAnswer | Unreachable], int]] = [
        ([answer(0, 5, 4), answer(1, 5, 4)], 9),
        ([answer(0, 5, 4), answer(1, 5, 3)], 8),
        ([answer(0, 4, 4), answer(1, 5, 3)], 7),
        ([answer(0, 5, 4), answer(1, 5)], 5),
        ([answer(0), answer(1, 5, 4)], 0),
        ([answer(0, 5, 4), Unreachable("node 1")], 0),
    ]
    for answers, expected in cases:
        assert rebuilding.replayed(answers, 100) == RebuildProgress(expected, 9, 100)


def test_a_rebuild_starts_at_the_bucket_of_the_snapshot_that_learned_least(
    topic: ReplayedTopic,
) -> None:
    early, _ = topic.rebuilt(5)
    behind = dict.fromkeys(early.files[1].marks, 1)
    files = [early.files[0], replace(early.files[1], marks=behind), *early.files[2:]]
    (topic.folder / early.name / FILE).write_bytes(encode(replace(early, files=files)))
    settings = RebuildSettings(as_of_ms=BATCHES, start=early.name, buckets=BUCKETS)
    stops = topic.stops(BATCHES)
    rebuilding = Rebuilder(settings, topic.filled(BATCHES), stops, topic.spec, topic.storage)
    assert rebuilding.replayed([answer(0, 5, 4)], 0) == RebuildProgress(7, 7, 0)
    assert rebuilding.replayed([answer(0, 3, 2), answer(1, 1, 1)], 0) == RebuildProgress(0, 7, 0)
