"""Prometheus metrics of evaluation: names, bounded series, and changes only."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.serving.evaluation.evaluation_metrics import EvaluationCollector
from headrace.serving.evaluation.evaluator import EvaluationRules
from headrace.serving.evaluation.faust_agent import EvaluationAgent
from headrace.serving.evaluation.feeder import FeedFigures
from headrace.serving.evaluation.windows import Windows
from tests.serving.evaluation.streams import ALIASES, FIELDS, SOURCES, messages, traffic

RULES = EvaluationRules(fields=FIELDS, wait_ms=120_000, hold_ms=60_000)


def standby() -> EvaluationAgent:
    return EvaluationAgent("news", RULES, SOURCES, Windows(), 5.0)


def keeper(minutes: int) -> EvaluationAgent:
    """Return an agent that has folded some minutes."""
    made = standby()
    evaluation = made.of({})
    for offset, message in enumerate(messages(traffic(8, minutes), 8)):
        evaluation.fold(offset, message)
    return made


def scraped(of: EvaluationAgent) -> dict[str, list[dict[str, str]]]:
    """Return the labels of all series by name."""
    registry = CollectorRegistry()
    registry.register(EvaluationCollector("news", of, lambda: FeedFigures(examples=7)))
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_evaluation_series_are_bounded_by_aliases_windows_and_slices() -> None:
    of = keeper(6)
    of.changed()
    found = scraped(of)
    assert all(name.startswith("headrace_evaluation_") for name in found)
    aliases, windows = 1 + len(ALIASES), 3 * 2
    slices = 4 * aliases
    assert len(found["headrace_evaluation_auc_ratio"]) <= aliases * windows + slices
    sliced = [each for each in found["headrace_evaluation_clicks"] if each["slice"] != "all"]
    assert {(each["window"], each["until"]) for each in sliced} == {("1h", "settled")}


def test_a_standby_process_exports_no_metrics_of_windows() -> None:
    found = scraped(standby())
    assert "headrace_evaluation_auc_ratio" not in found
    assert "headrace_evaluation_late_rows_total" not in found
    assert found["headrace_evaluation_active"] == [{"model": "news"}]
    assert {each["kind"] for each in found["headrace_evaluation_rows_total"]} == {
        *("examples", "scores", "predictions")
    }


def test_only_changed_metrics_are_published_and_old_keys_are_removed() -> None:
    of = keeper(6)
    first = of.changed()
    assert first and all(value for value in first.values())
    assert of.changed() == {}
    of.forget()
    assert of.changed() == {}
    assert of.of({}).state.offset == -1
