"""The follower: requests read while it folds, and errors never stop a complete replica."""

import threading

import pytest

from headrace.pserver.errors import MissingBucket
from headrace.pserver.replica.replica import Replica
from headrace.serving.replicas.follower import Follower, Following
from tests.serving.served_models import (
    NOW_MS,
    Clock,
    Fallible,
    Pusher,
    deltas_of_article,
    eventually,
    follow,
    memory_store,
    news,
)


def follower_of(
    store: Fallible, arrived: list[int] | None = None, clock: Clock | None = None
) -> Follower:
    noted = [] if arrived is None else arrived
    replica = Replica(store, store.shape())  # type: ignore[arg-type]
    return Follower(replica, Following(poll_interval_ms=1), clock or Clock(), noted.extend)


def test_the_follower_thread_folds_pushes_until_it_is_stopped() -> None:
    store = Fallible(memory_store(news()))
    pusher = Pusher(store)  # type: ignore[arg-type]
    follower = follower_of(store)
    follower.start()
    eventually(lambda: follower.status.complete)
    pusher.push(deltas_of_article(news(), 1, -1.0))
    eventually(lambda: follower.status.rows == 1)
    follower.stop()
    assert not [each for each in threading.enumerate() if each.name == "follower"]
    pusher.push(deltas_of_article(news(), 2, -1.0))
    assert follower.status.rows == 1


def test_clicks_appended_before_the_first_copy_ended_give_no_freshness_samples() -> None:
    store = Fallible(memory_store(news()))
    pusher = Pusher(store)  # type: ignore[arg-type]
    deltas = deltas_of_article(news(), 1, -1.0)
    pusher.push(deltas, clicks=[NOW_MS - 3_600_000])
    store.away = {0}
    arrived: list[int] = []
    clock = Clock()
    follower = follower_of(store, arrived, clock)
    for _ in range(3):
        follower.step()
    pusher.push(deltas, clicks=[NOW_MS - 60_000])  # three buckets follow, one is not there
    for _ in range(3):
        follower.step()
    store.away = set()
    clock.ms += 37_000  # the copy takes this long
    follow(follower)
    pusher.push(deltas, clicks=[NOW_MS + 5_000])  # appended meanwhile
    follower.step()
    assert arrived == []
    clock.ms += 100
    pusher.push(deltas, clicks=[clock.ms - 70])
    follower.step()
    assert arrived == [70]
    assert follower.freshness().count == 1


@pytest.mark.parametrize("copied", [False, True], ids=["before the first copy", "after it"])
def test_a_store_error_is_reported_until_it_is_fixed_and_stops_answers_only_before_the_first_copy(
    copied: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.serving.replicas.follower._RETRY_S", 0.002)
    store = Fallible(memory_store(news()))
    store.failure = None if copied else MissingBucket("bucket 1 of news is empty")
    follower = follower_of(store)
    follower.start()
    try:
        eventually(lambda: follower.status.complete is copied)
        store.failure = MissingBucket("bucket 1 of news is empty")
        eventually(lambda: follower.status.trouble)
        assert "bucket 1" in follower.status.trouble
        assert follower.status.complete is copied
        assert str(follower.failure or "") == ("" if copied else follower.status.trouble)
        store.failure = None
        eventually(lambda: follower.status.complete and not follower.status.trouble)
        eventually(lambda: follower.failure is None)
    finally:
        follower.stop()
    told = [each for each in caplog.records if "bucket 1" in each.getMessage()]
    assert len(told) == 1


def test_the_follower_leaves_processor_time_to_requests() -> None:
    follower = follower_of(Fallible(memory_store(news())))
    follow(follower)
    assert follower._rest_s(0.0) == pytest.approx(0.001)
    assert follower._rest_s(0.3) == pytest.approx(0.3)
