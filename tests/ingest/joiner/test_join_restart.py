"""Tests that a restarted joiner makes the same examples: exactly-once joining depends on it.

A seeded script feeds two joiners the same events. One is never stopped; the other is dropped at
times and restored from its checkpoint by reading again. Events come late, out of order and twice,
with few ids, so that everything collides. Sources fall idle and wall time passes.
"""

import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ingest.examples.batch import Examples
from headrace.ingest.joiner.core import join
from headrace.ingest.joiner.core import window_state as window
from headrace.ingest.joiner.core.checkpoint import JoinerCounters
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.joiner.core.join import PartitionJoiner
from headrace.ingest.joiner.core.rules import FOREVER
from headrace.ingest.kafka.protocols import Record
from tests.ingest.joiner.partition import (
    T0_MS,
    Partition,
    clicked,
    committed_checkpoint,
    records,
    shown,
    tick,
)

SIDES = (EventSide.IMPRESSIONS, EventSide.CLICKS)


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    # small rings grow, wrap and are marked often with a few dozen events
    monkeypatch.setattr(window, "_SMALLEST", 2)
    monkeypatch.setattr(window, "_SMALLEST_ARENA", 64)
    monkeypatch.setattr(join, "_MARK_ROWS", 2)


class _Script:
    """A history drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        dice = self.dice
        self.identities = [f"i{n}" for n in range(dice.choice((2, 5, 30)))]
        self.pace_ms = dice.choice((1, 8, 40))
        self.disorder_ms = dice.choice((0, 20, 90, 250))
        self.live = dice.random() < 0.5
        count = dice.choice((10, 60, 150))
        self.streams = [self._stream(side, count) for side in SIDES]

    def _stream(self, side: EventSide, count: int) -> list[Record]:
        dice = self.dice
        values, appends, now = [], [], 0
        for _ in range(count):
            now += dice.randrange(self.pace_ms * 2)
            at = now - dice.randrange(self.disorder_ms + 1) * (dice.random() < 0.3)
            identity = dice.choice(self.identities)
            kind = dice.random()
            if kind < 0.05:
                values.append(tick(at + dice.choice((0, 0, 150))))
            elif kind < 0.1:
                values.append(dice.choice((b"", b"{", b'{"timestamp_ms":1}')))
            elif side is EventSide.CLICKS:
                values.append(clicked(identity, at + dice.randrange(60)))
            else:
                tags = dice.sample(["a", "bb", "ccc"], dice.randrange(4))
                more = {"user": dice.choice("uv"), "tags": tags, "price": at, "device": tags[:1]}
                values.append(shown(identity, at, **more, request_id=dice.choice((None, "r", 7))))
            appends.append(T0_MS + now + dice.randrange(-5, 30) if self.live else T0_MS + 10**7)
        return records(side, values, appends)


class _Fed:
    """One of the two joiners, and how much of each stream was offered to it."""

    def __init__(self, policy: str, script: _Script) -> None:
        self.partition, self.script, self.policy = Partition(policy), script, policy
        self.offered = [0, 0]
        self.at_end = [False, False]

    @property
    def joiner(self) -> PartitionJoiner:
        return self.partition.joiner

    def offer(self, side: EventSide, count: int) -> None:
        begin = self.offered[side]
        self.offered[side] = min(len(self.script.streams[side]), begin + count)
        self.partition.offer(side, self.script.streams[side][begin : self.offered[side]])
        if self.offered[side] > begin:
            self.at_end[side] = False

    def end(self, side: EventSide) -> None:
        self.at_end[side] = True
        self.joiner.ended(side)

    def restart(self, dice: random.Random) -> None:
        checkpoint = committed_checkpoint(self.joiner)
        self.partition = Partition(self.policy)
        self.joiner.restore(checkpoint)
        left = {
            side: [
                record
                for record in self.script.streams[side][: self.offered[side]]
                if record.offset >= reading.rewind
            ]
            for side, reading in zip(SIDES, (checkpoint.shown, checkpoint.clicked), strict=True)
        }
        while any(left.values()):
            side = dice.choice([side for side in SIDES if left[side]])
            size = dice.randrange(1, 9)
            self.partition.offer(side, left[side][:size])
            left[side] = left[side][size:]
            if dice.random() < 0.3:
                assert self.joiner.checkpoint() == checkpoint or not self.joiner.restoring
                self.joiner.advance(0, limit=0)  # takes only events that are read again
        for side in SIDES:
            if self.at_end[side]:
                self.joiner.ended(side)
        self.joiner.advance(0, limit=0)


def _rows(examples: Examples) -> list[tuple[object, ...]]:
    features = examples.features
    bags = (features.bag_offsets.shape[0] - 1) // len(examples) if len(examples) else 0
    return [
        (
            *(int(examples.kinds[i]), int(examples.labels[i]), int(examples.event_ms[i])),
            *(int(examples.shown_ms[i]), int(examples.append_ms[i])),
            *(examples.impression_ids[i].as_py(), examples.request_ids[i].as_py()),
            *(examples.slices["device"][i].as_py(), features.ids[i].tolist()),
            features.numbers[i].tolist(),
            [
                features.bag_ids[features.bag_offsets[j] : features.bag_offsets[j + 1]].tolist()
                for j in range(i * bags, i * bags + bags)
            ],
        )
        for i in range(len(examples))
    ]


def _exact(counters: JoinerCounters) -> JoinerCounters:
    """The counters that a restart does not change: late and unmatched clicks as one."""
    lost = counters.late_clicks + counters.unmatched_clicks
    return msgspec.structs.replace(counters, late_clicks=lost, unmatched_clicks=0)


def _play(seed: int, policy: str) -> Iterator[tuple[_Fed, _Fed]]:
    script = _Script(seed)
    dice, now_ms = script.dice, 0
    steady, restarted = _Fed(policy, script), _Fed(policy, script)
    finishing = 0
    while finishing < 3:
        step = dice.random()
        side = dice.choice(SIDES)
        if step < 0.35:
            count = dice.randrange(1, 12)
            steady.offer(side, count)
            restarted.offer(side, count)
        elif step < 0.5:
            steady.end(side)
            restarted.end(side)
        elif step < 0.6:
            restarted.restart(dice)
            # the silence of a source is not restored: it begins anew in both
            for source in steady.joiner._sources + restarted.joiner._sources:
                source.base = None
            continue
        else:
            now_ms += dice.choice((0, 0, 3, 50, 500))
            limit = dice.choice((1, 2, 5, 1000))
            until_ms = dice.choice((FOREVER, FOREVER, T0_MS + dice.randrange(2000)))
            one = steady.joiner.advance(now_ms, limit, until_ms)
            other = restarted.joiner.advance(now_ms, limit, until_ms)
            assert _rows(other.examples) == _rows(one.examples)
            assert other.dead == one.dead
            assert other.taken == one.taken
        if all(steady.offered[side] == len(script.streams[side]) for side in SIDES):
            finishing += dice.random() < 0.1
        assert _exact(restarted.joiner.counters) == _exact(steady.joiner.counters)
        assert restarted.joiner.watermark_ms == steady.joiner.watermark_ms
        one_held, other_held = steady.joiner.held, restarted.joiner.held
        assert other_held.waiting_clicks == one_held.waiting_clicks
        if policy == "window":  # `immediate` evicts closed entries at the next event
            assert other_held.pending == one_held.pending
        yield steady, restarted


def test_a_click_that_a_closing_window_leaves_unmatched_counts_once_across_a_restart() -> None:
    """The watermark passes the click's limit, and the joiner is killed before another event."""
    waits, opens = [clicked("x", 0)], [shown("a", 100)]
    before, after = Partition("window"), Partition("window")
    for side, values in ((EventSide.IMPRESSIONS, opens), (EventSide.CLICKS, waits)):
        before.offer(side, records(side, values))
        before.joiner.ended(side)
    made = [before.advance(now_ms) for now_ms in (0, 1_000, 2_000)]
    assert made == [[], [], [("closed", "a", 0)]]
    assert before.joiner.counters.unmatched_clicks == 1

    after.joiner.restore(before.joiner.checkpoint())
    for side, values in (
        (EventSide.IMPRESSIONS, [*opens, shown("b", 160)]),
        (EventSide.CLICKS, waits),
    ):
        after.offer(side, records(side, values))
        after.joiner.ended(side)
    for now_ms in (2_000, 3_000):
        after.advance(now_ms)
    assert after.joiner.counters.impressions == 2
    assert after.joiner.counters.unmatched_clicks == 1


@pytest.mark.parametrize("policy", ["immediate", "window"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_restarted_joiner_makes_exactly_the_examples_of_one_never_stopped(
    policy: str, seed: int
) -> None:
    for _ in _play(seed, policy):
        pass


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["immediate", "window"])
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_restarted_joiner_makes_the_same_examples_for_very_many_histories(
    policy: str, seed: int
) -> None:
    for _ in _play(seed, policy):
        pass


@pytest.mark.parametrize("policy", ["immediate", "window"])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_every_event_is_counted_in_exactly_one_way(policy: str, seed: int) -> None:
    for steady, _ in _play(seed, policy):
        joiner, counters = steady.joiner, steady.joiner.counters
        taken = sum(steady.offered) - sum(joiner.queued(side) for side in SIDES)
        assert taken == (
            counters.impressions
            + counters.clicks
            + counters.duplicate_impressions
            + counters.dead_letters
            + counters.ticks
        )
        learned = counters.clicks - counters.late_clicks - counters.duplicate_clicks
        learned -= joiner.held.waiting_clicks + counters.unmatched_clicks
        assert learned >= 0
        if policy == "immediate":
            assert counters.examples == counters.impressions + learned
        else:
            assert counters.examples == counters.impressions - joiner.held.pending
