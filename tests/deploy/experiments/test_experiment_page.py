"""`headrace experiment show|list` and the page, over a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deploy.reports import tracking
from headrace.deploy.reports.experiment_page import render_experiment
from headrace.deploy.reports.tracking.tracked_run import promotion_run
from headrace.learner.experiments import PromotionRules, live
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.learner.experiments.live import PublishedHistory
from headrace.serving.promotion import Promotion, PromotionStage
from tests.deploy.in_process import Commands, headrace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["headrace"]

HISTORY = [
    ArmRecord("log", 0, "log", settings={"topic": "examples.news", "offsets": [0]}),
    ArmRecord("begun", 0, "control"),
    ArmRecord("begun", 1, "a<b", settings={"optimizer.alpha": 0.1}),
    ArmRecord("scored", 1, "a<b", 10, 60_000, difference=-0.01, reason="too few batches"),
    ArmRecord("scored", 1, "a<b", 20, 120_000, difference=-0.02, low=-0.03, high=-0.01),
    ArmRecord("rung", 1, "a<b", 20, 120_000, reason="rank 1 of 2"),
    ArmRecord("eliminated", 1, "a<b", 30, 180_000, difference=0.5, reason="worse & hopeless"),
]


def test_the_page_of_an_experiment_has_curves_bands_and_reasons() -> None:
    page = render_experiment("rates", HISTORY)
    assert "<title>Experiment rates</title>" in page
    assert "a&lt;b" in page
    assert "a<b" not in page
    assert "worse &amp; hopeless" in page
    assert page.count("<polyline") == page.count("<polygon") == 1
    assert page.count("<circle") == 2
    assert "script" not in page
    assert "nan" not in page


def test_the_page_shows_the_promotions_of_arms_with_the_traffic_split() -> None:
    begun = Promotion.begin("news-a", "", "news", PromotionRules(), 1000)
    canary = begun.moved(PromotionStage.CANARY, "checks <hold>", 3000, 1)
    page = render_experiment("rates", HISTORY, [promotion_run(canary)])
    assert "Traffic of production" in page
    assert '<td>news</td><td>95 %</td><td class="bar"><i style="width:95%">' in page
    assert "<td>news-a</td><td>5 %</td>" in page
    assert "canary 5 %: checks &lt;hold&gt;" in page
    assert "Traffic" not in render_experiment("rates", HISTORY)


def test_a_live_experiment_is_shown_with_the_promotions_of_its_arms_alone(
    tmp_path: Path, headrace: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tuple(encoded(HISTORY).splitlines())
    monkeypatch.setattr(live, "read_histories", lambda _: {"rates": PublishedHistory(lines)})
    promotions = [
        promotion_run(Promotion.begin(model, "", control, PromotionRules(), 0))
        for model, control in (("news-a<b", "news"), ("news-other", "news"), ("b-a<b", "b"))
    ]
    monkeypatch.setattr(tracking, "published_promotions", lambda _: promotions)
    page = tmp_path / "page.html"
    assert headrace("experiment", "show", "rates", "--page", str(page)).code == 0
    assert page.read_text() == render_experiment("rates", HISTORY, promotions[:1])


def test_a_run_is_shown_with_its_page_and_listed(tmp_path: Path, headrace: Commands) -> None:
    folder = tmp_path / "runs" / "rates"
    folder.mkdir(parents=True)
    (folder / "history.ndjson").write_bytes(encoded(HISTORY))
    page = tmp_path / "page.html"
    shown = headrace("experiment", "show", str(folder), "--page", str(page))
    assert "eliminated" in shown.out
    assert "log  " not in shown.out
    assert page.read_text() == render_experiment("rates", HISTORY)
    listed = headrace("experiment", "list", str(tmp_path / "runs"))
    assert listed.out == "rates: unfinished, 1 arms, 30 examples\n"
