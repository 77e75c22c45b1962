"""A server that reads a relay's topic has the rows of the logs, also after failed writes."""

import pytest

from headrace.ingest.errors import KafkaUnreachable, MissingTopic, OffsetGone, TransactionAborted
from headrace.ingest.kafka.fakes import ListReader, ListTransactions
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Folded, Replica, Stale
from headrace.serving.relaying.relay_loop import RelayLoop, RelayPolicy
from headrace.serving.relaying.relay_topic import relay_source, relay_topic_spec
from headrace.serving.relaying.relayed_rows import RelayedRows
from tests.pserver.laws.new_stores import BUCKETS, SHAPE, new_store
from tests.pserver.rows.entries import Pusher

POLICY = RelayPolicy(interval_ms=100, base_interval_ms=1_000_000)
SOURCE = relay_source(SHAPE.model)


class Relayed:
    """A store with pushes, a relay into a list, and a server's rows that read the list."""

    def __init__(self, policy: RelayPolicy = POLICY) -> None:
        self.store: MemoryStore = new_store()
        self.pushers = [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
        self.transactions, self.now_ms, self.policy = ListTransactions(), 0, policy
        self.topic = ListReader({SOURCE: []})
        self.rows = RelayedRows(SHAPE, lambda: self.topic)
        self.restart()

    def restart(self) -> None:
        """Let another relay go on."""
        self.relay = RelayLoop(
            self.store, SHAPE, self.transactions, self.policy, lambda: self.now_ms
        )

    def push(self, times: int = 1) -> None:
        """Push to every bucket."""
        for _ in range(times):
            self.store.push([pusher.next() for pusher in self.pushers])

    def pass_time(self, ms: int = 100) -> None:
        """Let the relay follow and write."""
        for _ in range(3):
            self.relay.step()
        self.now_ms += ms
        self.relay.step()

    def read(self) -> list[object]:
        """Read everything written."""
        already = len(self.topic.records[SOURCE])
        for message in self.transactions.written[already:]:
            assert message.target == SOURCE
            self.topic.append(SOURCE, message.value)
        return [*self.rows.poll(64), *self.rows.poll(64)]

    def check(self) -> None:
        """Compare the rows with those of a replica of the logs."""
        direct = Replica(self.store, SHAPE)
        while not direct.complete:
            direct.poll()
        for bucket in range(BUCKETS):
            found = self.rows.checksum(bucket)
            assert found == direct.checksum(bucket)
            assert self.rows.position(bucket).version == direct.position(bucket).version


def test_nothing_is_written_before_the_interval_has_passed() -> None:
    world = Relayed()
    world.pass_time()
    written = len(world.transactions.written)
    world.push()
    world.relay.step()
    world.now_ms += 50
    assert not world.relay.step()
    assert len(world.transactions.written) == written
    assert world.relay.wait_s() == pytest.approx(0.05)
    world.now_ms += 50
    assert world.relay.step()


@pytest.mark.parametrize("error", [TransactionAborted("told"), KafkaUnreachable("told")])
def test_a_failed_write_is_followed_by_bases_that_mend_the_reader(error: Exception) -> None:
    world = Relayed()
    world.pass_time()
    world.read()
    world.push(2)
    world.transactions.failures.append(error)  # type: ignore[arg-type]
    world.pass_time()
    assert world.relay.failed_writes == 1
    world.push(2)
    world.pass_time()
    world.read()
    world.check()


def test_a_restarted_relay_continues_without_bases() -> None:
    world = Relayed()
    world.push()
    world.pass_time()
    world.read()
    world.push(2)
    world.restart()
    world.pass_time()
    assert {type(change) for change in world.read()} == {Folded}
    world.check()


def test_every_bucket_gets_a_new_base_in_turn() -> None:
    world = Relayed(RelayPolicy(interval_ms=100, base_interval_ms=200))
    world.pass_time()
    before = len(world.transactions.written)
    world.push()
    for _ in range(2 * BUCKETS):
        world.pass_time()
    late = RelayedRows(SHAPE, lambda: fresh)
    fresh = ListReader({SOURCE: []})
    for message in world.transactions.written[before:]:
        fresh.append(SOURCE, message.value)
    late.poll(64)
    late.poll(64)
    assert late.complete
    world.read()
    world.check()


def test_a_gap_leaves_the_rows_and_reports_the_bucket_until_a_base() -> None:
    world = Relayed()
    world.pass_time()
    world.read()
    world.push()
    world.pass_time()
    del world.transactions.written[-BUCKETS:]  # lost on the way
    world.push()
    world.pass_time()
    stale = [change for change in world.read() if isinstance(change, Stale)]
    assert {change.bucket for change in stale} == set(range(BUCKETS))
    assert "waiting for the next base" in str(stale[0].error)
    for bucket in range(BUCKETS):
        world.relay._relay.rebase(bucket)
    world.pass_time()
    assert not [change for change in world.read() if isinstance(change, Stale)][BUCKETS:]
    world.check()


def test_a_server_without_kafka_keeps_its_rows_and_reports_them_as_stale() -> None:
    world = Relayed()
    world.push()
    world.pass_time()
    world.read()

    def broken(_: float) -> list[object]:
        raise KafkaUnreachable("told")

    world.topic.poll = broken  # type: ignore[assignment, method-assign]
    assert {type(change) for change in world.rows.poll(64)} == {Stale}
    assert world.rows.complete


def test_a_server_waits_for_a_topic_that_does_not_exist_and_asks_once_a_second() -> None:
    world, tried, now_s = Relayed(), list[float](), [0.0]

    def missing() -> ListReader:
        tried.append(now_s[0])
        if now_s[0] < 2.0:
            raise MissingTopic("told")
        return world.topic

    rows = RelayedRows(SHAPE, missing, lambda: now_s[0])
    world.push()
    world.pass_time()
    world.read()
    for tenth in range(30):
        now_s[0] = tenth / 10
        stale = [change for change in rows.poll(64) if isinstance(change, Stale)]
        assert bool(stale) is (now_s[0] < 2.0)
    assert tried == [0.0, 1.0, 2.0]


def test_a_server_whose_blocks_were_deleted_begins_again_at_the_first_message() -> None:
    world = Relayed()
    world.push()
    world.pass_time()
    world.read()
    opened = []

    def gone(_: float) -> list[object]:
        raise OffsetGone("told")

    def reopen() -> ListReader:
        opened.append(1)
        return ListReader(world.topic.records)

    world.topic.poll = gone  # type: ignore[assignment, method-assign]
    world.rows._open_reader = reopen
    for _ in range(3):
        world.rows.poll(64)
    assert opened == [1]
    world.check()


def test_the_topic_is_kept_for_two_rounds_of_bases() -> None:
    spec = relay_topic_spec("news", 600_000)
    assert (spec.name, spec.partitions) == ("relay.news", 1)
    assert spec.preferred["retention.ms"] == "1200000"
