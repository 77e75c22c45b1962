"""Admission and expiry in the loop: learner, keeper and server agree on which rows there are."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.learner.inputs.admission import high_bits
from headrace.learner.kernels.row_ids import rare_id
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.metrics import LearnerCollector
from headrace.learner.models.logistic import LogisticRegression
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.replica.replica import Replica
from tests.learner.in_memory import InMemoryModel, cut, records_of
from tests.learner.streams import BUCKETS, COUNT, PROBABILITY, counted, random_examples, random_spec

# a pair of user and item is seen some 18 times: half of them are refused to the end
HARD = [COUNT.replace("= 4", "= 20"), PROBABILITY.replace("0.2", "0.03")]


@pytest.mark.parametrize("growth", HARD, ids=["count", "probability"])
def test_learner_keeper_and_server_agree_on_which_rows_there_are(growth: str) -> None:
    spec = random_spec(np.random.default_rng(3), "immediate", statistics=True, growth=growth)
    examples = random_examples(np.random.default_rng(4), spec, 1500, closed=False)
    records = records_of(cut(examples, 50))
    place = InMemoryModel(spec)
    serving, model = place.replica(), LogisticRegression(spec, BUCKETS)
    learner = place.learner(records, LearnerPacing(push_interval_ms=10), model=model)
    # ten minutes without being seen happen to a few pairs of user and item
    keeper = place.keeper(FoldPolicy(keep_ms=100, expiry=Expiry(after_s=600, interval_ms=200)))
    for _ in range(len(records) + 60):
        place.now_ms += 20
        learner.step(0.0)
        keeper.step()
        serving.poll()
    assert learner.finish(place.now_ms + 1000)
    for _ in range(20):
        place.now_ms += 20
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
