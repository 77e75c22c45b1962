"""Outages of Kafka leave no client, no thread and no window of the joiner behind.

The joiner runs in this process, with its status and all its clients, and the collector of cycles is
off. So everything that an outage leaves in a cycle is counted.
"""

import gc
import logging
import os
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from headrace.deploy.local.kernel_warmup import warm
from headrace.deploy.local.services.kafka import KafkaNode
from headrace.deploy.local.services.kafka_jars import kafka_jars
from headrace.deploy.local.services.waiting import wait_until
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.joiner.partition import JoinerPartition
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, examples_topic, topics_for
from headrace.learner.spec.model_spec import parse_spec
from tests.faults.event_stream import EventStream, JoinedExamples

MODEL, PARTITIONS, OUTAGES = "frozen", 3, 3
SPEC = f"""
[model]
name = "{MODEL}"
[label]
policy = "immediate"
window_s = 60
[fields.user]
number = 1
transform = "id"
"""
FRESH_S = 90.0
TASKS = Path("/proc/self/task")


@pytest.fixture
def broker(stack_directory: Path) -> Iterator[KafkaNode]:
    """One broker of this test alone."""
    named = os.environ.get("HEADRACE_KAFKA_JARS")
    jars = kafka_jars(Path(named) if named else None)
    node = KafkaNode(stack_directory / "frozen", jars, remove=stack_directory)
    try:
        node.launch()
        node.wait_ready()
        yield node
    finally:
        node.kill()


@pytest.fixture
def _lines_of_text() -> Iterator[None]:
    """Log records without errors: pytest keeps all records of a test."""
    factory = logging.getLogRecordFactory()

    def of_text(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        record.msg, record.args = record.getMessage(), None
        return record

    logging.setLogRecordFactory(of_text)
    yield
    logging.setLogRecordFactory(factory)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[JoinerPartition]:
    """The partitions of joiners that are in memory: each holds a window."""
    found = weakref.WeakSet[JoinerPartition]()
    begin = JoinerPartition.__init__

    def begin_counted(self: JoinerPartition, *args: Any) -> None:
        found.add(self)
        begin(self, *args)

    monkeypatch.setattr(JoinerPartition, "__init__", begin_counted)
    return found


def left(windows: weakref.WeakSet[JoinerPartition]) -> Counter[str]:
    """Count the windows, and the clients of Kafka by their main threads."""
    found = Counter[str](windows=len(windows))
    for task in TASKS.iterdir():
        try:
            found["clients"] += (task / "comm").read_text().strip() == "rdk:main"
        except FileNotFoundError:
            continue
    return found


def aborts() -> float:
    """Return how often the joiner went back to its last commit."""
    return REGISTRY.get_sample_value("headrace_joiner_aborts_total", {"model": MODEL}) or 0.0


def freeze_until_abort(broker: KafkaNode) -> None:
    """Stop the broker with SIGSTOP until a transaction of the joiner failed."""
    begun = aborts()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: aborts() > begun, FRESH_S), "expected an abort"
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_lines_of_text")
@pytest.mark.skipif(not TASKS.exists(), reason="the threads of librdkafka are counted on Linux")
def test_outages_of_kafka_leave_no_client_and_no_window_of_the_joiner_behind(
    broker: KafkaNode, windows: weakref.WeakSet[JoinerPartition]
) -> None:
    kafka, topics, stop = KafkaSettings(broker.address), EventTopics(), threading.Event()
    spec = parse_spec(SPEC, f"{MODEL}.toml")
    warm(spec)
    ensure_topics(kafka, topics_for(MODEL, PARTITIONS, topics, 1))
    joining = threading.Thread(
        target=run_joiner,
        args=(JoinerSettings(instance="a"), kafka, MODEL, spec.fields, stop),
        name="joiner",
    )

    def wait_fresh(examples: JoinedExamples) -> None:
        began_ms = int(time.time() * 1000)
        fresh = wait_until(lambda: examples.all_newer_than(began_ms), FRESH_S, joining.is_alive)
        assert fresh, f"expected fresh examples within {FRESH_S} s"

    with (
        JoinedExamples(kafka, examples_topic(MODEL), spec.fields, PARTITIONS) as examples,
        EventStream(kafka, topics, PARTITIONS),
    ):
        joining.start()
        try:
            wait_fresh(examples)
            gc.collect()
            gc.disable()
            freeze_until_abort(broker)
            wait_fresh(examples)
            first = left(windows)
            for _ in range(OUTAGES):
                freeze_until_abort(broker)
                wait_fresh(examples)
                # a client that waited for the broker is closed when its messages have timed out
                wait_until(lambda: left(windows)["clients"] <= first["clients"], FRESH_S)
                assert left(windows)["clients"] <= first["clients"]
                # the last error may live until the next one, with the windows that it met
                assert left(windows)["windows"] <= 2 * PARTITIONS
        finally:
            gc.enable()
            stop.set()
            joining.join()
