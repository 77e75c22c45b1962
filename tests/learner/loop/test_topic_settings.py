"""A learner checks the settings of its topics, on a real Kafka."""

import threading
from collections.abc import Callable

import pytest

from headrace.ingest.errors import TopicMismatch
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.learner.process import LearnerSettings, run_learner
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.store import Shape

MODEL = """
[model]
name = "{name}"
architecture = "logistic_regression"
[label]
policy = "immediate"
window_s = 60
[fields.user]
number = 1
transform = "id"
"""


def test_a_learner_refuses_a_compacted_topic_of_examples(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings, stop = KafkaSettings(kafka), threading.Event()
    examples = fresh_name("examples.model")
    compacted = {"cleanup.policy": "compact"}
    ensure_topics(settings, [TopicSpec(examples, 1, compacted, replicas=1)])
    model = parse_spec(MODEL.format(name=examples.removeprefix("examples.")), "test")
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"8 bytes.")
    store.create(Shape(model.name, 1, model.width, model.fingerprint, model.text))
    stop.set()
    with pytest.raises(TopicMismatch, match=f"topic {examples}: .*cleanup.policy=delete, got"):
        run_learner(LearnerSettings(), settings, lambda: store, model, stop)
