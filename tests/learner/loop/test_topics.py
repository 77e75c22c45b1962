"""A learner checks its topics, and goes on while they grow, on a real Kafka."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from headrace.ingest.errors import TopicMismatch
from headrace.ingest.joiner.partition_growth import grow, open_windows
from headrace.ingest.kafka.reading.bounded_reader import high_watermarks, read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics, examples_topic, scores_topic
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.process import LearnerSettings, run_learner
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.store import Shape
from tests.ingest.joiner.joined import DEADLINE_S, Joined
from tests.ingest.keyed_events import FIELDS, MODEL, identities, send_by_key


def _store(model: ModelSpec) -> MemoryStore:
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"8 bytes.")
    store.create(Shape(model.name, 1, model.width, model.fingerprint, model.text))
    return store


def test_a_learner_refuses_a_compacted_topic_of_examples(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings, stop = KafkaSettings(kafka), threading.Event()
    examples = fresh_name("examples.model")
    ensure_topics(settings, [TopicSpec(examples, 1, {"cleanup.policy": "compact"}, replicas=1)])
    model = parse_spec(MODEL.format(name=examples.removeprefix("examples.")) + FIELDS, "test")
    stop.set()
    with pytest.raises(TopicMismatch, match=f"topic {examples}: .*cleanup.policy=delete, got"):
        run_learner(LearnerSettings(), settings, lambda: _store(model), model, stop)


def test_a_running_learner_learns_the_examples_of_added_partitions_once(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, 2, FIELDS)
    model = parse_spec(MODEL.format(name=joined.name) + FIELDS, "test")
    store, stop = _store(model), threading.Event()
    learner = threading.Thread(
        target=run_learner, args=[LearnerSettings(), joined.settings, lambda: store, model, stop]
    )
    process = joined.start("")
    learner.start()

    def scored() -> Counter[str]:
        records = read_all(joined.settings, scores_topic(joined.name))
        return Counter(
            identity
            for record in records
            for identity in unpack_scores(record.value).impression_ids.to_pylist()
        )

    def wait_for(shown: set[str]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while set(scored()) < shown:
            assert learner.is_alive()
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.2)

    try:
        old, new = identities("old", 500), identities("new", 1_500)
        send_by_key(joined, shown=old)
        wait_for({*old})
        looked = open_windows(joined.settings, [joined], int(time.time() * 1000), joined.topics)
        grow(joined.settings, [joined.name], 6, looked, joined.topics)
        send_by_key(joined, shown=new)
        wait_for({*old, *new})
    finally:
        stop.set()
        learner.join()
        process.kill()
        process.wait()
    assert scored() == Counter([*old, *new])
    ends = high_watermarks(joined.settings, examples_topic(joined.name))
    assert all(ends.values()), "each of the six partitions has examples"
    assert len(ends) == 6
