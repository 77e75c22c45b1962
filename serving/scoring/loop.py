"""ImpressionBatch from Kafka through the forward pass, scores back to Kafka, once each.

Scores, dead letters and the offsets of the impressions are one transaction. Nothing else is kept:
the process can be killed at any line, and the next one goes on where the last transaction ended.
An impression that is read again was never scored before, to whoever reads what is committed.

The metadata of a committed offset is the identity of its topic: a topic that was made again under
its name begins at its beginning, as its offsets mean other messages. ImpressionBatch that retention
has taken before they were scored are counted and said, and not waited for.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest import KafkaUnreachable, TransactionAborted
from headrace.ingest.dead_letters import pack
from headrace.ingest.events import TIME, Reason, is_tick, read_event
from headrace.ingest.kafka import (
    BY_KEY,
    AbortBackoff,
    Committed,
    Outgoing,
    PartitionAssigned,
    PartitionRevoked,
    Record,
    Source,
)
from headrace.serving.requests import ID
from headrace.serving.scoring.message import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    from tenacity import Retrying

    from headrace.ingest.features import Encoded, Encoder
    from headrace.ingest.kafka import Reader, Transactions
    from headrace.serving.models import ServedModel

    Event = dict[str, object]

log = logging.getLogger(__name__)

NOT_FINITE = "expected a score, found one that is not a finite number"
_LONGEST_ABORT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class ScoringTopics:
    """What is read, and where it goes."""

    impressions: str
    scores: str
    dead_letters: str


@dataclass(slots=True)
class ScoringTotals:
    """Running totals of one process, for its metrics; of what was committed."""

    scored: int = 0
    defaulted_rows: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    aborts: int = 0
    gone: int = 0
    """ImpressionBatch that retention took before they were scored."""
    newest_ms: int = 0
    """Greatest event time that was scored."""


@dataclass(frozen=True, slots=True)
class ImpressionBatch:
    """Events of a stream, as what is to be scored."""

    own: Sequence[Event]

    def __len__(self) -> int:
        return len(self.own)

    def encode(self, encoder: Encoder, now_ms: int) -> Encoded:  # noqa: ARG002
        """Return ids and numbers; each was shown when it says."""
        return encoder.encode(self.own)

    def times(self, now_ms: int) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return when each was shown, (n,)."""
        return np.fromiter((each[TIME] for each in self.own), np.int64, len(self.own))

    def names(self) -> Sequence[str | None]:
        """Return the impression id of each."""
        return [each[ID] for each in self.own]  # type: ignore[misc]

    def events(self, now_ms: int) -> Iterator[Event]:  # noqa: ARG002
        """Yield each as it is."""
        yield from self.own


class StreamScorer:
    """Scores the partitions that fall to its reader. Not safe for use from several threads."""

    def __init__(
        self,
        *,
        reader: Reader,
        transactions: Transactions,
        served: ServedModel,
        topics: ScoringTopics,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        rest: Callable[[float], object],
        restoring: Retrying,
        give_up_s: float,
    ) -> None:
        self._reader, self._transactions = reader, transactions
        self._served, self._topics = served, topics
        self._now_ms, self._restoring = now_ms, restoring
        self._aborts = AbortBackoff(give_up_s, steady_ms, rest, _LONGEST_ABORT_WAIT_S)
        self._topic_ids: dict[Source, str] = {}
        """Of the sources that are placed."""
        self.figures = ScoringTotals()

    def step(self, timeout_s: float) -> bool:
        """Do everything once; return whether an impression was taken.

        1. poll    what came from Kafka
        2. place   a gained partition goes back to its last committed offset
        3. score   what can be read as an event; the rest becomes dead letters
        4. commit  scores, dead letters, offsets, in one transaction; on an abort, place again
        """
        gained: list[Source] = []
        records: list[Record] = []
        for happening in self._reader.poll(timeout_s):
            match happening:
                case PartitionAssigned(source):
                    gained.append(source)
                case PartitionRevoked(source):
                    self._topic_ids.pop(source, None)
                    gained = [each for each in gained if each != source]
                    records = [each for each in records if each.source != source]
                case Record(source=source) if source in self._topic_ids:
                    records.append(happening)
        self._place(gained)
        if records:
            self._commit(records, *self._scored(records))
        return bool(records)

    def _place(self, sources: Sequence[Source]) -> None:
        """Begin reading where the last transaction ended."""
        if sources:
            self._restoring(self._place_once, sources)

    def _place_once(self, sources: Sequence[Source]) -> None:
        found = self._transactions.committed(sources)
        topic_id = self._reader.topic_id(self._topics.impressions)
        starts: dict[Source, int] = {}
        for source in sources:
            first, _ = self._reader.held(source)
            offset, told = found.get(source, Committed(first, topic_id))
            if told != topic_id:
                log.warning("%s was made again: scoring it from its beginning", source.topic)
                offset = first
            if offset < first:
                self.figures.gone += first - offset
                log.warning("%s: %d impressions are gone unscored", source, first - offset)
            starts[source] = max(offset, first)
        self._reader.start(starts)
        self._topic_ids.update(dict.fromkeys(sources, topic_id))

    def _scored(self, records: Sequence[Record]) -> tuple[list[Outgoing], ScoringTotals]:
        """Return what is to be written of these, and what is to be counted then."""
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
        standing, reading = rows.standing, rows.reading()
        state, model = standing.state(now_ms), self._served.spec.name
        shown = ImpressionBatch([event for _, event in events])
        scores = self._served.predictor.predict(reading, shown, now_ms).tolist()
        target = Source(self._topics.scores, BY_KEY)
        for (record, event), score in zip(events, scores, strict=True):
            if not math.isfinite(score):
                self._bury(record, NOT_FINITE, "not_finite", messages, figures)
                continue
            key, value = message_of(event, score, model, standing, state)
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
        self, records: Iterable[Record], messages: Sequence[Outgoing], made: ScoringTotals
    ) -> None:
        ends = {record.source: record.offset + 1 for record in records}
        offsets = {
            source: Committed(offset, self._topic_ids[source]) for source, offset in ends.items()
        }
        try:
            self._transactions.write(messages, offsets)
        except (TransactionAborted, KafkaUnreachable) as error:
            self._abort(list(ends), error)
            return
        self._aborts.reset()
        total = self.figures
        total.transactions += 1
        total.scored += made.scored
        total.defaulted_rows += made.defaulted_rows
        total.newest_ms = max(total.newest_ms, made.newest_ms)
        for name, count in made.dead_letters.items():
            total.dead_letters[name] = total.dead_letters.get(name, 0) + count

    def _abort(
        self, sources: Sequence[Source], error: TransactionAborted | KafkaUnreachable
    ) -> None:
        """Go back to what was committed for sure; raise if nothing could be for `give_up_s`."""
        self.figures.aborts += 1
        self._aborts.record(error)
        log.warning("not committed, going back to the last commit: %s", error)
        self._aborts.sleep()
        self._place([source for source in sources if source in self._topic_ids])
