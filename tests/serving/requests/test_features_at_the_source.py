"""Streaming counters of the spec: training and serving compute the same values."""

import numpy as np
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoder
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.models.logistic import LogisticRegression
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.store import Shape
from headrace.serving.models.predictor import Predictor
from headrace.serving.replicas.status import TableRowSource
from headrace.serving.requests.candidates import Candidates

SPEC = """
[model]
name = "source"

[fields.item]
number = 1
transform = "id"

[fields.user]
number = 2
transform = "id"

[fields.user_item]
number = 3
transform = "cross"
of = ["user", "item"]

[fields.ten_minutes]
number = 4
transform = "period"
period_s = 600

[fields.item_lately]
number = 5
transform = "cross"
of = ["item", "ten_minutes"]

[statistics.exposures]
number = 40
statistic = "show"
of = "user_item"

[statistics.clicks_lately]
number = 41
statistic = "click"
of = "item_lately"

[statistics.age]
number = 42
statistic = "age"
of = "item"

[statistics.lately_by_exposures]
number = 43
cross = ["clicks_lately", "exposures"]

[optimizer]
alpha = 0.3
"""
START_MS = 1_700_000_000_000


class Trained:
    """A model that learns event by event and predicts like a server."""

    def __init__(self) -> None:
        self.spec = parse_spec(SPEC, "source.toml")
        self.encoder = Encoder(self.spec.fields)
        self.model, self.served = LogisticRegression(self.spec), LogisticRegression(self.spec)
        self.view = view_of(self.spec.width)
        self.pending = PendingDeltas(
            self.view, Shape("source", 1, self.spec.width, self.spec.fingerprint, "")
        )
        self.predictor = Predictor(self.spec.fields, self.served)

    def answer(self, event: dict[str, object]) -> float:
        """Return the score of a request with one candidate; user and time are in the context."""
        context = {name: event[name] for name in ("user", "timestamp_ms")}
        asked = Candidates(context, [{"item": event["item"]}])
        [score] = self.predictor.predict(TableRowSource(self.view), asked, 0)
        return float(score)

    def learn(self, event: dict[str, object], kind: Kind, at_ms: int) -> float:
        features = self.encoder.encode([event])
        shown_ms = np.array([event["timestamp_ms"]], np.int64)
        examples = Examples(
            *(self.spec.fields.fingerprint, at_ms),
            np.array([kind], np.uint8),
            np.array([kind == Kind.CLICKED], np.uint8),
            np.array([at_ms], np.int64),
            *(shown_ms, shown_ms),
            pa.array([event["impression_id"]], pa.string()),
            pa.array([None], pa.string()),
            features,
            {},
        )
        self.view.reserve(self.model.rows_needed(examples))
        active = np.ones(1, np.bool_)
        [score] = self.model.learn(self.view, self.pending.reserve(), active, examples)
        return float(score)

    def row(self, field: str, event: dict[str, object]) -> tuple[int, int]:
        """Return the shows and clicks of a field's row for this event."""
        column = [each.name for each in self.spec.fields.singles].index(field)
        [place] = self.view.find(self.encoder.encode([event]).ids[:, column])
        if place < 0:
            return 0, 0
        columns = self.view.columns
        return int(columns.shows[place]), int(columns.clicks[place])


def test_server_and_learner_score_the_same_event_alike() -> None:
    trained, dice = Trained(), np.random.default_rng(3)
    scores = []
    for i in range(400):
        at_ms = START_MS + 9_000 * i
        event: dict[str, object] = {
            "impression_id": f"i{i}",
            "timestamp_ms": at_ms,
            "user": f"u{dice.integers(3)}",
            "item": int(dice.integers(4)),
        }
        asked = trained.answer(event)
        scored = trained.learn(event, Kind.SHOWN, at_ms)
        assert asked == scored, f"event {i}"
        scores.append(scored)
        if dice.random() < 0.4:
            trained.learn(event, Kind.CLICKED, at_ms + 3_000)
    assert len(set(scores)) > 100, "the counters make a difference"


def test_a_period_counts_the_events_within_it_only() -> None:
    trained = Trained()
    begin_ms = START_MS - START_MS % 600_000
    event: dict[str, object] = {"impression_id": "a", "user": "u", "item": 1}
    for minute, click in ((0, True), (4, True), (9, False), (10, True), (25, False)):
        shown = {**event, "impression_id": f"a{minute}", "timestamp_ms": begin_ms + 60_000 * minute}
        trained.learn(shown, Kind.SHOWN, begin_ms + 60_000 * minute)
        if click:
            # counts in the period of its impression, though it comes in another
            trained.learn(shown, Kind.CLICKED, begin_ms + 60_000 * (minute + 12))
    found = [
        trained.row("item_lately", {**event, "timestamp_ms": begin_ms + 60_000 * minute})
        for minute in (5, 15, 25, 35)
    ]
    assert found == [(3, 2), (1, 1), (1, 0), (0, 0)]
    assert trained.row("item", {**event, "timestamp_ms": begin_ms}) == (5, 3)
