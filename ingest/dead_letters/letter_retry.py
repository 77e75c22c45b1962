"""Sends repaired events back to their topics, each exactly once.

One transaction holds some events and the message that settles their letters. After a kill either
both are there, or neither, and the next retry sends them. All retries share one transactional id.
So before a retry reads which letters are open, Kafka has ended the transaction of an earlier retry,
and fenced it if it is still alive. No event is sent twice, however often or concurrently retries
are started.

An event goes to the topic of its letter, with its impression id as the key, or its request id if
that was the key of the broken event. So it meets its click or impression even if the broken event
had another key. A repair that the joiner would refuse again is not sent. An impression older than
the window is too late by then and becomes a new letter, unless its repair changed the time.
"""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import orjson

from headrace.ingest.dead_letters.letter import Letter, Origin, SettledLetters, pack_settled
from headrace.ingest.dead_letters.reader import Choice, DeadLetters
from headrace.ingest.events.contract import (
    IMPRESSION_ID,
    REQUEST_ID,
    Reason,
    is_tick,
    read_event,
    request_key,
)
from headrace.ingest.kafka.producer import BY_KEY
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, check_co_partitioned
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing, Transactions
from headrace.runtime.clock import wall_ms

_LETTERS_A_TRANSACTION = 500
_BYTES_A_TRANSACTION = 4 << 20
"""Small enough that a transaction ends long before its timeout, and readers never wait for it."""


class DiscardLetter:
    """The repair of an event that an operator abandons."""


DISCARD = DiscardLetter()

Repair = dict[str, object] | DiscardLetter | None
"""The corrected event; or DISCARD to abandon it; or None to leave the letter open."""


Repairs = Callable[[Letter], Repair]
"""Returns the repair of a letter."""


@dataclass(slots=True)
class Retried:
    """The result of a retry."""

    sent: int = 0
    discarded: int = 0
    left: int = 0
    """Chosen letters still open: without a repair, or with one that was refused."""
    refused: list[tuple[Origin, str]] = field(default_factory=list)
    """Repairs that the joiner would refuse again, and why."""
    stopped: bool = False
    """Whether it was stopped before the end; the remaining letters are still open."""


def retry(
    kafka: KafkaSettings,
    repairs: Repairs,
    choice: Choice,
    stop: threading.Event,
    topics: EventTopics | None = None,
) -> Retried:
    """Send the repaired events of the chosen open letters.

    Raises Fenced if another retry began meanwhile; KafkaUnreachable and TransactionAborted, after
    which the next retry sends what was not committed; MissingTopic, NotAllowed, WriteRefused.
    """
    topics = topics or EventTopics()
    check_co_partitioned(kafka, [topics.impressions, topics.clicks])
    name = f"headrace.{topics.dead_letters}.retry"
    with (
        closing(KafkaOffsets(kafka, name)) as no_offsets,
        closing(KafkaTransactions(kafka, name, no_offsets)) as transactions,
    ):
        run = _RetryRun(transactions, topics)
        for letter in DeadLetters(kafka, topics.dead_letters).letters(choice):
            run.take(letter, repairs(letter))
            if stop.is_set():
                run.retried.stopped = True
                break
        run.commit()
    return run.retried


def why_refused(event: dict[str, object]) -> Reason | None:
    """Return why the joiner would refuse an event sent now, as far as one event shows it."""
    read = read_event(orjson.dumps(event), wall_ms())
    if isinstance(read, Reason):
        return read
    return Reason.NO_ID if is_tick(read) else None


class _RetryRun:
    """One run of a retry."""

    def __init__(self, transactions: Transactions, topics: EventTopics) -> None:
        self.retried = Retried()
        self._transactions = transactions
        self._targets = {topics.impressions, topics.clicks}
        self._dead_letters = Source(topics.dead_letters, BY_KEY)
        self._events: list[Outgoing] = []
        self._sent: list[Origin] = []
        self._discarded: list[Origin] = []
        self._bytes = 0

    def take(self, letter: Letter, repair: Repair) -> None:
        """Queue the repair of a letter; commit when there are enough."""
        if isinstance(repair, dict):
            reason = why_refused(repair)
            if letter.topic not in self._targets:
                expected = " or ".join(sorted(self._targets))
                self._refuse(letter, f"expected a letter of {expected}, got {letter.topic}")
            elif reason is not None:
                self._refuse(letter, reason.value)
            else:
                value = orjson.dumps(repair)
                target, key = Source(letter.topic, BY_KEY), _key_of(letter, repair)
                self._events.append(Outgoing(target, value, key))
                self._sent.append(letter.origin)
                self._bytes += len(value)
        elif isinstance(repair, DiscardLetter):
            self._discarded.append(letter.origin)
        else:
            self.retried.left += 1
        if (
            len(self._sent) + len(self._discarded) >= _LETTERS_A_TRANSACTION
            or self._bytes >= _BYTES_A_TRANSACTION
        ):
            self.commit()

    def commit(self) -> None:
        """Write the queued repairs in one transaction."""
        if not self._sent and not self._discarded:
            return
        settled = SettledLetters(retried=tuple(self._sent), discarded=tuple(self._discarded))
        self._events.append(Outgoing(self._dead_letters, pack_settled(settled), b"settled"))
        self._transactions.write(self._events, {})
        self.retried.sent += len(self._sent)
        self.retried.discarded += len(self._discarded)
        self._events, self._sent, self._discarded, self._bytes = [], [], [], 0

    def _refuse(self, letter: Letter, why: str) -> None:
        self.retried.refused.append((letter.origin, why))
        self.retried.left += 1


def _key_of(letter: Letter, repair: dict[str, object]) -> bytes:
    key = request_key(repair.get(REQUEST_ID))
    if key is not None and letter.key == key.decode():
        return key
    return str(repair[IMPRESSION_ID]).encode()
