"""Log lines of a process: JSON, time with its zone, and repeats counted."""

import gc
import io
import json
import logging
import re
import time
import weakref
from collections.abc import Callable
from datetime import datetime

import pytest

from headrace.deploy.local.services.ports import free_port
from headrace.deploy.process_logs import CountingHandler, JsonLines, TextLines
from headrace.ingest.kafka.client_log import client_log
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.runtime.termination import UNREACHABLE
from tests.deploy.command import headrace


def logger_on(stream: io.StringIO, formatter: logging.Formatter) -> logging.Logger:
    """Return a logger that writes to the stream alone."""
    handler = CountingHandler(stream)
    handler.setFormatter(formatter)
    made = logging.Logger("headrace.test")  # noqa: LOG001 - no handler of pytest
    made.addHandler(handler)
    return made


def test_an_outage_of_four_thousand_messages_is_a_line_a_minute_with_the_count_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, now_s = io.StringIO(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    log = logger_on(written, TextLines())
    for attempt in range(4000):
        log.warning("kafka:9092: connection refused after %d ms", attempt)
        now_s += 0.02
    first, last = written.getvalue().splitlines()
    assert first.endswith("connection refused after 0 ms")
    found = re.search(r"after (\d+) ms \((\d+) more like this in 60 s\)$", last)
    assert found is not None
    assert int(found[1]) == int(found[2]) + 1, "every line before is written or counted"


def test_different_messages_and_progress_are_written_every_time() -> None:
    written = io.StringIO()
    log = logger_on(written, TextLines())
    for number in range(3):
        log.info("written %d", number)
    log.warning("a is away")
    log.warning("b is away")
    assert len(written.getvalue().splitlines()) == 5


def test_a_written_line_keeps_no_error_and_no_frame_that_raised_it() -> None:
    log = logger_on(io.StringIO(), TextLines())
    windows: list[weakref.ref[io.StringIO]] = []

    def work() -> None:
        window = io.StringIO()
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
    written = io.StringIO()
    log = logger_on(written, JsonLines())
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
    written = io.StringIO()
    logger_on(written, TextLines()).info("begun")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO ", written.getvalue())


def test_a_command_without_kafka_prints_one_message_and_no_line_of_the_client() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = headrace("ingest", "dead-letters", "--kafka", address)
    assert done.returncode == UNREACHABLE
    assert done.stderr.startswith(f"headrace: no Kafka broker answers at {address}")
    assert len(done.stderr.splitlines()) == 1


def test_debugging_shows_the_lines_of_the_kafka_client_at_once() -> None:
    command = ("evaluate", "show", "--kafka", f"127.0.0.1:{free_port()}")
    assert f"{client_log.name}: FAIL" in headrace("--log-level", "debug", *command).stderr


def test_a_command_whose_output_is_for_people_prints_no_line_of_the_kafka_client(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    ensure_topics(KafkaSettings(kafka), topics_for(fresh_name("model"), 2))  # as other tests
    done = headrace("evaluate", "show", "--kafka", kafka)
    assert " INFO " not in done.stdout + done.stderr
