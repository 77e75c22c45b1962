"""Consumer groups with stale members, their readers, and a writer of scores and dead letters.

A rebalance gives a partition to its new owner at once, and notifies the old one only some polls
later. Until then the old owner is a zombie that learns and pushes a partition it has lost. A record
may be delivered twice. After a topic was recreated, a reader may continue at its old offset in the
new topic.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from headrace.ingest.dead_letters.letter import Letter
from headrace.ingest.dead_letters.letter import unpack as unpack_letter
from headrace.ingest.errors import OffsetGone
from headrace.ingest.kafka.protocols import (
    AtEnd,
    MessageBlock,
    PartitionAssigned,
    PartitionRevoked,
    ReaderEvent,
    ReadPosition,
    Record,
    Source,
)
from headrace.ingest.kafka.retry import not_before, retry_for
from headrace.learner.loop.scores import unpack

if TYPE_CHECKING:
    from tests.simulation.topic import SimulatedTopic, TopicLife


_MORE_OLD_ANSWERS = 2
"""Most further answers until a broker that was cut off learns of its successor."""
_PATIENCE = retry_for(60.0).copy(sleep=lambda _: None)


class Topics(Protocol):
    """Topics that a group reads."""

    shares: list[tuple[Source, ...]]
    """Sources that go to one member together."""

    @property
    def now(self) -> TopicLife:
        """The present content."""


class SimulatedReader:
    """One member's end of the group; `BlockReader` over simulated topics."""

    def __init__(
        self,
        topic: Topics,
        dice: random.Random,
        pause: Callable[[], None],
        old_ends: float = 0.0,
        tally: Counter[str] | None = None,
    ) -> None:
        """`pause` is called where the process may die or pause.

        old_ends: probability that a broker that was cut off begins to answer about ends of logs.
        """
        self._topic, self._dice, self._pause = topic, dice, pause
        self._positions: dict[Source, int] = {}
        self._paused: set[Source] = set()
        self._told_end: dict[Source, int] = {}
        self._news: list[tuple[int, ReaderEvent]] = []  # (polls to wait, what)
        self.duplicates = 0.0
        """Probability that a poll repeats the last record."""
        self.most_records = 3
        """Most records that a poll brings of a source."""
        self._old_ends, self._old_answers = old_ends, 0
        self._tally = Counter[str]() if tally is None else tally

    def tell(self, happening: ReaderEvent, after_polls: int) -> None:
        """Let the member know of a partition gained or lost, some polls later.

        Not before what it is to hear of this source already: Kafka does not reorder assignments.
        """
        before = [polls for polls, news in self._news if news.source == happening.source]
        self._news.append((max(after_polls, *before, 0), happening))

    @property
    def stale(self) -> bool:
        """Whether the member is of an earlier generation: it has not heard of a rebalance."""
        return bool(self._news)

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        """See Reader. Never waits."""
        self._pause()
        happenings: list[ReaderEvent] = []
        waiting: list[tuple[int, ReaderEvent]] = []
        for polls, news in self._news:
            if polls > 0:
                waiting.append((polls - 1, news))
                continue
            happenings.append(news)
            if isinstance(news, PartitionRevoked):
                self._positions.pop(news.source, None)
        self._news = waiting
        for source, position in self._positions.items():
            if source not in self._paused:
                happenings += self._read(source, position)
        self._pause()
        return happenings

    def _read(self, source: Source, position: int) -> list[ReaderEvent]:
        life = self._topic.now
        if not life.firsts[source] <= position <= life.ends[source]:
            if position < life.firsts[source] or self._dice.random() < 0.5:
                raise OffsetGone(f"simulated: {source} holds no offset {position}")
            return []  # the client has not asked the new topic yet
        index = life.index(source, position)
        if index and self._dice.random() < self.duplicates:
            index -= 1
        end = life.stable(source)
        found = life.records[source][index : index + self._dice.randint(1, self.most_records)]
        records: list[ReaderEvent] = [record for record in found if record.offset < end]
        if records:
            self._positions[source] = max(position, records[-1].offset + 1)  # type: ignore[union-attr]
            self._told_end.pop(source, None)
        elif self._told_end.get(source) != end:
            self._told_end[source] = end
            self._positions[source] = max(position, end)
            return [AtEnd(source, end)]
        return records

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """See BlockReader."""
        events: list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked] = []
        for (kind, _), run in itertools.groupby(
            self.poll(timeout_s), lambda each: (type(each), each.source)
        ):
            if kind is Record:
                events.append(MessageBlock.of(cast("list[Record]", list(run))))
            else:
                events += cast("list[AtEnd | PartitionAssigned | PartitionRevoked]", list(run))
        return events

    def start(self, offsets: Mapping[Source, int]) -> None:
        """See Reader."""
        for source, offset in offsets.items():
            self._positions[source] = offset
            self._told_end.pop(source, None)

    def pause(self, sources: Iterable[Source]) -> None:
        """See Reader."""
        self._paused.update(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        """See Reader."""
        self._paused.difference_update(sources)

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:
        """See Reader. The client asks again, as the product does."""
        return not_before(lambda: self._held(source), reached, _PATIENCE)

    def _held(self, source: Source) -> tuple[int, int]:
        life = self._topic.now
        first, end = life.firsts[source], life.ends[source]
        if self._old_answers:
            self._old_answers -= 1
        elif self._old_ends and self._dice.random() < self._old_ends:
            self._old_answers = self._dice.randint(0, _MORE_OLD_ANSWERS)
        else:
            return first, end
        self._tally["ends from a broker that was cut off"] += 1
        return first, max(first, end - self._dice.randint(1, 4))

    def truncated(self, positions: Mapping[Source, ReadPosition]) -> list[Source]:
        """See Reader."""
        end_of_epoch = self._topic.now.end_of_epoch
        return [s for s, at in positions.items() if end_of_epoch(s, at.leader_epoch) < at.offset]

    def topic_id(self, topic: str) -> str:
        """See Reader."""
        return self._topic.now.identity

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """See Reader."""
        self._pause()

    def close(self) -> None:
        """See Reader."""


class SimulatedScores:
    """A `Writer` whose messages are delivered when it is flushed, or not at all."""

    def __init__(self, topic: SimulatedTopic, pause: Callable[[], None]) -> None:
        self._topic, self._pause = topic, pause
        self._queue: list[tuple[Source, bytes]] = []

    def send(self, target: Source, value: bytes, key: bytes | None = None) -> None:
        """See Writer."""
        self._queue.append((target, value))

    def flush(self) -> None:
        """See Writer."""
        self._pause()
        for target, value in self._queue:
            if target.topic == "dead-letters":
                letter = unpack_letter(value)
                assert isinstance(letter, Letter)
                self._topic.letters.add((letter.partition, letter.offset))
            else:
                self._topic.scored.update(unpack(value).impression_ids.to_pylist())
        self._queue.clear()
        self._pause()

    def close(self) -> None:
        """See Writer."""


class Group:
    """Assigns partitions to the members of a group, and rebalances on request."""

    def __init__(self, topic: Topics, dice: random.Random, tally: Counter[str]) -> None:
        self._topic, self._dice, self._tally = topic, dice, tally
        self._members: dict[str, SimulatedReader] = {}
        self._owners: dict[tuple[Source, ...], str] = {}

    def join(self, name: str, pause: Callable[[], None], old_ends: float = 0.0) -> SimulatedReader:
        """Add a (re)started member without partitions."""
        reader = SimulatedReader(self._topic, self._dice, pause, old_ends, self._tally)
        self._members[name] = reader
        self._owners = {share: owner for share, owner in self._owners.items() if owner != name}
        for share in self._topic.shares:
            if share not in self._owners:
                self._give(share, self._dice.choice(list(self._members)))
        return reader

    def leave(self, name: str) -> None:
        """A member ended or died."""
        if self._members.pop(name, None) is None:
            return
        for share, owner in list(self._owners.items()):
            if owner == name:
                del self._owners[share]
                if self._members:
                    self._give(share, self._dice.choice(list(self._members)))

    def rebalance(self, zombie_polls: int) -> None:
        """Move one share to another member. The owner is notified within `polls` polls."""
        share = self._dice.choice(self._topic.shares)
        before = self._owners.get(share)
        if before is None:
            return
        after = self._dice.choice(list(self._members))
        self._tally["partitions moved"] += 1
        polls = self._dice.randint(0, zombie_polls)
        for source in share:
            self._members[before].tell(PartitionRevoked(source), polls)
        self._give(share, after)

    def in_force(self, name: str, reader: SimulatedReader, sources: Iterable[Source]) -> bool:
        """Return whether Kafka lets the member commit these sources: they are its own."""
        if self._members.get(name) is not reader:
            return False  # a member of this name that died
        shares = [share for share, owner in self._owners.items() if owner == name]
        mine = {source for share in shares for source in share}
        return mine.issuperset(sources) and not reader.stale

    def _give(self, share: tuple[Source, ...], name: str) -> None:
        self._owners[share] = name
        for source in share:
            self._members[name].tell(PartitionAssigned(source), 0)
