"""`loss = "choice"`: the user clicks one of the candidates of a request, or none."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.inputs.slates import request_ends
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.streams import FIELDS, START_MS, Bench, part, random_examples

Floats = npt.NDArray[np.float64]

CHOICE = 'loss = "choice"\n'
MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
DEEP = 'architecture = "deepfm"\ndimensions = 3\nlayers = [4]\nmini_batch = 20\n'
FTRL = '[optimizer]\nname = "ftrl"\nalpha = 0.3\nbeta = 1.0\nl1 = 0.0\nl2 = 0.0\n'
SHOWN = 5


def _spec(model: str, policy: str = "window", more: str = "") -> ModelSpec:
    fields = FIELDS.format(policy=policy).replace("[model]", "[model]\n" + model)
    return parse_spec(fields + FTRL + more, "test.toml")


def _in_requests(examples: Examples) -> Examples:
    """Return the examples as requests of `SHOWN` neighbours, each shown at one moment."""
    request = np.arange(len(examples)) // SHOWN
    shown_ms = examples.shown_ms[request * SHOWN]
    names = pa.array(request).cast(pa.string())
    return replace(examples, request_ids=names, shown_ms=shown_ms, event_ms=shown_ms, weights=None)


def _chosen(logistic: Floats) -> Floats:
    """Return the probabilities of a choice in each request of `SHOWN`, by the formula."""
    odds = (logistic / (1.0 - logistic)).reshape(-1, SHOWN)
    found: Floats = (odds / (1.0 + odds.sum(axis=1, keepdims=True))).ravel()
    return found


@pytest.mark.parametrize("model", ["", MACHINE, DEEP])
def test_probabilities_are_those_of_a_conditional_logit(model: str) -> None:
    if model == DEEP:
        pytest.importorskip("torch", reason="deep models are an extra")
    bench = Bench(_spec(CHOICE + model))
    examples = _in_requests(random_examples(np.random.default_rng(1), bench.spec, 320, closed=True))
    bench.learn(part(examples, 0, 300))
    asked = part(examples, 300, 320)
    ends = request_ends(asked.request_ids, asked.shown_ms)
    alone = np.arange(1, 21)
    logistic = bench.model.predict(bench.view, asked.features, asked.event_ms, alone)
    answers = bench.model.predict(bench.view, asked.features, asked.event_ms, ends)
    np.testing.assert_allclose(answers, _chosen(logistic), rtol=1e-6)
    assert (answers.reshape(-1, SHOWN).sum(axis=1) < 1.0).all()
    first = part(asked, 0, SHOWN)  # as a server answers one request
    answer = bench.model.predict(bench.view, first.features, first.event_ms)
    np.testing.assert_allclose(answer, answers[:SHOWN], rtol=1e-6)
    np.testing.assert_allclose(bench.learn(first), answer, rtol=1e-5)  # as it is learned


def _slate(spec: ModelSpec, kinds: list[Kind], labels: list[int]) -> Examples:
    """Return one request whose candidates share no id, then examples by themselves."""
    examples = random_examples(np.random.default_rng(5), spec, 40, closed=True)
    count = len(kinds)
    ids = np.arange(1, count + 1, dtype=np.uint64)[:, None] * np.uint64(1 << 20)
    some = part(examples, 0, count)
    shown = np.array([kind != Kind.CLICKED for kind in kinds])
    names = ["r" if each else f"alone {i}" for i, each in enumerate(shown)]
    features = replace(
        some.features,
        ids=ids + (some.features.ids & np.uint64(1023)),
        bag_ids=some.features.bag_ids[:0],
        bag_offsets=np.zeros_like(some.features.bag_offsets),
        numbers=np.zeros_like(some.features.numbers),
    )
    return replace(
        some,
        kinds=np.array(kinds, np.uint8),
        labels=np.array(labels, np.uint8),
        request_ids=pa.array(names),
        shown_ms=np.full(count, START_MS),
        event_ms=np.full(count, START_MS),
        features=features,
        weights=None,
    )


@pytest.mark.parametrize("model", ["", MACHINE])
def test_the_first_steps_are_the_derivatives_of_the_log_likelihood(model: str) -> None:
    """An untrained model gives each of n candidates the probability 1 / (1 + n)."""
    closed = Bench(_spec(CHOICE + model))
    closed.learn(_slate(closed.spec, [Kind.CLOSED] * 3, [0, 1, 0]))
    assert _gradients(closed, 3) == pytest.approx([0.25, -0.75, 0.25], abs=1e-3)
    late = Bench(_spec(CHOICE + model, "immediate"))
    late.learn(_slate(late.spec, [Kind.SHOWN] * 3 + [Kind.CLICKED], [0, 0, 0, 1]))
    assert _gradients(late, 4) == pytest.approx([0.25, 0.25, 0.25, -1.0], abs=1e-3)


def _gradients(bench: Bench, count: int) -> list[float]:
    """Return z of FTRL of the first field's id of each example: after one step, its gradient."""
    number = bench.spec.fields.singles[0].number
    ids = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(1 << 20) + np.uint64(number)
    found: list[float] = bench.view.columns.values[bench.view.find(ids), 0].tolist()
    return found
