"""A model that has learned nothing predicts the base rate of its spec."""

import pytest

from headrace.learner.local.local_model import LocalModel
from headrace.learner.spec.model_spec import parse_spec

T0_MS = 1_700_000_000_000
ARCHITECTURES = ("logistic_regression", "factorization_machine", "deepfm")


def text_of(architecture: str, more: str) -> str:
    return (
        f'[model]\nname = "m"\narchitecture = "{architecture}"\n{more}\n[label]\n'
        'policy = "window"\nwindow_s = 1\n[fields]\nitem = { number = 1, transform = "id" }\n'
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_scores_from_the_base_rate_and_learns_to_move_away_from_it(
    architecture: str,
) -> None:
    model = LocalModel(parse_spec(text_of(architecture, "base_rate = 0.004"), "m.toml"))
    [before] = model.predict([{"item": "a"}], at_ms=T0_MS)
    shown = [
        {"impression_id": str(i), "timestamp_ms": T0_MS + 10 * i, "item": "a", "y": i % 2}
        for i in range(400)
    ]
    model.learn(shown, label="y")
    model.flush()
    # a network begins near zero
    assert [before, model.outcomes().scores[0]] == pytest.approx([0.004] * 2, rel=0.05)
    [after] = model.predict([{"item": "a"}], at_ms=T0_MS + 5_000)
    assert after > 0.02
