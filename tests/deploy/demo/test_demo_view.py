"""The texts of the demo have the figures of the demo."""

import dataclasses

import pytest

from headrace.deploy.demo.view import DemoSummary, DemoView, EventCounts, line, summary
from headrace.deploy.reports.model_comparison import ComparisonSnapshot

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


def test_the_plain_line_of_the_demo_has_the_figures_of_the_table() -> None:
    for part in ("70 s", "learning", "2,000", "1,990", "0.751", "0.649", "120 ms", "5,000 rows"):
        assert part in line(VIEW)
