"""A reader of a relay has, at every position, the rows of a replica that follows the logs."""

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.pserver.errors import CorruptEntry, StoreError
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.relay.log_relay import LogRelay
from headrace.pserver.relay.relay_block import RelayPosition, block_header, block_rows
from headrace.pserver.relay.relay_section import RelayedColumns
from headrace.pserver.relay.relayed_replica import Gap, Relayed, RelayedReplica
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Shape
from tests.effort import examples
from tests.pserver.laws.new_stores import BUCKETS, SHAPE, new_store
from tests.pserver.replica.followed_logs import ChangingStore
from tests.pserver.rows.entries import WIDTH, Pusher

ALL = RelayedColumns.all(WIDTH)


class Relaying(ChangingStore):
    """Relays that die, and a reader that is checked each time."""

    expiry = Expiry(after_s=30, interval_ms=100)

    def __init__(self) -> None:
        super().__init__()
        self.direct = Replica(self.store, SHAPE)
        self.expected: dict[tuple[int, int, bytes], str] = {}
        self.topic: list[tuple[int, bytes]] = []
        self.reader, self.read = RelayedReplica(SHAPE), 0
        self.relay = LogRelay(self.store, Replica(self.store, SHAPE), ALL, rows_a_block=4)
        self.changed()

    def changed(self) -> None:
        """Note the rows that a replica of the logs has at the present head."""
        for _ in range(3):  # after a failover, the first ones only notice it
            self.direct.poll()
        for bucket in range(BUCKETS):
            if self.direct.copied(bucket):
                at = self.direct.position(bucket)
                self.expected[bucket, at.version, at.nonce] = self.direct.checksum(bucket)

    @rule()
    def step(self) -> None:
        self.relay.step()

    @rule(lost=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def write(self, lost: int) -> None:
        blocks = list(self.relay.blocks())
        self.topic += blocks[: len(blocks) - lost]
        if lost:  # the relay died before it wrote them all
            self.new_relay()

    @rule()
    def new_relay(self) -> None:
        last: dict[int, RelayPosition] = {}
        for bucket, blob in self.topic:
            header = block_header(blob)
            if header.last:
                last[bucket] = header.stop
            else:
                last.pop(bucket, None)  # a base that has not ended
        self.relay = LogRelay(self.store, Replica(self.store, SHAPE), ALL, rows_a_block=4)
        self.relay.resume(last)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        for _, blob in self.topic[self.read : self.read + count]:
            taken = self.reader.take(blob)
            assert not isinstance(taken, Gap)
            if isinstance(taken, Relayed):
                at = self.reader.position(taken.bucket)
                assert at.version == taken.header.stop.version
                expected = self.expected.get((taken.bucket, at.version, at.nonce))
                assert expected in (None, self.reader.checksum(taken.bucket))
        self.read = min(self.read + count, len(self.topic))

    @rule()
    def new_reader(self) -> None:
        self.reader, self.read = RelayedReplica(SHAPE), 0

    def teardown(self) -> None:
        for _ in range(4):
            self.relay.step()
        self.topic += self.relay.blocks()
        self.take(len(self.topic))
        for _ in range(4):
            self.direct.poll()
        assert self.reader.complete
        for bucket in range(BUCKETS):
            assert self.reader.checksum(bucket) == self.direct.checksum(bucket)
            assert self.reader.position(bucket).version == self.direct.position(bucket).version


TestRelaying = Relaying.TestCase
TestRelaying.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def relayed(
    pushes: int, columns: RelayedColumns = ALL
) -> tuple[list[list[tuple[int, bytes]]], Replica]:
    """The blocks of a base and of an interval with so many pushes; a replica of the logs."""
    store, pusher = new_store(), Pusher(0, BUCKETS)
    relay = LogRelay(store, Replica(store, SHAPE), columns)
    written = []
    for count in (1, pushes):
        for _ in range(count):
            store.push([pusher.next()])
        relay.step()
        written.append(list(relay.blocks()))
    direct = Replica(store, SHAPE)
    direct.poll()
    return written, direct


def test_a_row_that_many_entries_of_an_interval_change_is_relayed_once() -> None:
    [_, interval], direct = relayed(40)
    [(bucket, blob)] = interval
    header = block_header(blob)
    rows = block_rows(blob, header)
    assert (bucket, header.start is None) == (0, False)
    assert rows.ids.tolist() == sorted(set(rows.ids.tolist()))
    assert len(rows.ids) <= len(direct.table)
    [reached] = header.reached
    assert (header.stop.version, reached.stop) == (41, direct.position(0).reached["topic/0"].stop)


def test_half_precision_keeps_the_counters_and_rounds_the_kept_floats_only_once() -> None:
    written, direct = relayed(20, RelayedColumns((1,), half=True))
    reader = RelayedReplica(SHAPE)
    for _, blob in [*written[0], *written[1]]:
        reader.take(blob)
    ids = np.sort(direct.table.ids)
    near, exact = (each.table.take(each.table.find(ids)) for each in (reader, direct))
    for name in ("shows", "clicks", "first_seen", "last_seen"):
        assert getattr(near, name).tolist() == getattr(exact, name).tolist()
    assert not near.values[:, 0].any()
    assert (near.values[:, 1] == exact.values[:, 1].astype(np.float16)).all()


def test_a_lost_block_is_a_gap_that_changes_nothing_until_the_next_base() -> None:
    store, pusher, reader = new_store(), Pusher(0, BUCKETS), RelayedReplica(SHAPE)
    relay = LogRelay(store, Replica(store, SHAPE), ALL)
    found = []
    for lost in (False, True, False):
        store.push([pusher.next()])
        relay.step()
        found += [reader.take(blob) for _, blob in relay.blocks() if not lost]
    assert isinstance(found[-1], Gap)
    assert reader.position(0).version == 1
    relay.rebase(0)
    [(_, base)] = relay.blocks()
    assert isinstance(reader.take(base), Relayed)
    assert reader.position(0).version == 3


def test_a_value_too_large_for_16_bits_makes_its_block_full_precision() -> None:
    from headrace.pserver.relay.relay_block import BlockHeader, pack_block

    one, many = np.ones(1, np.uint64), np.array([2**40], np.uint64)
    seen = np.ones(1, np.uint32)
    rows = FoldedRows(one, many, one, seen, seen, np.array([[1e6, 1.0]], np.float32))
    at = RelayPosition(1, b"12345678")
    header = BlockHeader("fingerprint", 0, WIDTH, 0, None, at, 0, 0, [], [])
    blob = pack_block(header, rows, RelayedColumns((0, 1), half=True))
    found = block_header(blob)
    back = block_rows(blob, found)
    assert (found.half, found.wide) == (False, True)
    assert (back.values.tolist(), back.shows.tolist()) == ([[1e6, 1.0]], [2**40])


def test_blocks_of_another_model_and_cut_blocks_are_refused() -> None:
    [[(_, base), *_], _], _ = relayed(1)
    with pytest.raises(CorruptEntry, match=r"relay block: expected .* bytes"):
        RelayedReplica(SHAPE).take(base[:-1])
    with pytest.raises(StoreError, match="expected fingerprint and width"):
        RelayedReplica(Shape("m", BUCKETS, WIDTH, "another", "spec")).take(base)


def test_rows_that_a_keeper_deletes_leave_the_reader() -> None:
    store, pusher, reader = new_store(), Pusher(0, BUCKETS), RelayedReplica(SHAPE)
    relay = LogRelay(store, Replica(store, SHAPE), ALL)
    for _ in range(20):
        store.push([pusher.next()])
    relay.step()
    for _, blob in relay.blocks():
        reader.take(blob)
    before = len(reader.table.take(reader.places(0)).existing().ids)
    _keep_all(store, expiry=Expiry(after_s=5, interval_ms=100))
    for _ in range(3):
        relay.step()
    [(_, block)] = relay.blocks()
    assert isinstance(reader.take(block), Relayed)
    direct = Replica(store, SHAPE)
    direct.poll()
    assert 0 < len(direct.table.everything().existing().ids) < before
    assert reader.checksum(0) == direct.checksum(0)


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_restarted_relay_continues_and_writes_a_base_only_after_a_gap(*, trimmed: bool) -> None:
    store, pusher, reader = new_store(), Pusher(0, BUCKETS), RelayedReplica(SHAPE)
    relay = LogRelay(store, Replica(store, SHAPE), ALL)
    store.push([pusher.next()])
    relay.step()
    last = {}
    for bucket, blob in relay.blocks():
        reader.take(blob)
        last[bucket] = block_header(blob).stop
    for _ in range(5):
        store.push([pusher.next()])
    if trimmed:
        _keep_all(store)
    again = LogRelay(store, Replica(store, SHAPE), ALL)
    again.resume(last)
    again.step()
    [(_, block)] = again.blocks()
    assert (block_header(block).start is None) is trimmed
    reader.take(block)
    direct = Replica(store, SHAPE)
    direct.poll()
    assert reader.position(0).version == 6
    assert reader.checksum(0) == direct.checksum(0)


def _keep_all(store: MemoryStore, expiry: Expiry | None = None) -> None:
    """Let a keeper delete rows, and fold and trim all entries but the last."""
    now_ms, dice = [0], random.Random(2)
    keeper = Keeper(
        store,
        SHAPE,
        name="k",
        keeping=FoldPolicy(keep_ms=1, keep_bytes=1, lease_ms=1000, expiry=expiry or Expiry()),
        now_ms=lambda: now_ms[0],
        draw_nonce=lambda: dice.randbytes(8),
    )
    for _ in range(50):
        now_ms[0] += 20
        keeper.step()
    keeper.release()
