"""Observers of answers: bounded in bytes, and alive after any exception."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.fakes import ListWriter
from headrace.serving.models.prediction import ScoredRequest
from headrace.serving.observers import prediction_log
from headrace.serving.observers.bounded_worker import BoundedWorker
from headrace.serving.observers.prediction_log import (
    PredictionLog,
    PredictionLogSettings,
    messages_of,
)
from headrace.serving.observers.shadows import Shadows
from tests.serving.api.app_client import ask
from tests.serving.models.two_models import Stuck, Two
from tests.serving.served_models import eventually

PREDICT = "/v1/models/news:predict"
BY_ALIAS = "/v1/models/production:predict"


class Counts(dict[str, int]):
    """Candidates by outcome."""

    def __call__(self, outcome: str, candidates: int) -> None:
        self[outcome] = self.get(outcome, 0) + candidates


class Held(BoundedWorker[str]):
    """A worker that blocks until it is released, and fails with items that begin with `bad`."""

    def __init__(self, **how: Any) -> None:
        super().__init__("test", 100, **how)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.handled: list[list[str]] = []
        self.lost: list[str] = []

    def handle(self, items: list[str]) -> None:
        self.reached.set()
        assert self.go_on.wait(60)
        if items[0].startswith("bad"):
            raise ZeroDivisionError(items[0])
        self.handled.append(items)

    def failed(self, item: str) -> None:
        self.lost.append(item)


def test_a_bounded_worker_refuses_items_beyond_its_bytes_until_others_are_handled() -> None:
    worker = Held(drains=True)
    assert worker.put("large", 1_000)  # an empty queue takes an item of any size
    assert not worker.put("small", 1)
    worker.start()
    assert worker.reached.wait(60)
    assert not worker.put("small", 1)  # the batch in progress counts
    worker.go_on.set()
    eventually(lambda: worker.put("first", 60))
    worker.stop()
    assert worker.handled == [["large"], ["first"]]
    assert not worker.put("late", 1)


def test_a_bounded_worker_without_drain_ends_with_its_queue_unhandled() -> None:
    worker = Held(batch_items=1)
    assert worker.put("a", 1) and worker.put("b", 1)
    worker.start()
    assert worker.reached.wait(60)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: not worker.put("c", 1))
    worker.go_on.set()
    stopping.join(60)
    assert worker.handled == [["a"]]


def test_a_bounded_worker_survives_exceptions_and_reports_each_item() -> None:
    worker = Held(drains=True)
    worker.go_on.set()
    worker.start()
    for item in ("bad 1", "bad 2", "good"):
        eventually(lambda item=item: worker.put(item, 90))  # type: ignore[misc]
    worker.stop()
    assert (worker.lost, worker.handled) == (["bad 1", "bad 2"], [["good"]])


def test_large_requests_fill_the_prediction_log_by_their_bytes_while_answers_do_not_wait() -> None:
    writer, counts = Stuck(), Counts()
    log = PredictionLog(PredictionLogSettings(waiting_bytes=1 << 20), lambda: writer, counts)
    serving = Two(log)
    log.start()
    try:
        asked: dict[str, Any] = {"context": {"user_id": "u" * 400_000}, "candidates": [{}]}
        for _ in range(10):  # two fit; they count until Kafka acknowledges them
            assert ask(serving, "POST", PREDICT, json=asked).status_code == 200
        assert writer.reached.wait(60)
        assert counts == {"dropped": 8}
    finally:
        writer.go_on.set()
        log.stop()
    assert counts == {"dropped": 8, "logged": 2}


def test_a_context_that_its_messages_would_repeat_too_often_is_not_logged() -> None:
    writer, counts = ListWriter(), Counts()
    log = PredictionLog(PredictionLogSettings(request_bytes=10_000), lambda: writer, counts)
    serving = Two(log)
    log.start()
    for user, candidates in (("u" * 3_000, 5), ("u", 5)):
        asked = {"context": {"user_id": user}, "candidates": [{}] * candidates}
        assert ask(serving, "POST", PREDICT, json=asked).status_code == 200
    log.stop()
    assert counts == {"dropped": 5, "logged": 5}
    assert {json.loads(each.value)["fields"]["user_id"] for each in writer.sent} == {"u"}


def test_the_prediction_log_goes_on_after_a_request_that_cannot_be_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, counts = ListWriter(), Counts()

    def failing(scored: ScoredRequest) -> Iterator[tuple[bytes, bytes]]:
        if scored.request.request_id == "bad":
            raise ZeroDivisionError("a mistake")
        return messages_of(scored)

    monkeypatch.setattr(prediction_log, "messages_of", failing)
    log = PredictionLog(PredictionLogSettings(), lambda: writer, counts)
    serving = Two(log)
    for name in ("good", "bad", "good"):
        ask(serving, "POST", PREDICT, json={"request_id": name, "candidates": [{}, {}]})
    log.start()
    log.stop()
    assert counts == {"logged": 4, "failed": 2}
    assert len(writer.sent) == 4


class Away(ListWriter):
    """A writer without a broker."""

    def flush(self) -> None:
        raise KafkaUnreachable("no broker answers at localhost:1")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("first", "outcome"),
    [(ZeroDivisionError("a mistake"), "failed"), (Away(), "dropped")],
    ids=["a bug", "an outage"],
)
def test_a_prediction_log_without_a_writer_counts_what_it_loses_and_goes_on(
    first: ListWriter | Exception, outcome: str
) -> None:
    opened, counts = list[ListWriter](), Counts()

    def open_writer() -> ListWriter:
        if not counts and isinstance(first, Exception):
            raise first
        opened.append(ListWriter() if counts or isinstance(first, Exception) else first)
        return opened[-1]

    log = PredictionLog(PredictionLogSettings(), open_writer, counts)
    serving = Two(log)
    log.start()
    for expected in ({outcome: 1}, {outcome: 1, "logged": 1}):
        ask(serving, "POST", PREDICT, json={"candidates": [{}]})
        eventually(lambda expected=expected: counts == expected)  # type: ignore[misc]
    log.stop()
    assert all(each.closed for each in opened)


@pytest.fixture
def shadowed() -> Iterator[Two]:
    serving = Two(PredictionLog(PredictionLogSettings(), ListWriter, lambda *_: None))
    yield serving
    serving.shadows.stop()


def shadow_count(serving: Two, outcome: str) -> float:
    name = "headrace_server_shadow_requests_total"
    labels = {"model": "news-2", "outcome": outcome}
    return serving.registry.get_sample_value(name, labels) or 0.0


def test_a_shadow_model_that_fails_is_counted_and_scores_the_next_request(
    shadowed: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = shadowed.second.predictor
    predict = predictor.predict

    def failing(*how: Any) -> Any:
        if not shadow_count(shadowed, "failed"):
            raise ZeroDivisionError("a mistake")
        return predict(*how)

    monkeypatch.setattr(predictor, "predict", failing)
    shadowed.shadows.start()
    assert ask(shadowed, "POST", BY_ALIAS, json={"candidates": [{}]}).status_code == 200
    eventually(lambda: shadow_count(shadowed, "failed") == 1)
    ask(shadowed, "POST", BY_ALIAS, json={"candidates": [{}]})
    eventually(lambda: shadow_count(shadowed, "scored") == 1)


def test_large_requests_fill_the_queue_of_shadow_models_by_their_bytes(shadowed: Two) -> None:
    asked = {"context": {"user_id": "u" * 900_000}, "candidates": [{}]}
    for _ in range(10):  # not started: two fit into 4 MiB, as each counts twice
        assert ask(shadowed, "POST", BY_ALIAS, json=asked).status_code == 200
    assert shadow_count(shadowed, "dropped") == 8
    assert isinstance(shadowed.shadows, Shadows)
