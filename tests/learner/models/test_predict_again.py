"""Repeated predictions equal the first."""

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.rows.table import RowTable
from tests.serving.served_models import SPEC

EVENTS = [
    {"article_id": i % 7, "user_id": i % 5, "price": i / 3, "topics": [i % 3] * (i % 4)}
    for i in range(60)
]
MACHINE = SPEC.replace('"logistic_regression"', '"factorization_machine"\ndimensions = 3')


@pytest.mark.parametrize("text", [SPEC, MACHINE])
def test_predictions_repeat_while_rows_grow_and_move(text: str) -> None:
    spec = parse_spec(text, "again.toml")
    model, encoder, view = open_model(spec), Encoder(spec.fields), RowTable(spec.width)
    dice = np.random.default_rng(8)
    for i, event in enumerate(EVENTS):
        features, now = encoder.encode_candidates({}, [event]), np.array([i])
        for _ in range(3):
            found = model.predict(view, features, now)
            assert found == open_model(spec).predict(view, features, now)
        if i % 20 == 10:
            view.reserve(10_000 * i)
        view.find_or_add(features.ids[0])
        view.columns.values[: len(view)] = dice.random((len(view), spec.width))
