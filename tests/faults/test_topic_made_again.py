"""The topic of examples is deleted and made again under its name, while a learner reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.topics import ensure_topics
from headrace.learner.errors import TopicMadeAgain

if TYPE_CHECKING:
    from tests.faults.pipeline import Pipeline

BATCHES = 40


def identity_of(pipeline: Pipeline) -> str:
    return next(iter(pipeline.traffic.ends())).rpartition("/")[0]


def make_again(pipeline: Pipeline, batches: int) -> tuple[str, str]:
    """Delete the topic, make it anew and write to it at once; return its identities."""
    before = identity_of(pipeline)
    admin = AdminClient(pipeline.kafka.connection())
    admin.delete_topics([pipeline.topic])[pipeline.topic].result()
    ensure_topics(pipeline.kafka, pipeline.specs)
    pipeline.traffic.write(batches)
    return before, identity_of(pipeline)


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param("learner", id="static member"),
        pytest.param("", id="consumer protocol", marks=pytest.mark.long),
    ],
)
def test_a_recreated_topic_is_refused_until_the_operator_accepts_it(
    pipeline: Pipeline, instance: str
) -> None:
    """With more in it than the old one had: a client that goes by the name alone just reads on."""
    pipeline.learn(instance)
    pipeline.traffic.write(BATCHES)
    pipeline.until_all_learned()
    old = pipeline.counts()
    assert old == pipeline.traffic.truth()

    before, now = make_again(pipeline, 3 * BATCHES)
    for error in pipeline.until_all_stopped().values():
        # the client itself may say so first, if it looks while the topic is away
        assert isinstance(error, TopicMadeAgain | StreamError)
    assert pipeline.counts() == old

    pipeline.learn(instance)
    [refusal] = pipeline.until_all_stopped().values()
    assert isinstance(refusal, TopicMadeAgain)
    for part in (f"{before}/0 up to offset {BATCHES // 2}", f"got {now}", "pserver drop"):
        assert part in str(refusal)
    assert f"`--accept-topic {now}`" in str(refusal)
    assert pipeline.counts() == old

    pipeline.learn(instance, accept_topic=now)
    pipeline.settle()
    assert pipeline.counts() == pipeline.traffic.truth()

    pipeline.learn(instance)  # nothing is to be said again
    pipeline.traffic.write(BATCHES)
    pipeline.settle()
    assert pipeline.counts() == pipeline.traffic.truth()
