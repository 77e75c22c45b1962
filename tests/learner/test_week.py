"""What the models reach on a week of real traffic, where the data is at hand."""

import pytest

from learner.logistic import LogisticRegression
from learner.spec import load_spec
from tests.bench.week import WEEK, Events, Outcome, read_events, run
from tests.learner.streams import counted
from tests.learner.test_spec import MODELS


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
def test_ids_alone(events: Events, partitions: int) -> None:
    figures = _outcome(events, "news_ids", partitions).figures
    assert figures.auc >= 0.73
    assert figures.request_auc >= 0.64
    assert figures.calibration == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("partitions", [1, 4])
def test_with_statistics_of_rows(events: Events, partitions: int) -> None:
    figures = _outcome(events, "news", partitions).figures
    assert figures.auc >= 0.775
    assert figures.request_auc >= 0.725
    assert figures.log_loss <= 0.262
    assert figures.calibration == pytest.approx(1.0, abs=0.03)


def test_with_statistics_under_a_window_of_ten_minutes(events: Events) -> None:
    figures = _outcome(events, "news_window").figures
    assert figures.auc >= 0.765
    assert figures.calibration == pytest.approx(1.0, abs=0.03)


def test_a_learner_that_remembers_nothing_loses_little(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart before every batch: statistics of clicks are recomputed."""
    learn = LogisticRegression.learn

    def forgetful(self, *arguments):  # type: ignore[no-untyped-def]
        self.forget()
        return learn(self, *arguments)

    monkeypatch.setattr(LogisticRegression, "learn", forgetful)
    outcome = _outcome(events, "news")
    assert outcome.figures.auc >= 0.765
    spec = load_spec(MODELS / "news.toml")
    numbers = outcome.view.ids & 1023
    for number in counted(spec).values():
        mine = numbers == number
        assert outcome.view.columns.shows[: len(outcome.view)][mine].sum() == 278_139
        assert outcome.view.columns.clicks[: len(outcome.view)][mine].sum() == 24_829
