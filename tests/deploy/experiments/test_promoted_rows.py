"""A promoted arm continues with its rows at its position: each example counts once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.reports.observer import copy_rows
from headrace.ingest.kafka.reading.bounded_reader import offsets_at
from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.live.saved_arm import SavedArm, read_saved_arm
from headrace.learner.spec.model_spec import load_spec
from tests.deploy.command import headrace, running
from tests.deploy.learners.learned_model import FAR_MS, LearnedModel, counts_of
from tests.serving.served_models import eventually

FILE = """
[experiment]
name = "{name}"
control = "{name}.toml"
[arm.slow]
"optimizer.alpha" = 0.01
[rungs]
first = 1_000_000
[promotion]
alias = "production-{name}"
"""
BUCKETS = 8


@pytest.fixture
def model(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> LearnedModel:
    model = LearnedModel(kafka, valkey, fresh_name("kept"), tmp_path, 1)
    model.make(BUCKETS)
    (tmp_path / "experiment.toml").write_text(FILE.format(name=model.spec.name))
    return model


def run_to_the_end(model: LearnedModel, folder: Path, examples: int) -> SavedArm:
    """Run the live experiment until its arm has learned all examples; return the saved arm.

    A first process is killed once it has saved the arm.
    """
    plan = load_experiment(model.folder / "experiment.toml").plan(1)
    found: list[SavedArm] = []

    def learned() -> bool:
        arm = read_saved_arm(folder, plan)
        if isinstance(arm, SavedArm) and arm.examples == examples:
            found.append(arm)
        return bool(found)

    file, at = str(model.folder / "experiment.toml"), ("--kafka", model.kafka.bootstrap)
    options = ("--to", str(folder), *at, "--save-every", "0.1", "--hold", "0.1")
    with running("experiment", "run", file, *options) as killed:
        eventually(lambda: isinstance(read_saved_arm(folder, plan), SavedArm))
        killed.process.kill()
        killed.end()
    with running("experiment", "run", file, *options) as runner:
        eventually(learned)
        asked = headrace("experiment", "show", model.spec.name, "--stop", *at)
        assert asked.returncode == 0, asked.stderr
        assert runner.end() == 0, runner.output
        assert "best: " in runner.output
    assert f"{model.spec.name}: done, 1 arm" in headrace("experiment", "show", *at).stdout
    return found[0]


def test_a_promoted_arm_counts_each_example_once(model: LearnedModel, tmp_path: Path) -> None:
    learned = len(model.produce(300))
    arm = run_to_the_end(model, tmp_path / "run", learned)
    # a model that began without the arm's rows could not count these any more
    model.forget_before(offsets_at(model.kafka, model.topic, FAR_MS))
    model.produce(200)

    name, file = f"{model.spec.name}-slow", str(tmp_path / "experiment.toml")
    at = ("--kafka", model.kafka.bootstrap, "--redis", model.valkey)
    promote = ("experiment", "promote", file, "slow", "--run", str(tmp_path / "run"), *at)
    with running(*promote) as first:
        first.wait_for("catching up: rows created")
        assert f"--examples-of {model.spec.name}" in first.output
        first.process.kill()
        first.end()
    spec = load_spec(tmp_path / f"{name}.toml")
    with model.store(name) as store:
        assert store.shape().buckets == BUCKETS
        assert all(
            getattr(each, "marks", None) == arm.marks for each in store.marks(range(BUCKETS))
        )
    model.learn(spec, examples_of=model.spec.name)
    with model.store(name) as store:
        assert counts_of(copy_rows(store).everything().existing(), spec) == model.counts

    # a position that Kafka no longer has is refused before anything is created
    (tmp_path / f"{name}.toml").unlink()
    model.produce(10)
    model.forget_before(offsets_at(model.kafka, model.topic, FAR_MS))
    assert headrace("experiment", "promotion", name, "--rollback", *at[:2]).returncode == 0
    refused = headrace(*promote, "--again")
    assert refused.returncode == 2
    assert "that the arm has not learned" in refused.stderr
    assert "--fresh" in refused.stderr
    assert not (tmp_path / f"{name}.toml").exists()
