"""The trail of examples names the message that was lost, and whether Kafka or a learner lost it."""

import numpy as np

from headrace.ingest.examples.batch import BatchNotes, Examples, Kind, pack
from headrace.ingest.joiner.committed_state import SavedCheckpoint
from headrace.ingest.joiner.core.checkpoint import InputPosition, JoinerCheckpoint, JoinerCounters
from headrace.ingest.kafka.protocols import Record, Source
from tests.chaos.trail import compare
from tests.learner.streams import part, random_examples, random_spec

SOURCE = Source("examples.m", 0)
SPEC = random_spec(np.random.default_rng(1), "immediate", False, "", "")
EXAMPLES = random_examples(np.random.default_rng(2), SPEC, 60, closed=False)


def _record(offset: int, examples: Examples, counted: int) -> Record:
    """Return a message that says how many examples the joiner made so far; 0: it does not say."""
    position = InputPosition(offset, offset, 0, 0)
    counters = JoinerCounters(examples=counted)
    checkpoint = JoinerCheckpoint(0, 0, position, position, counters)
    saved = SavedCheckpoint(SPEC.fields.fingerprint, ("a", "b"), checkpoint)
    return Record(
        SOURCE, offset, 1000, pack(examples, BatchNotes(saved.to_json() if counted else ""))
    )


def _records() -> list[Record]:
    """Return 60 examples in four messages; the second one is not the last of its transaction."""
    cuts = [(0, 10, 10), (10, 25, 0), (25, 40, 40), (40, 60, 60)]
    return [
        _record(2 * number, part(EXAMPLES, begin, end), counted)
        for number, (begin, end, counted) in enumerate(cuts)
    ]


def _scored() -> set[int]:
    shown = np.flatnonzero(EXAMPLES.kinds != Kind.CLICKED)
    return {hash(each) for each in EXAMPLES.impression_ids.take(shown).to_pylist()}


def test_a_complete_topic_that_was_learned_has_no_gap() -> None:
    found = compare(_records(), _scored(), SPEC.fields)
    assert (found.lost, found.unscored) == ([], [])


def test_a_message_missing_in_kafka_shows_at_the_next_counters() -> None:
    records = _records()
    found = compare([records[0], *records[2:]], _scored(), SPEC.fields)
    [lost] = found.lost
    assert lost.startswith("examples.m/0 at offset 4, 1000 ms: +15 examples")
    assert found.unscored == []


def test_a_message_that_no_learner_scored_is_named() -> None:
    records = _records()
    third = part(EXAMPLES, 25, 40)
    shown = third.impression_ids.take(np.flatnonzero(third.kinds != Kind.CLICKED)).to_pylist()
    found = compare(records, _scored() - {hash(each) for each in shown}, SPEC.fields)
    [unscored] = found.unscored
    count = len(shown)
    assert unscored.endswith(f"offset 4, 1000 ms: {count} of {count} impressions without a score")
    assert found.lost == []
