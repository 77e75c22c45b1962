"""A model of down-sampled negatives predicts like one of all negatives."""

import numpy as np
import orjson
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import PartitionJoiner
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.streams import Bench

START_MS = 1_700_000_000_000
WINDOW_MS = 1000
SPEC = """
[model]
name = "test"
[label]
policy = "{policy}"
window_s = 1
[examples]
negative_rate = {rate}
[fields.item]
number = 1
transform = "id"
[fields.user]
number = 2
transform = "id"
[optimizer]
alpha = 0.1
"""
ITEMS, USERS = 8, 5


def _events(
    random: np.random.Generator, count: int
) -> tuple[list[dict[str, object]], np.ndarray, np.ndarray]:
    """Impressions, the probability that each is clicked, and whether it was."""
    items, users = random.integers(ITEMS, size=count), random.integers(USERS, size=count)
    rates = 1.0 / (1.0 + np.exp(3.5 - 0.25 * items - 0.3 * users))
    events = [
        {
            "impression_id": f"i{i}",
            "timestamp_ms": START_MS + 10 * i,
            "item": int(items[i]),
            "user": int(users[i]),
        }
        for i in range(count)
    ]
    return events, rates, random.random(count) < rates


def _learned(
    spec: ModelSpec, events: list[dict[str, object]], clicked: np.ndarray
) -> tuple[Bench, dict[tuple[str, int], tuple[float, float]]]:
    """Join all and learn it; return the model, and score and weight by impression and label."""
    ends = [{"timestamp_ms": START_MS + 10 * len(events) + 10 * WINDOW_MS}]
    clicks = [
        {"impression_id": each["impression_id"], "timestamp_ms": int(str(each["timestamp_ms"])) + 5}
        for each, is_clicked in zip(events, clicked, strict=True)
        if is_clicked
    ]
    reader, joiner, bench = ChunkReader(spec.fields), PartitionJoiner(spec.fields), Bench(spec)
    for side, found in ((EventSide.IMPRESSIONS, events), (EventSide.CLICKS, clicks)):
        records = [
            Record(Source(side.name, 0), i, START_MS * 2, orjson.dumps(each))
            for i, each in enumerate([*found, *ends])
        ]
        joiner.offer(reader.read(side, MessageBlock.of(records)))
        joiner.ended(side)
    made: dict[tuple[str, int], tuple[float, float]] = {}
    while (joined := joiner.advance(0)).taken or len(joined.examples):
        examples = joined.examples
        if not len(examples):
            continue
        scores = bench.learn(examples)
        weights = examples.weights if examples.weights is not None else np.ones(len(examples))
        keys = zip(examples.impression_ids.to_pylist(), examples.labels.tolist(), strict=True)
        made |= dict(zip(keys, zip(scores.tolist(), weights.tolist(), strict=True), strict=True))
    return bench, made


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_predictions_are_the_rate_of_clicks_whatever_part_is_kept(policy: str, rate: float) -> None:
    random = np.random.default_rng(20)
    spec = parse_spec(SPEC.format(policy=policy, rate=rate), "test.toml")
    events, rates, clicked = _events(random, 24_000)
    bench, made = _learned(spec, events, clicked)
    kept = sum(1 for _, label in made if label == 0)
    negatives = len(events) if policy == "immediate" else len(events) - int(clicked.sum())
    assert kept == negatives if rate == 1.0 else 0.8 * rate < kept / negatives < 1.2 * rate
    asked = Encoder(spec.fields).encode(events[-8000:])
    times = np.full(8000, START_MS, np.int64)
    predicted = bench.model.predict(bench.view, asked, times)
    # a fifth of the negatives' information is left at the lowest rate: the noise is as much larger
    assert abs(predicted.mean() / rates[-8000:].mean() - 1.0) < 0.08
    for user in range(USERS):
        his = np.array([each["user"] == user for each in events[-8000:]])
        assert abs(predicted[his].mean() / rates[-8000:][his].mean() - 1.0) < 0.25
