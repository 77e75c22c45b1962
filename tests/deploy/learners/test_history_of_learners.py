"""Histories on the real Kafka and Valkey, while learners die: every click once, no wrong item."""

import random
from collections.abc import Callable
from pathlib import Path

from headrace.deploy.reports.observer import copy_rows
from headrace.ingest.examples.batch import concatenate
from headrace.learner.spec.model_spec import parse_spec
from tests.deploy.learners.crew import BUCKETS, crew
from tests.deploy.learners.learned_model import LearnedModel
from tests.learner.inputs.history_reference import HISTORY, assert_histories


def _model(kafka: str, valkey: str, name: str, folder: Path) -> LearnedModel:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    model = LearnedModel(kafka, valkey, name, folder, seed)
    model.spec = parse_spec(model.spec.text + HISTORY, "spec.toml")
    model.write_spec(model.spec)
    model.make(BUCKETS)
    return model


def test_every_click_is_in_the_history_once_when_the_learner_dies(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    model = _model(kafka, valkey, fresh_name("history"), tmp_path)
    with crew(model, tmp_path, "batch") as learners:
        learners.join("a")
        produced = []
        for _ in range(2):
            produced.append(model.produce(600))
            learners.wait_until_more(3)
            learners.kill("a")  # with examples that are not pushed and pushes without an answer
            learners.join("a")
        model.wait_learned()
        learners.leave("a")
    with model.store() as store:
        assert_histories(model.spec, copy_rows(store), concatenate(produced))
