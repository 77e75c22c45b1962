"""A replica with only the required rows gives the scores of a full one."""

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.rows.table import RowTable
from tests.effort import seeds
from tests.serving.served_models import NOW_MS, SPEC, deltas_of_ids

BUCKETS = 4
CROSSED = """
[statistics.slate_rate]
number = 41
cross = ["article_rate", "slate"]
"""
ADMITTED = """
[admission]
kind = "count"
sightings = 3
filter_mb = 1
"""


def events(dice: np.random.Generator, count: int) -> list[dict[str, object]]:
    return [
        {
            "article_id": int(dice.integers(20)),
            "user_id": int(dice.integers(50)),
            "slate_size": int(dice.integers(9)),
            "topics": [f"t{each}" for each in dice.integers(6, size=int(dice.integers(4)))],
            "price": float(dice.random()),
            "timestamp_ms": NOW_MS,
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("text", [SPEC + CROSSED, SPEC + CROSSED + ADMITTED, SPEC])
@pytest.mark.parametrize("seed", seeds(3))
def test_required_rows_are_all_that_a_score_depends_on(text: str, seed: int) -> None:
    dice = np.random.default_rng(seed)
    spec = parse_spec(text, "news.toml")
    model, encoder = open_model(spec, BUCKETS), Encoder(spec.fields)
    asked, whole = model.required_rows, RowTable(spec.width)
    for _ in range(5):
        features = encoder.encode(events(dice, 30))
        times = np.full(30, NOW_MS, np.int64)
        for ids in (
            asked.always,
            asked.of_features(features),
            asked.of_statistics(whole, features, times),
        ):
            deltas = deltas_of_ids(ids[dice.random(ids.shape[0]) < 0.7], 0.0)
            deltas.values[:, 0] = dice.normal(size=deltas.ids.shape[0])
            whole.add(deltas)
    features = encoder.encode(events(dice, 40))
    times = np.full(40, NOW_MS, np.int64)
    view = RowTable(spec.width)
    for step in ("always", "features", "statistics"):
        if step == "always":
            ids = asked.always
        elif step == "features":
            ids = asked.of_features(features)
        else:
            ids = asked.of_statistics(view, features, times)
        assert np.unique(ids).shape == ids.shape
        places = whole.find(ids)
        view.put(whole.take(places[places >= 0]))
    assert 0 < len(view) < len(whole)
    expected = model.predict(whole, features, times)
    assert model.predict(view, features, times).tolist() == expected.tolist(), f"seed {seed}"
