"""Histories from the stream: what a user clicked last, in training as in serving."""

import random
from typing import Any

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.models.factory import open_model
from headrace.pserver.rows.table import RowTable
from tests.effort import LONG, seeds
from tests.learner.few_rows import Model, Trouble, assert_same, drawn
from tests.learner.inputs.history_reference import (
    HISTORY,
    LAST,
    LATER_MS,
    assert_histories,
    clicks_of,
    newest_of,
)
from tests.learner.streams import BUCKETS, Bench, part

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
DIN = """architecture = "din"
dimensions = 2
layers = [4]
mini_batch = 16
history = "recent"
target = "item"
"""


@pytest.mark.parametrize("model", ["", MACHINE], ids=["logistic", "machine"])
@pytest.mark.parametrize("seed", seeds(2))
def test_histories_do_not_depend_on_how_the_stream_is_cut_into_batches(
    seed: int, model: str
) -> None:
    spec, examples = drawn(seed, HISTORY, model)
    whole, few = Bench(spec), Bench(spec)
    scores = whole.learn(examples)
    cut = [few.learn(part(examples, k, k + 7)) for k in range(0, len(examples), 7)]
    np.testing.assert_array_equal(scores, np.concatenate(cut))
    assert_same(whole.view.everything().existing(), few.view.everything().existing())
    assert_histories(spec, whole.view, examples)


def test_an_impression_is_learned_with_the_clicks_before_it() -> None:
    spec, examples = drawn(0, HISTORY)
    bench = Bench(spec)
    filled: list[Examples] = []
    real = bench.model._inputs.histories.learned

    def learned(*arguments: Any) -> Examples:
        filled.append(real(*arguments))
        return filled[-1]

    bench.model._inputs.histories.learned = learned  # type: ignore[method-assign,assignment]
    bench.learn(examples)
    clicks, ends = clicks_of(spec, examples), filled[0].features.bag_offsets
    bags = len(spec.fields.bags)
    column = [each.name for each in spec.fields.singles].index("user")
    lengths = set()
    for i in range(len(examples)):
        own = filled[0].features.bag_ids[ends[i * bags + 2] : ends[i * bags + 3]].tolist()
        expected = newest_of(clicks, int(examples.features.ids[i, column]), examples.shown_ms[i])
        if len(own) == LAST or examples.kinds[i] != Kind.CLICKED:
            lengths.add(len(own))
        if examples.kinds[i] != Kind.CLICKED:
            assert own == expected
        else:  # of the clicks since it was shown, at most the spare slots are new
            assert own[-1:] == expected[-1:]
    assert lengths == set(range(LAST + 1))


def test_examples_that_are_learned_again_change_no_history() -> None:
    spec, examples = drawn(1, HISTORY)
    bench = Bench(spec)
    bench.learn(examples)
    bench.gained()
    counted = tuple(range(0, BUCKETS, 2))
    bench.learn(examples, inactive=counted)  # as after a crash: half of the buckets have them
    again = bench.gained()
    assert not np.isin(bench.shape.bucket_of(again.ids), counted).any()
    assert_histories(spec, bench.view, examples)


@pytest.mark.parametrize("model", ["", MACHINE], ids=["logistic", "machine"])
@pytest.mark.parametrize("seed", seeds(2))
def test_a_learner_of_few_rows_has_the_histories_of_one_of_all_rows(seed: int, model: str) -> None:
    spec, examples = drawn(seed, HISTORY, model)
    whole, few = Model(spec, examples), Model(spec, examples)
    whole.run(whole.learning(None))
    few.run(few.learning(most_rows=150))
    assert_same(few.rows(), whole.rows())
    assert_histories(spec, few.replica().table, examples)


@pytest.mark.parametrize("most_rows", [None, 150], ids=["all rows", "few rows"])
@pytest.mark.parametrize("seed", seeds(3 if LONG else 2))
def test_under_random_faults_every_click_is_in_the_history_once(
    seed: int, most_rows: int | None
) -> None:
    spec, examples = drawn(seed, HISTORY)
    trouble = Trouble(random.Random(seed), (spec, examples), most_rows)
    trouble.run()
    assert_histories(spec, trouble.model.replica().table, examples)


@pytest.mark.parametrize("model", ["", MACHINE, DIN], ids=["logistic", "machine", "din"])
@pytest.mark.parametrize("seed", seeds(2))
def test_a_server_answers_with_the_score_that_the_learner_gives(seed: int, model: str) -> None:
    if model == DIN:
        pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")
    spec, examples = drawn(seed, HISTORY, model)
    half = len(examples) // 2
    trained = Model(spec, part(examples, 0, half))
    trained.run(trained.learning(None))
    learner, rows = Bench(spec), trained.replica().table
    learner.pending.refresh(rows, rows.ids.copy(), None)
    request = part(examples, half, half + 1)
    request.kinds[:], request.labels[:] = Kind.CLOSED, 0
    request.shown_ms[:] = request.event_ms
    expected = learner.learn(request)
    server = open_model(spec, BUCKETS)
    answer = server.predict(rows, request.features, request.shown_ms)
    np.testing.assert_array_equal(answer, expected)
    asked, held = server.required_rows, RowTable(spec.width)
    for step in range(3):
        if step < 2:
            ids = asked.of_features(request.features) if step else asked.always
        else:
            ids = asked.of_statistics(held, request.features, request.shown_ms)
        places = rows.find(ids)
        held.put(rows.take(places[places >= 0]))
    assert len(held) < len(rows)
    np.testing.assert_array_equal(
        server.predict(held, request.features, request.shown_ms), expected
    )


def test_an_explanation_says_what_the_history_contributed() -> None:
    spec, examples = drawn(0, HISTORY)
    bench = Bench(spec)
    bench.learn(examples)
    some = part(examples, 0, 20).features
    times = np.full(len(some), LATER_MS, np.int64)
    explained = bench.model.explain(lambda *_: bench.view, some, times)
    scores = bench.model.predict(bench.view, some, times)
    np.testing.assert_allclose(
        1.0 / (1.0 + np.exp(-explained.parts.sum(axis=1))), scores, rtol=1e-5
    )
    assert np.abs(explained.parts[:, list(explained.names).index("recent")]).max() > 0.0
