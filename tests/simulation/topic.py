"""The topic of examples: its partitions and batches, and the scores and dead letters about them.

Offsets have gaps from transaction markers and aborted records. Kafka deletes old records. The topic
can be deleted and recreated: its next life has another id and offsets from 0. From an
earlier life, only the part that the store has learned counts.

A partition's log can lose its end when a leader without it is elected, and grow again. Other
batches are then at the same offsets, and only the leader epoch differs.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.loop.marks.parked_marks import is_parked_mark, parked_mark
from headrace.learner.loop.marks.topic_marks import epoch_source
from tests.simulation.batches import Batch, Total, summed

TOPIC = "examples.simulated"


class TopicLife:
    """The topic from its creation to its deletion."""

    def __init__(self, identity: str, sources: Sequence[Source]) -> None:
        self.identity = identity
        self.names = {f"{identity}/{source.partition}": source for source in sources}
        """Of the sources in the marks."""
        self.records: dict[Source, list[Record]] = {source: [] for source in sources}
        self.batches: dict[Source, list[Batch]] = {source: [] for source in sources}
        self.firsts: dict[Source, int] = dict.fromkeys(sources, 0)
        self.ends: dict[Source, int] = dict.fromkeys(sources, 0)
        self.epochs: dict[Source, list[int]] = {source: [0] for source in sources}
        """First offset of each leader epoch."""
        self.open: dict[Source, list[int]] = {source: [] for source in sources}
        """Offsets of records whose transactions are open."""

    def stable(self, source: Source) -> int:
        """Return the last stable offset, up to which readers of committed records read."""
        return min(self.open[source], default=self.ends[source])

    def index(self, source: Source, offset: int) -> int:
        """Return the place of the first record at or beyond an offset."""
        return bisect_left(self.records[source], offset, key=lambda record: record.offset)

    def cut(self, source: Source, records: int) -> int:
        """Let the log lose its last records, with a new leader epoch; return its end before."""
        before = self.ends[source]
        self.ends[source] = self.records[source][-records].offset
        self.epochs[source].append(self.ends[source])
        del self.records[source][-records:], self.batches[source][-records:]
        return before

    def end_of_epoch(self, source: Source, epoch: int) -> int:
        """Return the first offset that is not of this leader epoch or an earlier one."""
        later = self.epochs[source][epoch + 1 :]
        return later[0] if later else self.ends[source]


class SimulatedTopic:
    """The topic, in all its lives."""

    def __init__(self, partitions: int) -> None:
        self.sources = [Source(TOPIC, partition) for partition in range(partitions)]
        self.shares: list[tuple[Source, ...]] = [(source,) for source in self.sources]
        self._lives = [TopicLife("life-0", self.sources)]
        self.scored: set[str] = set()
        """Impressions whose score was delivered."""
        self.letters: set[tuple[int, int]] = set()
        """Partition and offset of batches whose dead letter was delivered."""
        self.accepted = {self.now.identity}
        """Identities of the first life, and of those that the operator said to go on with."""
        self.cut_beyond_marks = False
        """Whether a log lost what some bucket had learned."""
        self.acceptances = 0
        """The number of times that the operator said so."""

    @property
    def now(self) -> TopicLife:
        """The present life."""
        return self._lives[-1]

    def append(
        self, source: Source, batch: Batch, append_ms: int, *, aborted: int, marker: bool
    ) -> None:
        """Add a batch, behind `aborted` records that no reader sees, and perhaps a marker."""
        life = self.now
        offset = life.ends[source] + aborted
        epoch = len(life.epochs[source]) - 1
        record = Record(source, offset, append_ms, batch.value, leader_epoch=epoch)
        life.records[source].append(record)
        life.batches[source].append(batch)
        life.ends[source] = offset + (2 if marker else 1)

    def write(self, source: Source, value: bytes, append_ms: int) -> Record:
        """Add a record of an open transaction."""
        life = self.now
        epoch = len(life.epochs[source]) - 1
        record = Record(source, life.ends[source], append_ms, value, leader_epoch=epoch)
        life.open[source].append(record.offset)
        life.ends[source] += 1
        return record

    def end(self, source: Source, record: Record, batch: Batch | None) -> None:
        """End the transaction of a record: with the batch that it is, or None if aborted."""
        life = self.now
        life.open[source].remove(record.offset)
        if batch is not None:
            place = life.index(source, record.offset)
            life.records[source].insert(place, record)
            life.batches[source].insert(place, batch)

    def delete_before(self, source: Source, offset: int) -> None:
        """Let Kafka delete old records of the present life."""
        self.now.firsts[source] = max(self.now.firsts[source], offset)

    def cut(self, source: Source, records: int) -> int:
        """Let the log lose its last records; return its end before."""
        return self.now.cut(source, records)

    def accept(self) -> str:
        """Let the operator go on with the present life; return its identity."""
        self.accepted.add(self.now.identity)
        self.acceptances += 1
        return self.now.identity

    def make_again(self) -> None:
        """Delete the topic and create it again, empty."""
        self._lives.append(TopicLife(f"life-{len(self._lives)}", self.sources))

    def covered(self, name: str, start: int, stop: int) -> Iterator[Batch]:
        """Return the batches in [start, stop) of a source as the marks name it; of epochs: none."""
        if name == epoch_source(name.partition("@")[0]) or is_parked_mark(name):
            return
        life = next(life for life in self._lives if name in life.names)
        source = life.names[name]
        yield from life.batches[source][life.index(source, start) : life.index(source, stop)]

    def batch_at(self, name: str, offset: int) -> Batch:
        """Return the batch at an offset of a source as the marks name it."""
        [batch] = self.covered(name, offset, offset + 1)
        return batch

    def without_letter(self) -> list[tuple[int, int]]:
        """Return partition and offset of quarantined batches that have no dead letter."""
        return [
            place
            for source in self.sources
            for record, batch in zip(
                self.now.records[source], self.now.batches[source], strict=True
            )
            if batch.poison and (place := (source.partition, record.offset)) not in self.letters
        ]

    def truth(
        self, marks: Sequence[Mapping[str, int]], dropped: Sequence[Collection[str]]
    ) -> dict[int, Total]:
        """Return what every row gains from the present life, and gained from those before.

        marks: of each bucket, which say how much of earlier lives it has learned, and what it has
        parked. dropped: by each bucket, the marks of messages that an operator dropped.
        """
        below = 65 - len(marks).bit_length()
        gains = [
            gain
            for life in self._lives
            for name, source in life.names.items()
            for record, batch in zip(life.records[source], life.batches[source], strict=True)
            for gain in batch.gains
            if life is self.now or record.offset < marks[gain[0] >> below].get(name, 0)
            if parked_mark(name, record.offset) not in marks[gain[0] >> below]
            if parked_mark(name, record.offset) not in dropped[gain[0] >> below]
        ]
        return summed(gains)
