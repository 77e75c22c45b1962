"""A keeper process on a real cluster, while pushes go on."""

import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing

from headrace.deploy.local.services.ports import free_port
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.process import KeeperSettings, run_keeper
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import BucketAnswer, PollResult, Push, Shape, Store
from tests.pserver.rows.entries import WIDTH, Pusher
from tests.pserver.rows.truth import rows_of, truth

BUCKETS = 8
DEADLINE_S = 60


def test_three_keeper_processes_keep_logs_short_and_lose_nothing(
    valkey: str, fresh_name: Callable[[str], str]
) -> None:
    shape = Shape(fresh_name("keeping"), BUCKETS, WIDTH, "fingerprint", "spec")
    store = open_store(valkey, shape.model, StoreSettings(sub_hashes=4))
    store.create(shape)
    stop = threading.Event()
    port = free_port()
    threads, stores = [], []
    for index in range(3):
        settings = KeeperSettings(
            name=f"keeper-{index}",
            idle_s=0.001,
            keeping=FoldPolicy(keep_ms=20, rows_a_fold=5, lease_ms=2000),
            metrics_address=("127.0.0.1", 0 if index else port),
        )
        stores.append(open_store(valkey, shape.model))
        arguments = (settings, stores[-1], stop)
        threads.append(threading.Thread(target=run_keeper, args=arguments))
    pushers = [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
    follower = Replica(store, shape)
    with closing(store):
        try:
            for thread in threads:
                thread.start()
            pushed: list[list[Push]] = [[] for _ in range(BUCKETS)]
            deadline = time.monotonic() + DEADLINE_S
            while not trimmed_everywhere(store) or len(pushed[0]) < 100:
                assert time.monotonic() < deadline
                pushes = [pusher.next() for pusher in pushers]
                assert all(isinstance(answer, BucketAnswer) for answer in store.push(pushes))
                for push in pushes:
                    pushed[push.bucket].append(push)
                follower.poll()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                text = page.read().decode()
            assert f'headrace_keeper_folded_rows_total{{model="{shape.model}"}}' in text
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for own in stores:
                own.close()
        follower.poll()
        fresh = Replica(store, shape)
        fresh.poll()
        for bucket in range(BUCKETS):
            assert rows_of(fresh, bucket) == truth(pushed[bucket])
            assert fresh.checksum(bucket) == follower.checksum(bucket)
            assert store.claim(bucket, "another", 1000), "the leases were not given back"


def trimmed_everywhere(store: Store) -> bool:
    answers = store.poll(dict.fromkeys(range(BUCKETS), 0), 1)
    return all(isinstance(answer, PollResult) and answer.trimmed > 50 for answer in answers)
