"""A table that one process updates and others read, while it grows, moves and is replaced."""

import errno
import multiprocessing
import os
import signal
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.pserver.errors import StoreError
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from headrace.serving.replicas.follower import Follower, Following
from headrace.serving.replicas.freshness import FreshnessSummary
from headrace.serving.replicas.replica_metrics import FreshnessMetrics
from headrace.serving.replicas.status import ReplicaStatus, TableRowSource
from headrace.serving.workers import shared_memory as memory_file
from headrace.serving.workers.follower_process import dead_threads
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.row_publisher import RowPublisher
from headrace.serving.workers.row_subscriber import SharedRows
from headrace.serving.workers.shared_memory import NoRoom, SharedFiles, shared_place
from tests.serving.served_models import (
    BUCKETS,
    NOW_MS,
    Fallible,
    Pusher,
    deltas_of_ids,
    eventually,
    memory_store,
    news,
)

WIDTH = news().width


class Kept(NamedTuple):
    """A follower's side, without its thread."""

    follower: Follower
    publisher: RowPublisher
    files: SharedFiles


def kept(folder: Path, store: Any) -> Kept:
    files = SharedFiles(folder, "news.rows")
    table = RowTable(WIDTH, files)
    publisher = RowPublisher(Mailbox(folder / "news.board"), files, table)
    arrived = FreshnessMetrics(CollectorRegistry()).of("news")
    replica = Replica(store, store.shape(), table)
    follower = Follower(replica, Following(), lambda: NOW_MS, arrived, publisher.publish)
    return Kept(follower, publisher, files)


def poll(side: Kept, until_version: int) -> None:
    def there() -> bool:
        side.follower.step()
        return side.follower.status.complete and side.follower.status.version >= until_version

    eventually(there)
    side.publisher.publish(side.follower)


def shared(folder: Path) -> SharedRows:
    return SharedRows(Mailbox(folder / "news.board"), folder, WIDTH, BUCKETS)


def table_of(rows: SharedRows | Follower) -> RowTable:
    reading = rows.reading()
    assert isinstance(reading, TableRowSource)
    return reading._table


def ids_of(seed: int, count: int) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(1, 2**63, count, np.uint64))


def same(one: RowTable, other: RowTable) -> bool:
    rows = other.take(other.find(one.ids))
    return len(one) == len(other) and one.everything().checksum() == rows.checksum()


def test_workers_switch_to_a_larger_table_and_the_memory_of_the_old_one_is_freed(
    tmp_path: Path,
) -> None:
    store = memory_store(news())
    pusher, side, worker = Pusher(store), kept(tmp_path, store), shared(tmp_path)
    assert not worker.status.complete and worker.status.buckets == BUCKETS
    pusher.push(deltas_of_ids(ids_of(1, 500), 1.0))
    poll(side, BUCKETS)
    assert worker.status == side.follower.status
    before = table_of(worker)
    assert same(before, table_of(side.follower))
    sum_before = before.columns.values[:500].sum()

    pusher.push(deltas_of_ids(ids_of(2, 5000), 1.0))
    poll(side, 2 * BUCKETS)
    now = table_of(worker)
    assert now is not before and len(now) > 5000
    assert same(now, table_of(side.follower))
    assert len(before) == len(ids_of(1, 500))  # for requests that began with it
    assert before.columns.values[:500].sum() == sum_before
    assert [each.name for each in tmp_path.glob("news.rows.*")] == [side.files.newest]


def test_workers_see_folded_rows_without_a_new_message(tmp_path: Path) -> None:
    store = memory_store(news())
    ids, pusher, side = ids_of(3, 100), Pusher(store), kept(tmp_path, store)
    pusher.push(deltas_of_ids(ids, 1.0))
    poll(side, BUCKETS)
    worker = table_of(shared(tmp_path))
    table_of(side.follower).add(deltas_of_ids(ids, 1.0))
    assert (worker.columns.values[: len(worker), 0] == 2.0).all()


def test_a_restarted_follower_leaves_the_old_rows_until_its_own_are_complete(
    tmp_path: Path,
) -> None:
    inner = memory_store(news())
    store, pusher = Fallible(inner), Pusher(inner)
    ids, worker = ids_of(4, 3000), shared(tmp_path)
    pusher.push(deltas_of_ids(ids, 1.0))
    poll(kept(tmp_path, store), BUCKETS)  # and it is gone
    before, status = table_of(worker), worker.status
    pusher.push(deltas_of_ids(ids, 1.0))

    side = kept(tmp_path, store)
    assert side.publisher.complete
    store.away = {2}
    side.follower.step()
    side.publisher.publish(side.follower)
    assert not side.follower.status.complete
    assert worker.status == status and table_of(worker) is before
    side.follower.status = replace(side.follower.status, trouble="bucket 2 is empty")
    side.publisher.publish(side.follower)
    assert worker.status == replace(status, trouble="bucket 2 is empty")
    assert worker.status.state(NOW_MS) == "trouble" and worker.failure is None
    store.away = set()
    poll(side, 2 * BUCKETS)
    assert table_of(worker) is not before
    assert same(table_of(worker), table_of(side.follower))
    assert (worker.status.trouble, worker.status.version) == ("", 2 * BUCKETS)
    assert [each.name for each in tmp_path.glob("news.rows.*")] == [side.files.newest]


def test_the_follower_process_notices_a_thread_that_dies() -> None:
    def die() -> None:
        raise ZeroDivisionError("one over zero")

    with dead_threads() as died:
        thread = threading.Thread(target=die)
        thread.start()
        thread.join(60)
        assert [str(each) for each in died] == ["one over zero"]


def test_a_long_error_of_a_model_fits_its_mailbox_in_any_language(tmp_path: Path) -> None:
    side, worker = kept(tmp_path, memory_store(news())), shared(tmp_path)
    side.follower.failure = StoreError("\N{RACING CAR}" * 9_000)
    side.follower.status = replace(side.follower.status, trouble="\N{RACING CAR}" * 9_000)
    side.publisher.publish(side.follower)
    assert str(worker.failure) == worker.status.trouble == "\N{RACING CAR}" * 800
    assert worker.freshness() == FreshnessSummary(None, None, 0)


def test_a_table_beyond_the_shared_memory_is_refused_and_the_rows_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory_store(news())
    pusher, side, worker = Pusher(store), kept(tmp_path, store), shared(tmp_path)
    pusher.push(deltas_of_ids(ids_of(5, 100), 1.0))
    poll(side, BUCKETS)
    with monkeypatch.context() as patched:
        patched.setattr(memory_file, "_take", _no_space)
        pusher.push(deltas_of_ids(ids_of(6, 5000), 1.0))
        with pytest.raises(NoRoom, match=r"--workers.*expected room for 0 MiB.*make it larger"):
            poll(side, 2 * BUCKETS)
        assert len(table_of(worker)) == len(ids_of(5, 100))
    poll(side, 2 * BUCKETS)
    assert same(table_of(worker), table_of(side.follower))
    assert len(table_of(worker)) > 5000


def _no_space(file: int, size: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_all_memory_of_a_shared_file_is_taken_when_it_is_made(tmp_path: Path) -> None:
    size = 8 << 20
    memory = SharedFiles(tmp_path, "news.rows")(size)
    [made] = tmp_path.iterdir()
    assert made.stat().st_size == size
    assert 512 * made.stat().st_blocks >= size
    assert not memory.any()


def test_a_file_larger_than_the_shared_memory_is_refused_and_removed() -> None:
    place = shared_place()
    about = os.statvfs(place)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        with pytest.raises(NoRoom, match=r"expected room for \d+ MiB of rows in .*--shm-size"):
            SharedFiles(Path(folder), "news.rows")(2 * about.f_blocks * about.f_frsize)
        assert not list(Path(folder).iterdir())


def _read(folder: Path, channel: Connection) -> None:
    worker = shared(folder)
    assert isinstance(worker.status, ReplicaStatus)
    table = table_of(worker)
    places = table.find(np.sort(table.ids))
    channel.send((worker.status, table.take(places).values))
    channel.recv()
    table.add(deltas_of_ids(table.ids[:1], 1.0))


def test_another_process_reads_shared_rows_and_is_killed_if_it_writes(tmp_path: Path) -> None:
    store = memory_store(news())
    side = kept(tmp_path, store)
    Pusher(store).push(deltas_of_ids(ids_of(7, 2000), 1.5))
    poll(side, BUCKETS)
    mine = table_of(side.follower)
    ours, theirs = multiprocessing.Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=_read, args=(tmp_path, theirs))
    reader.start()
    theirs.close()
    with closing(ours):
        status, values = ours.recv()
        assert status == side.follower.status
        assert np.array_equal(values, mine.take(mine.find(np.sort(mine.ids))).values)
        ours.send(None)
        reader.join(60)
    assert reader.exitcode in (-signal.SIGSEGV, -signal.SIGBUS)
    assert (mine.everything().shows == 1).all()
