"""The texts of the demo have the figures of the demo."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from headrace.deploy.demo.experiment import ArmReport, ExperimentReport, PromotionReport
from headrace.deploy.demo.view import (
    DemoSummary,
    DemoView,
    EventCounts,
    ServedAccuracy,
    line,
    summary,
    table,
)
from headrace.deploy.reports.model_comparison import ComparisonSnapshot
from headrace.deploy.reports.ranking_client import RequestStats
from headrace.learner.validation.progressive import ProgressiveValidation

NAN = float("nan")
COUNTED = EventCounts(1000, 102, 2, {"user": 1000, "item": 1000}, {"user": 100, "item": 100})
SUMMARY = DemoSummary(
    seconds=180,
    impressions=1000,
    clicks=102,
    frozen_at_s=60,
    last=ComparisonSnapshot(0.75, 0.65, 0.8, 400),
    last_s=60,
    p50_ms=120.4,
    p99_ms=480.6,
    rows=5000,
    counted=COUNTED,
)
VIEW = DemoView(
    phase="learning",
    at_s=70,
    of_s=180,
    events_s=2000,
    examples_s=1990,
    recent=ComparisonSnapshot(0.751, 0.649, NAN, 400),
    recent_s=30,
    frozen_at_s=60,
    freeze_due_s=60,
    p50_ms=120.4,
    p99_ms=None,
    rows=5000,
    address="http://127.0.0.1:8000",
)


def shown(view: DemoView, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table(view))
    return capture.get()


def test_the_summary_of_a_demo_shows_the_difference_to_the_frozen_model() -> None:
    text = summary(SUMMARY)
    assert "live model had an AUC of 0.750. The copy frozen at" in text
    assert "had 0.650 on the same 400 impressions, 0.100 behind" in text
    assert "true probabilities would give 0.800" in text
    assert "within 120 ms (p50) and 481 ms (p99)" in text
    assert "2 fields add up to 1,000 shows and 100 clicks, as many as were sent" in text


def test_the_summary_of_a_demo_admits_that_the_frozen_model_is_ahead() -> None:
    behind = dataclasses.replace(SUMMARY, last=ComparisonSnapshot(0.6, 0.65, NAN, 400))
    assert "0.050 ahead" in summary(behind)


@pytest.mark.parametrize(
    ("shows", "clicks"), [({"user": 1000, "item": 999}, 100), ({"user": 1000, "item": 1000}, 101)]
)
def test_the_summary_names_the_field_whose_counts_are_not_exact(
    shows: dict[str, int], clicks: int
) -> None:
    counted = dataclasses.replace(
        COUNTED, shows_by_field=shows, clicks_by_field={"user": 100, "item": clicks}
    )
    text = summary(dataclasses.replace(SUMMARY, counted=counted))
    assert "NOT exactly once: 1,000 shows and 100 clicks were sent" in text
    assert f"but the rows add up to item {shows['item']:,} shows and {clicks} clicks." in text


def test_the_table_of_the_demo_has_every_figure_and_a_hyphen_for_unknown_ones() -> None:
    text = shown(VIEW)
    for part in ("2,000/s", "1,990/s", "0.751", "0.649", "120 ms / -", "5,000", VIEW.address):
        assert part in text
    assert "the truth" not in text
    assert "the truth" in shown(
        dataclasses.replace(VIEW, recent=ComparisonSnapshot(0.7, 0.6, 0.8, 4))
    )


def test_the_plain_line_of_the_demo_has_the_figures_of_the_table() -> None:
    for part in ("70 s", "learning", "2,000", "1,990", "0.751", "0.649", "120 ms", "5,000 rows"):
        assert part in line(VIEW)


def test_the_demo_of_a_log_shows_the_served_accuracy_and_its_share_of_requests() -> None:
    asked = RequestStats(requests=100, answered=97, late=2, unanswered=1)
    view = dataclasses.replace(
        VIEW, asked=asked, recent=ComparisonSnapshot(0.75, 0.65, NAN, 40, served=0.74)
    )
    text = shown(view, 200)
    assert "AUC, served" in text
    assert "0.740" in text
    assert "97 of 100 requests answered, 2 not sent" in text
    assert "AUC served 0.740 live 0.750" in line(view)
    given = ProgressiveValidation(0.74, 0.7, 0.27, 0.9, 1.0)
    learned = ProgressiveValidation(0.76, 0.72, 0.26, 0.9, 1.0)
    told = summary(
        dataclasses.replace(
            SUMMARY, served=ServedAccuracy(asked, given, learned, 1000, speed=3000.0)
        )
    )
    assert "2 not sent, because the replay was late, 1 without an answer in time" in told
    assert "AUC of 0.7400 (0.7000 within a request" in told
    assert "0.7600 (0.7200, 0.2600)" in told
    assert "At 3,000 times real time, the 120 ms" in told
    assert "are 6 minutes of the log" in told
    at_full_speed = ServedAccuracy(asked, given, learned, 1000, speed=None)
    assert "times real time" not in summary(dataclasses.replace(SUMMARY, served=at_full_speed))


def test_the_demo_of_an_experiment_shows_its_arms_and_promotions() -> None:
    promotions = (
        PromotionReport("demo-hasty", 1, 43, "rolled back 0%", "loss: worse", 12),
        PromotionReport("demo-arm8", 50, None, "canary 5%", "all checks hold", 61),
    )
    best = ArmReport("arm8", -0.03, -0.05, -0.01)
    found = ExperimentReport(12, 3, best, 48, promotions)
    text = shown(dataclasses.replace(VIEW, experiment=found), 200)
    assert "3 of 12" in text
    assert "arm8 -0.0300" in text
    assert "from -0.0500 to -0.0100" in text
    assert "canary 5%" in text
    asked = RequestStats(100, 90, by_model={"demo": 80, "demo-hasty": 10})
    nothing = ProgressiveValidation(0.5, 0.5, 0.5, 0.5, 0.5)
    served = ServedAccuracy(asked, nothing, nothing, 450, None)
    text = summary(dataclasses.replace(SUMMARY, experiment=found, served=served))
    assert "of 12 arms, 3 still learned" in text
    assert "found better than the control at 48 s" in text
    assert (
        "Promotion of demo-hasty: rolled back 0% (begun at 1 s; first traffic at 12 s; ended at "
        "43 s). It answered 10 of 90 requests: loss: worse"
    ) in text
    unclear = dataclasses.replace(SUMMARY, experiment=ExperimentReport(12, 12, None, None, ()))
    assert "no arm was found better" in summary(unclear)
