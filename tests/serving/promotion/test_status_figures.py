"""Figures from statuses: rates over the recent past, restarts, processes that are gone."""

import math
from typing import Any

import pytest

from headrace.ingest.status import MetricSample, ProcessStatus
from headrace.learner.experiments.promotion_rules import LARGEST_FRESHNESS_S, LARGEST_P99_MS
from headrace.serving.api.request_metrics import _REQUEST_S
from headrace.serving.promotion.status_figures import GONE_MS, StatusFigures
from headrace.serving.replicas.replica_metrics import _FRESHNESS_S

MODEL, CONTROL = "news-2", "news"


def status(time_ms: int, *samples: tuple[str, float, dict[str, str]], **how: Any) -> ProcessStatus:
    figures = [MetricSample(f"headrace_{name}", labels, value) for name, value, labels in samples]
    return ProcessStatus(
        how.pop("process", "server"), how.pop("name", "a"), time_ms, figures, **how
    )


def scores(model: str, count: float, mean: float) -> list[tuple[str, float, dict[str, str]]]:
    labels = {"model": model}
    total = count * mean
    return [
        ("server_scores_total", count, labels),
        *([] if math.isnan(total) else [("server_score_sum_total", total, labels)]),
    ]


def both(time_ms: int, model: float, control: float, count: float, **how: Any) -> ProcessStatus:
    return status(time_ms, *scores(MODEL, count, model), *scores(CONTROL, count, control), **how)


@pytest.fixture
def figures() -> StatusFigures:
    return StatusFigures(MODEL, CONTROL)


def test_the_level_is_that_of_the_last_seconds(figures: StatusFigures) -> None:
    for second in range(0, 62, 2):
        figures.take(both(1000 * second, 0.1, 0.1, 100.0 * second))
    assert figures.level(60_000) == pytest.approx(1.0)
    mixed = [*scores(MODEL, 7000, 0.1 * 6000 / 7000), *scores(CONTROL, 7000, 0.1)]
    figures.take(status(70_000, *mixed))  # scores of 0 since second 60
    assert figures.level(70_000) == pytest.approx(0.0, abs=1e-9)


def test_scores_that_are_nan_give_a_level_of_zero(figures: StatusFigures) -> None:
    figures.take(both(0, 0.1, 0.1, 0))
    figures.take(both(2000, float("nan"), 0.1, 1000))
    assert figures.level(2000) == 0.0


def test_too_few_scores_have_no_level(figures: StatusFigures) -> None:
    assert figures.level(0) is None
    figures.take(both(0, 0.1, 0.1, 0))
    figures.take(both(2000, 0.1, 0.1, 99))
    assert figures.level(2000) is None


def test_counters_of_a_restarted_server_begin_anew(figures: StatusFigures) -> None:
    figures.take(both(0, 0.1, 0.1, 5000))
    figures.take(both(2000, 0.2, 0.1, 200))
    assert figures.level(2000) == pytest.approx(2.0)


def test_servers_are_added_and_those_that_are_gone_do_not_count(figures: StatusFigures) -> None:
    loaded = ("server_deployed_model", 1.0, {"model": MODEL, "stage": "ready"})
    loading = ("server_deployed_model", 0.0, {"model": MODEL, "stage": "ready"})
    figures.take(status(0, loaded, name="a"))
    figures.take(status(1000, loading, name="b"))
    assert figures.servers(2000) == (2, 1)
    assert figures.servers(GONE_MS + 500) == (1, 0)
    figures.take(status(2000, name="b", ended=True))
    assert figures.servers(2000) == (1, 1)
    assert figures.newest_ms() == 0


def test_servers_without_metrics_of_deployments_do_not_follow_the_topic(
    figures: StatusFigures,
) -> None:
    waiting = ("server_deployments_waiting", 0.0, {"kind": "alias"})
    for name in ("b", "a"):
        figures.take(status(0, name=name))
    figures.take(status(0, waiting, name="c"))
    figures.take(status(0, name="learner", process="learner"))
    assert figures.not_following(1000) == ("a", "b")
    figures.take(status(2000, waiting, name="a"))
    figures.take(status(2000, name="b", ended=True))
    assert figures.not_following(2000) == ()
    assert figures.not_following(2000 + GONE_MS + 1) == ()


def test_bounds_of_rules_are_the_largest_bounds_of_the_histograms() -> None:
    assert _FRESHNESS_S[-1] == LARGEST_FRESHNESS_S
    assert 1000 * _REQUEST_S[-1] == LARGEST_P99_MS


def test_a_level_of_few_scores_covers_a_longer_time(figures: StatusFigures) -> None:
    for second in range(0, 600, 2):
        figures.take(both(1000 * second, 0.2 if second > 200 else 0.1, 0.1, second))
    for second in range(600, 640, 2):
        figures.take(both(1000 * second, 0.2, 0.1, second))
    level = figures.level(638_000)
    assert level is not None, "100 scores in 160 s"
    figures.take(both(640_000, 0.2, 0.1, 640))
    assert figures.level(640_000 + GONE_MS + 1) is None


def test_figures_of_a_long_time_need_few_moments(figures: StatusFigures) -> None:
    for second in range(0, 4 * 3600, 2):
        figures.take(both(1000 * second, 0.1, 0.1, second / 100))
    assert figures.level(1000 * second) is None, "36 scores in an hour"
    kept = len(figures._moments["server", "a"]) + len(figures._older["server", "a"])
    assert kept < 100


def test_a_p99_beyond_the_last_bucket_is_infinite(figures: StatusFigures) -> None:
    name = "server_request_seconds_bucket"
    for time_ms, count in ((0, 0.0), (2000, 100.0)):
        labels = [{"model": MODEL, "le": le} for le in ("1", "+Inf")]
        both_counts = zip((0.0, count), labels, strict=True)
        samples = [(name, each, of) for each, of in both_counts]
        figures.take(status(time_ms, *samples))
    assert figures.p99_ms(2000) == math.inf


def test_the_p99_is_that_of_recent_requests(figures: StatusFigures) -> None:
    def at(time_ms: int, fast: float, slow: float) -> ProcessStatus:
        sums = {"0.01": fast, "0.05": fast + slow, "+Inf": fast + slow}
        name = "server_request_seconds_bucket"
        return status(time_ms, *((name, n, {"model": MODEL, "le": le}) for le, n in sums.items()))

    figures.take(at(0, 1000, 1000))
    figures.take(at(30_000, 1019, 1000))
    assert figures.p99_ms(30_000) is None, "19 requests"
    figures.take(at(60_000, 2000, 1000))
    assert figures.p99_ms(60_000) == pytest.approx(9.9), "all in the first bucket"
    figures.take(at(62_000, 2000, 1100))
    assert figures.p99_ms(62_000) == pytest.approx(45.6)


def test_a_learner_without_lag_is_not_behind_even_if_its_stream_pauses(
    figures: StatusFigures,
) -> None:
    def at(lag: float, age: float) -> ProcessStatus:
        labels = {"model": MODEL}
        samples = [("learner_lag", lag, labels), ("learner_age_seconds", age, labels)]
        return status(0, *samples, process="learner")

    assert figures.behind_s(0) is None
    figures.take(at(0, 3600))
    assert figures.behind_s(0) == 0.0
    figures.take(at(5, 3600))
    assert figures.behind_s(0) == 3600


def test_batches_quarantined_since_the_first_status_count_through_restarts(
    figures: StatusFigures,
) -> None:
    def at(time_ms: int, held: float, name: str = "a", **how: Any) -> ProcessStatus:
        sample = "learner_held_batches_total", held, {"model": MODEL}
        return status(time_ms, sample, process="learner", name=name, **how)

    assert figures.quarantined(0) is None
    figures.take(at(0, 7))
    assert figures.quarantined(0) == 0
    figures.take(at(1, 9))
    assert figures.quarantined(1) == 2
    figures.take(at(2, 1))  # restarted
    assert figures.quarantined(2) == 3
    figures.take(at(3, 1, "b"))
    figures.take(at(4, 2, "b"))
    assert figures.quarantined(4) == 4
    figures.take(at(5, 2, "b", ended=True))
    assert figures.quarantined(5) == 4
    assert figures.quarantined(2 + GONE_MS + 1) is None
