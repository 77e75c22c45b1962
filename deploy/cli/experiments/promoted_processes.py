"""The processes of a promoted model, as commands that a user can run."""

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings

_WINDOW_S = 60
"""Default of `headrace evaluate run --window`."""


def say_processes(
    name: str,
    control: str,
    kafka: "KafkaSettings",
    places: tuple[Path, str, str],
    window_s: int,
) -> None:
    """Print the processes that the model needs, as commands with the addresses of this one.

    places: the file of the model's spec, and the addresses of Kafka and the store.
    """
    model, at_kafka, at_redis = places
    continues = _learns_from(control, name, kafka, at_redis)
    said = f"these processes of {name} must run"
    if continues:
        said += f", and the joiner of {control}, whose examples it learns"
    click.echo(f"{said}:", err=True)
    examples_of = control if continues else ""
    for words in process_commands(model, examples_of, window_s, at_kafka, at_redis):
        click.echo(f"  {shlex.join(words)}", err=True)


def process_commands(
    model: Path, examples_of: str, window_s: int, kafka: str, redis: str
) -> list[list[str]]:
    """Return the commands of a promoted model, in the order in which they may be started.

    examples_of: the control whose examples it learns; empty: it has a joiner.
    """
    from headrace.deploy.connections import kafka_words, redis_words

    spec, at_kafka = ["--model", str(model)], kafka_words(kafka)
    examples = ["--examples-of", examples_of] if examples_of else []
    window = [] if window_s == _WINDOW_S else ["--window", str(window_s)]
    joiner = [] if examples_of else [["headrace", "ingest", "join", *spec, *at_kafka]]
    both = [*at_kafka, *redis_words(redis)]
    return [
        ["headrace", "pserver", "keep", *spec, *both],
        *joiner,
        ["headrace", "learner", "run", *spec, *examples, *both],
        ["headrace", "evaluate", "run", *spec, *examples, *window, *at_kafka],
    ]


def _learns_from(control: str, model: str, kafka: "KafkaSettings", redis: str) -> bool:
    """Return whether the rows of a model contain examples of the control."""
    from headrace.deploy.connections import open_store
    from headrace.ingest.kafka.reading.consumer import KafkaReader
    from headrace.ingest.kafka.topics import examples_topic
    from headrace.pserver.store import BucketAnswer

    topic = examples_topic(control)
    with closing(KafkaReader(kafka, None, [topic])) as reader:
        reader.poll(0.0)
        identity = reader.topic_id(topic)
    with closing(open_store(redis, model, read_only=True)) as store:
        answers = store.marks(range(store.shape().buckets))
    return any(
        source.startswith(f"{identity}/")
        for each in answers
        if isinstance(each, BucketAnswer)
        for source in each.marks
    )
