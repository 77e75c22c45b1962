"""Runs from the topics of a real Kafka: experiments and promotions."""

from collections.abc import Callable
from contextlib import closing

from headrace.deploy.reports.tracking.run_sources import find_run, published_runs
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.learner.experiments.live.history_topic import experiments_spec
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.learner.experiments.published_history import EXPERIMENTS_TOPIC
from headrace.serving.deployments.topic_follower import write_deployments
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage, deployments_of

HISTORY = [
    ArmRecord("log", 0, "log", settings={"topic": "examples.news"}),
    ArmRecord("begun", 1, "slow"),
    ArmRecord("scored", 1, "slow", 10, 60_000, loss=0.3, difference=-0.01),
]


def test_experiments_and_promotions_are_read_from_their_topics(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings, name = KafkaSettings(kafka), fresh_name("rates")
    before = {run.id for run in published_runs(settings)}  # topics may be missing
    ensure_topics(settings, [experiments_spec()])
    with closing(KafkaWriter(settings)) as writer:
        for number, line in enumerate(encoded(HISTORY).splitlines()):
            key = f"{name}/{number:08}".encode()
            writer.send(Source(EXPERIMENTS_TOPIC, 0), line, key)
        writer.flush()
    rules = PromotionRules(alias=f"production-{name}")
    begun = Promotion.begin(f"{name}-slow", "", name, rules, 1000)
    for state in (begun, begun.moved(PromotionStage.ROLLED_BACK, "level", 2000)):
        write_deployments(settings, deployments_of(state))
    runs = published_runs(settings)
    assert {run.id for run in runs} - before == {f"experiment/{name}", f"promotion/{name}-slow"}
    arm = find_run(f"experiment/{name}/slow", runs, settings)
    assert [point.figures["difference"] for point in arm.points] == [-0.01]
    promotion = find_run(f"promotion/{name}", runs, settings)
    assert promotion.reason == "rolled back: level"
