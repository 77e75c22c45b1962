"""Accuracy of the models on a week of real traffic, if the data is present."""

import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.models.logistic import LogisticRegression
from headrace.learner.spec.model_spec import load_spec, parse_spec
from tests.bench.ebnerd.week import WEEK, Events, Outcome, learn, read_events, run
from tests.learner.shipped_specs import MODELS
from tests.learner.streams import counted


@pytest.fixture(scope="module")
def events() -> Events:
    if not WEEK.is_dir():
        pytest.skip(
            "the sample week is not here: it may be used for research only, and is not shipped"
        )
    return read_events(WEEK)


def _outcome(events: Events, name: str, partitions: int = 1) -> Outcome:
    return run(load_spec(MODELS / f"{name}.toml"), events, partitions)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_week_of_traffic_with_ids_alone(events: Events, partitions: int) -> None:
    figures = _outcome(events, "news_ids", partitions).figures
    assert figures.auc >= 0.73
    assert figures.request_auc >= 0.64
    assert figures.calibration == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_week_of_traffic_with_statistics_of_rows(events: Events, partitions: int) -> None:
    figures = _outcome(events, "news", partitions).figures
    assert figures.auc >= 0.775
    assert figures.request_auc >= 0.725
    assert figures.log_loss <= 0.262
    assert figures.calibration == pytest.approx(1.0, abs=0.03)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "auc", "request_auc", "loss"),
    [
        ("news", 0.784, 0.737, 0.2605),
        ("news_fm", 0.786, 0.738, 0.2597),
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


def test_a_week_of_traffic_with_statistics_and_a_window_of_ten_minutes(events: Events) -> None:
    figures = _outcome(events, "news_window").figures
    assert figures.auc >= 0.765
    assert figures.calibration == pytest.approx(1.0, abs=0.03)


# rows 289,425 -> 63,953, log loss 0.2668 -> 0.2655; by a draw of one in ten 63,991 and 0.2667;
# statistics cost more, since an id without a row has none
@pytest.mark.parametrize(
    ("name", "admission", "rows_left", "loss_added"),
    [
        ("news_ids", 'kind = "count"\nsightings = 3\nfilter_mb = 16', 0.25, 0.0),
        ("news_ids", 'kind = "probability"\nprobability = 0.1', 0.25, 0.0005),
        ("news", 'kind = "count"\nsightings = 2\nfilter_mb = 16', 0.36, 0.0025),
    ],
)
def test_admission_leaves_few_rows_and_costs_little(
    events: Events, name: str, admission: str, rows_left: float, loss_added: float
) -> None:
    everyone = load_spec(MODELS / f"{name}.toml")
    admitted = parse_spec(f"{everyone.text}\n[admission]\n{admission}\n", name)
    encoded = Encoder(everyone.fields).encode(events.impressions)
    before, after = (learn(spec, events, encoded) for spec in (everyone, admitted))
    assert after.rows <= rows_left * before.rows
    assert after.figures.log_loss <= before.figures.log_loss + loss_added
    assert after.figures.calibration == pytest.approx(1.0, abs=0.03)
    numbers = after.view.ids & 1023
    for number in counted(admitted).values():
        shows = after.view.columns.shows[: after.rows][numbers == number]
        clicks = after.view.columns.clicks[: after.rows][numbers == number]
        assert (shows.sum(), clicks.sum()) == (278_139, 24_829)


def test_a_learner_that_remembers_nothing_loses_little(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart before every batch: statistics of clicks are recomputed."""
    remembering = LogisticRegression.learn

    def forgetful(self, *arguments):  # type: ignore[no-untyped-def]
        self.forget()
        return remembering(self, *arguments)

    monkeypatch.setattr(LogisticRegression, "learn", forgetful)
    outcome = _outcome(events, "news")
    assert outcome.figures.auc >= 0.765
    spec = load_spec(MODELS / "news.toml")
    numbers = outcome.view.ids & 1023
    for number in counted(spec).values():
        mine = numbers == number
        assert outcome.view.columns.shows[: len(outcome.view)][mine].sum() == 278_139
        assert outcome.view.columns.clicks[: len(outcome.view)][mine].sum() == 24_829
