"""Admission and expiry in the loop: learner, keeper and server agree on which rows there are."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.ingest.examples.batch import pack
from headrace.ingest.kafka.fakes import ListReader, ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.inputs.admission import high_bits
from headrace.learner.kernels.row_ids import rare_id
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.metrics import LearnerCollector
from headrace.learner.models.logistic import LogisticRegression
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape
from tests.learner.streams import (
    BUCKETS,
    COUNT,
    PROBABILITY,
    counted,
    part,
    random_examples,
    random_spec,
)
from tests.learner.test_backpressure import Now

if TYPE_CHECKING:
    from headrace.learner.spec.model_spec import ModelSpec

# a pair of user and item is seen some 18 times: half of them are refused to the end
HARD = [COUNT.replace("= 4", "= 20"), PROBABILITY.replace("0.2", "0.03")]


@pytest.mark.parametrize("growth", HARD, ids=["count", "probability"])
def test_learner_keeper_and_server_agree_on_which_rows_there_are(growth: str) -> None:
    clock, dice = [0], random.Random(5)
    spec = random_spec(np.random.default_rng(3), "immediate", statistics=True, growth=growth)
    examples = random_examples(np.random.default_rng(4), spec, 1500, closed=False)
    source = Source("examples.test", 0)
    starts = range(0, len(examples), 50)
    records = [
        Record(source, n, 1, pack(part(examples, start, start + 50)))
        for n, start in enumerate(starts)
    ]
    shape = Shape("test", BUCKETS, spec.width, spec.fingerprint, "")
    store = MemoryStore(clock_ms=lambda: clock[0], nonces=lambda: dice.randbytes(8))
    store.create(shape)
    learning, serving = Replica(store, shape), Replica(store, shape)
    while not (learning.complete and serving.complete):
        learning.poll()
        serving.poll()
    model = LogisticRegression(spec, BUCKETS)
    learner = Learner(
        reader=ListReader({source: records}, largest_poll=3),
        scores=ListWriter(),
        score_topic="scores.test",
        store=store,
        exchange=Now(store),
        replica=learning,
        model=model,
        fields=spec.fields,
        pace=LearnerPacing(push_interval_ms=10),
        now_ms=lambda: clock[0],
        draw_nonce=lambda: dice.randbytes(8),
        rest=lambda seconds: None,
    )
    keeper = Keeper(
        store,
        shape,
        name="k",
        # ten minutes without being seen happen to a few pairs of user and item
        keeping=FoldPolicy(keep_ms=100, expiry=Expiry(after_s=600, interval_ms=200)),
        now_ms=lambda: clock[0],
        draw_nonce=lambda: dice.randbytes(8),
    )
    for _ in range(len(records) + 60):
        clock[0] += 20
        learner.step(0.0)
        keeper.step()
        serving.poll()
    assert learner.finish(clock[0] + 1000)
    for _ in range(20):
        clock[0] += 20
        learner.step(0.0)
        serving.poll()
    assert learner.figures.examples == len(examples)

    asked = examples.features, examples.shown_ms
    answering = LogisticRegression(spec, BUCKETS)
    np.testing.assert_array_equal(
        model.predict(learner.view, *asked), answering.predict(serving.table, *asked)
    )
    _assert_refused_admitted_and_deleted(spec, model, serving)

    registry = CollectorRegistry()
    registry.register(LearnerCollector("test", learner, lambda: 0, lambda: model.admissions))
    told = tuple(
        registry.get_sample_value(f"headrace_learner_{name}_total", {"model": "test"})
        for name in ("admitted_rows", "refused_ids")
    )
    assert told == model.admissions


def _assert_refused_admitted_and_deleted(
    spec: ModelSpec, model: LogisticRegression, replica: Replica
) -> None:
    rows = replica.table.everything()
    rows = rows.chosen(rows.exist())
    rare = rows.ids == rare_id.py_func(rows.ids, high_bits(BUCKETS))
    admitted, refused = model.admissions
    assert rows.shows[rare].sum() > refused / 4
    guarded = {spec.fields[name].number for name in ("item", "user", "both", "tags", "words")}
    earned = np.isin(rows.ids & np.uint64(1023), list(guarded)) & ~rare
    assert 0 < earned.sum() < admitted, "no earned row was deleted"
    both = (rows.ids & np.uint64(1023)) == counted(spec)["both"]
    assert 0 < rows.shows[both].sum() < 1500
