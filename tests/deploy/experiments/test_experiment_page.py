"""`headrace experiment show|list` and the page, over a folder."""

from pathlib import Path

import pytest

from headrace.deploy.cli.experiments.experiment_table import table_of
from headrace.deploy.reports.experiment_page import render_experiment
from headrace.deploy.reports.tracking import run_sources
from headrace.deploy.reports.tracking.tracked_run import promotion_run
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.learner.experiments.live import history_topic
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.learner.experiments.published_history import PublishedHistory
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from tests.deploy.in_process import Commands, headrace

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
    monkeypatch.setattr(
        history_topic, "read_histories", lambda _: {"rates": PublishedHistory(lines)}
    )
    promotions = [
        promotion_run(Promotion.begin(model, "", control, PromotionRules(), 0))
        for model, control in (("news-a<b", "news"), ("news-other", "news"), ("b-a<b", "b"))
    ]
    monkeypatch.setattr(run_sources, "published_promotions", lambda _: promotions)
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
    listed = headrace("experiment", "show", str(tmp_path / "runs"))
    assert listed.out == "rates: unfinished, 1 arm, 30 examples\n"


REASON = "better, waiting for the end of a whole cycle"
STATES = [
    *HISTORY[:2],
    *(
        ArmRecord("begun", number, f"arm{number}", settings={"optimizer.alpha": number / 10})
        for number in (1, 2, 3, 4)
    ),
    ArmRecord("scored", 1, "arm1", 900, 60_000, difference=-0.02, low=-0.03, high=-0.01),
    ArmRecord("better", 1, "arm1", 900, 60_000, difference=-0.02, reason="better than it"),
    ArmRecord("scored", 1, "arm1", 1000, 61_000, difference=-0.03, reason=REASON),
    ArmRecord("scored", 2, "arm2", 1000, 61_000, difference=-0.01, reason=REASON),
    ArmRecord("stopped", 3, "arm3", 500, 30_000, difference=0.1, reason="rank 4 of 4"),
]


def test_a_table_shows_each_state_once_and_counts_the_examples_of_the_control() -> None:
    assert list(table_of(STATES, None)) == [
        "1,000 examples up to 1970-01-01 00:01:01 UTC",
        "5 arms with the control, 4 of them learning",
        "",
        "arm      state     examples  difference  confidence sequence",
        "control  control      1,000",
        "arm1     better       1,000    -0.03000",
        "arm2     learning     1,000    -0.01000",
        "arm4     learning         0",
        "arm3     stopped        500    +0.10000",
        "",
        "control: the others are compared with it",
        "arm1: optimizer.alpha = 0.1",
        "  better than it, at 1970-01-01 00:01:00 UTC",
        "arm2: optimizer.alpha = 0.2",
        f"  not decided: {REASON}",
        "arm4: optimizer.alpha = 0.4",
        "  no batch is complete yet",
        "arm3: optimizer.alpha = 0.3",
        "  rank 4 of 4",
    ]


def test_the_lines_of_a_terminal_have_its_width_and_those_of_a_pipe_are_whole() -> None:
    name, reason = "arm-with-a-name-of-forty-characters-in-it", "worse than the control: " * 9
    settings = {"fields.user_section": "off", "statistics.taste": "off", "optimizer.alpha": 0.25}
    history = [
        HISTORY[1],
        ArmRecord("begun", 1, name, settings=settings),
        ArmRecord(
            *("eliminated", 1, name, 2_000_000_000, 60_000),
            difference=0.02, low=0.01, high=0.03, reason=reason.strip(),
        ),
    ]  # fmt: skip
    shown, piped = list(table_of(history, 80)), list(table_of(history, None))
    assert max(len(line) for text in shown for line in text.splitlines()) <= 80
    at = shown.index(name)
    figures = "eliminated  2,000,000,000    +0.02000  +0.01000 to +0.03000"
    assert shown[at + 1].strip() == figures
    assert f"{name}  {figures}" in piped
    assert f"  {reason.strip()}" in piped


def test_a_history_of_an_experiment_that_just_began_is_shown() -> None:
    begun = ["0 examples", "0 arms with the control, 0 of them learning"]
    assert list(table_of([], 80)) == begun
