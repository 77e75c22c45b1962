"""Experiment files and spaces: what they mean, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.experiments.space import changed_spec
from headrace.learner.spec.model_spec import parse_spec
from tests.learner.experiments.experiment_runs import FILE, write_files
from tests.learner.shipped_specs import MODELS


def test_arms_are_listed_then_drawn_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    names = [experiment.plan(number).name for number in range(5)]
    assert names == ["control", "slow", "fewer", "arm3", "arm4"]
    assert experiment.plan(1).spec.optimizer.alpha == 0.001
    assert experiment.plan(3).settings == experiment.plan(3).settings
    assert experiment.plan(3).settings != experiment.plan(4).settings


def test_a_space_is_covered_and_conditions_hold(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    drawn = [experiment.drawn(number) for number in range(300)]
    alphas = np.array([float(str(each["optimizer.alpha"])) for each in drawn])
    assert 0.01 <= alphas.min() < 0.02 < 0.5 < alphas.max() <= 1.0
    assert 0.07 < np.median(alphas) < 0.14
    for each in drawn:
        machine = each["model.architecture"] == "factorization_machine"
        assert ("model.dimensions" in each) is machine


@pytest.mark.parametrize("path", sorted(MODELS.glob("news*.toml")), ids=lambda path: path.stem)
def test_a_spec_without_changes_keeps_its_meaning(path: Path) -> None:
    spec = parse_spec(path.read_text(), path)
    same = parse_spec(changed_spec(spec.text, {}, spec.name), "changed")
    assert same.fingerprint == spec.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("arms = 7", "arm = 7"), r"experiment.toml:5: expected"),
        (('[arm.slow]\n"optimizer.alpha"', '[arm.slow]\n"optimizer.alhpa"'), "arm slow .*alhpa"),
        (("log = [0.01, 1.0]", "log = [0.0, 1.0]"), "two numbers, the lower one first, above 0"),
        (("log = [0.01, 1.0]", "log = [0.01, 5000.0]"), "arm drawn .*alpha"),
        (('"model.architecture" = "fac', '"model.arch" = "fac'), "a condition on another key"),
        (("cycle_s = 600", "cycle_s = 601"), "a whole multiple of batch_s = 60"),
        (("[rungs]", "[promotion]\nstep = 1\n[rungs]"), "step_s"),
        (("[rungs]", "[promotion]\nsteps = [1, 50]\n[rungs]"), "that end with 100"),
        (("[rungs]", "[promotion]\nsteps = [5, 1, 100]\n[rungs]"), "rising percents"),
        (("[rungs]", "[promotion]\nsteps = [20, 100]\n[rungs]"), "first step of 5 percent"),
        (("[rungs]", "[promotion]\nstep_s = 60\nlongest_s = 59\n[rungs]"), "step_s = 60 or"),
        (("[rungs]", "[promotion]\nbatch_s = 90\n[rungs]"), "a multiple of 60"),
        (("[rungs]", "[promotion]\nwindow_s = 7\nbatch_s = 9\n[rungs]"), "a multiple of 7"),
        (("[rungs]", "[promotion]\nlevel = [1.5, 2.0]\n[rungs]"), "a bound below 1"),
        (("[rungs]", "[promotion]\np99_ms = 1001\n[rungs]"), "at most 1000, .*found 1001"),
        (("[rungs]", "[promotion]\nfreshness_s = 300\n[rungs]"), "at most 10, .*found 300"),
        (("[rungs]", "[rung]"), r'did you mean "rungs"'),
        (('"fields.price" = "off"', '"label.window_s" = 5'), r"\[label\] and \[examples\]"),
        (('"fields.price" = "off"', '"fields.price.number" = 9'), "a field of the control"),
        (('"fields.price" = "off"', '"fields.prices" = "off"'), "fields.prices"),
    ],
)
def test_a_mistake_is_refused_by_name(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in FILE
    with pytest.raises(SpecError, match=message):
        write_files(tmp_path, FILE.replace(*change))


def test_an_experiment_without_arms_is_refused(tmp_path: Path) -> None:
    head = '[experiment]\nname = "none"\ncontrol = "control.toml"\n'
    with pytest.raises(SpecError, match=r"expected arms: \[arm.NAME\] or \[space\]"):
        write_files(tmp_path, head)
