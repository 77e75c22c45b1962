"""A model as it was, rebuilt from examples in Kafka: as exact as a model that stopped then."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.cli.pserver.pserver_restore import moment_ms
from headrace.deploy.errors import BadOption
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import AtEnd, PartitionAssigned, Record, Source
from headrace.ingest.kafka.reading.bounded_reader import BoundedReader, offsets_at
from headrace.learner.errors import RecoveryRefused
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.recovery.rebuilder import BEGINNING, RebuildSettings, open_rebuild, rebuild
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import verify
from tests.deploy.learners.learned_model import FAR_MS, LearnedModel, counts_of
from tests.deploy.operations.rebuilt_rows import rows_of
from tests.pserver.snapshots.snapshot_world import taken

BUCKETS = 4


@pytest.fixture
def model(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> LearnedModel:
    return LearnedModel(kafka, valkey, fresh_name("past"), tmp_path, random.randrange(1 << 30))


@pytest.fixture
def storage(tmp_path: Path) -> SnapshotStorage:
    return SnapshotStorage(str(tmp_path / "shelf"))


def a_moment_later() -> int:
    """A time that is after all that was appended, and before all that will be."""
    at_ms = time.time_ns() // 1_000_000 + 2
    while time.time_ns() // 1_000_000 <= at_ms:
        threading.Event().wait(0.001)
    return at_ms


def rebuilt(model: LearnedModel, storage: SnapshotStorage, settings: RebuildSettings) -> Manifest:
    told: list[Any] = []
    rebuilding = open_rebuild(settings, model.kafka, model.spec, storage)
    try:
        manifest = rebuild(
            rebuilding,
            "1.2.3",
            stop=threading.Event(),
            tell_restored=told.append,
            tell_replayed=told.append,
            tell_written=told.append,
        )
    finally:
        rebuilding.reader.close()
    assert manifest is not None
    assert verify(storage, manifest, stop=threading.Event(), tell=lambda _: None) == []
    assert told[-1].done == manifest.buckets
    return manifest


def test_a_model_rebuilt_as_of_a_time_has_the_counters_of_a_model_that_learned_until_then(
    model: LearnedModel, storage: SnapshotStorage
) -> None:
    model.produce(150)
    model.make(BUCKETS)
    model.learn()
    with model.store() as store:
        early = taken(store, storage, at_ms=time.time_ns() // 1_000_000)
    model.produce(150)
    then_ms, then = a_moment_later(), model.counts
    model.produce(150)
    model.learn()
    with model.store() as store:
        taken(store, storage, at_ms=time.time_ns() // 1_000_000)  # has learned too much

    settings = RebuildSettings(then_ms, buckets=BUCKETS)
    began: list[Manifest | None] = []
    for start in (None, early.name, BEGINNING):
        settings = RebuildSettings(then_ms, start, buckets=BUCKETS)
        rebuilding = open_rebuild(settings, model.kafka, model.spec, storage)
        rebuilding.reader.close()
        began.append(rebuilding.manifest)
        manifest = rebuilt(model, storage, settings)
        assert manifest.as_of_ms == then_ms
        assert counts_of(rows_of(storage, manifest), model.spec) == then, start
        stops = offsets_at(model.kafka, model.topic, then_ms)
        offsets = offsets_in(manifest.files[0].marks)
        marks = {int(name[-1]): mark for name, mark in offsets.items()}
        assert marks == {each.partition: stop for each, stop in stops.items()}
        for file in manifest.files:  # what was rebuilt would else be begun with
            assert file.marks == manifest.files[0].marks
        storage.remove(manifest.name)
    assert began == [early, early, None]


def test_a_rebuild_refuses_a_snapshot_too_new_or_too_old_for_kafka_and_skips_one_of_another_spec(
    model: LearnedModel, storage: SnapshotStorage, caplog: pytest.LogCaptureFixture
) -> None:
    model.produce(80)
    then_ms = a_moment_later()
    model.produce(80)
    model.make(BUCKETS)
    model.learn()
    with model.store() as store:
        late = taken(store, storage, at_ms=time.time_ns() // 1_000_000)

    def start_of(settings: RebuildSettings) -> Manifest | None:
        rebuilding = open_rebuild(settings, model.kafka, model.spec, storage)
        rebuilding.reader.close()
        return rebuilding.manifest

    with pytest.raises(RecoveryRefused, match="--from: expected a snapshot from before that time"):
        start_of(RebuildSettings(then_ms, late.name))
    spec = model.spec
    model.spec = parse_spec(spec.text.replace("alpha = ", "alpha = 0.1 # "), "spec.toml")
    assert start_of(RebuildSettings(FAR_MS)) is None
    assert f"skipping snapshot {late.name}: it is of another spec" in caplog.text
    model.spec = spec
    model.forget_before(dict.fromkeys(offsets_at(model.kafka, model.topic, then_ms), 1))
    with pytest.raises(RecoveryRefused, match="start from the beginning, got a topic that begins"):
        start_of(RebuildSettings(then_ms))
    assert start_of(RebuildSettings(FAR_MS)) == late


# ---------------------------------------------------------------- where history ends


SOURCES = [Source("t", 0), Source("t", 1)]


def reader_of(*counts: int) -> ListReader:
    records = {
        source: [Record(source, offset, 0, b"%d" % offset) for offset in range(count)]
        for source, count in zip(SOURCES, counts, strict=True)
    }
    return ListReader(records, largest_poll=3)


def test_a_bounded_reader_ends_each_source_at_its_bound_whatever_lies_beyond() -> None:
    inner = reader_of(5, 2)
    reader = BoundedReader(inner, {SOURCES[0]: 3, SOURCES[1]: 2})
    assert reader.poll(0.0) == [PartitionAssigned(source) for source in SOURCES]
    assert reader.bounds(SOURCES[0]) == (0, 3)
    for _ in range(2):  # and again from the start
        reader.start(dict.fromkeys(SOURCES, 0))
        happened = [each for _ in range(6) for each in reader.poll(0.0)]
        read = Counter(each.source for each in happened if isinstance(each, Record))
        assert read == {SOURCES[0]: 3, SOURCES[1]: 2}
        ends = {each for each in happened if isinstance(each, AtEnd)}
        assert ends == {AtEnd(SOURCES[0], 3), AtEnd(SOURCES[1], 2)}
        reader.resume(SOURCES)
        assert inner.paused == set(SOURCES)
    reader.commit({SOURCES[0]: 3})
    assert inner.committed == {}
    inner.lose(SOURCES[0])
    inner.gain(SOURCES[0])
    reader.poll(0.0)
    reader.close()
    assert inner.closed


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with local time nine hours ahead of UTC."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_a_time_option_takes_iso_8601_or_milliseconds_and_defaults_to_utc() -> None:
    assert moment_ms("1700000000123") == 1_700_000_000_123
    assert moment_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert moment_ms("2023-11-14T22:13:20.5") == 1_700_000_000_500
    assert moment_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    with pytest.raises(BadOption, match="--as-of: expected a time such as"):
        moment_ms("yesterday")
