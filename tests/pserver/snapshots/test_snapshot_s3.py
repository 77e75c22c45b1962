"""Snapshots in object storage: a local moto server speaks S3, and no cloud is used."""

import logging
import random
import threading
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.snapshots.catalog import find_snapshot, list_snapshots, prunable, prune
from headrace.pserver.snapshots.restoration import restore
from headrace.pserver.snapshots.snapshot_errors import StorageFailed
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import verify
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import WIDTH
from tests.pserver.snapshots.snapshot_world import (
    BUCKETS,
    HOUR_MS,
    NOW_MS,
    DyingShelf,
    History,
    Killed,
    rows_in,
    take,
    taken,
)

SHAPE = Shape("s3", BUCKETS, WIDTH, "fingerprint", "the spec")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a folder in a bucket of a server that ends with the module."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "nobody")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_CONFIG_FILE", "/dev/null")
        SnapshotStorage("s3://bucket/models")._files.mkdir("bucket")
        yield "s3://bucket/models"
    server.stop()


def new_store() -> MemoryStore:
    dice = random.Random(0)
    return MemoryStore(clock_ms=lambda: 0, nonces=lambda: dice.randbytes(8))


@pytest.fixture
def history() -> History:
    store = new_store()
    store.create(SHAPE)
    history = History(store, SHAPE)
    history.push_all(4)
    return history


def test_a_snapshot_in_object_storage_is_written_listed_verified_and_restored(
    s3: str, history: History
) -> None:
    storage = SnapshotStorage(f"{s3}/whole")
    assert list_snapshots(storage) == []
    manifest = taken(history.store, storage, parallel=2)
    history.push_all(2)
    [listed] = list_snapshots(SnapshotStorage(f"{s3}/whole/"))
    assert listed.manifest == manifest
    assert listed.complete
    assert verify(storage, manifest, stop=threading.Event(), tell=lambda _: None) == []
    target = new_store()
    restore(target, storage, manifest, SHAPE, stop=threading.Event(), tell=lambda _: None)
    assert rows_in(target, SHAPE) == history.truth_before(manifest)
    history.supply(target, SHAPE)
    assert rows_in(target, SHAPE) == history.truth()


def test_a_snapshot_writer_killed_at_any_object_leaves_only_objects_to_prune(
    s3: str, history: History
) -> None:
    url = f"{s3}/killed"
    storage = SnapshotStorage(url)
    before = taken(history.store, storage)
    for dies_at in (0, 1, 3, BUCKETS + 1):  # before and after the first object, at the manifest
        with pytest.raises(Killed):
            take(history.store, DyingShelf(url, dies_at), at_ms=NOW_MS + 1000 + dies_at)
        assert [each.manifest for each in list_snapshots(storage)] == [before]
        assert find_snapshot(storage, "s3", None) == before
    leftovers = storage.half_written()
    assert len(leftovers) == 2
    newest_ms = max(int(each.changed_ms or 0) for each in leftovers)
    young = prunable(storage, keep=1, older_than_ms=None, now_ms=newest_ms + HOUR_MS)
    assert young.leftovers == []
    prune(storage, prunable(storage, keep=1, older_than_ms=None, now_ms=newest_ms + 25 * HOUR_MS))
    assert storage.half_written() == []
    assert find_snapshot(storage, "s3", None) == before


def test_a_missing_storage_bucket_of_snapshots_is_named(s3: str, history: History) -> None:
    with pytest.raises(StorageFailed, match=r"writing nowhere/x/.*rows-0000\d\.parquet: "):
        take(history.store, SnapshotStorage("s3://nowhere/x"))
    assert list_snapshots(SnapshotStorage("s3://nowhere/x")) == []
