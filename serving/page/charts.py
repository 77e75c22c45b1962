"""The curves of the page, chart by chart."""

from headrace.serving.page.history import Curve, History

EVALUATED = {"window": "1m", "until": "open", "slice": "all"}
WATCHED = {"window": "recent", "until": "now", "slice": "all"}
"""Metrics of an observer of a running demo: drawn in place of evaluation's if there are any."""
LEAST_IMPRESSIONS = 100
"""Fewer make an AUC that says nothing: it jumps between 0 and 1."""
ALIASES = ("learned", "production", "frozen")


def _evaluated(chart: str, figure: str, alias: str) -> Curve:
    name = f"headrace_evaluation_{figure}"

    def of(history: History) -> float | None:
        watched = history.worst(name, **WATCHED) is not None
        labels = {"alias": alias, **(WATCHED if watched else EVALUATED)}
        scored = history.worst("headrace_evaluation_scored_impressions", **labels)
        if scored is not None and scored < LEAST_IMPRESSIONS:
            return None
        return history.worst(name, **labels)

    return Curve(chart, alias, of)


def _rate(chart: str, name: str, counter: str) -> Curve:
    return Curve(chart, name, lambda history: history.rate(counter))


def _quantile(chart: str, share: float, histogram: str) -> Curve:
    def of(history: History) -> float | None:
        found = history.quantile(histogram, share)
        return None if found is None else 1000 * found

    return Curve(chart, f"p{round(100 * share)}", of)


CURVES: tuple[Curve, ...] = (
    *(_evaluated("auc", "auc_ratio", alias) for alias in ALIASES),
    *(_evaluated("log_loss", "log_loss_nats", alias) for alias in ALIASES),
    _quantile("freshness_ms", 0.5, "headrace_server_freshness_seconds"),
    _quantile("freshness_ms", 0.99, "headrace_server_freshness_seconds"),
    _rate("throughput", "collected", "headrace_collector_events_total"),
    _rate("throughput", "impressions joined", "headrace_joiner_impressions_total"),
    _rate("throughput", "examples learned", "headrace_learner_examples_total"),
    _rate("throughput", "candidates scored", "headrace_server_candidates_total"),
    _rate("rows", "pushed", "headrace_learner_pushed_rows_total"),
    _rate("rows", "folded", "headrace_keeper_folded_rows_total"),
    Curve("lag", "events before the joiner", lambda history: history.total("headrace_joiner_lag")),
    _quantile("request_ms", 0.5, "headrace_server_request_seconds"),
    _quantile("request_ms", 0.99, "headrace_server_request_seconds"),
)
