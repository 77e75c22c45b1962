"""Scores impressions from Kafka, and writes their scores to Kafka exactly once.

Scores, dead letters and the offsets of the impressions are one transaction. There is no other
state: the process can be killed at any line, and the next one continues after the last transaction.
For readers of committed messages, an impression that is read again was never scored before.

The metadata of a committed offset is the id of its topic. If a topic was deleted and created again
under its name, its offsets mean other messages, and scoring starts from its beginning. Impressions
that retention removed before they were scored are counted and logged. The committed offset also has
the leader epoch of the last impression. If Kafka lost impressions that were scored, others may have
their offsets: the scorer stops, because it would skip these.

Kafka forgets the offsets of a group that was empty for a week, or that an operator deleted. A
scorer without offsets, whose topic of scores is not empty, therefore stops with an error: it would
score the impressions a second time. The first transaction commits the offsets of every partition,
also of those without an impression, so that offsets are missing for no other reason. *Refused:*
the position in each score, which readers of scores would have to skip.

A score is a message of this form. Its key is the impression id, so it is in the same partition as
its impression and its click. Time and request are those of the impression:

    {"impression_id": "i1", "timestamp_ms": 1760000000000, "request_id": "r1", "model": "news",
     "version": 812, "state": "fresh", "score": 0.043}
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from headrace.ingest.dead_letters.letter import pack
from headrace.ingest.errors import BadCheckpoint, OffsetGone
from headrace.ingest.events.contract import (
    IMPRESSION_ID,
    REQUEST_ID,
    TIME,
    Reason,
    is_tick,
    read_event,
    request_key,
)
from headrace.ingest.kafka.producer import BY_KEY
from headrace.ingest.kafka.protocols import (
    AtEnd,
    BlockReader,
    Committed,
    PartitionAssigned,
    PartitionRevoked,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.log_truncation import LogState, log_states
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from headrace.ingest.kafka.transactions import Outgoing
from headrace.learner.inputs.slates import request_ends
from headrace.runtime.counted_nouns import counted
from headrace.serving.models.registry import ServedModel
from headrace.serving.replicas.status import ReplicaStatus
from headrace.serving.requests.candidates import Candidates

Event = dict[str, object]

log = logging.getLogger(__name__)

NOT_FINITE = "expected a finite score, got NaN or infinity"


@dataclass(frozen=True, slots=True)
class ScoringTopics:
    """Topics that a scorer reads and writes."""

    impressions: str
    scores: str
    dead_letters: str


@dataclass(slots=True)
class ScoringTotals:
    """Running totals of committed work, for the metrics."""

    scored: int = 0
    defaulted_rows: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    aborts: int = 0
    gone: int = 0
    """Impressions that retention removed before they were scored."""
    newest_ms: int = 0
    """Largest event time scored."""


class StreamScorer:
    """Scores the assigned partitions. Not safe for use from several threads."""

    def __init__(
        self,
        ports: TransactionalPorts[BlockReader],
        served: ServedModel,
        topics: ScoringTopics,
        scored_before: Callable[[], bool],
        totals: ScoringTotals | None = None,
    ) -> None:
        """ports: their clock is wall time. scored_before: whether scores exist that may be those
        of uncommitted impressions. totals: to add to.
        """
        self._scored_before = scored_before
        self._uncommitted: dict[Source, int] = {}
        """Start of each source without a committed offset."""
        self._reader, self._transactions = ports.reader, ports.transactions
        self._served, self._topics = served, topics
        self._now_ms, self._restoring, self._aborts = ports.now_ms, ports.restoring, ports.aborts
        self._topic_ids: dict[Source, str] = {}
        """Topic id by source, for the sources that were started."""
        self.figures = totals or ScoringTotals()
        self.positions: dict[Source, int] = {}
        """Next offset to score, by source. Other threads may copy it."""

    def step(self, timeout_s: float) -> bool:
        """Run each step once; return whether there were impressions.

        1. poll    records and assignments from Kafka
        2. place   start a gained partition at its last committed offset
        3. score   valid events; other messages become dead letters
        4. commit  scores, dead letters and offsets in one transaction; after an abort, place again
        """
        gained: list[Source] = []
        records: list[Record] = []
        for found in self._reader.poll(timeout_s):
            match found:
                case PartitionAssigned(source):
                    gained.append(source)
                case PartitionRevoked(source):
                    self._topic_ids.pop(source, None)
                    self._uncommitted.pop(source, None)
                    self.positions.pop(source, None)
                    gained = [other for other in gained if other != source]
                    records = [record for record in records if record.source != source]
                case Record(source=source) if source in self._topic_ids:
                    records.append(found)
                case AtEnd(source=source, offset=offset) if source in self.positions:
                    self.positions[source] = offset  # after transaction markers
        self._place(gained)
        if records:
            self._commit(records, *self._scored(records))
        return bool(records)

    def _place(self, sources: Sequence[Source]) -> None:
        """Start reading at the last committed offsets."""
        if sources:
            self._restoring(self._place_once, sources)

    def _place_once(self, sources: Sequence[Source]) -> None:
        found = self._transactions.committed(sources)
        topic_id = self._reader.topic_id(self._topics.impressions)
        states = log_states(self._reader, found)
        starts: dict[Source, int] = {}
        for source in sources:
            first, end = self._reader.bounds(source)
            if source in found:
                starts[source] = self._start(source, found[source].offset, first, states[source])
            else:
                self._check_first(source, first, end)
                starts[source] = first
            if states.get(source) in (None, LogState.TRUNCATED):
                self._uncommitted[source] = first
        self._reader.start(starts)
        self._topic_ids.update(dict.fromkeys(sources, topic_id))
        self.positions.update(starts)

    def _start(self, source: Source, committed: int, first: int, state: LogState) -> int:
        """Return the offset to read from. Raises OffsetGone."""
        if state is LogState.CONTINUED:
            return committed
        if state is LogState.EXPIRED:
            self.figures.gone += first - committed
            unscored = counted(first - committed, "unscored impression")
            log.warning("%s: retention removed %s", source, unscored)
        elif state is LogState.RECREATED:
            log.warning("topic %s was created again: scoring it from the start", source.topic)
        elif self._scored_before():
            raise OffsetGone(
                f"{source.topic}/{source.partition}: expected the impressions scored so far, up to "
                f"offset {committed}, got a log that lost some of them (an unclean election, or a "
                "power loss with one replica). Other impressions may now have these offsets. To "
                "score all impressions of this partition, most of them a second time, start the "
                "scorer once with `headrace serving score --score-again`"
            )
        else:
            log.warning("%s lost scored impressions: scoring it from the start", source)
        return first

    def _check_first(self, source: Source, first: int, end: int) -> None:
        """Check that no impression of a source without offset was scored. Raises BadCheckpoint."""
        if first < end and self._scored_before():
            raise BadCheckpoint(
                f"{source.topic}/{source.partition}: expected the committed offset of the scorer, "
                f"got none, although {self._topics.scores} has scores: Kafka has forgotten it. "
                "Scoring from the first impression would write the same scores twice. To do so, "
                "start it once with `headrace serving score --score-again`"
            )

    def _scored(self, records: Sequence[Record]) -> tuple[list[Outgoing], ScoringTotals]:
        """Return the messages for these records, and the totals to add after the commit."""
        figures, messages = ScoringTotals(), list[Outgoing]()
        events: list[tuple[Record, Event]] = []
        for record in records:
            event = read_event(record.value, record.append_ms)
            if isinstance(event, Reason):
                self._bury(record, event.value, event.name.lower(), messages, figures)
            elif not is_tick(event):
                events.append((record, event))
        if not events:
            return messages, figures
        now_ms, rows = self._now_ms(), self._served.rows
        status, reading = rows.status, rows.reading()
        state, model = status.state(now_ms), self._served.spec.name
        shown = Candidates({}, [event for _, event in events])
        ends = request_ends(_requests(shown.own), shown.times(now_ms))
        scores = self._served.predictor.predict(reading, shown, now_ms, ends).tolist()
        target = Source(self._topics.scores, BY_KEY)
        for (record, event), score in zip(events, scores, strict=True):
            if not math.isfinite(score):
                self._bury(record, NOT_FINITE, "not_finite", messages, figures)
                continue
            key, value = _message_of(event, score, model, status, state)
            messages.append(Outgoing(target, value, key))
            figures.scored += 1
        figures.newest_ms = int(shown.times(now_ms).max())
        figures.defaulted_rows = reading.defaulted
        return messages, figures

    def _bury(
        self,
        record: Record,
        reason: str,
        name: str,
        messages: list[Outgoing],
        figures: ScoringTotals,
    ) -> None:
        target = Source(self._topics.dead_letters, 0)
        messages.append(Outgoing(target, pack(record, reason), record.key))
        figures.dead_letters[name] = figures.dead_letters.get(name, 0) + 1

    def _commit(
        self, records: Iterable[Record], messages: Sequence[Outgoing], new: ScoringTotals
    ) -> None:
        ends = self._uncommitted | {record.source: record.offset + 1 for record in records}
        epochs = {record.source: record.leader_epoch for record in records}
        offsets = {
            source: Committed(offset, self._topic_ids[source], epochs.get(source, -1))
            for source, offset in ends.items()
        }
        written = self._aborts.committed(lambda: self._transactions.write(messages, offsets))
        self._uncommitted = {}
        if not written:
            self.figures.aborts += 1
            self._place([source for source in ends if source in self._topic_ids])
            return
        self.positions.update(ends)
        total = self.figures
        total.transactions += 1
        total.scored += new.scored
        total.defaulted_rows += new.defaulted_rows
        total.newest_ms = max(total.newest_ms, new.newest_ms)
        for name, count in new.dead_letters.items():
            total.dead_letters[name] = total.dead_letters.get(name, 0) + count


def _requests(events: Sequence[Mapping[str, object]]) -> pa.StringArray:
    """Return the request id of each event, null without one."""
    keys = [request_key(each.get(REQUEST_ID)) for each in events]
    return pa.array([None if key is None else key.decode() for key in keys], pa.string())


class ScoreMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The score of one impression."""

    impression_id: str
    timestamp_ms: int
    request_id: str | None = None
    model: str
    version: int
    state: str
    snapshot: str = ""
    score: float
    """Click probability."""


_encode = msgspec.json.Encoder().encode


def _message_of(
    event: Event, score: float, model: str, status: ReplicaStatus, state: str
) -> tuple[bytes, bytes]:
    """Return key and value for the score of an event from `read_event`."""
    name, time_ms, request = event[IMPRESSION_ID], event[TIME], event.get(REQUEST_ID)
    assert isinstance(name, str) and isinstance(time_ms, int)  # `read_event` checked both
    message = ScoreMessage(
        impression_id=name,
        timestamp_ms=time_ms,
        request_id=request if isinstance(request, str) else None,
        model=model,
        version=status.version,
        state=state,
        snapshot=status.snapshot,
        score=score,
    )
    return name.encode(), _encode(message)
