"""Tests the joiner process against a real broker: kills, stops, metrics."""

import json
import random
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.deploy.local.services.ports import free_port
from headrace.ingest.errors import Fenced, KafkaUnreachable, TopicMismatch
from headrace.ingest.joiner.committed_state import read_state
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, TopicSpec, ensure_topics, joiner_group
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.replayer import replay
from tests.ingest.events_of import Happened, fields_of, happen
from tests.ingest.joiner.joined import DEADLINE_S, WEEK, WEEK_SPEC, Joined

PARTITIONS = 2


@pytest.fixture
def joined(kafka: str, fresh_name: Callable[[str], str]) -> Joined:
    return Joined.fresh(kafka, fresh_name, PARTITIONS)


def test_a_joiner_killed_repeatedly_writes_every_example_once(joined: Joined) -> None:
    seed, lives = 11, 4
    dice = random.Random(seed)
    happened = happen(seed, count=60_000, partitions=PARTITIONS)
    state = joined.state
    killed_in_the_middle = 0
    for part in happened.parts(lives):
        with joined.process() as process:
            before = state.read().examples
            joined.send(part)
            # never more than exist: a fast joiner may have joined everything already
            more = before + dice.randrange(1, min(4_000, len(happened.examples) - before))
            joined.wait(lambda more=more: state.read().examples >= more, process)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            process.wait()
        killed_in_the_middle += state.read().lag > 0
    assert killed_in_the_middle >= 2, f"seed {seed}"
    with joined.process() as process:
        joined.wait(lambda: state.read().lag == 0, process)
    assert sorted(joined.examples()) == sorted(happened.examples), f"seed {seed}"
    end = read_state(joined.settings, joined, joined.topics)
    assert end.impressions == 60_000
    assert end.examples == len(happened.examples)
    unmet = end.late_clicks + end.unmatched_clicks
    assert (unmet, end.duplicates) == (happened.late, happened.duplicates)
    letters = list(read_all(joined.settings, joined.topics.dead_letters))
    assert end.dead_letters == len(letters) == happened.dead > 0


def test_dead_letters_name_topic_partition_offset_and_reason(joined: Joined) -> None:
    bad = Happened(shown=[(1, 1, b"[]")], clicked=[(1, 0, b'{"impression_id":"a"}')])
    joined.send(bad)
    with joined.process() as process:
        joined.wait(lambda: joined.state.read().dead_letters == 2, process)
    found = [json.loads(r.value) for r in read_all(joined.settings, joined.topics.dead_letters)]
    places = {(each["topic"], each["partition"], each["offset"]) for each in found}
    assert places == {(joined.topics.impressions, 1, 0), (joined.topics.clicks, 0, 0)}
    assert all(each["reason"].startswith("expected") and each["value"] for each in found)


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


def test_a_second_joiner_with_the_same_instance_fences_the_first(
    joined: Joined,
) -> None:
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
    state = joined.state
    deadline_s = time.monotonic() + DEADLINE_S
    while state.read().lag:
        assert time.monotonic() < deadline_s
    with joined.process():
        first.join(DEADLINE_S)
        assert not first.is_alive()
    assert [type(error) for error in outcome] == [Fenced]


def test_a_joiner_whose_offsets_kafka_has_forgotten_makes_no_example_twice(
    joined: Joined,
) -> None:
    happened = happen(seed=14, count=200, partitions=PARTITIONS)
    joined.send(happened)
    with joined.process() as process:
        joined.wait(lambda: joined.state.read().lag == 0, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    assert sorted(joined.examples()) == sorted(happened.examples)
    admin = AdminClient({"bootstrap.servers": joined.settings.bootstrap})

    def deleted() -> bool:
        [answer] = admin.delete_consumer_groups([joiner_group(joined.name)]).values()
        try:
            answer.result()
        except KafkaException as error:
            # Kafka keeps a static member until its session times out
            if error.args[0].code() != KafkaError.NON_EMPTY_GROUP:
                raise
            return False
        return True

    joined.wait(deleted)
    with joined.process() as process:
        joined.wait(lambda: joined.state.read().lag == 0, process)
    assert sorted(joined.examples()) == sorted(happened.examples)


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


def test_a_joiner_with_a_wrong_address_names_the_flag() -> None:
    nowhere = KafkaSettings("127.0.0.1:9", connect_timeout_s=1.0)
    with pytest.raises(KafkaUnreachable, match="--kafka"):
        run_joiner(JoinerSettings(), nowhere, "model", fields_of(), threading.Event())


@pytest.mark.skipif(not WEEK.is_dir(), reason=f"the sample week is not at {WEEK}")
def test_a_joiner_process_joins_the_sample_week_completely(joined: Joined) -> None:
    joined.spec = WEEK_SPEC.format(policy="immediate")
    stop = threading.Event()
    settings = JoinerSettings(topics=joined.topics)
    joining = threading.Thread(
        target=run_joiner, args=[settings, joined.settings, joined.name, joined.fields, stop]
    )
    joining.start()
    try:
        replayed = replay(
            joined.settings, [DirectoryLog(WEEK)], 1_800_000, stop, topics=joined.topics
        )
        state = joined.state
        deadline_s = time.monotonic() + DEADLINE_S
        while state.read().lag:
            assert joining.is_alive()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        stop.set()
        joining.join()
    end = state.read()
    assert (end.impressions, end.clicks, end.late_clicks) == (278_139, 24_829, 0)
    assert (end.duplicates, end.dead_letters) == (0, 0)
    assert replayed.events == end.examples == end.impressions + end.clicks
    kinds = Counter(kind for _, kind, _, _, _ in joined.examples())
    assert sorted(kinds.values()) == [24_829, 278_139]
