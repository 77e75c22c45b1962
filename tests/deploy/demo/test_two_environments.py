"""Two environments with a model of one name share a Kafka and a store without mixing."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.deploy.models.shipped import path_of
from headrace.ingest.joiner.committed_state import read_state
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import partition_counts
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.errors import MissingModel
from headrace.pserver.inspection.model_survey import survey
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from tests.deploy.command import headrace
from tests.deploy.demo.written_log import write_log

START_MS = 1_700_000_000_000
DEMO = path_of("demo")
PARTITIONS, BUCKETS = "2", "4"


@dataclass(frozen=True)
class Environment:
    """One of the environments, and what it shares with the others."""

    prefix: str
    spec: ModelSpec
    path: Path
    kafka: str
    redis: str

    @property
    def settings(self) -> KafkaSettings:
        return KafkaSettings(self.kafka, names=TopicNames(self.prefix))

    @property
    def flag(self) -> tuple[str, ...]:
        return ("--topics-prefix", self.prefix) if self.prefix else ()

    def command(self, *words: str) -> None:
        done = headrace(*words, "--model", str(self.path), *self.flag)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, log: Path) -> dict[str, Any]:
        """Replay a log through every part of the environment; return the report."""
        report = log / "report.json"
        given = ("--kafka", self.kafka, "--redis", self.redis, "--runs", "off")
        sizes = ("--partitions", PARTITIONS, "--buckets", BUCKETS)
        self.command("run", "--data", str(log), "--report", str(report), *given, *sizes)
        return dict(json.loads(report.read_text()))

    def learned(self) -> list[tuple[int, dict[str, int]]]:
        """Return the version of each bucket, and what it has learned."""
        settings = StoreSettings(key_prefix=self.prefix)
        with closing(open_store(self.redis, self.spec.name, settings)) as store:
            found = survey(store, self.spec.name).buckets
        return [(each.version, dict(each.marks)) for each in found]


def written(folder: Path, seed: int, seconds: int) -> tuple[int, int]:
    stream = SyntheticStream(SyntheticSite(), seed, START_MS)
    log = write_log(folder, stream, seconds, 30)
    return log.impressions, log.clicks


def check_exact(report: dict[str, Any], impressions: int, clicks: int) -> None:
    assert (report["impressions"], report["clicks"]) == (impressions, clicks)
    assert report["examples"] == impressions + clicks
    assert report["duplicates"] == report["dead_letters"] == 0
    assert set(report["shows_by_field"].values()) == {impressions}
    assert set(report["clicks_by_field"].values()) == {clicks}


def test_events_of_an_environment_reach_no_topic_and_no_row_of_another(
    kafka: str, valkey: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    path, team = tmp_path / "model.toml", fresh_name("team")
    path.write_text(DEMO.read_text().replace('name = "demo"', f'name = "{fresh_name("same")}"'))
    spec = load_spec(path)
    one, other, bare = (
        Environment(prefix, spec, path, kafka, valkey)
        for prefix in (f"{team}-a.", f"{team}-b.", "")
    )
    other.command("ingest", "topics", "--partitions", PARTITIONS, "--kafka", kafka)
    other.command("pserver", "init", "--buckets", BUCKETS, "--redis", valkey)

    counts = written(tmp_path / "a", 1, 20)
    check_exact(one.run(tmp_path / "a"), *counts)
    assert all(version > 0 and marks for version, marks in one.learned())

    topics = partition_counts(other.settings)
    assert {"impressions", "clicks", f"examples.{spec.name}"} <= set(topics)
    for topic in topics:
        assert list(read_all(other.settings, topic)) == []
    assert read_state(other.settings, spec).impressions == 0
    assert other.learned() == [(0, {})] * int(BUCKETS)
    assert f"examples.{spec.name}" not in partition_counts(bare.settings)
    with (
        closing(open_store(valkey, spec.name, StoreSettings(read_only=True))) as store,
        pytest.raises(MissingModel),
    ):
        store.shape()
