"""The candidates of a request get the same scores in any order, and in any number of partitions."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, Kind, reordered
from headrace.ingest.examples.splitting import part_of
from headrace.learner.inputs.slates import (
    LONGEST_SLATE,
    SLATE_SPAN_MS,
    cut_between_slates,
    slate_ends,
    slate_order,
)
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.in_memory import InMemoryModel, records_of
from tests.learner.streams import FIELDS, START_MS, STATISTICS, Bench, random_examples

ARCHITECTURES = {
    "logistic_regression": "",
    "factorization_machine": "dimensions = 3\ninit_scale = 0.1\n",
    "deepfm": "dimensions = 3\nlayers = [4]\nmini_batch = 16\n",
}
MIXED = 'kind = "count"\nsightings = 3\nfilter_mb = 1\nfields = ["user", "item"]\n'
SLATE = 5


def spec_of(architecture: str, policy: str, *, whole: bool = False) -> ModelSpec:
    """A model with statistics; `whole`: with admission and calibration, too."""
    text = FIELDS.format(policy=policy).replace(
        'name = "test"\n',
        f'name = "test"\narchitecture = "{architecture}"\n{ARCHITECTURES[architecture]}',
    )
    text += STATISTICS.format(prior_clicks=1.0)
    if whole:
        text += f'\n[admission]\n{MIXED}\n[calibration]\nkind = "platt"\nalpha = 0.01\n'
    return parse_spec(text, "test.toml")


def requests(spec: ModelSpec, policy: str, count: int, seed: int) -> Examples:
    """Examples of requests of five candidates, one request a second; a user each."""
    random = np.random.default_rng(seed)
    examples = random_examples(random, spec, count * SLATE, closed=policy == "window")
    examples = part_of(examples, 0, count * SLATE)
    number = np.arange(count * SLATE) // SLATE
    times = START_MS + 1000 * number
    kind = Kind.CLOSED if policy == "window" else Kind.SHOWN
    return replace(
        examples,
        kinds=np.full(len(examples), kind, np.uint8),
        labels=examples.labels * np.uint8(policy == "window"),
        event_ms=times,
        shown_ms=times,
        impression_ids=pa.array([f"i{k}" for k in range(len(examples))]),
        request_ids=pa.array([f"r{k}" for k in number]),
    )


def learned(spec: ModelSpec, examples: Examples) -> dict[str, float]:
    """Learn the examples in one call; return the score of each impression."""
    scores = Bench(spec).learn(examples)
    return dict(zip(examples.impression_ids.to_pylist(), scores.tolist(), strict=True))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_the_scores_of_a_request_do_not_depend_on_the_order_within_it(
    architecture: str, policy: str, whole: bool
) -> None:
    if architecture == "deepfm":
        pytest.importorskip("torch")
    spec = spec_of(architecture, policy, whole=whole)
    examples = requests(spec, policy, 1, 3)
    before = requests(spec, policy, 40, 4)
    backwards = np.arange(SLATE)[::-1].copy()
    scores = []
    for last in (examples, reordered(examples, backwards)):
        bench = Bench(spec)
        bench.learn(before)
        made = bench.learn(replace(last, request_ids=pa.array(["last"] * SLATE)))
        scores.append(dict(zip(last.impression_ids.to_pylist(), made.tolist(), strict=True)))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_candidates_with_and_without_a_click_within_the_wait_are_one_slate() -> None:
    spec = spec_of("logistic_regression", "immediate")
    examples = requests(spec, "immediate", 2, 3)
    kinds = np.tile(np.array([Kind.SHOWN, Kind.CLOSED], np.uint8), SLATE)
    examples = replace(examples, kinds=kinds, labels=(kinds == Kind.CLOSED).astype(np.uint8))
    assert slate_ends(examples).tolist() == [SLATE] * SLATE + [2 * SLATE] * SLATE
    mixed = reordered(examples, np.arange(2 * SLATE).reshape(2, SLATE).T.reshape(-1))
    order = slate_order(mixed)
    assert order is not None
    assert slate_ends(reordered(mixed, order)).tolist() == slate_ends(examples).tolist()


@pytest.mark.parametrize("architecture", ["logistic_regression", "factorization_machine"])
def test_a_request_is_scored_as_a_server_would_score_it(architecture: str) -> None:
    spec = spec_of(architecture, "immediate")
    bench = Bench(spec)
    bench.learn(requests(spec, "immediate", 40, 4))
    last = requests(spec, "immediate", 1, 3)
    last = replace(last, event_ms=last.event_ms + 90_000, shown_ms=last.shown_ms + 90_000)
    asked = bench.model.predict(bench.view, last.features, last.shown_ms)
    last = replace(last, impression_ids=pa.array([f"new{k}" for k in range(SLATE)]))
    assert bench.learn(last) == pytest.approx(asked, abs=1e-7)


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("partitions", [2, 5])
def test_the_same_requests_in_several_partitions_get_the_same_scores(
    partitions: int, policy: str
) -> None:
    spec = spec_of("logistic_regression", policy)
    examples = requests(spec, policy, 120, 5)
    scores = []
    for count in (1, partitions):
        records = []
        for partition in range(count):
            mine = np.flatnonzero(np.arange(len(examples)) // SLATE % count == partition)
            own = reordered(examples, mine)
            batches = [part_of(own, k, min(k + 37, len(own))) for k in range(0, len(own), 37)]
            records += records_of(batches, partition)
        model = InMemoryModel(spec)
        learner = model.learner(records, LearnerPacing(), largest_poll=1000)
        for _ in range(10):
            learner.step(0.0)
        learner.finish(1000)
        found: dict[str, float] = {}
        for sent in model.written.sent:
            made = unpack_scores(sent.value)
            found |= zip(made.impression_ids.to_pylist(), made.scores.tolist(), strict=True)
        assert len(found) == len(examples)
        scores.append(found)
    # messages of one partition may end within a request; merged ones do not
    whole = learned(spec, examples)
    assert scores[1] == pytest.approx(whole, abs=1e-9)


def test_neighbours_of_one_request_and_time_form_a_slate() -> None:
    spec = spec_of("logistic_regression", "immediate")
    examples = requests(spec, "immediate", 2, 1)
    assert slate_ends(examples).tolist() == [5] * 5 + [10] * 5
    late = examples.shown_ms.copy()
    late[3:5] += SLATE_SPAN_MS + 1
    assert slate_ends(replace(examples, shown_ms=late)).tolist() == [3] * 3 + [5] * 2 + [10] * 5
    clicked = examples.kinds.copy()
    clicked[1:3] = Kind.CLICKED
    assert slate_ends(replace(examples, kinds=clicked)).tolist() == [1, 2, 3, 5, 5] + [10] * 5
    nobody = pa.nulls(10, pa.string())
    assert slate_ends(replace(examples, request_ids=nobody)).tolist() == list(range(1, 11))


def test_a_slate_is_bounded_and_mini_batches_end_between_slates() -> None:
    spec = spec_of("logistic_regression", "immediate")
    examples = requests(spec, "immediate", 200, 1)
    same = replace(examples, request_ids=pa.array(["r"] * 1000), shown_ms=np.full(1000, START_MS))
    assert np.unique(slate_ends(same)).tolist() == [LONGEST_SLATE, 1000]
    ends = slate_ends(examples)
    assert cut_between_slates(ends, 12)[:3] == [0, 10, 20]
    assert cut_between_slates(ends, 3)[:3] == [0, 5, 10]


def test_requests_that_alternate_are_put_together() -> None:
    spec = spec_of("logistic_regression", "immediate")
    examples = requests(spec, "immediate", 2, 1)
    assert slate_order(examples) is None
    mixed = replace(examples, request_ids=pa.array(["a", "b"] * 5), shown_ms=np.full(10, START_MS))
    order = slate_order(mixed)
    assert order is not None
    assert reordered(mixed, order).request_ids.to_pylist() == ["a"] * 5 + ["b"] * 5
    assert order.tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
