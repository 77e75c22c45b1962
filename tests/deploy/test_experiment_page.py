"""`headrace experiment show|list` and the page, over a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deploy.reports.experiment_page import render_experiment
from headrace.learner.experiments.history import ArmRecord, encoded
from tests.deploy.in_process import Commands, headrace

if TYPE_CHECKING:
    from pathlib import Path

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
