"""A fitted log of years ago expires by the time of its events, not by the clock of the keeper.

One line dated far ahead would be the present of its buckets, so it is refused.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.learner.batch.store_fit.run_store import rows_of
from headrace.learner.batch.trainer import FitSummary
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.process import KeeperSettings, run_keeper
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.snapshots.catalog import find_snapshot
from headrace.pserver.snapshots.restoration import restore
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push, Shape, Store
from tests.learner.batch.store_fits import run, trainer
from tests.learner.shop import BEGIN_MS, CROSS, shop_rows, shop_spec
from tests.pserver.rows.entries import SOURCE, blob_of

ROWS, AFTER_S, DEADLINE_S = 4000, 864, 60
YEAR_2205_MS = 7_415_712_000_000
SPEC = shop_spec(f"{CROSS}\n[expiry]\nafter_days = {AFTER_S / 86_400}\n")


def test_a_log_of_years_ago_expires_by_its_own_time(
    tmp_path: Path, valkey_node: str, fresh_name: Callable[[str], str]
) -> None:
    assert time.time() - BEGIN_MS / 1000 > 1000 * AFTER_S, "the log is old"
    storage, done = fitted(shop_log(), tmp_path, valkey_node)
    with restored(storage, done.snapshot, valkey_node, fresh_name("shop")) as (store, shape):
        before = last_seen(store, shape)
        stay = young(shape, before)
        assert len(before) / 4 < len(stay) < len(before) * 3 / 4
        with keeping(valkey_node, shape):
            wait_for(lambda: last_seen(store, shape), stay)
            # the first live event moves its bucket's present, and no other's
            row, now = min(stay), int(time.time())
            show(store, shape, row, now)
            bucket = bucket_of(shape, row)
            rest = {each: at for each, at in stay.items() if bucket_of(shape, each) != bucket}
            wait_for(lambda: last_seen(store, shape), {**rest, row: now})


def test_a_line_dated_far_ahead_expires_no_row(
    tmp_path: Path, valkey_node: str, fresh_name: Callable[[str], str]
) -> None:
    times = shop_log()["timestamp_ms"].to_pylist()
    typo = [*times[: ROWS // 2], YEAR_2205_MS, *times[ROWS // 2 + 1 :]]
    log = shop_log().set_column(4, "timestamp_ms", pa.array(typo))
    rest = pa.concat_tables([log.slice(0, ROWS // 2), log.slice(ROWS // 2 + 1)])
    _, expected = fitted(rest, tmp_path / "rest", valkey_node)
    model = InMemoryModel.load(tmp_path / "rest" / "models", expected.snapshot)
    rows = dict(zip(model.rows.ids.tolist(), model.rows.last_seen.tolist(), strict=True))
    storage, done = fitted(log, tmp_path, valkey_node)
    with restored(storage, done.snapshot, valkey_node, fresh_name("shop")) as (store, shape):
        stay = young(shape, rows)
        with keeping(valkey_node, shape):
            wait_for(lambda: last_seen(store, shape), stay)
    assert done.examples == ROWS - 1


def shop_log() -> pa.Table:
    """Return rows a second apart, in which each user comes for 100 s."""
    table = shop_rows(ROWS)
    users = pa.array([f"u{second // 100}" for second in range(ROWS)])
    return table.set_column(table.schema.get_field_index("user"), "user", users)


def fitted(log: pa.Table, folder: Path, url: str) -> tuple[SnapshotStorage, FitSummary]:
    """Fit a log into a parameter server; return the storage and the result."""
    folder.mkdir(exist_ok=True)
    path, to = folder / "log.parquet", folder / "models"
    pq.write_table(log, path)
    done = run(trainer(path, to, lambda name: open_store(url, name), spec=SPEC, rows_a_file=1500))
    assert done is not None
    return SnapshotStorage(str(to)), done


@contextmanager
def restored(
    storage: SnapshotStorage, name: str, url: str, model: str
) -> Iterator[tuple[Store, Shape]]:
    """Restore a snapshot under a new name."""
    manifest = find_snapshot(storage, "shop", name)
    shape = Shape(model, manifest.buckets, SPEC.width, SPEC.fingerprint, SPEC.text)
    with closing(open_store(url, shape.model)) as store:
        restore(store, storage, manifest, shape, stop=threading.Event(), tell=lambda _: None)
        yield store, shape


@contextmanager
def keeping(url: str, shape: Shape) -> Iterator[None]:
    """Run a keeper with the limits of the spec, and with the clock of this machine."""
    stop = threading.Event()
    expiry = dataclasses.replace(SPEC.expiry, interval_ms=100)
    settings = KeeperSettings("keeper", keeping=FoldPolicy(expiry=expiry))
    with closing(open_store(url, shape.model)) as store:
        thread = threading.Thread(target=run_keeper, args=(settings, store, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def last_seen(store: Store, shape: Shape) -> dict[int, int]:
    """Return the time of each existing row, as a new follower of the logs finds it."""
    rows = rows_of(store, shape)
    return dict(zip(rows.ids.tolist(), rows.last_seen.tolist(), strict=True))


def bucket_of(shape: Shape, row: int) -> int:
    return int(shape.bucket_of(np.array([row], np.uint64))[0])


def young(shape: Shape, times: dict[int, int]) -> dict[int, int]:
    """Return the rows seen less than `AFTER_S` before the newest event of their bucket."""
    newest: dict[int, int] = {}
    for row, at in times.items():
        bucket = bucket_of(shape, row)
        newest[bucket] = max(at, newest.get(bucket, 0))
    return {row: at for row, at in times.items() if at >= newest[bucket_of(shape, row)] - AFTER_S}


def show(store: Store, shape: Shape, row: int, second: int) -> None:
    """Show one row once, as a learner of a live stream does."""
    one, none = np.ones(1, np.uint32), np.zeros(1, np.uint32)
    at, values = np.full(1, second, np.uint32), np.ones((1, shape.width), np.float32)
    deltas = RowDeltas(np.array([row], np.uint64), one, none, at, at, values)
    span = OffsetSpan(SOURCE, 0, 1)
    push = Push(bucket_of(shape, row), (span,), b"liveshow", blob_of(deltas, 0, 1))
    [answer] = store.push([push])
    assert isinstance(answer, BucketAnswer)


def wait_for(found: Callable[[], dict[int, int]], expected: dict[int, int]) -> None:
    """Wait for these rows. Fewer rows are an error at once: expired rows do not return."""
    deadline = time.monotonic() + DEADLINE_S
    while (rows := found()) != expected:
        assert expected.keys() <= rows.keys(), "rows expired that are young in event time"
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
