"""Tests the joiner process against a real broker: its metrics, and what it refuses."""

import signal
import threading
import urllib.request
from collections.abc import Callable

import pytest

from headrace.deploy.local.services.ports import free_port
from headrace.ingest.errors import Fenced, TopicMismatch
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka.topics import EventTopics, TopicSpec, ensure_topics
from tests.ingest.events_of import happen
from tests.ingest.joiner.joined import DEADLINE_S, Joined

PARTITIONS = 2


@pytest.fixture
def joined(kafka: str, fresh_name: Callable[[str], str]) -> Joined:
    return Joined.fresh(kafka, fresh_name, PARTITIONS)


def test_a_joiner_process_reports_its_counts_in_metrics(joined: Joined) -> None:
    port = free_port()
    happened = happen(seed=12, count=100, partitions=PARTITIONS)
    state, text = joined.state, ""
    labels = f'{{model="{joined.name}"}}'

    def nothing_is_left() -> bool:
        nonlocal text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        return f"headrace_joiner_lag{labels} 0.0" in text

    with joined.process(port) as process:
        joined.send(happened)
        joined.wait(lambda: state.read().lag == 0, process)
        joined.wait(nothing_is_left, process)  # the process asks for the ends now and then
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert f"headrace_joiner_impressions_total{labels} 100.0" in text
    assert f"headrace_joiner_examples_total{labels} {float(len(happened.examples))}" in text
    assert f'headrace_joiner_watermark_seconds{{model="{joined.name}",partition="1"}}' in text
    assert f"headrace_joiner_transaction_seconds_count{labels}" in text
    if happened.dead:
        assert "headrace_joiner_dead_letters_total{model=" in text


def test_a_second_joiner_with_the_same_instance_fences_the_first(joined: Joined) -> None:
    outcome: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        settings = JoinerSettings(instance="joiner", topics=joined.topics)
        try:
            run_joiner(settings, joined.settings, joined.name, joined.fields, stop)
        except Fenced as error:
            outcome.append(error)

    first = threading.Thread(target=run)
    first.start()
    joined.send(happen(seed=13, count=100, partitions=PARTITIONS))
    joined.wait(lambda: not joined.state.read().lag)
    with joined.process():
        first.join(DEADLINE_S)
        assert not first.is_alive()
    assert [type(error) for error in outcome] == [Fenced]


def test_a_joiner_does_not_start_on_topics_with_different_partition_counts(
    joined: Joined, fresh_name: Callable[[str], str]
) -> None:
    odd = fresh_name("clicked")
    ensure_topics(joined.settings, [TopicSpec(odd, PARTITIONS + 1)])
    topics = EventTopics(joined.topics.impressions, odd, joined.topics.dead_letters)
    with pytest.raises(TopicMismatch, match=f"{odd} {PARTITIONS + 1}"):
        run_joiner(
            JoinerSettings(topics=topics),
            joined.settings,
            joined.name,
            joined.fields,
            threading.Event(),
        )
