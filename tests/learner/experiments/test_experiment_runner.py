"""The runner: arms learn as they would alone, and a killed run goes on as it would have."""

import pickle
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from headrace.learner.batch.sources import FilePosition
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.arm import FieldSelection
from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.history import ExperimentProgress
from headrace.learner.experiments.run_folder import RunFolder, SavedRun, read_state
from headrace.learner.experiments.rungs import ComparedArm, Rungs, compared_arm, within_error
from headrace.learner.experiments.runner import ExperimentRunner
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.loop.scores import scores_of
from headrace.learner.validation.outcomes import join_outcomes
from tests.learner.experiments.experiment_runs import FILE, log_of, run_stopped, write_files

FIRST = FilePosition()
_RUNGS = b"experiments.rungs\nRungs\n"
ONE_ARM = """
[experiment]
name = "one"
control = "control.toml"

[arm.other]
"optimizer.alpha" = 0.1
"optimizer.l2" = 1.01

[decision]
batch_s = 60
cycle_s = 600
"""


@pytest.mark.parametrize(
    ("policy", "sampler"), [("immediate", "random"), ("window", "random"), ("immediate", "optuna")]
)
def test_an_experiment_stopped_anywhere_decides_bit_for_bit_as_one_that_was_not(
    tmp_path: Path, policy: str, sampler: str
) -> None:
    file = FILE.replace("slots = 4", f'slots = 4\nsampler = "{sampler}"')
    experiment = write_files(tmp_path, file, policy)
    log = log_of(experiment)
    whole = run_stopped(experiment, log, tmp_path / "whole", [])
    parts = run_stopped(experiment, log, tmp_path / "parts", [1, 3, 1, 17, 2, 30])
    assert parts[2] == whole[2]
    assert parts[0].loss == whole[0].loss
    assert (parts[0].steps, parts[0].best.name) == (whole[0].steps, whole[0].best.name)
    kinds = {record.kind for record in whole[1]}
    assert {"begun", "rung", "stopped", "ended"} <= kinds
    assert {record.name for record in whole[1] if record.kind == "begun"} == {
        *("control", "slow", "fewer", "arm3", "arm4", "arm5", "arm6", "arm7")
    }


@pytest.mark.parametrize(
    "section",
    [
        '[admission]\nkind = "count"\nsightings = 3\nfilter_mb = 1\n',
        '[calibration]\nkind = "platt"\n',
        '[calibration]\nkind = "isotonic"\n',
    ],
)
def test_admission_and_calibration_go_on_after_a_stop(tmp_path: Path, section: str) -> None:
    experiment = write_files(tmp_path, ONE_ARM)
    (tmp_path / "control.toml").write_text(experiment.control.text + section)
    experiment = load_experiment(tmp_path / "experiment.toml")
    log = log_of(experiment, 600)
    whole = run_stopped(experiment, log, tmp_path / "whole", [])
    parts = run_stopped(experiment, log, tmp_path / "parts", [2, 5])
    assert parts[2] == whole[2]


def test_an_arm_has_the_loss_that_its_spec_has_alone(tmp_path: Path) -> None:
    experiment = write_files(tmp_path, ONE_ARM)
    log = log_of(experiment)
    result, history, _ = run_stopped(experiment, log, tmp_path / "run", [])
    losses = {record.name: record.loss for record in history if record.kind == "ended"}
    for number, name in enumerate(("control", "other")):
        model = InMemoryModel(experiment.plan(number).spec)
        examples = [block.examples for block in log.blocks(FIRST)]
        scores = [scores_of(each, model.learn(each)) for each in examples]
        alone = join_outcomes(examples, scores).figures().log_loss
        assert losses[name] == pytest.approx(alone, rel=1e-12)
    assert result.loss == min(loss for loss in losses.values() if loss is not None)


def test_an_arm_of_fewer_fields_learns_as_from_examples_of_these_fields(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    plan = experiment.plan(2)
    assert [field.name for field in plan.spec.fields.bags] == ["words"]
    select = FieldSelection(experiment.control.fields, plan.spec.fields)
    block = next(log_of(experiment).blocks(FIRST)).examples
    chosen = select(block).features
    assert chosen.ids.shape[1] == block.features.ids.shape[1]
    assert chosen.numbers.shape[1] == 0
    for row in range(len(block)):
        first, last = block.features.bag_offsets[2 * row + 1 : 2 * row + 3]
        words = chosen.bag_ids[chosen.bag_offsets[row] : chosen.bag_offsets[row + 1]]
        np.testing.assert_array_equal(words, block.features.bag_ids[first:last])


def test_a_folder_of_another_experiment_or_in_use_is_refused(tmp_path: Path) -> None:
    experiment = write_files(tmp_path, ONE_ARM)
    log = log_of(experiment, 100)
    run_stopped(experiment, log, tmp_path / "run", [])
    other = write_files(tmp_path, ONE_ARM.replace("1.01", "1.02"))
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(LearnerError, match="expected the run of this experiment file"):
        ExperimentRunner(other, log, folder)
    with pytest.raises(LearnerError, match="no other runner"):
        RunFolder(tmp_path / "run")
    folder.close()


def test_a_finished_experiment_keeps_its_result(tmp_path: Path) -> None:
    experiment = write_files(tmp_path, ONE_ARM)
    log = log_of(experiment, 100)
    first = run_stopped(experiment, log, tmp_path / "run", [])
    again = run_stopped(experiment, log, tmp_path / "run", [])
    assert (again[0].loss, again[2]) == (first[0].loss, first[2])


@pytest.mark.parametrize("former", [b"experiments.race\nRace\n", b"experiments.rungs\nRace\n"])
def test_a_state_with_modules_or_classes_of_another_version_is_refused(
    tmp_path: Path, former: bytes
) -> None:
    saved = pickle.dumps(tuple(SavedRun("fingerprint", "log", 0, Rungs(4))), protocol=0)
    assert _RUNGS in saved
    (tmp_path / "state-00000001.pickle").write_bytes(saved)
    assert read_state(tmp_path) is not None
    (tmp_path / "state-00000001.pickle").write_bytes(saved.replace(_RUNGS, former))
    with pytest.raises(LearnerError, match="got one of another version"):
        read_state(tmp_path)


def paired_to_control(*differences: float) -> ComparedArm:
    return ComparedArm(np.array(differences), np.ones(len(differences)))


def test_a_rung_keeps_one_of_so_many_arms() -> None:
    rungs = Rungs(4)
    together = rungs.arrive(0, {number: paired_to_control(number % 16) for number in range(1, 17)})
    assert sorted(number for number, each in together.items() if each.kept) == [1, 2, 3, 16]
    assert rungs.arrive(0, {17: paired_to_control(0.5)})[17].rank == 2
    assert not rungs.arrive(0, {18: paired_to_control(float("nan"))})[18].kept
    assert not rungs.arrive(0, {19: paired_to_control()})[19].kept
    assert rungs.arrive(1, {1: paired_to_control(5.0)})[1] == (True, 1, 1, False)


def test_an_arm_goes_on_beyond_the_rank_if_its_difference_is_within_the_error() -> None:
    best, close = paired_to_control(1.0, 3.0, 2.0), paired_to_control(3.0, 1.0, 2.1)
    worse = paired_to_control(2.0, 4.0, 3.0)
    found = Rungs(3).arrive(0, {1: best, 2: close, 3: worse})
    assert found == {1: (True, 1, 3, False), 2: (True, 2, 3, True), 3: (False, 3, 3, False)}
    rungs = Rungs(3)
    for number, each in ((1, best), (3, worse), (2, close)):
        assert rungs.arrive(0, {number: each})[number].kept == (number != 3)
    assert not within_error(close, paired_to_control(1.0, 3.0)), "other pieces cannot be paired"
    assert not within_error(paired_to_control(1.0, float("nan")), paired_to_control(1.0, 2.0))
    late = compared_arm((np.ones(3), np.ones(3)), (np.ones(2), np.ones(2)))
    assert (late.mean, late.weights.shape) == (1 / 3, (1,))


class Killed(Exception):
    """The end of a process between a step and its save."""


def test_records_of_steps_that_a_kill_lost_are_made_again_once(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment, 600)
    whole = run_stopped(experiment, log, tmp_path / "whole", [])
    for blocks in (4, 1, 5, 3, 11):
        folder, done = RunFolder(tmp_path / "killed"), 0

        def tell(_: ExperimentProgress, blocks: int = blocks) -> None:
            nonlocal done
            done += 1
            if done == blocks:
                raise Killed

        with pytest.raises(Killed):
            ExperimentRunner(experiment, log, folder, save_every_s=0.0).run(Event(), tell)
        folder.close()
    assert run_stopped(experiment, log, tmp_path / "killed", [])[2] == whole[2]
