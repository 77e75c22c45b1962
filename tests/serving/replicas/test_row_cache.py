"""The row cache: it answers like a full replica, or counts the rows that it lacked."""

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from headrace.learner.models.factory import open_model
from headrace.pserver.errors import Unreachable
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import DELETING_FORMAT, Deletions, EntryHeader, pack
from headrace.pserver.store import Delete, LookResult
from headrace.serving.models.predictor import Predictor
from headrace.serving.replicas.caching_follower import CacheBounds, CachingFollower
from headrace.serving.replicas.follower import Following
from headrace.serving.replicas.row_cache import LEAST_ROWS, RowCache
from headrace.serving.replicas.status import TableRowSource
from headrace.serving.requests.candidates import Candidates
from tests.effort import seeds
from tests.serving.served_models import (
    NOW_MS,
    Clock,
    Fallible,
    Pusher,
    deltas_of_ids,
    eventually,
    memory_store,
    news,
)
from tests.serving.server_in_thread import SETTINGS, ready, running

GENEROUS = CacheBounds(LEAST_ROWS, miss_deadline_ms=20_000)
NONE = np.zeros(0, np.uint64)


class Looking(Fallible):
    """A store whose rows may be missing or late. It counts the lookups."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.looks = 0
        self.cached = threading.Event()
        self.cached.set()

    def swap(self, store: Any) -> None:
        self._store = store

    def look(
        self, wanted: Mapping[int, Any], after: Mapping[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        self.looks += 1
        assert self.cached.wait(60)
        return [
            Unreachable(f"bucket {bucket}") if bucket in self.away else answer
            for bucket, answer in zip(wanted, self._store.look(wanted, after, limit), strict=True)
        ]


class Counts(dict[str, int]):
    def __call__(self, outcome: str, rows: int) -> None:
        self[outcome] = self.get(outcome, 0) + rows


def bounded_of(store: Any, bounds: CacheBounds = GENEROUS) -> tuple[CachingFollower, Counts]:
    counts, spec = Counts(), news()
    asked = open_model(spec, store.shape().buckets).required_rows
    following = Following(poll_interval_ms=1)
    made = CachingFollower(
        store, store.shape(), asked, bounds, following, Clock(), lambda _: None, counts
    )
    return made, counts


def asked_of(dice: np.random.Generator, count: int = 20) -> Candidates:
    own = [
        {"article_id": int(dice.integers(60)), "topics": [f"t{dice.integers(9)}"], "price": 2.0}
        for _ in range(count)
    ]
    return Candidates({"user_id": int(dice.integers(90)), "slate_size": 3}, own, NOW_MS)


def full_scores(store: Any, asked: Candidates) -> list[float]:
    replica = Replica(store, store.shape())
    while not replica.complete or any(replica.poll()):
        replica.poll()
    scores: list[float] = predictor().predict(TableRowSource(replica.table), asked, NOW_MS).tolist()
    return scores


def predictor() -> Predictor:
    return Predictor(news().fields, open_model(news()))


def push_about(pusher: Pusher, bounded: CachingFollower, dice: np.random.Generator) -> None:
    """Gains for most of the rows that a request would read, including statistics."""
    features = asked_of(dice).encode(predictor()._encoder, NOW_MS)
    asked, times = bounded._required, np.full(20, NOW_MS, np.int64)
    for ids in (
        asked.always,
        asked.of_features(features),
        asked.of_statistics(bounded.table, features, times),
    ):
        deltas = deltas_of_ids(ids[dice.random(ids.shape[0]) < 0.8], -0.3)
        deltas.values[:, 0] = dice.normal(size=deltas.ids.shape[0])
        pusher.push(deltas)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_row_cache_with_enough_time_scores_like_a_full_replica(seed: int) -> None:
    dice, store = np.random.default_rng(seed), memory_store(news())
    bounded, counts = bounded_of(store)
    pusher, scorer = Pusher(store), predictor()
    bounded.start()
    try:
        eventually(lambda: bounded.status.complete)
        for _ in range(8):
            for _ in range(3):
                push_about(pusher, bounded, dice)
            version = store_version(store)
            eventually(partial(followed_to, bounded, version))
            asked, reading = asked_of(dice), bounded.reading()
            found = scorer.predict(reading, asked, NOW_MS).tolist()
            assert reading.defaulted == 0
            assert found == full_scores(store, asked), f"seed {seed}"
    finally:
        bounded.stop()
    assert counts["hit"] > 0 and counts["fetched"] > 0 and not counts["defaulted"]


def followed_to(bounded: CachingFollower, version: int) -> bool:
    return bounded.status.version == version


def store_version(store: Any) -> int:
    buckets = range(store.shape().buckets)
    return sum(polled.version for polled in store.poll(dict.fromkeys(buckets, 0), 1))


def test_rows_of_an_unreachable_shard_are_scored_with_initial_values_and_counted() -> None:
    store = Looking(memory_store(news()))
    pusher = Pusher(store)  # type: ignore[arg-type]
    settings = replace(SETTINGS, bounds=GENEROUS)
    body = {"candidates": [{"article_id": each} for each in range(12)]}
    with (
        running(store, settings) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        eventually(lambda: ready(server.url))

        def answered(**more: object) -> Any:
            answer = client.post("/v1/models/news:predict", json={**body, **more})
            assert answer.status_code == 200
            return answer.json()

        assert "defaulted_rows" not in answered()
        pusher.push(deltas_of_ids(np.arange(5, dtype=np.uint64), -1.0))
        store.away = {0, 1}
        eventually(lambda: answered()["state"] == "unreachable")
        known = answered()  # cached rows still answer
        assert "defaulted_rows" not in known
        unknown = answered(context={"user_id": "unknown"})
        assert unknown["defaulted_rows"] > 0
        text = client.get("/metrics").text
        store.away = set()
        eventually(lambda: "defaulted_rows" not in answered(context={"user_id": "unknown"}))
    counts = [each for each in text.splitlines() if each.startswith("headrace_server_rows_read")]
    defaulted = [each for each in counts if 'outcome="defaulted"' in each and "_total" in each]
    assert defaulted and float(defaulted[0].split()[-1]) == unknown["defaulted_rows"]


def test_a_request_waits_until_the_deadline_and_late_rows_serve_the_next_request() -> None:
    store = Looking(memory_store(news()))
    bounded, counts = bounded_of(store, CacheBounds(LEAST_ROWS, miss_deadline_ms=1))
    scorer, asked = predictor(), asked_of(np.random.default_rng(0))
    bounded.start()
    try:
        eventually(lambda: bounded.status.complete)
        store.cached.clear()
        reading = bounded.reading()
        scorer.predict(reading, asked, NOW_MS)  # comes back, though no row does
        assert reading.defaulted > 20
        assert counts["defaulted"] == reading.defaulted
        store.cached.set()

        def known() -> bool:
            again = bounded.reading()
            scorer.predict(again, asked, NOW_MS)
            return again.defaulted == 0

        eventually(known)
        looks = store.looks
        assert known() and store.looks == looks
    finally:
        store.cached.set()
        bounded.stop()


def test_a_request_that_queued_past_its_deadline_does_not_wait_for_rows() -> None:
    bounded, counts = bounded_of(Looking(memory_store(news())), CacheBounds(LEAST_ROWS, 60_000))
    scorer, asked = predictor(), asked_of(np.random.default_rng(0))
    bounded.start()
    try:
        eventually(lambda: bounded.status.complete)
        late = bounded.reading(time.monotonic() - 60.0)
        scorer.predict(late, asked, NOW_MS)
        assert late.defaulted == counts["defaulted"] > 20
        scorer.predict(again := bounded.reading(), asked, NOW_MS)  # waits a minute if it has to
        assert again.defaulted == 0
    finally:
        bounded.stop()


def hot(store: Any, always: Any = NONE, most_rows: int = LEAST_ROWS) -> RowCache:
    made = RowCache(store, store.shape(), always, most_rows)
    while not made.complete:
        made.poll(64)
    return made


def delete(store: MemoryStore, ids: Any) -> None:
    """Fold the due rows of one bucket, as a keeper does."""
    bucket = int(store.shape().bucket_of(ids)[0])
    store.claim(bucket, "keeper", 1_000)
    [head] = store.poll({bucket: 0}, 1_000)
    assert not isinstance(head, Unreachable)
    rows = Deletions(ids, np.full(ids.shape[0], NOW_MS // 1000 + 1, np.uint32))
    blob = pack(EntryHeader(0, ids.shape[0], 0, 0, [], DELETING_FORMAT), rows)
    entry = Delete(bucket, "keeper", 0, head.version, head.nonce, b"deleting", blob)
    assert store.delete([entry]) == [None]


def some_ids(first: int, count: int) -> Any:
    """Ids that spread over the buckets."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return (numbers << np.uint64(10)) | (numbers << np.uint64(62))


def test_eviction_from_the_row_cache_keeps_rows_that_were_read() -> None:
    always = some_ids(1_000_000, 3)
    rows = hot(memory_store(news()), always)
    first = some_ids(0, 400)
    rows.fetch(first)
    table, read = rows.cached
    read[table.find(first[:100])] = True
    for start in range(400, 4_000, 300):
        rows.fetch(some_ids(start, 300))
        assert len(rows.table) <= LEAST_ROWS + always.shape[0]
        table, read = rows.cached
        places = table.find(first[:100])
        assert (places >= 0).all()
        read[places] = True
    assert (rows.table.find(always) >= 0).all()
    assert (rows.table.find(first[100:]) < 0).all()
    assert rows.table.columns.ids.shape[0] < 1.1 * LEAST_ROWS  # never grown


def test_cached_rows_of_a_broken_history_are_evicted_once_the_new_one_is_read() -> None:
    store, ids = Looking(memory_store(news())), some_ids(1, 8)
    always = ids[:2]
    Pusher(store).push(deltas_of_ids(ids, -1.0))  # type: ignore[arg-type]
    rows = hot(store, always)
    rows.fetch(ids)
    other = memory_store(news())
    pusher = Pusher(other)
    pusher._nonces = itertools.count(1_000)
    for z in (-2.0, 3.0):
        pusher.push(deltas_of_ids(ids[::2], z))
    store.swap(other)
    before = rows.table
    while rows.table is before:
        rows.poll(64)
        assert rows.complete  # what is here is answered from meanwhile
    rows.poll(64)
    assert sorted(rows.table.ids.tolist()) == sorted(always.tolist())
    rows.fetch(ids)
    found = rows.table.take(rows.table.find(ids)).values[:, 0].tolist()
    assert found == [1.0, 0.0] * 4


def test_deletions_and_deltas_change_cached_rows_only() -> None:
    store = memory_store(news())
    pusher, rows = Pusher(store), hot(store)
    ids = some_ids(1, 8)
    rows.fetch(ids[:4])
    pusher.push(deltas_of_ids(ids, -1.0))
    rows.poll(64)
    assert len(rows.table) == 4
    assert rows.table.columns.shows[rows.table.find(ids[:4])].tolist() == [1] * 4
    gone = ids[:1]
    delete(store, gone)
    rows.poll(64)
    assert rows.table.columns.shows[rows.table.find(ids[:2])].tolist() == [0, 1]
    rows.fetch(ids)
    replica = Replica(store, store.shape())
    replica.poll()
    for name in ("shows", "clicks", "last_seen"):
        column = getattr(rows.table.columns, name)[rows.table.find(ids)]
        whole = replica.table.columns
        places = replica.table.find(ids)
        assert column.tolist() == np.where(places >= 0, getattr(whole, name)[places], 0).tolist()
