"""A small logistic regression in two buckets: its joiner, learners and predictions.

Clocks, names and random numbers are fixed, so each run gives the same result.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.ingest.examples.batch import Examples, notes_of
from headrace.ingest.examples.batch import unpack as unpack_examples
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.fakes import ListTransactions
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.transactions import Outgoing
from headrace.learner.loop.guard.batch_guard import BatchGuard, Verdict
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.marks.parked_marks import ParkedCause
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from headrace.serving.models.predictor import Predictor
from headrace.serving.replicas.status import TableRowSource
from headrace.serving.requests.candidates import Candidates
from tests.formats import golden
from tests.ingest.events_of import START_MS, WINDOW_MS
from tests.ingest.joiner.joiner_run import EXAMPLES, JoinerRun
from tests.learner.in_memory import InMemoryModel

BUCKETS = 2
NOW_MS = START_MS + 3_600_000
CANDIDATES: list[dict[str, Any]] = [
    {"article": 3, "words": ["a", "b", "b"], "price": 1.5},
    {"article": 17, "words": [], "price": 0.0},
    {"article": 41, "words": ["f"]},
    {"article": "never shown", "words": ["c"], "price": 9.0},
]
_PACE = LearnerPacing(push_interval_ms=10, backlog_interval_ms=10)


def spec_of(policy: str) -> ModelSpec:
    """Return the recorded spec with this label policy."""
    name = f"{policy}.toml"
    return parse_spec((golden.V1 / name).read_text(), name)


def joined(
    records: Mapping[Source, Sequence[Record]], transactions: ListTransactions, policy: str
) -> ListTransactions:
    """Let a new joiner join all events that are not joined yet; return the transactions."""
    numbers = itertools.count(transactions.count)
    run = JoinerRun(
        records,
        transactions,
        fields=spec_of(policy).fields,
        draw_name=lambda: f"transaction {next(numbers)}",
    )
    run.run()
    return transactions


def decoded_message(value: bytes, fields: FieldSet) -> dict[str, Any]:
    """Return the content of a message of examples, with the notes of the joiner."""
    return {**golden.columns_of(unpack_examples(value, fields)), **notes_of(value)._asdict()}


def following_examples(messages: Iterable[Outgoing], fields: FieldSet) -> list[list[Any]]:
    """Return the examples in messages of all partitions, however they are cut into batches.

    Each is a list: partition, kind, label, times, ids, items of bags, numbers, weight, slices.
    """
    found = []
    for target, value, _ in messages:
        if target.topic != EXAMPLES or not len(unpack_examples(value, fields)):
            continue
        columns = golden.columns_of(unpack_examples(value, fields))
        names = ("kinds", "labels", "event_ms", "shown_ms", "append_ms", "impression_ids")
        more = ("request_ids", "ids", "bags", "numbers", "weights")
        rows = zip(
            *(columns[name] for name in (*names, *more)), *columns["slices"].values(), strict=True
        )
        found += [[target.partition, *row] for row in rows]
    return sorted(found, key=lambda row: (row[0], row[3], row[6], row[1]))


def example_records(found: Mapping[str, Any]) -> list[Record]:
    """Return recorded messages of examples as a learner reads them."""
    offsets = {partition: itertools.count() for partition in range(2)}
    return [
        Record(Source(topic, at), next(offsets[at]), START_MS, golden.bytes_of(value))
        for topic, at, value in found["messages"]
        if topic == EXAMPLES
    ]


class DoubtfulGuard(BatchGuard):
    """Finds one message suspect, so that a learner parks it."""

    def __init__(self, source: Source, offset: int) -> None:
        super().__init__(WINDOW_MS)
        self._place = f"{source.topic}/{source.partition}", offset

    def before(self, name: str, offset: int, examples: Examples) -> Verdict | None:
        if (name.removeprefix("id-of-"), offset) == self._place:
            return Suspect("as the recorder says", ParkedCause.REPEATS)
        return super().before(name, offset, examples)


def learn(
    model: InMemoryModel, records: Sequence[Record], guard: BatchGuard | None = None
) -> list[Any]:
    """Let a new learner continue from the marks to the end of these messages.

    Returns its scores: impression, time of the event, probability of a click.
    """
    begin = len(model.written.sent)
    learner = model.learner(records, _PACE, guard=guard)
    ends = {each.source.partition: each.offset + 1 for each in records}
    for _ in range(1_000):
        model.now_ms += 10
        learner.step(0.0)
        if model.learned(ends):
            break
    else:
        raise AssertionError(f"expected marks {ends}, got {model.marks()}")
    sent = [unpack_scores(each.value) for each in model.written.sent[begin:]]
    return [
        list(row)
        for each in sent
        for row in zip(
            *(each.impression_ids.to_pylist(), each.event_ms.tolist(), each.scores.tolist()),
            strict=True,
        )
    ]


def predictions(spec: ModelSpec, rows: Replica | RowTable) -> list[float]:
    """Return the click probabilities of the candidates."""
    table = rows.table if isinstance(rows, Replica) else rows
    predictor = Predictor(spec.fields, open_model(spec, BUCKETS))
    scores = predictor.predict(TableRowSource(table), Candidates({}, CANDIDATES), NOW_MS)
    return [float(score) for score in scores]
