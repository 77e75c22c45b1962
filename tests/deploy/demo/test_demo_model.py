"""The model of the demo on the stream of the demo, without a Kafka or a store between them.

The promise of the demo depends on these two alone: a model that goes on learning is well ahead of
one that stopped, and close to the truth.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from headrace.deploy.demo.synthetic import Event, SyntheticSite, SyntheticStream
from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.model_comparison import ComparisonSnapshot, ModelComparison
from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoder
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.loop.scores import Scores
from headrace.learner.models.logistic import LogisticRegression
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape

START_MS = 1_700_000_000_000
STEP_MS = 200


class _Learning:
    """Joiner, learner and server in one, in memory."""

    def __init__(self) -> None:
        self.spec = load_spec(path_of("demo"))
        self.encoder = Encoder(self.spec.fields)
        self.model = LogisticRegression(self.spec)
        self.view = view_of(self.spec.width)
        shape = Shape("demo", 1, self.spec.width, self.spec.fingerprint, self.spec.text)
        self.pending = PendingDeltas(self.view, shape)
        self.shown: dict[str, Event] = {}

    def examples(self, kind: Kind, events: Sequence[Event], event_ms: Sequence[int]) -> Examples:
        shown_ms = np.array([event["timestamp_ms"] for event in events], np.int64)
        return Examples(
            self.spec.fields.fingerprint,
            0,
            np.full(len(events), kind, np.uint8),
            np.full(len(events), kind == Kind.CLICKED, np.uint8),
            np.array(event_ms, np.int64),
            shown_ms,
            shown_ms,
            pa.array([event["impression_id"] for event in events], pa.string()),
            pa.array([event["request_id"] for event in events], pa.string()),
            self.encoder.encode(events),
            {},
        )

    def learn(self, examples: Examples) -> Scores:
        self.view.reserve(self.model.rows_needed(examples))
        active = np.ones(1, np.bool_)
        made = self.model.learn(self.view, self.pending.reserve(), active, examples)
        self.pending.take([0])
        scored = np.flatnonzero(~np.isnan(made))
        return Scores(
            examples.impression_ids.take(scored),
            examples.request_ids.take(scored),
            examples.event_ms[scored],
            made[scored],
        )

    def copy(self) -> RowTable:
        size, ours = len(self.view), self.view.columns
        copy = RowTable(self.spec.width)
        copy.add(
            RowDeltas(
                self.view.ids,
                ours.shows[:size].astype(np.uint32),
                ours.clicks[:size].astype(np.uint32),
                ours.first_seen[:size],
                ours.last_seen[:size],
                ours.values[:size],
            )
        )
        return copy


def comparison(seed: int, seconds: int, requests_s: int) -> ComparisonSnapshot:
    """Live against frozen after a third, over the last third."""
    stream = SyntheticStream(SyntheticSite.lasting(seconds), seed, START_MS)
    learning, result = _Learning(), ModelComparison()
    end_ms = START_MS + 1000 * seconds
    while stream.now_ms < end_ms or stream.pending:
        at_s = (stream.now_ms - START_MS) / 1000
        requests = requests_s * STEP_MS // 1000 if stream.now_ms < end_ms else 0
        happened = stream.step(stream.now_ms + STEP_MS, requests)
        result.add_truth([e["impression_id"] for e in happened.impressions], happened.truth)
        learning.shown.update((e["impression_id"], e) for e in happened.impressions)
        if result.frozen is None and at_s >= seconds / 3:
            result.frozen = partial(learning.model.predict, learning.copy())
        clicked = [learning.shown[click["impression_id"]] for click in happened.clicks]
        times = [click["timestamp_ms"] for click in happened.clicks]
        shown_ms = [event["timestamp_ms"] for event in happened.impressions]
        for batch in (
            learning.examples(Kind.SHOWN, happened.impressions, shown_ms),
            learning.examples(Kind.CLICKED, clicked, times),
        ):
            if len(batch):
                result.add_examples(batch, at_s)
                result.add_scores(learning.learn(batch))
    return result.snapshot(seconds * 2 / 3, seconds)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_live_model_of_the_demo_is_ahead_of_the_frozen_one_and_near_the_truth(
    seed: int,
) -> None:
    snapshot = comparison(seed, seconds=60, requests_s=340)
    assert snapshot.impressions == 20 * 340 * SyntheticSite().slate
    assert snapshot.live - snapshot.frozen > 0.06, f"seed {seed}: {snapshot}"
    assert snapshot.truth - snapshot.live < 0.06, f"seed {seed}: {snapshot}"
