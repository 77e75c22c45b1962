"""A saved state of an experiment is readable after its modules and classes were renamed."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from headrace.learner.experiments.run_folder import SavedRun, read_state
from headrace.learner.experiments.rungs import Rungs
from headrace.learner.experiments.runner import _Run
from headrace.learner.spec import Admission
from tests.learner.experiments.experiment_runs import write_files

if TYPE_CHECKING:
    from pathlib import Path

_NOW = b"experiments.rungs\nRungs\n"


@pytest.mark.parametrize("former", [b"experiments.race\nRace\n", b"experiments.rungs\nRace\n"])
def test_a_state_that_has_former_names_of_modules_and_classes_is_read(
    tmp_path: Path, former: bytes
) -> None:
    run = _Run(write_files(tmp_path))
    names = set(vars(run))
    vars(run)["race"] = vars(run).pop("rungs")
    saved = pickle.dumps(tuple(SavedRun("fingerprint", "log", 0, run)), protocol=0)
    assert _NOW in saved
    (tmp_path / "state-00000001.pickle").write_bytes(saved.replace(_NOW, former))
    found = read_state(tmp_path)
    assert found is not None
    assert isinstance(found.run.rungs, Rungs)
    assert set(vars(found.run)) == names


def test_a_state_that_has_the_former_module_of_admission_is_read(tmp_path: Path) -> None:
    admission = Admission("count", sightings=3)
    saved = pickle.dumps(tuple(SavedRun("fingerprint", "log", 0, admission)), protocol=0)
    now, former = b"spec.admission_and_expiry", b"spec.growth"
    assert now in saved
    (tmp_path / "state-00000001.pickle").write_bytes(saved.replace(now, former))
    found = read_state(tmp_path)
    assert found is not None
    assert found.run == admission
