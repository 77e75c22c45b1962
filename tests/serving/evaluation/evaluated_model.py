"""A model's topics in a real Kafka, traffic for them, and evaluation workers."""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec
from confluent_kafka import Producer

from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.batch import pack as pack_examples
from headrace.ingest.kafka.producer import producer_config
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    TopicSpec,
    ensure_topics,
    examples_topic,
    scores_topic,
    topics_for,
)
from headrace.learner.loop.scores import Scores
from headrace.learner.loop.scores import pack as pack_scores
from headrace.learner.spec.model_spec import load_spec
from headrace.serving.evaluation.evaluation_process import (
    EvaluationSettings,
    evaluation_topics,
    rules_of,
)
from headrace.serving.evaluation.evaluator import Evaluator
from headrace.serving.evaluation.faust_agent import changelog_topic, rows_topic
from headrace.serving.evaluation.messages import RowsBuilder
from headrace.serving.evaluation.messages import pack as pack_rows
from tests.deploy.command import Running, running
from tests.serving.evaluation.streams import PARTITIONS, Batch, add

DEADLINE_S = 90.0
SPEC = """
[model]
name = "{name}"
architecture = "logistic_regression"

[label]
policy = "immediate"
window_s = 60

[examples]
slice_by = ["device"]

[fields.device]
number = 1
transform = "id"

[optimizer]
name = "ftrl"
"""


class EvaluatedModel:
    """One model. `stack` ends its workers."""

    def __init__(self, kafka: str, name: str, directory: Path, stack: ExitStack) -> None:
        self.kafka, self.name, self._stack = KafkaSettings(kafka), name, stack
        self.model_path = directory / "model.toml"
        self.model_path.write_text(SPEC.format(name=name))
        self.spec = load_spec(self.model_path)
        self.predictions = f"predictions.{name}"
        ensure_topics(
            self.kafka,
            [
                *(t for t in topics_for(name, PARTITIONS) if t.name.endswith(f".{name}")),
                TopicSpec(self.predictions, PARTITIONS, {"cleanup.policy": "delete"}),
                *evaluation_topics(name),
            ],
        )
        self._producer = Producer(
            {**producer_config(self.kafka), "transactional.id": f"{name}.traffic"}
        )
        self._producer.init_transactions(30)

    def write(self, batches: Iterable[tuple[str, Batch]], *, abort: bool = False) -> None:
        """Write batches in one transaction, as the joiner does, and commit or abort it."""
        self._producer.begin_transaction()
        for source, batch in batches:
            kind, _, partition = source.partition("/")
            if isinstance(batch, Examples):
                self._produce(examples_topic(self.name), pack_examples(batch), partition)
            elif isinstance(batch, Scores):
                self._produce(scores_topic(self.name), pack_scores(batch), partition)
            else:
                assert kind == "predictions"
                for each in batch:
                    made = msgspec.structs.replace(each, model=self.name)
                    value = msgspec.json.encode({**msgspec.structs.asdict(made), "version": 7})
                    self._produce(self.predictions, value, partition)
        if abort:
            self._producer.flush()
            self._producer.abort_transaction(30)
        else:
            self._producer.commit_transaction(30)

    def abort_rows(self, batches: Iterable[tuple[str, Batch]]) -> None:
        """Leave rows of an aborted transaction in the rows topic, like a feeder that died."""
        gathering = RowsBuilder(("device",), 1.0)
        for _, batch in batches:
            add(gathering, batch)
        self._producer.begin_transaction()
        self._producer.produce(rows_topic(self.name), pack_rows(gathering.take(0, {})), partition=0)
        self._producer.flush()
        self._producer.abort_transaction(30)

    def _produce(self, topic: str, value: bytes, partition: str) -> None:
        self._producer.produce(topic, value, partition=int(partition))

    def worker(self, instance: str) -> Running:
        """Start a process that evaluates the model."""
        run = ("evaluate", "run", "--instance", instance, "--kafka", self.kafka.bootstrap)
        model = ("--model", str(self.model_path), "--predictions", self.predictions)
        return self._stack.enter_context(running(*run, *model, PYTHONWARNINGS="default"))

    def table(self) -> Evaluator:
        """Return the state of a worker that starts now, from the changelog."""
        table: dict[str, bytes] = {}
        for record in read_all(self.kafka, changelog_topic(self.name)):
            key = (record.key or b"").decode()
            table.pop(key, None)
            if record.value:
                table[key] = record.value
        evaluation = Evaluator(rules_of(EvaluationSettings(), self.spec), ())
        evaluation.restore(table.items())
        return evaluation

    def until(self, true: Callable[[], bool], what: str, worker: Running) -> None:
        """Wait for a condition while the worker lives. Fails at a deadline."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not true():
            assert worker.process.poll() is None, f"it ended by itself:\n{worker.output[-4000:]}"
            if time.monotonic() > deadline_s:
                raise AssertionError(f"waited {DEADLINE_S} s for {what}\n{worker.output[-4000:]}")
            time.sleep(0.2)
