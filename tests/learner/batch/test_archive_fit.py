"""A fit of archived examples ends where a learner goes on: each example is learned once."""

import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.ingest.archive.archiver import Archiver, ArchiveSettings
from headrace.ingest.archive.parquet_folder import ArchiveError, ArchiveFolder
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.batch.archive_source import ArchiveSource
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.store_fit.staged_run import StageFolder
from headrace.learner.batch.store_fit.store_trainer import StoreFitSettings, StoreTrainer
from headrace.learner.batch.trainer import BatchTrainer, FitSettings, FitSummary
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.snapshots.catalog import find_snapshot
from headrace.pserver.snapshots.restoration import restore
from headrace.pserver.snapshots.storage import SnapshotStorage
from tests.learner.batch.fitted_tables import Tell, stopped
from tests.learner.batch.staged_files import one_store, run_here
from tests.learner.in_memory import TOPIC, InMemoryModel, cut, records_of
from tests.learner.streams import random_examples, random_spec

PARTITIONS = 3
BATCHES = 20
ARCHIVED = 13
"""Batches of each partition that are archived before the fit."""


def archive(url: str, records: list[Record]) -> None:
    """Write records as `headrace ingest sink` does, in several files an hour."""
    by_source: dict[Source, list[Record]] = {}
    for record in records:
        by_source.setdefault(record.source, []).append(record)
    folder = ArchiveFolder(url)
    sink = Archiver(ListReader(by_source), folder, TOPIC, ArchiveSettings(most_rows=40))
    for _ in range(20):
        sink.step(0.0)
    sink.finish()
    folder.close()


def stream(spec: ModelSpec, seed: int) -> list[Record]:
    """Every partition's batches."""
    dice, records = np.random.default_rng(seed), []
    for partition in range(PARTITIONS):
        closed = spec.fields.label.policy == "window"
        batches = cut(random_examples(dice, spec, 10 * BATCHES, closed=closed), 10)
        records += records_of(batches[:BATCHES], partition)
    return records


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("stop_after", [[], [1, 2, 1]])
def test_a_learner_that_goes_on_after_a_fit_learns_every_example_once(
    policy: str, stop_after: list[int], tmp_path: Path
) -> None:
    spec = random_spec(np.random.default_rng(5), policy, statistics=False)
    records = stream(spec, 5)
    archive(str(tmp_path / "sink"), [each for each in records if each.offset < ARCHIVED])
    to, settings = str(tmp_path / "models"), FitSettings(tell_every_s=0)

    def run(stop: threading.Event, tell: Tell) -> FitSummary | None:
        source = ArchiveSource(str(tmp_path / "sink"), spec)
        return BatchTrainer(spec, source, FitFolder(to, spec.name), settings).run(stop, tell)

    check_handover(spec, records, tmp_path, stopped(run, [*stop_after, 0]))


def test_a_learner_that_goes_on_after_a_fit_into_a_store_learns_every_example_once(
    tmp_path: Path,
) -> None:
    spec = random_spec(np.random.default_rng(5), "window", statistics=False)
    records = stream(spec, 5)
    archive(str(tmp_path / "sink"), [each for each in records if each.offset < ARCHIVED])
    to = str(tmp_path / "models")
    done = StoreTrainer(
        spec,
        ArchiveSource(str(tmp_path / "sink"), spec),
        (FitFolder(to, spec.name), StageFolder(to, spec.name)),
        one_store()[1],
        StoreFitSettings(workers=2, rows_a_file=50),
        run_here,
    ).run(threading.Event(), lambda _: None)
    assert done is not None
    assert done.examples == PARTITIONS * ARCHIVED * 10
    check_handover(spec, records, tmp_path, done)


def check_handover(
    spec: ModelSpec, records: list[Record], tmp_path: Path, done: FitSummary
) -> None:
    """Restore the snapshot of a fit, learn on, and compare with one pass over everything."""
    world = InMemoryModel(spec)
    world.store.drop()
    storage = SnapshotStorage(str(tmp_path / "models"))
    manifest = find_snapshot(storage, spec.name, done.snapshot)
    restore(
        world.store, storage, manifest, manifest.shape, stop=threading.Event(), tell=lambda _: None
    )
    assert world.marks() == [dict.fromkeys(range(PARTITIONS), ARCHIVED)] * manifest.shape.buckets
    counts = []
    for model in (world, InMemoryModel(spec)):
        learner = model.learner(records, LearnerPacing(push_interval_ms=0))
        ends = {each.source.partition: each.offset + 1 for each in records}
        for _ in range(1000):
            model.now_ms += 10  # it waits a second for what a joiner might still write
            learner.step(0.0)
            if model.learned(ends):
                break
        assert model.learned(ends)
        rows = model.rows()
        order = np.argsort(rows.ids)
        counts.append([rows.ids[order], rows.shows[order], rows.clicks[order]])
    np.testing.assert_array_equal(counts[0], counts[1])


def test_rows_that_were_moved_but_do_not_count_are_not_learned(tmp_path: Path) -> None:
    spec = random_spec(np.random.default_rng(5), "window", statistics=False)
    records = stream(spec, 5)
    archive(str(tmp_path), [each for each in records if each.offset < ARCHIVED])
    [first, *_] = sorted(tmp_path.glob(f"{TOPIC}/hour=*/00000-*.parquet"))
    copy = first.with_name(f"00000-{ARCHIVED:012}.parquet")
    copy.write_bytes(first.read_bytes())
    blocks = ArchiveSource(str(tmp_path), spec).blocks(FilePosition())
    learned = sum(len(block.examples) for block in blocks)
    assert learned == PARTITIONS * ARCHIVED * 10


def test_an_archive_of_other_fields_is_refused(tmp_path: Path) -> None:
    spec = random_spec(np.random.default_rng(5), "window", statistics=False)
    archive(str(tmp_path), stream(spec, 5))
    other = parse_spec(spec.text.replace("window_s = 600", "window_s = 601"), "other.toml")
    with pytest.raises(ArchiveError, match="expected examples of fields with fingerprint"):
        list(ArchiveSource(str(tmp_path), other).blocks(FilePosition()))


def test_a_folder_without_examples_of_the_model_is_refused(tmp_path: Path) -> None:
    spec = random_spec(np.random.default_rng(5), "window", statistics=False)
    with pytest.raises(ArchiveError, match=r"expected examples in examples\.test"):
        ArchiveSource(str(tmp_path), spec)
