"""Tests the metrics of a joiner: progress, window state and dead letters."""

import pytest
from prometheus_client import CollectorRegistry

from headrace.ingest.events.contract import Reason
from headrace.ingest.joiner.joiner_metrics import JoinerCollector
from headrace.ingest.kafka.fakes import ListTransactions
from headrace.ingest.kafka.reading.read_lag import ReadLag
from tests.ingest.events_of import START_MS, TOPICS, WINDOW_MS, Happened, happen
from tests.ingest.joiner.joiner_run import MODEL, PARTITIONS, JoinerRun


class Seen:
    """The metrics of a joiner."""

    def __init__(self, joiner_run: JoinerRun) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(JoinerCollector(MODEL, joiner_run.joiner))
        self.lag = ReadLag("headrace_joiner_lag", {"model": MODEL})
        held, positions = joiner_run.reader.bounds, joiner_run.joiner.positions
        self.lag.follow(lambda sources: {each: held(each) for each in sources}, positions)
        self.registry.register(self.lag)

    def __call__(self, name: str, **labels: str) -> float | None:
        self.lag.refresh()
        return self.registry.get_sample_value(f"headrace_joiner_{name}", {"model": MODEL, **labels})


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_joiner_metrics_count_every_event(policy: str) -> None:
    happened = happen(seed=5, count=400, partitions=PARTITIONS)
    joiner_run = JoinerRun(
        happened.records(TOPICS, PARTITIONS), ListTransactions(), policy=policy, largest_poll=100
    )
    joiner_run.run()
    seen = Seen(joiner_run)
    made = happened.examples if policy == "immediate" else happened.closed
    assert seen("impressions_total") == 400
    assert seen("clicks_total") == len(happened.clicked) - PARTITIONS
    assert seen("late_clicks_total") == happened.late > 0
    assert seen("duplicates_total") == happened.duplicates > 0
    assert seen("examples_total") == len(made)
    transactions = seen("transactions_total")
    assert transactions == seen("transaction_seconds_count") == joiner_run.transactions.count > 1
    assert seen("aborts_total") == 0


def test_joiner_metrics_count_dead_letters_by_reason() -> None:
    bad = [b"nonsense", b"[]", b"", b'{"impression_id":"x"}', b"nonsense"]
    happened = Happened(shown=[(START_MS + i, 0, value) for i, value in enumerate(bad)])
    joiner_run = JoinerRun(happened.records(TOPICS, PARTITIONS), ListTransactions())
    joiner_run.run()
    seen = Seen(joiner_run)
    expected = {Reason.NOT_JSON: 2, Reason.NOT_AN_OBJECT: 1, Reason.EMPTY: 1, Reason.NO_TIME: 1}
    for reason, count in expected.items():
        assert seen("dead_letters_total", reason=reason.name.lower()) == count
    assert seen("dead_letters_total", reason=Reason.TOO_LATE.name.lower()) is None


def test_joiner_metrics_show_the_window_state_and_the_lag() -> None:
    shown = [
        (START_MS + i, i % 2, b'{"impression_id":"i%d","timestamp_ms":%d}' % (i, START_MS + i))
        for i in range(10)
    ]
    early = START_MS + 3
    clicked = [(early, 0, b'{"impression_id":"not yet","timestamp_ms":%d}' % early)]
    records = Happened(shown, clicked).records(TOPICS, PARTITIONS)
    joiner_run = JoinerRun(records, ListTransactions())
    seen = Seen(joiner_run)
    joiner_run.run()
    assert seen("pending_impressions") == 10
    assert seen("waiting_clicks") == 1
    assert seen("lag") == 0
    assert seen("watermark_seconds", partition="0") == (START_MS + 8) / 1000
    assert seen("watermark_seconds", partition="1") == (START_MS + 9) / 1000
    held = seen("held_bytes")
    assert held is not None and 0 < held < 10_000_000
    last_ms = START_MS + 10 * WINDOW_MS
    for source in records:
        joiner_run.reader.append(source, b'{"timestamp_ms":%d}' % last_ms, last_ms)
    assert seen("lag") == 2 * PARTITIONS
    joiner_run.run()
    assert seen("lag") == 0
    assert (seen("waiting_clicks"), seen("unmatched_clicks_total")) == (0, 1)
    assert seen("watermark_seconds", partition="1") == last_ms / 1000
