"""A drain waits for transactions that are open, or were committed a moment ago."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.deploy.local.drain import Backlog, Drain
from headrace.deploy.local.services.kafka import KafkaNode
from headrace.deploy.operations.examples_topic import topic_bounds
from headrace.ingest.examples.batch import Examples, pack
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.store import Shape
from tests.deploy.learners.learned_model import LearnedModel
from tests.running_server import jars, running_server

TIMEOUT_S = 30
STUCK_AFTER_S = 240.0


@pytest.fixture
def model(kafka: str, tmp_path: Path, fresh_name: Callable[[str], str]) -> LearnedModel:
    return LearnedModel(kafka, "", fresh_name("drained"), tmp_path, seed=1)


@pytest.fixture
def drain(model: LearnedModel) -> Iterator[Drain]:
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"bucket00")
    spec = model.spec
    store.create(Shape(spec.name, 1, spec.width, spec.fingerprint, spec.text))
    drain = Drain(model.kafka, spec, store)
    yield drain
    drain.close()


def test_a_batch_in_an_open_transaction_is_awaited(
    model: LearnedModel, drain: Drain, fresh_name: Callable[[str], str]
) -> None:
    assert drain.behind().batches == 0
    producer = Producer(
        {"bootstrap.servers": model.kafka.bootstrap, "transactional.id": fresh_name("joiner")}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(model.topic, b"a batch", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    assert drain.behind().batches == 1
    assert topic_bounds(model.kafka, model.spec.name).lag({}) == 1
    producer.close()


def test_examples_that_kafka_lost_before_they_were_learned_are_found(model: LearnedModel) -> None:
    spec, source = model.spec, min(topic_bounds(model.kafka, model.spec.name).bounds)
    producer = Producer({"bootstrap.servers": model.kafka.bootstrap})
    for before in (0, 0, 5, 5):
        batch = replace(Examples.empty(spec.fields), before=before)
        producer.produce(model.topic, pack(batch), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    for mark, missing in ((1, {f"{model.topic}/0@2": 5}), (3, {}), (4, {})):
        found = topic_bounds(model.kafka, spec.name, [{source: mark}], spec.fields)
        assert (found.trouble, found.missing) == (None, missing), mark


def test_a_mark_past_the_end_of_one_partition_hides_no_batch_of_another(
    model: LearnedModel, kafka: str
) -> None:
    """Markers of transactions move an end between reading the ends and reading the marks."""
    spec, source = model.spec, min(topic_bounds(model.kafka, model.spec.name).bounds)
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"bucket00")
    store.begin(Shape(spec.name, 1, spec.width, spec.fingerprint, spec.text))
    store.load(0, 1, {source: 1}, [])
    store.finish()
    drain = Drain(model.kafka, spec, store)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(model.topic, b"a batch", partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    assert drain.behind().batches == 1
    drain.close()


def test_a_drain_waits_for_a_killed_kafka_that_returns(tmp_path: Path) -> None:
    store, stop = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"bucket00"), threading.Event()
    told: list[Backlog] = []
    with running_server(KafkaNode(tmp_path / "kafka", jars())) as node:
        model = LearnedModel(node.bootstrap, "", "restarted", tmp_path, seed=1)
        spec = model.spec
        store.create(Shape(spec.name, 1, spec.width, spec.fingerprint, spec.text))
        model.produce(10)
        drain = Drain(model.kafka, spec, store)

        def tell(behind: Backlog) -> None:
            told.append(behind)
            if len(told) == 1:
                node.kill()
            elif node.alive:
                stop.set()
            else:
                node.launch()

        assert not drain.wait(stop, tell, STUCK_AFTER_S)
        node.wait_ready()
        drain.close()
    assert len(told) > 2
    assert all(behind.batches == 1 for behind in told)
