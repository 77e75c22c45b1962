"""One learner learns the examples of all partitions in the order of event time, at any speed."""

import dataclasses
import json
import random
import re

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, unpack
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import ReaderEvent, Source
from headrace.ingest.kafka.reading.source_order import OrderPatience, SourceOrder
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.merging import ExampleBatch, MergedBatches, NextWindow
from headrace.learner.loop.pacing import LearnerPacing
from headrace.pserver.store import BucketAnswer
from tests.ingest.events_of import START_MS, TOPICS, Happened, fields_of, happen

MODEL = "test"
FOREVER = OrderPatience(order_wait_ms=10**9, backlog_wait_ms=10**9)
"""So that only data decide."""


class UnevenReader(ListReader):
    """A reader of brokers of different speeds: each poll delivers a few records of some sources."""

    def __init__(self, sources: list[Source], dice: random.Random) -> None:
        super().__init__({source: [] for source in sources}, largest_poll=7)
        self._dice = dice
        self._rates = {source: dice.choice([0.05, 0.3, 1.0]) for source in sources}

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        asleep = {s for s, rate in self._rates.items() if self._dice.random() > rate}
        asleep -= self.paused
        self.paused |= asleep
        events = super().poll(timeout_s)
        self.paused -= asleep
        return events


class Line:
    """A replay, a joiner and a learner's queue that all run at once; partitions of any speed."""

    def __init__(self, seed: int, partitions: int, policy: str) -> None:
        self.dice, self.now_ms = random.Random(seed), 0
        self.fields = fields_of(policy)
        sources = [
            Source(topic, p)
            for topic in (TOPICS.impressions, TOPICS.clicks)
            for p in range(partitions)
        ]
        self.events = UnevenReader(sources, self.dice)
        self.transactions, self._seen = ListTransactions(), 0
        self.joiner = Joiner(
            memory_ports(self.events, self.transactions, lambda: self.now_ms),
            MODEL,
            self.fields,
            TOPICS,
            JoinerPacing(patience=FOREVER),
        )
        self.examples = UnevenReader(
            [Source(f"examples.{MODEL}", p) for p in range(partitions)], self.dice
        )
        self.queue = ExampleQueue(
            *(self.examples, Cursors(), lambda record: unpack(record.value, self.fields)),
            label_delay_ms=self.fields.label.delay_ms,
            pace=LearnerPacing(patience=FOREVER),
            steady_ms=lambda: self.now_ms,
        )
        self.queue.poll(0.0)
        self.queue.begin([BucketAnswer(0, 1, b"", b"", {}, 0)])
        self.learned_ms: list[int] = []
        self._pending = self._dealt(happen(seed, 600, partitions), partitions)

    @staticmethod
    def _dealt(happened: Happened, partitions: int) -> list[tuple[int, str, int, bytes]]:
        # without requests, whose candidates are learned together whatever their times
        shown = [(at, p, re.sub(rb'"request_id": "r\d+", ', b"", v)) for at, p, v in happened.shown]
        events = [(at, TOPICS.impressions, p, value) for at, p, value in shown]
        events += [(at, TOPICS.clicks, p, value) for at, p, value in happened.clicked]
        events.sort(key=lambda event: event[0])
        both = TOPICS.impressions, TOPICS.clicks
        found: list[tuple[int, str, int, bytes]] = []
        for place, event in enumerate(events):
            found.append(event)
            if place % 20 == 19:
                tick = json.dumps({"timestamp_ms": event[0]}).encode()
                found += [(event[0], topic, p, tick) for topic in both for p in range(partitions)]
        return found

    def turn(self) -> None:
        """Some events arrive; the joiner and the learner take a step each."""
        self.now_ms += 1
        for _ in range(self.dice.randrange(30)):
            if self._pending:
                _, topic, partition, value = self._pending.pop(0)
                append_ms = START_MS + 10**9 + self.now_ms
                self.events.append(Source(topic, partition), value, append_ms)
        self.joiner.step(0.0)
        for message in self.transactions.written[self._seen :]:
            if message.target in self.examples.records:
                append_ms = START_MS + 10**9 + self.now_ms
                self.examples.append(message.target, message.value, append_ms)
        self._seen = len(self.transactions.written)
        self.queue.poll(0.0)
        while window := self.queue.next_window(512):
            self.learned_ms += MergedBatches(window).examples.event_ms.tolist()
            for batch in window:
                self.queue.skip_past(batch)

    def run(self, examples: int) -> None:
        for _ in range(30_000):
            self.turn()
            if len(self.learned_ms) == examples and not self._pending:
                return
        raise AssertionError(f"learned {len(self.learned_ms)} of {examples}")


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 2), (1, 8), (2, 12)])
def test_examples_are_learned_in_the_order_of_event_time(
    seed: int, partitions: int, policy: str
) -> None:
    happened = happen(seed, 600, partitions)
    line = Line(seed, partitions, policy)
    line.run(len(happened.examples if policy == "immediate" else happened.closed))
    backwards = np.flatnonzero(np.diff(line.learned_ms) < 0)
    assert not backwards.shape[0], (seed, [line.learned_ms[k : k + 2] for k in backwards[:5]])


def _batch(offset: int, event_ms: list[int], append_ms: int) -> ExampleBatch:
    times = np.array(event_ms, np.int64)
    examples = dataclasses.replace(Examples.empty(fields_of("immediate")), event_ms=times)
    return ExampleBatch(Source(f"examples.{MODEL}", 1), "life/1", offset, examples, 0, append_ms)


def test_overlapping_messages_of_which_one_is_not_live_wait_for_a_silent_partition_no_longer() -> (
    None
):
    waiting = [_batch(18, [1037], 1196), _batch(20, [868, 1112], 1919)]  # delays of 159 and 807 ms
    window = NextWindow([waiting], 719, 1000)
    order = SourceOrder(OrderPatience(order_wait_ms=1000))
    order.begin([Source(f"examples.{MODEL}", p) for p in range(2)])
    order.ended(Source(f"examples.{MODEL}", 0), 0)  # nothing of it is left to deliver
    order.delivered(Source(f"examples.{MODEL}", 1), 1112, 1919)
    order.ended(Source(f"examples.{MODEL}", 1), 0)
    assert window.within(order.bounds(window.following, 500)) == []
    assert window.within(order.bounds(window.following, 1500)) == waiting
