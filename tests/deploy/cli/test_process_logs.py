"""Log lines of a process: JSON, time with its zone, and repeats counted."""

import gc
import io
import json
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime

import pytest

from headrace.deploy.cli.main import main
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.process_logs import CountingHandler, HeldLines, JsonLines, TextLines
from headrace.ingest.kafka.client_log import client_log
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.runtime.termination import UNREACHABLE
from tests.deploy.command import headrace

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


def client_on(stream: io.StringIO, held_s: float) -> tuple[logging.Logger, HeldLines]:
    """Return the logger of a Kafka client in a process of this age, and what holds its lines."""
    handler = CountingHandler(stream)
    handler.setFormatter(TextLines())
    held = HeldLines(handler, held_s)
    handler.addFilter(held)
    made = logging.Logger(client_log.name)  # noqa: LOG001 - as above
    made.addHandler(handler)
    return made, held


def test_lines_of_the_kafka_client_are_written_once_the_process_is_old_enough() -> None:
    written = Written()
    client, _ = client_on(written, held_s=0.05)
    client.warning("connection refused")
    written.wait_for("connection refused")
    client.warning("broker down")
    assert "broker down" in written.getvalue()


def test_a_young_process_writes_the_lines_of_the_kafka_client_only_when_it_must() -> None:
    written = Written()
    client, held = client_on(written, held_s=DEADLINE_S)
    client.warning("connection refused")
    logger = logging.Logger("headrace.test")  # noqa: LOG001 - as above
    logger.addHandler(client.handlers[0])
    logger.warning("spec has no fields")
    assert "connection refused" not in written.getvalue()
    assert "spec has no fields" in written.getvalue()
    held.write()
    client.warning("broker down")
    assert "connection refused" in written.getvalue()
    assert "broker down" in written.getvalue()


def test_a_command_that_fails_without_a_message_writes_the_held_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command() -> None:
        client_log.warning("connection refused")
        raise ZeroDivisionError

    written = Written()
    handler = CountingHandler(written)
    handler.addFilter(HeldLines(handler))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr("headrace.deploy.cli.main.app", command)
    with pytest.raises(ZeroDivisionError):
        main()
    assert written.getvalue() == "connection refused\n"


@pytest.mark.parametrize("words", [("evaluate", "show"), ("ingest", "dead-letters")])
def test_a_command_without_kafka_prints_one_message_and_no_line_of_the_client(
    words: tuple[str, ...],
) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = headrace(*words, "--kafka", address)
    assert done.returncode == UNREACHABLE
    assert done.stderr.startswith(f"headrace: no Kafka broker answers at {address}")
    assert len(done.stderr.splitlines()) == 1


def test_debugging_shows_the_lines_of_the_kafka_client_at_once() -> None:
    command = ("evaluate", "show", "--kafka", f"127.0.0.1:{free_port()}")
    assert f"{client_log.name}: FAIL" in headrace("--log-level", "debug", *command).stderr


@pytest.mark.parametrize("words", [("evaluate", "show"), ("ingest", "dead-letters")])
def test_commands_whose_output_is_for_people_print_no_lines_of_the_kafka_client(
    words: tuple[str, ...], kafka: str, fresh_name: Callable[[str], str]
) -> None:
    ensure_topics(KafkaSettings(kafka), topics_for(fresh_name("model"), 2))  # as other tests
    done = headrace(*words, "--kafka", kafka)
    assert " INFO " not in done.stdout + done.stderr
