"""`headrace experiment run` on a real Kafka: killed with kill -9, its history is as without.

One experiment is killed and continued, and one is not killed.
"""

import contextlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from headrace.deploy.local.services.waiting import wait_until
from headrace.ingest.examples.batch import pack
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics, partition_counts
from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.live.history_topic import read_histories
from headrace.learner.experiments.published_history import EXPERIMENTS_TOPIC
from tests.deploy.command import Running, headrace, running
from tests.learner.experiments.experiment_runs import FILE, write_files
from tests.learner.streams import random_examples

NAMES = ("killed", "whole")
PARTITIONS = 2
RECORDS = 60
"""Compared; the experiments have more, so that each reaches them before it is stopped."""
WITHIN_S = 240.0


def _published(settings: KafkaSettings, name: str, least: int) -> bool:
    histories = read_histories(settings) if _exists(settings) else {}
    return name in histories and len(histories[name].lines) >= least


def _exists(settings: KafkaSettings) -> bool:
    return bool(partition_counts(settings, [EXPERIMENTS_TOPIC]))


def _written(folder: Path, name: str) -> Experiment:
    folder.mkdir()
    return write_files(folder, FILE.replace('name = "rates"', f'name = "{name}"'))


def _fill(settings: KafkaSettings, topic: str, experiment: Experiment, half: int) -> None:
    """Write one half of the examples to random partitions of the topic."""
    dice = np.random.default_rng(1)
    examples = random_examples(dice, experiment.control, 1500, closed=False)
    dice = np.random.default_rng(half)
    middle = len(examples) // 100 * 50
    with contextlib.closing(KafkaWriter(settings)) as writer:
        for begin in (range(0, middle, 50), range(middle, len(examples), 50))[half]:
            part = part_of(examples, begin, min(begin + 50, len(examples)))
            part = replace(part, watermark_ms=int(part.event_ms.max()))
            writer.send(Source(topic, int(dice.integers(PARTITIONS))), pack(part))


def _stop(name: str, runner: Running, kafka: str) -> None:
    stopped = headrace("experiment", "show", name, "--stop", "--kafka", kafka)
    assert stopped.returncode == 0, stopped.stderr
    assert runner.end() == 0, runner.output
    assert "best: " in runner.output


def test_a_live_experiment_killed_with_kill_9_has_the_history_of_a_whole_one(
    tmp_path: Path, kafka: str
) -> None:
    settings = KafkaSettings(kafka)
    experiments = {name: _written(tmp_path / name, name) for name in NAMES}
    topic = f"examples.{experiments['whole'].control.name}"
    ensure_topics(settings, [TopicSpec(topic, PARTITIONS)])
    _fill(settings, topic, experiments["whole"], 0)

    def run(name: str) -> contextlib.AbstractContextManager[Running]:
        file, to = tmp_path / name / "experiment.toml", tmp_path / name / "run"
        options = ("--to", str(to), "--kafka", kafka, "--save-every", "0.1", "--hold", "1")
        return running("experiment", "run", str(file), *options)

    for least in (3, 15):
        with run("killed") as killed:
            wait_until(partial(_published, settings, "killed", least), WITHIN_S)
            killed.process.kill()
            killed.process.wait()
        if least == 3:
            _fill(settings, topic, experiments["whole"], 1)
    finished = {}
    for name in NAMES:
        with run(name) as whole:
            wait_until(partial(_published, settings, name, RECORDS), WITHIN_S)
            _stop(name, whole, kafka)
        finished[name] = read_histories(settings)[name].lines[1:RECORDS]
    assert finished["killed"] == finished["whole"]
    assert {"begun", "scored", "rung", "stopped"} <= {
        json.loads(line)["kind"] for line in finished["whole"]
    }
    shown = headrace("experiment", "show", "--kafka", kafka)
    assert "killed: done, 7 arms" in shown.stdout
