"""Log lines of a process: JSON, time with its zone, and repeats counted."""

from __future__ import annotations

import gc
import io
import json
import logging
import re
import threading
import time
import weakref
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.process_logs import CountingHandler, JsonLines, TextLines
from headrace.ingest.kafka import KafkaSettings, ensure_topics, topics_for
from tests.deploy.command import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 90.0


class Written(io.StringIO):
    """A stream that notes when a line comes."""

    def wait_for(self, text: str) -> None:
        """Wait until a line contains `text`."""
        deadline_s, pause = time.monotonic() + DEADLINE_S, threading.Event()
        while text not in self.getvalue():
            assert time.monotonic() < deadline_s, self.getvalue()
            pause.wait(0.01)


def logger_on(
    stream: io.StringIO, formatter: logging.Formatter, repeats_s: float
) -> logging.Logger:
    """Return a logger that writes to the stream alone."""
    handler = CountingHandler(stream, repeats_s)
    handler.setFormatter(formatter)
    made = logging.Logger("headrace.test")  # noqa: LOG001 - no handler of pytest
    made.addHandler(handler)
    return made


def test_an_outage_of_four_thousand_messages_is_two_lines() -> None:
    written = Written()
    log = logger_on(written, TextLines(), repeats_s=3.0)
    for attempt in range(4000):
        log.warning("kafka:9092: connection refused after %d ms", attempt)
    written.wait_for("more like this")
    first, last = written.getvalue().splitlines()
    assert first.endswith("connection refused after 0 ms")
    assert re.search(r"\(3999 more like this in \d+ s\)$", last)


def test_every_message_of_a_long_outage_is_written_or_counted() -> None:
    written, sent = Written(), 0
    log = logger_on(written, TextLines(), repeats_s=0.02)
    while len(re.findall("more like this", written.getvalue())) < 5:
        log.warning("kafka:9092: connection refused after %d ms", sent)
        sent += 1

    def told() -> int:
        lines = written.getvalue().splitlines()
        counts = [re.search(r"\((\d+) more like this", line) for line in lines]
        return sum(int(each[1]) if each else 1 for each in counts)

    assert wait_until(lambda: told() == sent, DEADLINE_S), (told(), sent)


def test_different_messages_and_progress_are_written_every_time() -> None:
    written = Written()
    log = logger_on(written, TextLines(), repeats_s=60.0)
    for number in range(3):
        log.info("written %d", number)
    log.warning("a is away")
    log.warning("b is away")
    assert len(written.getvalue().splitlines()) == 5


def test_a_written_line_keeps_no_error_and_no_frame_that_raised_it() -> None:
    log = logger_on(Written(), TextLines(), repeats_s=60.0)
    windows: list[weakref.ref[Written]] = []

    def work() -> None:
        window = Written()
        windows.append(weakref.ref(window))
        try:
            raise ValueError("kafka is away")  # noqa: TRY301 - its traceback is the test
        except ValueError as error:
            log.warning("going back: %s", error)

    gc.collect()
    gc.disable()
    try:
        work()
        work()
    finally:
        gc.enable()
    assert [window() for window in windows] == [None, None]


def test_a_json_line_has_time_with_zone_level_logger_and_exception() -> None:
    written = Written()
    log = logger_on(written, JsonLines(), repeats_s=60.0)
    try:
        raise ValueError("expected a, got b")  # noqa: TRY301 - its traceback is the test
    except ValueError:
        log.exception("refused %s", "x")
    line = json.loads(written.getvalue())
    assert (line["level"], line["logger"], line["message"]) == (
        "error",
        "headrace.test",
        "refused x",
    )
    assert "expected a, got b" in line["exception"]
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None


def test_a_text_line_has_time_with_zone() -> None:
    written = Written()
    logger_on(written, TextLines(), repeats_s=60.0).info("begun")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO ", written.getvalue())


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_critical_lines_of_the_kafka_client_become_warnings(level: int) -> None:
    written = Written()
    handler = CountingHandler(written)
    handler.setFormatter(TextLines())
    client = logging.Logger("headrace.ingest.kafka.settings")  # noqa: LOG001 - as above
    client.addHandler(handler)
    client.log(level, "connection refused")
    assert " WARNING " in written.getvalue()


@pytest.mark.parametrize("words", [("evaluate", "show"), ("ingest", "dead-letters", "show")])
def test_commands_whose_output_is_for_people_print_no_lines_of_the_kafka_client(
    words: tuple[str, ...], kafka: str, fresh_name: Callable[[str], str]
) -> None:
    ensure_topics(KafkaSettings(kafka), topics_for(fresh_name("model"), 2))  # as other tests
    done = headrace(*words, "--kafka", kafka)
    assert " INFO " not in done.stdout + done.stderr
