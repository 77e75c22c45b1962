"""The examples of a log in memory are those that the joiner core writes for the same events."""

import numpy as np
import orjson
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, concatenate
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.joiner.core.input import EventSide
from headrace.learner.local.event_join import EventJoin
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.sample_stream import Clicks, joined, unlabelled
from tests.effort import seeds

T0_MS = 1_700_000_000_000
_SPEC = """
[model]
name = "stream"
[label]
policy = "{policy}"
window_s = 2.0
{wait}
[fields.user]
number = 1
transform = "id"
"""
_PLAIN = """
[optimizer]
name = "sgd"
alpha = 1e-6
"""


def spec_of(policy: str, wait_s: float) -> ModelSpec:
    wait = f"wait_s = {wait_s}" if wait_s else ""
    return parse_spec(_SPEC.format(policy=policy, wait=wait), "stream.toml")


def outcomes_of(seed: int) -> Clicks:
    """Impressions of which several have one time, and clicks at times on and off the limits."""
    dice = np.random.default_rng(seed)
    shown_ms = T0_MS + np.sort(dice.integers(0, 40, 120)) * 250
    delays_ms = dice.choice([0, 1, 249, 250, 251, 1000, 1999, 2000, 2001, 9000], shown_ms.shape[0])
    clicked = dice.random(shown_ms.shape[0]) < 0.5
    return Clicks(shown_ms, np.where(clicked, shown_ms + delays_ms, -1))


def in_memory(spec: ModelSpec, outcomes: Clicks) -> Examples:
    count = outcomes.shown_ms.shape[0]
    nothing = Encoded(
        np.zeros((count, 1), np.uint64),
        np.zeros(0, np.uint64),
        np.zeros(1, np.int32),
        np.zeros((count, 0), np.float32),
    )
    names = pa.array([f"i{i}" for i in range(count)])
    requests = pa.nulls(count, pa.string())
    return joined(spec, unlabelled(spec, nothing, outcomes.shown_ms, names, requests), outcomes)[0]


def by_the_joiner(spec: ModelSpec, outcomes: Clicks) -> Examples:
    join = EventJoin(spec.fields)
    events: dict[EventSide, list[tuple[int, bytes]]] = {side: [] for side in EventSide}
    times = outcomes.shown_ms.tolist(), outcomes.click_ms.tolist()
    for i, (shown_ms, click_ms) in enumerate(zip(*times, strict=True)):
        for side, at_ms in ((EventSide.IMPRESSIONS, shown_ms), (EventSide.CLICKS, click_ms)):
            if at_ms >= 0:
                event = {"impression_id": f"i{i}", "timestamp_ms": at_ms}
                events[side].append((at_ms, orjson.dumps(event)))
    for side, sent in events.items():
        join.offer(side, sorted(sent, key=lambda each: each[0]))
    return concatenate([each.examples for each in join.closed()])


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize(
    ("policy", "wait_s"),
    [("immediate", wait_s) for wait_s in (0.0, 0.25, 1.0, 2.0)] + [("window", 0.0)],
)
def test_examples_in_memory_are_those_of_the_joiner(seed: int, policy: str, wait_s: float) -> None:
    spec, outcomes = spec_of(policy, wait_s), outcomes_of(seed)
    found, made = in_memory(spec, outcomes), by_the_joiner(spec, outcomes)
    for name in ("kinds", "labels", "event_ms", "shown_ms"):
        assert getattr(found, name).tolist() == getattr(made, name).tolist(), name
    assert found.impression_ids.equals(made.impression_ids)


def test_clicks_within_the_wait_are_learned_as_under_window() -> None:
    dice, scores = np.random.default_rng(3), []
    outcomes = outcomes_of(3)
    clicked = dice.random(outcomes.shown_ms.shape[0]) < 0.5
    outcomes = Clicks(outcomes.shown_ms, np.where(clicked, outcomes.shown_ms + 1000, -1))
    for policy, wait_s in (("immediate", 1.0), ("window", 0.0)):
        spec = spec_of(policy, wait_s)
        examples = in_memory(spec, outcomes)
        scores.append(InMemoryModel(spec).learn(examples).tolist())
    assert scores[0] == scores[1]


@pytest.mark.parametrize("late_s", [0.5, 1.5])
def test_the_steps_of_an_impression_and_its_click_add_up_whenever_the_click_comes(
    late_s: float,
) -> None:
    """The slopes at one score are p and -1, or p - 1 together."""
    spec = parse_spec(spec_of("immediate", 1.0).text + _PLAIN, "stream.toml")
    shown_ms = np.array([T0_MS])
    found = InMemoryModel(spec)
    found.learn(in_memory(spec, Clicks(shown_ms, shown_ms + round(1000 * late_s))))
    assert found.rows.values[:, 0] == pytest.approx(0.5e-6 * np.ones(2), rel=1e-3)
