"""Accuracy of the models on a week of real traffic, if the data is present."""

import pytest

from headrace.learner.spec.model_spec import load_spec
from tests.bench.ebnerd.week import WEEK, Events, Outcome, read_events, run
from tests.learner.shipped_specs import MODELS


@pytest.fixture(scope="module")
def events() -> Events:
    if not WEEK.is_dir():
        pytest.skip(
            "the sample week is not here: it may be used for research only, and is not shipped"
        )
    return read_events(WEEK)


def _outcome(events: Events, name: str) -> Outcome:
    return run(load_spec(MODELS / f"{name}.toml"), events)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "auc", "request_auc", "loss"),
    [
        ("news", 0.784, 0.738, 0.2606),
        ("news_fm", 0.785, 0.739, 0.2601),
        ("news_deepfm", 0.791, 0.748, 0.2571),
        ("news_dcn", 0.792, 0.750, 0.2566),
    ],
)
def test_pairs_and_networks_predict_better_in_the_untuned_half_of_the_week(
    events: Events, name: str, auc: float, request_auc: float, loss: float
) -> None:
    if name in ("news_deepfm", "news_dcn"):
        pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")
    _, second = _outcome(events, name).halves
    assert second.auc >= auc
    assert second.request_auc >= request_auc
    assert second.log_loss <= loss
    assert second.calibration == pytest.approx(1.0, abs=0.03)
