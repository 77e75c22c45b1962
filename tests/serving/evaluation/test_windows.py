"""Published windows: the right minutes, bounded slices, and null for undefined metrics."""

import io
import re

import msgspec
import numpy as np
import pytest
from rich.console import Console

from headrace.deploy.models.shipped import path_of
from headrace.deploy.terminal.tables import evaluation_tables
from headrace.learner.spec.model_spec import load_spec
from headrace.learner.validation.outcomes import join_outcomes
from headrace.serving.evaluation.evaluation_process import EvaluationSettings, rules_of
from headrace.serving.evaluation.evaluator import EvaluationRules, Evaluator
from headrace.serving.evaluation.messages import LEARNED
from headrace.serving.evaluation.window_pane import OTHER, WHOLE
from headrace.serving.evaluation.windows import (
    OPEN,
    SETTLED,
    WindowMetrics,
    Windows,
    newest_windows,
    settled_between,
    total,
)
from tests.serving.evaluation.streams import (
    ALIASES,
    BEGIN_MS,
    FIELDS,
    SOURCES,
    Traffic,
    messages,
    traffic,
)

RULES = EvaluationRules(fields=FIELDS, wait_ms=120_000, hold_ms=60_000)
MINUTE_MS = 60_000


def evaluated(minutes: int, seed: int = 11, requests: int = 30) -> Evaluator:
    """Return an evaluation of some minutes."""
    return folded(traffic(seed, minutes, requests), seed)


def folded(made: Traffic, seed: int) -> Evaluator:
    """Return an evaluation of this traffic."""
    evaluation = Evaluator(RULES, SOURCES)
    for offset, message in enumerate(messages(made, seed)):
        evaluation.fold(offset, message)
    return evaluation


def only(found: list[WindowMetrics], **these: object) -> WindowMetrics:
    """Return the only metrics with these attributes."""
    [one] = [each for each in found if all(getattr(each, k) == v for k, v in these.items())]
    return one


def printed(found: list[WindowMetrics], width: int) -> list[str]:
    """Return the lines that `headrace evaluate show` prints in a terminal of this width."""
    output = io.StringIO()
    console = Console(file=output, width=width)
    console.print(evaluation_tables(found, console))
    return output.getvalue().splitlines()


def test_the_learners_metrics_equal_those_of_the_batch_report() -> None:
    made = traffic(11, 6, 60)
    evaluation = folded(made, 11)
    hour = only(
        newest_windows(evaluation, "news", Windows()),
        alias=LEARNED, window="1h", until=OPEN, slice="all",
    )  # fmt: skip
    outcomes = join_outcomes(made.examples, made.scores)
    report = outcomes.figures()
    assert hour.scored == len(outcomes)
    shown = {name for batch in made.examples for name in batch.impression_ids.to_pylist()}
    assert hour.shown == len(shown)
    assert hour.clicks == outcomes.labels.sum()
    assert hour.auc is not None and hour.auc_error is not None
    assert abs(hour.auc - report.auc) <= hour.auc_error
    assert hour.request_auc == pytest.approx(report.request_auc)
    assert hour.log_loss == pytest.approx(report.log_loss)
    assert hour.normalized_entropy == pytest.approx(report.normalized_entropy)
    assert hour.calibration == pytest.approx(report.calibration)
    assert hour.ctr_predicted == pytest.approx(outcomes.scores.mean())


def test_a_settled_window_ends_before_the_minutes_that_wait_for_clicks() -> None:
    evaluation = evaluated(8)
    found = newest_windows(evaluation, "news", Windows(lengths_ms=(MINUTE_MS, 3 * MINUTE_MS)))
    last = max(evaluation.open)
    settled, opened = (
        only(found, alias=LEARNED, window="3m", until=until, slice="all")
        for until in (SETTLED, OPEN)
    )
    assert settled.end_ms == evaluation.state.closed_ms < opened.end_ms == last + MINUTE_MS
    for each in (settled, opened):
        assert each.end_ms - each.begin_ms == 3 * MINUTE_MS
        minutes = range(each.begin_ms, each.end_ms, MINUTE_MS)
        summaries = evaluation.summaries()
        assert each.shown == sum(summaries[minute].seen[WHOLE][0] for minute in minutes)
    assert settled.begin_ms > BEGIN_MS


def test_slices_are_bounded_and_rare_values_share_one() -> None:
    found = newest_windows(evaluated(6), "news", Windows(most_values=2))
    hour = [e for e in found if e.alias == LEARNED and e.window == "1h" and e.until == OPEN]
    names = {each.slice for each in hour}
    assert len(names) == 4
    assert {"all", f"device={OTHER}"} < names
    parts = [each for each in hour if each.slice != "all"]
    assert sum(each.shown for each in parts) == only(hour, slice="all").shown
    assert sum(each.clicks for each in parts) == only(hour, slice="all").clicks


def test_metrics_count_impressions_without_scores_and_scores_without_impressions() -> None:
    evaluation = evaluated(6)
    hour = only(
        newest_windows(evaluation, "news", Windows()),
        alias=ALIASES[0], window="1h", until=OPEN, slice="all",
    )  # fmt: skip
    assert hour.scored < hour.shown, "shown and never served"
    assert hour.given is not None
    assert hour.given - hour.scored == 2 * 6, "served and never shown: a ghost a minute a partition"
    assert 0 < hour.compared <= hour.scored
    assert hour.difference is not None and hour.distance is not None
    assert abs(hour.difference) <= hour.distance <= 1.0


def test_drift_compares_a_window_with_the_previous_one() -> None:
    evaluation = evaluated(8, requests=200)
    found = newest_windows(evaluation, "news", Windows(lengths_ms=(2 * MINUTE_MS,)))
    settled = only(found, alias=LEARNED, until=SETTLED, slice="all")
    assert settled.score_drift is not None and 0 <= settled.score_drift < 0.1
    alone = newest_windows(evaluated(1), "news", Windows())
    assert only(alone, alias=LEARNED, window="1h", slice="all").score_drift is None


@pytest.mark.parametrize("width", [80, 200])
def test_metrics_are_readable_in_a_terminal_of_any_width(width: int) -> None:
    found = newest_windows(evaluated(6), "news", Windows())
    lines = printed(found, width)
    assert max(map(len, lines)) <= width
    aliases = "|".join((LEARNED, *ALIASES))
    named = [line for line in lines if re.match(rf" *(news )? *({aliases}) ", line)]
    assert len(named) == len(found), "each row has one line"
    for each in found:
        rounded = [f"{value:.4f}" for value in (each.auc, each.log_loss) if value is not None]
        row = [each.alias, each.slice, f"{each.shown:,}", f"{each.clicks:,}", *rounded]
        assert any(all(text in line for text in row) for line in named), row
    assert "no figures yet" in "".join(printed([], width))


def test_an_empty_evaluation_publishes_nothing_and_undefined_metrics_are_null() -> None:
    assert newest_windows(Evaluator(RULES, SOURCES), "news", Windows()) == []
    assert total(Evaluator(RULES, SOURCES)).seen == {}
    for each in newest_windows(evaluated(1, 2, 1), "news", Windows()):
        for value in msgspec.structs.astuple(each):
            assert not (isinstance(value, float) and np.isnan(value))


def test_minutes_that_close_together_are_all_published() -> None:
    evaluation = Evaluator(RULES, SOURCES)
    sent = messages(traffic(11, 8, 30), 11)
    windows, before = Windows(), 0
    for offset, message in enumerate(sent):
        evaluation.fold(offset, message)
        if evaluation.closed and not before:
            before = max(evaluation.closed) + MINUTE_MS
    missed = settled_between(evaluation, "news", windows, before)
    newest = only(
        newest_windows(evaluation, "news", windows),
        alias=LEARNED, window="1m", until=SETTLED, slice="all",
    )  # fmt: skip
    ends = [each.end_ms for each in missed if each.alias == LEARNED]
    assert ends == list(range(before + MINUTE_MS, newest.end_ms, MINUTE_MS))
    assert len(ends) > 1
    first = next(each for each in missed if each.alias == LEARNED)
    assert first.key == newest.key
    assert first.shown == evaluation.closed[first.begin_ms].seen[WHOLE][0]
    assert settled_between(evaluation, "news", windows, newest.end_ms) == []


def test_the_shortest_window_sets_the_others_and_the_waits() -> None:
    spec = load_spec(path_of("demo"))
    windows = Windows.shortest(2)
    assert windows.lengths_ms == (2000, 20_000, 120_000)
    rules = rules_of(EvaluationSettings(windows=windows), spec)
    label_ms = spec.fields.label.window_ms
    assert (rules.pane_ms, rules.wait_ms, rules.hold_ms) == (2000, label_ms + 2000, 20_000)
    usual = rules_of(EvaluationSettings(), spec)
    assert (usual.pane_ms, usual.wait_ms) == (MINUTE_MS, label_ms + MINUTE_MS)
    assert (usual.hold_ms, Windows.shortest(60)) == (10 * MINUTE_MS, Windows())
