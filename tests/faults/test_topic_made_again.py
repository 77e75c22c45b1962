"""The topic of examples is deleted and made again under its name, while a learner reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.topics import ensure_topics
from headrace.learner.errors import TopicMadeAgain

if TYPE_CHECKING:
    from tests.faults.scene import Scene

BATCHES = 40


def identity_of(scene: Scene) -> str:
    return next(iter(scene.traffic.ends())).rpartition("/")[0]


def make_again(scene: Scene, batches: int) -> tuple[str, str]:
    """Delete the topic, make it anew and write to it at once; return its identities."""
    before = identity_of(scene)
    admin = AdminClient(scene.kafka.connection())
    admin.delete_topics([scene.topic])[scene.topic].result()
    ensure_topics(scene.kafka, scene.specs)
    scene.traffic.write(batches)
    return before, identity_of(scene)


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param("learner", id="static member"),
        pytest.param("", id="consumer protocol", marks=pytest.mark.long),
    ],
)
def test_a_recreated_topic_is_refused_until_the_operator_accepts_it(
    scene: Scene, instance: str
) -> None:
    """With more in it than the old one had: a client that goes by the name alone just reads on."""
    scene.learn(instance)
    scene.traffic.write(BATCHES)
    scene.until_all_learned()
    old = scene.counts()
    assert old == scene.traffic.truth()

    before, now = make_again(scene, 3 * BATCHES)
    for error in scene.until_all_stopped().values():
        # the client itself may say so first, if it looks while the topic is away
        assert isinstance(error, TopicMadeAgain | StreamError)
    assert scene.counts() == old

    scene.learn(instance)
    [refusal] = scene.until_all_stopped().values()
    assert isinstance(refusal, TopicMadeAgain)
    for part in (f"{before}/0 up to offset {BATCHES // 2}", f"found {now}", "pserver drop"):
        assert part in str(refusal)
    assert f"`headrace learner run --accept-topic {now}`" in str(refusal)
    assert scene.counts() == old

    scene.learn(instance, accept_topic=now)
    scene.settle()
    assert scene.counts() == scene.traffic.truth()

    scene.learn(instance)  # nothing is to be said again
    scene.traffic.write(BATCHES)
    scene.settle()
    assert scene.counts() == scene.traffic.truth()


@pytest.mark.long
def test_a_recreated_topic_is_learned_by_a_recreated_model(scene: Scene) -> None:
    scene.learn("learner")
    scene.traffic.write(BATCHES)
    scene.until_all_learned()
    scene.stop()
    scene.traffic.forget()
    make_again(scene, BATCHES)
    scene.learn("learner")
    [refusal] = scene.until_all_stopped().values()
    assert isinstance(refusal, TopicMadeAgain)

    scene.store.drop()
    scene.store.create(scene.shape)
    scene.learn("learner")
    scene.settle()
    assert scene.counts() == scene.traffic.truth()
