"""The history of the page: rates, quantiles and tables from the status of processes."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.ingest.status import MetricSample, ProcessStatus, pack, samples_of, unpack
from headrace.serving.page.charts import CURVES, EVALUATED, WATCHED
from headrace.serving.page.history import KEPT_MS, SILENT_MS, STEP_MS, Curve, History

T0_MS = 1_700_000_000_000


def said(
    process: str, instance: str, at_ms: int, ended: bool = False, **values: float
) -> ProcessStatus:
    figures = [MetricSample(f"headrace_{name}", {}, value) for name, value in values.items()]
    return ProcessStatus(process, instance, at_ms, figures, ended)


def drawn(name: str) -> Curve:
    return Curve("chart", name, lambda history: history.rate(f"headrace_{name}"))


def test_a_counter_becomes_a_rate_summed_over_processes_across_a_restart() -> None:
    history = History([drawn("events_total")])
    for second, a, b in ((0, 100, 7), (2, 140, 9), (4, 10, 19)):  # a was restarted at 4
        history.take(said("joiner", "a", T0_MS + 1000 * second, events_total=a))
        history.take(said("joiner", "b", T0_MS + 1000 * second, events_total=b))
        history.step(T0_MS + 1000 * second)
    [curve] = history.answer(0)["curves"]
    assert curve["points"] == [None, (40 + 2) / 2, (19 - 7) / 4]


def test_the_page_gets_only_the_points_that_it_lacks() -> None:
    history = History([Curve("chart", "one", lambda _: 1.0)])
    for second in range(5):
        history.step(T0_MS + 1000 * second)
    answer = history.answer(T0_MS + 2000)
    assert answer["times"] == [T0_MS + 3000, T0_MS + 4000]
    assert answer["curves"] == [{"chart": "chart", "name": "one", "points": [1.0, 1.0]}]
    assert history.answer(T0_MS + 4000)["times"] == []


def test_a_silent_or_ended_process_adds_nothing_and_is_shown_as_such() -> None:
    history = History([])
    history.take(said("learner", "a", T0_MS, rows=5))
    history.take(said("learner", "b", T0_MS, rows=7))
    history.take(said("learner", "c", T0_MS, ended=True, rows=11))
    history.step(T0_MS + 1000)
    assert history.total("headrace_rows") == 12
    history.take(said("learner", "b", T0_MS + SILENT_MS, rows=8))
    history.step(T0_MS + SILENT_MS + 1000)
    assert history.total("headrace_rows") == 8
    states = {each["instance"]: each["state"] for each in history.answer(0)["processes"]}
    assert states == {"a": "silent", "b": "here", "c": "stopped"}
    history.step(T0_MS + KEPT_MS + SILENT_MS + 1000)
    assert history.answer(0)["processes"] == []


def test_a_status_older_than_the_last_one_is_ignored() -> None:
    history = History([])
    history.take(said("learner", "a", T0_MS + 2000, rows=5))
    history.take(said("learner", "a", T0_MS, rows=1))
    history.step(T0_MS + 2000)
    assert history.total("headrace_rows") == 5


def test_a_quantile_of_recent_counts_is_that_of_prometheus() -> None:
    registry = CollectorRegistry()
    seconds = Histogram("headrace_x_seconds", "x", buckets=(0.1, 0.2, 0.4, 0.8), registry=registry)
    history = History([])

    def tell(second: int) -> None:
        history.take(ProcessStatus("server", "a", T0_MS + 1000 * second, samples_of(registry)))
        history.step(T0_MS + 1000 * second)

    for _ in range(1000):
        seconds.observe(0.7)  # before the first message: not lately
    tell(0)
    for value in [0.15] * 50 + [0.3] * 40 + [0.5] * 10:
        seconds.observe(value)
    tell(2)
    assert history.quantile("headrace_x_seconds", 0.5) == pytest.approx(0.2)
    assert history.quantile("headrace_x_seconds", 0.25) == pytest.approx(0.15)
    assert history.quantile("headrace_x_seconds", 0.9) == pytest.approx(0.4)
    assert history.quantile("headrace_x_seconds", 0.95) == pytest.approx(0.6)
    tell(4)
    assert history.quantile("headrace_x_seconds", 0.5) == pytest.approx(0.2)
    for second in (7, 10, 13, 15):
        tell(second)
    assert history.quantile("headrace_x_seconds", 0.5) is None


def test_a_status_round_trips_with_the_metrics_of_headrace_only() -> None:
    registry = CollectorRegistry()
    Counter("headrace_a", "a", ("kind",), registry=registry).labels("x").inc(3)
    Gauge("headrace_b", "b", registry=registry).set(float("nan"))
    Gauge("other", "o", registry=registry).set(1)
    status = ProcessStatus("joiner", "here:1", T0_MS, samples_of(registry))
    assert status.figures == [MetricSample("headrace_a_total", {"kind": "x"}, 3.0)]
    assert unpack(pack(status)) == status


def test_every_curve_of_the_page_works_without_data() -> None:
    history = History(CURVES)
    history.step(T0_MS)
    assert history.answer(0)["curves"] == []
    assert len({(each.chart, each.name) for each in CURVES}) == len(CURVES)
    assert KEPT_MS // STEP_MS == 1800  # as the page keeps


def auc_of(alias: str, value: float, **labels: str) -> MetricSample:
    return MetricSample("headrace_evaluation_auc_ratio", {"alias": alias, **labels}, value)


def test_the_curves_are_those_of_a_demo_observer_or_else_of_evaluation() -> None:
    history = History(CURVES)
    evaluated = [auc_of("learned", 0.7, **EVALUATED), auc_of("production", 0.6, **EVALUATED)]
    history.take(ProcessStatus("evaluation", "a", T0_MS, evaluated))
    history.step(T0_MS)
    watched = [auc_of("learned", 0.8, **WATCHED), auc_of("frozen", 0.5, **WATCHED)]
    history.take(ProcessStatus("demo", "b", T0_MS + 1000, watched))
    history.step(T0_MS + 1000)
    curves = {each["name"]: each["points"] for each in history.answer(0)["curves"]}
    assert curves == {"learned": [0.7, 0.8], "production": [0.6, None], "frozen": [None, 0.5]}


def test_the_traffic_table_has_the_share_of_each_model_in_the_requests_of_an_alias() -> None:
    history = History([])
    for second, counts in ((0, (0, 0, 0)), (2, (190, 10, 0))):
        for server, factor in (("a", 1), ("b", 3)):
            figures = [
                MetricSample(
                    "headrace_server_alias_requests_total",
                    {"alias": alias, "model": model},
                    count * factor,
                )
                for (alias, model), count in zip(
                    (("production", "news"), ("production", "news-2"), ("idle", "news")),
                    counts,
                    strict=True,
                )
            ]
            history.take(ProcessStatus("server", server, T0_MS + 1000 * second, figures))
    history.step(T0_MS + 2000)
    assert history.answer(0)["traffic"] == [
        {"alias": "idle", "model": "news", "requests_s": 0.0, "share": None},
        {"alias": "production", "model": "news", "requests_s": 380.0, "share": 0.95},
        {"alias": "production", "model": "news-2", "requests_s": 20.0, "share": 0.05},
    ]


def test_the_accuracy_table_has_settled_windows_or_else_open_ones() -> None:
    history = History([])
    figures = [
        auc_of("learned", 0.7, window="1m", until="open", slice="all"),
        auc_of("learned", 0.8, window="1m", until="settled", slice="all"),
        auc_of("learned", 0.9, window="10m", until="open", slice="all"),
        auc_of("learned", 0.1, window="10m", until="open", slice="device=phone"),
        auc_of("frozen", 0.5, **WATCHED),
        MetricSample(
            "headrace_evaluation_calibration_ratio",
            {"alias": "learned", "window": "1m", "until": "settled", "slice": "all"},
            1.1,
        ),
    ]
    history.take(ProcessStatus("evaluation", "a", T0_MS, figures))
    history.step(T0_MS)
    assert history.answer(0)["accuracy"] == [
        {"alias": "learned", "window": "1m", "until": "settled", "auc": 0.8, "calibration": 1.1},
        {"alias": "learned", "window": "10m", "until": "open", "auc": 0.9},
    ]


@pytest.mark.parametrize(("scored", "drawn"), [(3.0, None), (100.0, 0.7)])
def test_the_auc_of_few_impressions_is_not_drawn(scored: float, drawn: float | None) -> None:
    labels = {"alias": "production", **EVALUATED}
    history = History(CURVES)
    figures = [
        MetricSample("headrace_evaluation_auc_ratio", labels, 0.7),
        MetricSample("headrace_evaluation_scored_impressions", labels, scored),
    ]
    history.take(ProcessStatus("evaluation", "a", T0_MS, figures))
    history.step(T0_MS)
    curves = {(each["chart"], each["name"]): each["points"] for each in history.answer(0)["curves"]}
    assert curves.get(("auc", "production"), [None]) == [drawn]
