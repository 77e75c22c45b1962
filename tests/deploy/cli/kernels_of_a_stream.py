"""Prints the kernels that joiner and learner compile or load after the warm-up, one a line.

A process of its own: `python -m tests.deploy.cli.kernels_of_a_stream SPEC`. In a process of other
tests, these may have loaded kernels that the warm-up lacks.
"""

import gc
import secrets
import sys

import orjson
from numba.core.dispatcher import Dispatcher

from headrace.deploy.local.kernel_warmup import SHOWN_MS, warm
from headrace.deploy.models.shipped import path_of
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, ListWriter, memory_ports
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import EventTopics, examples_topic, scores_topic
from headrace.learner.loop.exchange import DirectExchange
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.outputs import KafkaOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerPorts
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape
from headrace.runtime.clock import steady_ms
from headrace.serving.requests.sample_requests import sample_fields

_PARTITIONS, _REQUESTS, _CANDIDATES = 3, 1500, 3


def main() -> None:
    """Warm up, join and learn a longer stream, and print what was not loaded before."""
    spec = load_spec(path_of(sys.argv[1]))
    warm(spec)
    before = _kernels()
    _learn(spec, _join(spec))
    for kernel in sorted(_kernels() - before):
        print(kernel)


def _kernels() -> set[str]:
    dispatchers = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    ours = [each for each in dispatchers if each.py_func.__module__.startswith("headrace")]
    return {
        f"{each.py_func.__module__}.{each.py_func.__name__} {signature}"
        for each in ours
        for signature in each.signatures
    }


def _join(spec: ModelSpec) -> ListReader:
    topics, transactions = EventTopics(), ListTransactions()
    both, partitions = (topics.impressions, topics.clicks), range(_PARTITIONS)
    reader = ListReader({Source(topic, each): [] for topic in both for each in partitions})
    for request in range(_REQUESTS):
        shown, clicked = (Source(topic, request % _PARTITIONS) for topic in both)
        at_ms = SHOWN_MS + 200 * request
        for candidate in range(_CANDIDATES):
            number = request * _CANDIDATES + candidate
            named = {"impression_id": f"i{number}", "request_id": f"r{request}"}
            event = sample_fields(spec.fields, number % 500) | named | {"timestamp_ms": at_ms}
            reader.append(shown, orjson.dumps(event), at_ms)
            if number % 7 == 0:
                click = named | {"timestamp_ms": at_ms + 900}
                reader.append(clicked, orjson.dumps(click), at_ms + 900)
    closed_ms = SHOWN_MS + 200 * _REQUESTS + spec.fields.label.window_ms + 1000
    for topic in both:
        for partition in partitions:
            tick = orjson.dumps({"timestamp_ms": closed_ms})
            reader.append(Source(topic, partition), tick, closed_ms)
    ports = memory_ports(reader, transactions, steady_ms)
    joiner = Joiner(ports, spec.name, spec.fields, topics, JoinerPacing())
    for _ in range(60):
        joiner.step(0.0)
    joiner.finish()
    examples = examples_topic(spec.name)
    found = ListReader({Source(examples, each): [] for each in partitions})
    for message in transactions.written:
        if message.target.topic == examples:
            found.append(message.target, message.value, SHOWN_MS)
    return found


def _learn(spec: ModelSpec, examples: ListReader) -> None:
    store = MemoryStore(clock_ms=steady_ms, nonces=lambda: secrets.token_bytes(8))
    store.create(Shape(spec.name, 2, spec.width, spec.fingerprint, spec.text))
    replica, served = Replica(store, store.shape()), Replica(store, store.shape())
    replica.poll()
    outputs = KafkaOutputs(ListWriter(), scores_topic(spec.name))
    learner = Learner(
        LearnerPorts(examples, outputs, store, DirectExchange(store)),
        replica,
        open_model(spec, 2),
        spec.fields,
        LearnerPacing(push_interval_ms=0),
        guard=BatchGuard(spec.fields.label.window_ms),
    )
    for _ in range(200):
        learner.step(0.0)
        served.poll()
    learner.finish(steady_ms() + 10_000)
    served.poll()
    assert learner.figures.examples >= _REQUESTS * _CANDIDATES, learner.figures.examples


if __name__ == "__main__":
    main()
