"""The loop of the joiner: events from Kafka through the pure cores, examples back to Kafka.

`Joiner.step` is the whole loop; every other method here is one of its numbered steps. Processing is
exactly once, because examples, dead letters and the offsets they came from are one transaction. The
metadata of the offsets has all that is needed to continue, and nothing else is stored. The process
can be killed at any line. The next one reads again what the cores need, without output, and
continues.

All partitions advance to the same event time before a commit, and their messages end at the same
event times. A learner that reads the examples of all partitions can then merge them. Which event
time that is, follows from what Kafka has delivered (`ingest.kafka.reading.source_order`).
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import Histogram

from headrace.ingest.errors import OffsetGone
from headrace.ingest.events.contract import Reason
from headrace.ingest.examples.splitting import Cut, common_ends
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.core.checkpoint import JoinerCounters
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.rules import FOREVER, NEVER
from headrace.ingest.joiner.event_coverage import EventCoverage
from headrace.ingest.joiner.last_position import LastPositions
from headrace.ingest.joiner.partition import JoinerPartition
from headrace.ingest.kafka.protocols import (
    AtEnd,
    BlockReader,
    MessageBlock,
    PartitionAssigned,
    PartitionRevoked,
    ReadPosition,
    Source,
)
from headrace.ingest.kafka.reading.source_order import UNBOUNDED, OrderPatience, SourceOrder
from headrace.ingest.kafka.topics import EventTopics, examples_topic
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from headrace.ingest.kafka.transactions import Outgoing

_SAMPLES = 512
"""Times read from the queues to find the end of a step."""
_DURATIONS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class JoinerPacing:
    """Batch sizes and waiting times of the joiner."""

    lazy_commit_ms: int = 250
    """Before progress without an example is committed: ticks, clicks that wait."""
    backlog_events: int = 2_000
    """Events in one poll that mean a backlog: messages may then grow before they are written."""
    backlog_commit_ms: int = 200
    """Between commits during a backlog: a commit takes some 10 ms whatever its size."""
    most_examples: int = 50_000
    """In one transaction: some megabytes that Kafka and readers receive at once."""
    turn_events: int = 4096
    """Taken from one partition before the next partition's turn."""
    step_events: int = 32_768
    """Taken before Kafka is polled again: a few 100 ms, far below the session timeout."""
    patience: OrderPatience = field(default_factory=OrderPatience)
    """For partitions that may have earlier events and deliver nothing."""
    ahead_limit: int = 50_000
    """Events of one source in memory; beyond it the source is paused."""
    cut: Cut = field(default_factory=Cut)


@dataclass(slots=True)
class JoinerTotals:
    """Running totals of one process, for its metrics."""

    counted: JoinerCounters = field(default_factory=JoinerCounters)
    dead_letters: dict[Reason, int] = field(default_factory=dict)
    transactions: int = 0
    aborts: int = 0
    restores: int = 0


def _random_name() -> str:
    return secrets.token_hex(4)


class Joiner:
    """Joins the partitions that its reader is assigned. Not thread-safe."""

    def __init__(
        self,
        ports: TransactionalPorts[BlockReader],
        model: str,
        fields: FieldSet,
        topics: EventTopics,
        pace: JoinerPacing,
        *,
        join_again: bool = False,
        draw_name: Callable[[], str] = _random_name,
    ) -> None:
        """`join_again`: begin at the first event where examples exist without a position.

        `draw_name`: returns another name for each transaction.
        """
        self._draw_name = draw_name
        self._reader, self._transactions = ports.reader, ports.transactions
        self.fields, self._pace = fields, pace
        self._now_ms, self._restoring, self._aborts = ports.now_ms, ports.restoring, ports.aborts
        self._topics = {
            EventSide.IMPRESSIONS: topics.impressions,
            EventSide.CLICKS: topics.clicks,
        }
        self._sides = {topic: side for side, topic in self._topics.items()}
        self._examples, self._dead_letters = examples_topic(model), topics.dead_letters
        self._last = LastPositions(self._transactions, self._examples, fields, join_again)
        self.coverage = EventCoverage(fields, ports.now_ms)
        self._chunks = ChunkReader(fields, self.coverage.count)
        self._order = SourceOrder(pace.patience)
        self._owned: set[Source] = set()
        self._unplaced: set[int] = set()
        self._backlog = False
        self._made_ms = NEVER
        """Greatest event time of an example so far."""
        self.partitions: dict[int, JoinerPartition] = {}
        self.figures = JoinerTotals()
        self.durations = Histogram(
            "headrace_joiner_transaction_seconds",
            "Duration of one transaction, from its beginning to its commit.",
            registry=None,
            buckets=_DURATIONS_S,
        )

    # ---------------------------------------------------------------- the order of effects

    def step(self, timeout_s: float) -> bool:
        """Run every step once; return whether an event was taken.

        1. poll    read blocks from Kafka; decode, encode and offer them to the cores
        2. place   restore newly assigned partitions from their last checkpoint; write the first one
        3. advance the cores, in the order of event time over all partitions
        4. commit  if due: examples, dead letters, offsets with checkpoints, in one transaction
        5. pace    pause sources that are far ahead, resume those that no longer are
        """
        self._poll(0.0 if self._backlog else timeout_s)
        self._place(self._unplaced)
        if not self._begin():
            return False
        moved = self._advance()
        if self._due():
            self._commit()
        self._set_pace()
        return moved

    def progress(self) -> tuple[int, ...]:
        """Return a value that changes whenever the joiner commits, restores or takes an event.

        After a restart it reads for a while without a commit, so commits are not enough.
        """
        return self.figures.transactions, self.figures.restores, *self.positions().values()

    def positions(self) -> dict[Source, int]:
        """Return the next offset to take of each source. Safe in other threads."""
        return {
            source: position.offset
            for part in list(self.partitions.values())
            for source, position in part.offsets().items()
        }

    def finish(self) -> None:
        """Commit everything that the cores produced."""
        if any(part.dirty_since_ms is not None for part in self.partitions.values()):
            self._commit()

    # ---------------------------------------------------------------- 1. poll

    def _poll(self, timeout_s: float) -> None:
        blocks: dict[Source, list[MessageBlock]] = {}
        ends: dict[Source, int] = {}
        for event in self._reader.poll_blocks(timeout_s):
            match event:
                case MessageBlock(source=source):
                    blocks.setdefault(source, []).append(event)
                    ends.pop(source, None)
                case AtEnd(source, offset):
                    ends[source] = offset
                case PartitionAssigned(source):
                    self._assign(source)
                case PartitionRevoked(source):
                    self._revoke(source)
                    blocks.pop(source, None)
                    ends.pop(source, None)
        count = sum(block.size for taken in blocks.values() for block in taken)
        self._backlog = count >= self._pace.backlog_events
        for source, taken in blocks.items():
            if (part := self.partitions.get(source.partition)) is not None:
                for block in taken:
                    reached_ms = part.offer(self._sides[source.topic], block, self._chunks)
                    self._order.delivered(source, reached_ms, int(block.append_ms[-1]))
        now = self._now_ms()
        for source, offset in ends.items():
            if (part := self.partitions.get(source.partition)) is not None:
                part.ended(self._sides[source.topic], offset, now)
                self._order.ended(source, now)

    def _assign(self, source: Source) -> None:
        self._owned.add(source)
        if self._sources(source.partition) <= self._owned:
            self._unplaced.add(source.partition)

    def _revoke(self, source: Source) -> None:
        self._owned.discard(source)
        self._unplaced.discard(source.partition)
        self._order.forget(self._sources(source.partition))
        self.partitions.pop(source.partition, None)

    def _sources(self, partition: int) -> set[Source]:
        return {Source(topic, partition) for topic in self._topics.values()}

    # ---------------------------------------------------------------- 2. place

    def _place(self, numbers: set[int]) -> None:
        """Restore partitions from their committed checkpoints, and start reading there."""
        if not numbers:
            return
        self._restoring(self._place_once, sorted(numbers))
        self._unplaced -= numbers

    def _place_once(self, numbers: list[int]) -> None:
        shown = [Source(self._topics[EventSide.IMPRESSIONS], number) for number in numbers]
        places = self._last.of(shown)
        topic_ids = tuple(self._reader.topic_id(topic) for topic in self._topics.values())
        starts: dict[Source, int] = {}
        positions: dict[Source, ReadPosition] = {}
        for number in numbers:
            sources = {side: Source(topic, number) for side, topic in self._topics.items()}
            part = JoinerPartition(self.fields, sources, (topic_ids[0], topic_ids[1]))
            last = places[sources[EventSide.IMPRESSIONS]]
            bounds = {
                side: self._reader.bounds(source, part.joined_to(last.saved, side))
                for side, source in sources.items()
            }
            starts |= part.restore(last, bounds)
            if last.saved is not None:
                positions |= part.positions(last.saved)
            self.partitions[number] = part
        self._check_logs(positions)
        self._order.begin(starts)
        self._reader.resume(starts)  # a partition that begins has no paused source
        self._reader.start(starts)
        self.figures.restores += len(numbers)

    def _begin(self) -> bool:
        """Write a checkpoint into topics without one; return whether all have one."""
        return self._write({n: part for n, part in self.partitions.items() if part.begins})

    def _check_logs(self, positions: dict[Source, ReadPosition]) -> None:
        """Check that the logs still hold what was joined. Raises OffsetGone."""
        if positions and (cut := self._reader.truncated(positions)):
            shown = "; ".join(
                f"{source.topic}/{source.partition} before offset {positions[source].offset}"
                for source in cut
            )
            raise OffsetGone(
                f"expected the logs joined so far, got logs that lost records: {shown}. Kafka lost "
                "acknowledged events and wrote others at their offsets (an unclean election, or a "
                "power loss with one replica). Begin a new model"
            )

    # ---------------------------------------------------------------- 3. advance

    def _advance(self) -> bool:
        """Advance all cores to the same event time, by about `step_events` events."""
        now, pace, moved = self._now_ms(), self._pace, False
        heads = [head for part in self.partitions.values() if (head := part.core.following)]
        bounds = self._order.bounds(min(heads, default=None), now)
        bounds = bounds._replace(until_ms=min(bounds.until_ms, self._step_ms()))
        for part in self.partitions.values():
            if not part.queued and not part.waits:
                # no event to order: let wall time close windows
                part.advance(now, pace.turn_events, UNBOUNDED)
            elif part.core.restoring or not part.waits:
                while taken := part.advance(now, pace.turn_events, bounds):
                    moved = True
                    if taken < pace.turn_events:
                        break
        return moved

    def _step_ms(self) -> int:
        """Return the event time before which about `step_events` events are queued."""
        step = self._pace.step_events
        parts = self.partitions.values()
        if sum(part.queued for part in parts) <= step:
            return FOREVER
        self._backlog = True
        every = max(1, step // _SAMPLES)
        times_ms = np.concatenate([part.core.queued_ms(every) for part in parts])
        times_ms = times_ms[times_ms > 0]  # of events that can be ordered
        place = min(step // every, times_ms.shape[0] - 1)
        return int(np.partition(times_ms, place)[place]) if place >= 0 else FOREVER

    # ---------------------------------------------------------------- 4. commit

    def _due(self) -> bool:
        now, pace = self._now_ms(), self._pace
        dirty = [
            (now - part.dirty_since_ms, part)
            for part in self.partitions.values()
            if part.dirty_since_ms is not None and part.ready()
        ]
        age_ms = max((age for age, _ in dirty), default=-1)
        uncommitted = sum(part.uncommitted for _, part in dirty)
        if not uncommitted and not any(part.dead for _, part in dirty):
            return age_ms >= pace.lazy_commit_ms
        enough = age_ms >= pace.backlog_commit_ms or uncommitted >= pace.most_examples
        return enough or not self._backlog

    def _commit(self) -> None:
        """Write all output with the offsets it came from; after an abort, go back instead."""
        self._write({number: part for number, part in self.partitions.items() if part.ready()})

    def _write(self, parts: Mapping[int, JoinerPartition]) -> bool:
        if not parts:
            return True
        reached = [clock for part in parts.values() if len(clock := part.reached_ms())]
        ends_ms = common_ends(reached, self._pace.cut) if reached else None
        self._made_ms = max([self._made_ms, *(int(clock[-1]) for clock in reached)])
        messages: list[Outgoing] = []
        offsets, name = {}, self._draw_name()
        for number, part in parts.items():
            part.name(name, self._made_ms)
            targets = Source(self._examples, number), Source(self._dead_letters, 0)
            messages += part.messages(*targets, self._pace.cut, ends_ms)
            offsets.update(part.offsets())

        def write() -> None:
            with self.durations.time():
                self._transactions.write(messages, offsets)

        if not self._aborts.committed(write):
            self.figures.aborts += 1
            self._place(set(parts))
            return False
        self.figures.transactions += 1
        for part in parts.values():
            counted, reasons = part.committed()
            self.figures.counted += counted
            for reason, count in reasons.items():
                before = self.figures.dead_letters.get(reason, 0)
                self.figures.dead_letters[reason] = before + count
        return True

    # ---------------------------------------------------------------- 5. pace

    def _set_pace(self) -> None:
        for part in self.partitions.values():
            for side, source in part.sources.items():
                queued = part.core.queued(side)
                if queued >= self._pace.ahead_limit and side not in part.paused:
                    self._reader.pause([source])
                    part.paused.add(side)
                elif side in part.paused and queued < self._pace.ahead_limit // 2:
                    self._reader.resume([source])
                    part.paused.discard(side)
