"""The files of a snapshot: rows as Parquet, a sealed manifest, and folders that come and go."""

import hashlib
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.bucket_file import pack, unpack
from headrace.pserver.snapshots.catalog import (
    ListedSnapshot,
    find_snapshot,
    list_snapshots,
    newest_begun_ms,
    prunable,
    prune,
    superfluous,
)
from headrace.pserver.snapshots.manifest import (
    BadManifest,
    BucketFile,
    Manifest,
    decode,
    encode,
    name_of,
)
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot, NoSnapshot, StorageFailed
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import read_bucket, verify
from tests.effort import examples
from tests.pserver.snapshots.snapshot_world import HOUR_MS, NOW_MS

DAY_MS = 24 * HOUR_MS
TOP_ID = np.uint64(1) << np.uint64(63)


@st.composite
def some_rows(draw: st.DrawFn) -> FoldedRows:
    ids = draw(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=40))
    count, width = len(ids), draw(st.integers(1, 20))

    def column(kind: Any) -> Any:
        return draw(st_numpy.arrays(kind, count))

    return FoldedRows(
        np.array(ids, np.uint64),
        column(np.uint64),
        column(np.uint64),
        column(np.uint32),
        column(np.uint32),
        draw(st_numpy.arrays(np.float32, (count, width))),
    )


def joined(chunks: Sequence[FoldedRows], width: int) -> FoldedRows:
    wide, narrow = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    empty = FoldedRows(wide, wide, wide, narrow, narrow, np.zeros((0, width), np.float32))
    return FoldedRows._make(np.concatenate(column) for column in zip(empty, *chunks, strict=True))


@settings(max_examples=examples(50), deadline=None)
@given(some_rows())
def test_a_snapshot_file_returns_existing_rows_bit_for_bit_in_the_order_of_ids(
    rows: FoldedRows,
) -> None:
    width = rows.values.shape[1]
    back = joined(list(unpack(pack(rows), width)), width)
    expected = rows.existing()
    for name in FoldedRows._fields:
        found, column = getattr(back, name), getattr(expected, name)
        assert found.dtype == column.dtype
        assert found.tobytes() == column.tobytes()
    assert back.checksum() == rows.checksum()


def numbered_rows(first: int, count: int, width: int = 2, high: int = 0) -> FoldedRows:
    """Rows of bucket `high` of two."""
    ids = np.arange(first, first + count, dtype=np.uint64) + np.uint64(high) * TOP_ID
    return FoldedRows(
        ids,
        np.full(count, 3, np.uint64),
        np.full(count, 1, np.uint64),
        np.full(count, 1_700_000_000, np.uint32),
        np.full(count, 1_700_000_500, np.uint32),
        np.ones((count, width), np.float32),
    )


def test_a_snapshot_file_is_plain_parquet_with_statistics_for_skipping() -> None:
    blob = pack(numbered_rows(0, 150_000))
    file = pq.ParquetFile(pa.BufferReader(blob))
    assert file.schema_arrow.names == ["id", "shows", "clicks", "first_seen", "last_seen", "values"]
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    assert len(groups) > 2
    assert [each.column(0).statistics.min for each in groups] == [0, 65536, 131072]
    assert {each.column(i).compression for each in groups for i in range(6)} == {"ZSTD"}
    assert file.read(columns=["shows"])["shows"].to_numpy().sum() == 450_000


def test_a_snapshot_file_of_another_width_or_format_is_refused() -> None:
    blob = pack(numbered_rows(0, 10, width=3))
    with pytest.raises(CorruptEntry, match=r"\[2\], got .*\[3\]"):
        list(unpack(blob, 2))
    with pytest.raises(CorruptEntry, match="cannot be read as Parquet"):
        list(unpack(blob[:-9], 3))


# ---------------------------------------------------------------- manifests


def bucket_file(bucket: int, rows: FoldedRows | None = None) -> tuple[BucketFile, bytes]:
    rows = numbered_rows(0, 5, high=bucket) if rows is None else rows
    blob = pack(rows)
    digest = hashlib.sha256(blob).hexdigest()
    file = BucketFile(
        *(bucket, 7, "00ff", {"topic/0": 12}, rows.ids.shape[0], 1_700_000_499_000, 99),
        *(1_700_000_000, 1_700_000_500, f"rows-{bucket:05d}.parquet", len(blob), digest),
        rows.checksum(),
    )
    return file, blob


def manifest_of(
    model: str = "news", at_ms: int = NOW_MS, files: Sequence[BucketFile] | None = None
) -> Manifest:
    return Manifest(
        name_of(model, at_ms, "0a1b"),
        *(model, "the spec", "fingerprint", 2, 2, 8, at_ms, at_ms + 5, "1.2.3"),
        list(files if files is not None else (bucket_file(0)[0], bucket_file(1)[0])),
    )


def test_a_manifest_survives_encoding_with_all_its_files() -> None:
    manifest = manifest_of()
    assert decode(encode(manifest)) == manifest
    assert manifest.rows == 10
    assert manifest.newest_event_ms == 1_700_000_500_000
    assert manifest.shape.model == "news"


def test_no_byte_of_a_manifest_can_change_unnoticed() -> None:
    blob = encode(manifest_of())
    for place in range(len(blob)):
        for flip in (0x01, 0x20):
            changed = blob[:place] + bytes([blob[place] ^ flip]) + blob[place + 1 :]
            with pytest.raises(BadManifest):
                decode(changed)
    with pytest.raises(BadManifest):
        decode(blob[:-1])


def test_a_manifest_of_a_later_format_or_without_a_bucket_is_refused_by_name() -> None:
    manifest = manifest_of()
    with pytest.raises(BadManifest, match="expected format 1, got 2: use the version"):
        decode(encode(msgspec.structs.replace(manifest, format=2)))
    with pytest.raises(BadManifest, match="each of 2 buckets"):
        decode(encode(msgspec.structs.replace(manifest, files=manifest.files[1:])))


@pytest.mark.parametrize("name", ["../other/rows.parquet", "/etc/passwd", "a/b", "..", "", "a\\b"])
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(name: str) -> None:
    manifest = manifest_of()
    outside = msgspec.structs.replace(manifest.files[0], file=name)
    with pytest.raises(BadManifest, match="files in its own folder"):
        decode(encode(msgspec.structs.replace(manifest, files=[outside, manifest.files[1]])))


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.integers(0, 4_000_000_000_000), min_size=2, max_size=10))
def test_snapshot_names_sort_by_time_and_contain_their_model(times: list[int]) -> None:
    names = {at_ms: name_of("my-model_2", at_ms, "00ff") for at_ms in times}
    assert [names[at_ms] for at_ms in sorted(names)] == sorted(names.values())
    assert {manifests.model_of(name) for name in names.values()} == {"my-model_2"}
    assert manifests.model_of("lost+found") is None


# ---------------------------------------------------------------- in the storage


def put(storage: SnapshotStorage, model: str = "news", at_ms: int = NOW_MS, **bad: Any) -> Manifest:
    """Put a snapshot into the storage; `bad` replaces fields of bucket 1 in its manifest."""
    files = [bucket_file(0), bucket_file(1)]
    told = [files[0][0], msgspec.structs.replace(files[1][0], **bad)]
    manifest = manifest_of(model, at_ms, told)
    storage.begin(manifest.name)
    for file, blob in files:
        storage.write(manifest.name, file.file, blob)
    storage.publish(manifest.name, encode(manifest))
    return manifest


def checked(storage: SnapshotStorage, manifest: Manifest) -> list[str]:
    return verify(storage, manifest, stop=threading.Event(), tell=lambda _: None)


@pytest.fixture(params=["folder", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStorage:
    """A folder, and a storage without renaming; neither exists yet."""
    if request.param == "folder":
        return SnapshotStorage(str(tmp_path / "deep" / "down"))
    return SnapshotStorage(f"memory://{tmp_path.name}-{random.randrange(1 << 60)}/down")


def test_a_missing_snapshot_folder_is_an_empty_one(storage: SnapshotStorage) -> None:
    assert list_snapshots(storage) == []
    assert storage.half_written() == []
    with pytest.raises(NoSnapshot, match=r"of 'news' in .*down, got none"):
        find_snapshot(storage, "news", None)


def test_the_newest_snapshot_of_a_model_is_found_or_a_named_one(storage: SnapshotStorage) -> None:
    first, second = put(storage), put(storage, at_ms=NOW_MS + 1)
    other = put(storage, "sport", NOW_MS + 2)
    assert [each.manifest for each in list_snapshots(storage)] == [first, second, other]
    assert find_snapshot(storage, "news", None) == second
    assert newest_begun_ms(storage, "news") == second.begun_ms
    assert newest_begun_ms(storage, "another") == 0
    assert find_snapshot(storage, "news", first.name) == first
    with pytest.raises(NoSnapshot, match=r"expected a snapshot \.\./escaped"):
        find_snapshot(storage, "news", "../escaped")


def test_a_damaged_newest_snapshot_is_an_error_and_no_older_one_replaces_it(
    storage: SnapshotStorage,
) -> None:
    put(storage)
    manifest = put(storage, at_ms=NOW_MS + 1)
    path = f"{storage._root}/{manifest.name}"
    storage._files.rm_file(f"{path}/rows-00001.parquet")
    storage._files.pipe_file(f"{path}/rows-00000.parquet", b"short")
    with pytest.raises(DamagedSnapshot) as refused:
        find_snapshot(storage, "news", None)
    size = manifest.files[0].size_bytes
    assert refused.value.problems == (
        f"rows-00000.parquet: expected {size} bytes, got 5",
        "rows-00001.parquet: missing",
    )
    assert checked(storage, manifest) == list(refused.value.problems)
    storage._files.pipe_file(f"{path}/manifest.json", b"{}")
    with pytest.raises(DamagedSnapshot, match=r"manifest\.json: cannot be read"):
        find_snapshot(storage, "news", None)


def test_a_manifest_in_the_folder_of_another_snapshot_is_refused(storage: SnapshotStorage) -> None:
    manifest = put(storage)
    other = put(storage, at_ms=NOW_MS + 1)
    storage._files.pipe_file(f"{storage._root}/{other.name}/manifest.json", encode(manifest))
    with pytest.raises(DamagedSnapshot, match=f"expected that of {other.name}"):
        find_snapshot(storage, "news", None)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"rows": 6}, "expected 6 rows, got 5"),
        ({"checksum": "f00"}, "expected rows with the checksum f00, got "),
        ({"sha256": "f00"}, "expected sha256 f00, got "),
    ],
)
def test_verify_compares_rows_with_the_manifest(
    storage: SnapshotStorage, told: dict[str, Any], problem: str
) -> None:
    [found] = checked(storage, put(storage, **told))
    assert found.startswith(f"rows-00001.parquet: {problem}")


def test_verify_finds_repeated_ids_and_ids_of_another_bucket(tmp_path: Path) -> None:
    storage = SnapshotStorage(str(tmp_path))
    rows = numbered_rows(0, 5, high=1)
    twice = joined([rows, rows], 2)
    schema = pq.ParquetFile(pa.BufferReader(pack(rows))).schema_arrow
    values = pa.FixedSizeListArray.from_arrays(
        pa.array(twice.values.reshape(-1)), type=schema.field("values").type
    )
    sink = pa.BufferOutputStream()
    columns = [pa.array(column) for column in twice[:5]]
    pq.write_table(pa.Table.from_arrays([*columns, values], schema=schema), sink)
    blob = sink.getvalue().to_pybytes()
    file = BucketFile(
        *(0, 7, "00ff", {}, 10, 0, 0, 0, 0, "rows-00000.parquet", len(blob)),
        *(hashlib.sha256(blob).hexdigest(), twice.checksum()),
    )
    manifest = manifest_of(files=[file, bucket_file(1)[0]])
    storage.begin(manifest.name)
    storage.write(manifest.name, file.file, blob)
    storage.write(manifest.name, "rows-00001.parquet", b"")
    storage.publish(manifest.name, encode(manifest))
    found = checked(storage, manifest)
    assert found[0] == "rows-00000.parquet: expected ids in ascending order, each once"
    assert "expected ids of bucket 0, got 10 others" in found[1]
    assert found[2].startswith("rows-00001.parquet: expected ")
    for trusting in (False, True):
        with pytest.raises(DamagedSnapshot, match="expected ids in ascending order, each once"):
            read_bucket(storage, manifest, file, trusting=trusting)


# ---------------------------------------------------------------- pruning


def seen(at_ms: int, model: str = "news", *problems: str) -> ListedSnapshot:
    manifest = manifest_of(model, at_ms)
    return ListedSnapshot(manifest.name, model, None if problems else manifest, problems)


def test_pruning_removes_snapshots_beyond_number_and_age_but_never_the_newest() -> None:
    days = [seen(NOW_MS - n * DAY_MS) for n in range(5, 0, -1)]

    def goes(listed: list[ListedSnapshot], keep: int | None, older_days: float | None) -> list[int]:
        older_ms = None if older_days is None else int(older_days * DAY_MS)
        gone = superfluous(listed, keep=keep, older_than_ms=older_ms, now_ms=NOW_MS)
        return [listed.index(each) for each in gone]

    assert goes(days, 2, None) == [0, 1, 2]
    assert goes(days, None, 3.5) == [0, 1]
    assert goes(days, None, 0) == [0, 1, 2, 3]
    assert goes(days, 2, 3.5) == [0, 1]
    assert goes(days, 4, 1.5) == [0]
    assert goes(days, 9, 0) == []
    damaged = [*days, seen(NOW_MS, "news", "manifest.json: cannot be read")]
    assert goes(damaged, 2, None) == [0, 1, 2]
    assert goes([damaged[-1], *days], 2, None) == [0, 1, 2, 3]
    assert goes([damaged[-1], *days], None, 0) == [1, 2, 3, 4]
    both = sorted([*days, *(seen(NOW_MS - n * DAY_MS, "sport") for n in range(3))])
    assert len(goes(both, 2, None)) == 3 + 1


def test_pruning_removes_the_listed_snapshots_and_old_leftovers_of_dead_writers(
    storage: SnapshotStorage,
) -> None:
    snapshots = [put(storage, at_ms=NOW_MS + n) for n in range(3)]
    leftover = name_of("news", NOW_MS + 9, "dead")
    storage.begin(leftover)
    storage.write(leftover, "rows-00000.parquet", b"half of it")
    now_ms = next(int(each.changed_ms or 0) for each in storage.half_written())
    young = prunable(storage, keep=1, older_than_ms=None, now_ms=now_ms + 23 * HOUR_MS)
    assert young.leftovers == []
    old = prunable(storage, keep=1, older_than_ms=None, now_ms=now_ms + 25 * HOUR_MS)
    assert [each.name for each in old.snapshots] == [each.name for each in snapshots[:2]]
    assert len(old.leftovers) == 1
    prune(storage, old)
    assert [each.manifest for each in list_snapshots(storage)] == snapshots[2:]
    assert storage.half_written() == []
    assert checked(storage, snapshots[2]) == []


def test_a_killed_removal_of_a_snapshot_leaves_only_leftovers_to_prune(
    storage: SnapshotStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = put(storage)
    with monkeypatch.context() as killed:
        killed.setattr(storage, "_remove_folder", lambda path: None)
        storage.remove(manifest.name)
    assert list_snapshots(storage) == []
    [leftover] = storage.half_written()
    storage.clear(leftover)
    assert storage.half_written() == []


def test_pruning_leaves_folders_and_files_of_other_programs_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / ".partial-mine").mkdir()
    (tmp_path / "notes.txt").write_text("not a snapshot")
    storage = SnapshotStorage(str(tmp_path))
    put(storage)
    goes = prunable(storage, keep=1, older_than_ms=None, now_ms=NOW_MS * 2)
    assert (goes.snapshots, goes.leftovers) == ([], [])
    assert len(list_snapshots(storage)) == 1


# ---------------------------------------------------------------- refusals


def test_an_unknown_or_read_only_snapshot_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"opening gopher://x.*gopher"):
        SnapshotStorage("gopher://x")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageFailed, match=r"making .*file"):
        SnapshotStorage(str(file / "below")).begin(name_of("news", NOW_MS, "0a1b"))


def test_a_missing_package_for_s3_snapshots_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def without(*_: Any, **__: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", without)
    with pytest.raises(StorageFailed, match=r"Install s3fs.*pip install 'headrace\[s3\]'"):
        SnapshotStorage("s3://bucket/path")
