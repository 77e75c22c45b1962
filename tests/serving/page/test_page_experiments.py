"""Experiments and promotions on the live page: their topics, and the data that the page draws."""

import json
from collections.abc import Callable
from contextlib import closing

from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.learner.experiments.live.history_topic import experiments_spec
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.learner.experiments.published_history import EXPERIMENTS_TOPIC
from headrace.serving.deployments.topic_follower import DEPLOYMENTS_TOPIC, deployments_spec
from headrace.serving.page.experiment_reader import (
    MOST_CURVES,
    MOST_POINTS,
    ExperimentReader,
    shown_experiments,
)
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage, deployments_of
from tests.serving.served_models import eventually

HISTORY = [
    ArmRecord("log", 0, "log", settings={"topic": "examples.news", "offsets": [0]}),
    ArmRecord("begun", 0, "control"),
    ArmRecord("begun", 1, "fast", settings={"optimizer.alpha": 0.1}),
    ArmRecord("begun", 2, "slow"),
    *(
        ArmRecord("scored", 1, "fast", n, 1000 * n, difference=-0.01, low=-0.1, high=0.1)
        for n in (1, 2)
    ),
    ArmRecord("better", 1, "fast", 2, 2000, difference=-0.01, low=-0.02, high=-0.001),
    ArmRecord("eliminated", 2, "slow", 2, 2000, difference=0.5, reason="worse"),
]


def published(name: str, history: list[ArmRecord]) -> list[tuple[bytes, bytes]]:
    """The records of an experiment, as its runner publishes them."""
    lines = encoded(history).splitlines()
    return [(f"{name}/{number:08}".encode(), line) for number, line in enumerate(lines)]


def read(topic: str, pairs: list[tuple[bytes, bytes]]) -> list[Record]:
    return [
        Record(Source(topic, 0), offset, 0, value, key) for offset, (key, value) in enumerate(pairs)
    ]


def canary() -> Promotion:
    begun = Promotion.begin("news-fast", "", "news", PromotionRules(), 1000)
    return begun.moved(PromotionStage.CANARY, "all checks hold", 3000, 1)


def test_the_page_has_curves_states_and_reasons_of_all_arms() -> None:
    [found] = shown_experiments(read(EXPERIMENTS_TOPIC, published("pace", HISTORY)))["experiments"]
    fast, slow = found["arms"]
    assert (fast["name"], fast["state"], fast["better"]) == ("fast", "learning", True)
    assert fast["curve"] == [(1000, -0.01, -0.1, 0.1), (2000, -0.01, -0.1, 0.1)]
    assert fast["settings"] == {"optimizer.alpha": 0.1}
    assert (slow["name"], slow["state"], slow["reason"]) == ("slow", "eliminated", "worse")
    assert json.dumps(found)


def test_the_page_of_many_arms_stays_small() -> None:
    history = [ArmRecord("log", 0, "log")]
    for arm in range(1, 20):
        history += [
            ArmRecord("scored", arm, f"arm{arm}", n, n, difference=0.001 * arm)
            for n in range(3 * MOST_POINTS)
        ]
    [found] = shown_experiments(read(EXPERIMENTS_TOPIC, published("pace", history)))["experiments"]
    assert len(found["arms"]) == 19
    drawn = [arm for arm in found["arms"] if arm["curve"]]
    assert [arm["name"] for arm in drawn] == [f"arm{n}" for n in range(1, MOST_CURVES + 1)]
    for arm in drawn:
        assert len(arm["curve"]) == MOST_POINTS
        assert arm["curve"][-1][0] == 3 * MOST_POINTS - 1, "the newest point"


def test_the_page_has_promotions_and_skips_those_of_other_versions() -> None:
    pairs = [(each.key, each.value or b"") for each in deployments_of(canary())]
    pairs.append((b"promotion/other", b'{"of":"another version"}'))
    [found] = shown_experiments(read(DEPLOYMENTS_TOPIC, pairs))["promotions"]
    assert (found["model"], found["stage"], found["share"]) == ("news-fast", "canary", 0.05)
    assert [each["reason"] for each in found["decisions"]] == ["begun", "all checks hold"]
    assert json.dumps(found)


def test_the_reader_of_the_page_follows_topics_that_are_created_later(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings = KafkaSettings(kafka, names=TopicNames(f"{fresh_name('page')}."))
    name = "pace"

    def write(spec: TopicSpec, pairs: list[tuple[bytes, bytes]]) -> None:
        ensure_topics(settings, [spec])
        with closing(KafkaWriter(settings)) as writer:
            for key, value in pairs:
                writer.send(Source(spec.name, 0), value, key)
            writer.flush()

    with ExperimentReader(settings) as reader:
        assert reader.answer() == {"experiments": [], "promotions": []}
        write(experiments_spec(), published(name, HISTORY))
        eventually(lambda: reader.answer()["experiments"])
        assert reader.answer()["experiments"][0]["arms"][0]["name"] == "fast"
        pairs = [(each.key, each.value or b"") for each in deployments_of(canary())]
        write(deployments_spec(), pairs)
        eventually(lambda: reader.answer()["promotions"])
