"""A run on a Kafka with events: the same logs go on, for any model, and older ones are refused."""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.deploy.errors import DeployError
from headrace.deploy.local.log_run import EarlierRuns, RunSettings
from headrace.deploy.local.pipeline import PipelineSettings
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.refusals import read_refusals
from headrace.ingest.errors import BackfillRefused
from headrace.ingest.joiner.committed_state import read_state
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.replayer import LogReplayed, ReplayResult, ReplaySettings, replay
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.store import Shape
from tests.ingest.logs.event_directories import clicked, shown, write_directory

EVENTS = 50
JOINED_WITHIN_S = 240.0


@pytest.fixture
def kafka_of_state(kafka: str, fresh_name: Callable[[str], str]) -> KafkaSettings:
    """The Kafka of one state: names that no other test has, and the topics of two models."""
    settings = KafkaSettings(kafka, names=TopicNames(fresh_name("state") + "."))
    for model in ("first", "second"):
        ensure_topics(settings, topics_for(model, 2))
    return settings


@pytest.fixture
def run(tmp_path: Path, kafka: str) -> RunSettings:
    """A run of one log on that Kafka."""
    log = write_directory(tmp_path / "log", [shown(i) for i in range(EVENTS)], [clicked(3)])
    pipeline = PipelineSettings(model=tmp_path / "model.toml", kafka=kafka)
    return RunSettings(pipeline, (log,), None, None, serve_after=False)


def spec_of(model: str, folder: Path) -> ModelSpec:
    path = folder / f"{model}.toml"
    path.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{model}"'))
    return load_spec(path)


def found(kafka: KafkaSettings, spec: ModelSpec, run: RunSettings) -> EarlierRuns:
    """Return what a run finds in Kafka, with a store in which nothing is learned."""
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"bucket00")
    store.create(Shape(spec.name, 1, spec.width, spec.fingerprint, spec.text))
    earlier = EarlierRuns()
    earlier.read(kafka, spec, run, store)
    return earlier


def join(kafka: KafkaSettings, spec: ModelSpec) -> None:
    """Join all events of Kafka, with a joiner that is stopped then."""
    stop = threading.Event()
    settings = JoinerSettings(), kafka, spec.name, spec.fields, stop
    joiner = threading.Thread(target=run_joiner, args=settings)
    joiner.start()
    try:
        assert wait_until(lambda: not read_state(kafka, spec).lag, JOINED_WITHIN_S, joiner.is_alive)
    finally:
        stop.set()
        joiner.join()


def send(kafka: KafkaSettings, run: RunSettings, name: str | None) -> int:
    """Replay under this name; return the lines that were sent before."""
    logs = [DirectoryLog(path) for path in run.data]
    settings = ReplaySettings(resume_as=name)
    return replay(kafka, logs, 1000, threading.Event(), settings=settings).resumed


def test_a_run_of_another_model_continues_the_replay_of_the_same_logs(
    kafka_of_state: KafkaSettings, run: RunSettings, tmp_path: Path
) -> None:
    first, second = spec_of("first", tmp_path), spec_of("second", tmp_path)
    begun = found(kafka_of_state, first, run)
    assert (begun.unread, begun.joined.impressions) == (False, 0)
    assert send(kafka_of_state, run, begun.replay) == 0
    assert found(kafka_of_state, first, run).replay == begun.replay
    other = found(kafka_of_state, second, run)
    assert (other.unread, other.replay) == (True, begun.replay)
    assert send(kafka_of_state, run, other.replay) == EVENTS + 1


def test_an_older_log_is_refused_before_any_joiner_has_read_the_newer_events(
    kafka_of_state: KafkaSettings, run: RunSettings, tmp_path: Path
) -> None:
    second = spec_of("second", tmp_path)
    later = write_directory(tmp_path / "later", [shown(10_000_000)], [])
    send(kafka_of_state, replace(run, data=(later,)), "run.first.0123456789abcdef")
    with pytest.raises(BackfillRefused, match="Give this log another --state"):
        found(kafka_of_state, second, run)


def test_another_model_is_refused_if_kafka_has_deleted_events_of_the_logs(
    kafka_of_state: KafkaSettings, run: RunSettings, tmp_path: Path
) -> None:
    begun = found(kafka_of_state, spec_of("first", tmp_path), run)
    send(kafka_of_state, run, begun.replay)
    topic = kafka_of_state.names.physical(EventTopics().impressions)
    admin = AdminClient(kafka_of_state.connection())
    for answer in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        answer.result()
    with pytest.raises(
        DeployError, match=r"a run of first has sent.*impressions.*deleted the first 5"
    ):
        found(kafka_of_state, spec_of("second", tmp_path), run)


def test_a_run_tells_what_earlier_runs_have_left_and_counts_only_its_own_dead_letters(
    kafka_of_state: KafkaSettings, run: RunSettings, tmp_path: Path
) -> None:
    """Its log is in Kafka and joined, with a dead letter, but nothing of it is learned."""
    spec = spec_of("first", tmp_path)
    impressions = run.data[0] / "impressions.ndjson"
    impressions.write_text(impressions.read_text() + "not JSON\n")
    send(kafka_of_state, run, found(kafka_of_state, spec, run).replay)
    join(kafka_of_state, spec)

    earlier = found(kafka_of_state, spec, run)

    assert earlier.joined.dead_letters == 1
    assert re.fullmatch(
        r"first also learns [1-9]\d* batch(es)? of examples that earlier runs have joined",
        earlier.begun_in_words("first"),
    )
    assert [each.count for each in read_refusals(kafka_of_state, spec).events] == [1]
    assert read_refusals(kafka_of_state, spec, earlier.letters).events == ()


@pytest.mark.parametrize(
    ("replayed", "said"),
    [
        (ReplayResult([LogReplayed(Path(), 4, 1)]), ""),
        (ReplayResult([LogReplayed(Path(), 4, 1)], resumed=2), "continued an interrupted run, "),
        (
            ReplayResult([LogReplayed(Path(), 4, 1)], resumed=5),
            "an earlier run had sent all 5 events",
        ),
        (
            ReplayResult([LogReplayed(Path(), 4, 1)], resumed=5, stopped=True),
            "continued an interrupted run, which had sent 5 events",
        ),
    ],
)
def test_a_run_tells_an_interrupted_replay_from_a_complete_one(
    replayed: ReplayResult, said: str
) -> None:
    earlier = EarlierRuns()
    earlier.replay = "run.first.0123456789abcdef"
    words = earlier.resumed_in_words("first", replayed)
    assert words.startswith(said)
    assert bool(words) == bool(said)


def test_a_new_kafka_is_not_asked(run: RunSettings, tmp_path: Path) -> None:
    nowhere = KafkaSettings("127.0.0.1:1")
    own = replace(run, pipeline=replace(run.pipeline, kafka=None))
    assert found(nowhere, spec_of("first", tmp_path), own).replay is None
