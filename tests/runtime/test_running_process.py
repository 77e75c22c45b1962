"""Tests the frame of a long-running process: metrics, garbage collection, and its clean end."""

import gc
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.deploy.local.services.ports import free_port
from headrace.runtime.http.http_errors import AddressTaken
from headrace.runtime.process import running_process

LOOPBACK = "127.0.0.1"
DEADLINE_S = 60.0


class Hanging(Collector):
    """A figure of a server that does not answer, and one that waits while it is read."""

    def __init__(self, released: threading.Event) -> None:
        self.released, self.asked = released, threading.Event()
        self.reading = threading.Semaphore(0)
        self.waits = False

    def refresh(self) -> None:
        """Wait for the server."""
        self.asked.set()
        self.released.wait()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge."""
        self.reading.release()
        if self.waits:
            self.released.wait()
        yield GaugeMetricFamily("headrace_answer", "An answer.", value=42.0)


class Answer(Collector):
    """One gauge."""

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield GaugeMetricFamily("headrace_answer", "An answer.", value=42.0)


def test_a_running_process_serves_its_metrics_until_its_end() -> None:
    registry, port = CollectorRegistry(), free_port()
    url = f"http://{LOOPBACK}:{port}/metrics"
    with running_process("test", None, registry, (LOOPBACK, port), collectors=[Answer()]):
        with urllib.request.urlopen(url) as answer:
            assert b"headrace_answer 42.0" in answer.read()
        with (
            pytest.raises(AddressTaken, match=f"{LOOPBACK}:{port}.*--metrics-port"),
            running_process("other", None, CollectorRegistry(), (LOOPBACK, port)),
        ):
            pass
    with running_process("next", None, registry, (LOOPBACK, port)):
        pass  # the port is free again


def test_a_running_process_that_fails_undoes_its_registration_and_gc_settings() -> None:
    registry, thresholds = CollectorRegistry(), gc.get_threshold()
    frame = running_process(
        "test",
        None,
        registry,
        (LOOPBACK, 0),
        collectors=[Answer()],
        objects_between_collections=12_345,
    )

    def fail() -> None:
        with frame:
            assert gc.get_threshold()[0] == 12_345
            assert gc.get_freeze_count() > 0
            assert registry.get_sample_value("headrace_answer") == 42.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert registry.get_sample_value("headrace_answer") is None
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


def test_a_scrape_is_answered_while_a_server_hangs() -> None:
    registry, port, released = CollectorRegistry(), free_port(), threading.Event()
    hanging = Hanging(released)
    with running_process("test", None, registry, (LOOPBACK, port), collectors=[hanging]):
        try:
            assert hanging.asked.wait(DEADLINE_S)
            for _ in range(10):
                with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", None, 30) as got:
                    assert b"headrace_answer 42.0" in got.read()
        finally:
            released.set()


def test_scrapes_that_hang_do_not_pile_up() -> None:
    registry, port, released = CollectorRegistry(), free_port(), threading.Event()
    hanging, url = Hanging(released), f"http://{LOOPBACK}:{port}/metrics"
    answers: list[int] = []

    def scrape() -> None:
        with urllib.request.urlopen(url) as answer:
            answers.append(answer.status)

    with running_process("test", None, registry, (LOOPBACK, port), collectors=[hanging]):
        while hanging.reading.acquire(blocking=False):
            pass  # registration collects, too
        hanging.waits = True
        scrapers = [threading.Thread(target=scrape, daemon=True) for _ in range(4)]
        try:
            for each in scrapers:
                each.start()
                assert hanging.reading.acquire(timeout=DEADLINE_S)
            with pytest.raises(urllib.error.HTTPError, match="503") as refused:
                urllib.request.urlopen(url)
            assert b"expected at most 4 scrapes at a time" in refused.value.read()
        finally:
            released.set()
        for each in scrapers:
            each.join(DEADLINE_S)
        assert answers == [200] * 4
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
