"""The folder of an experiment refuses what it cannot continue."""

import pickle
from contextlib import closing
from pathlib import Path

import pytest

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.run_folder import RunFolder, SavedRun, read_state
from headrace.learner.experiments.rungs import Rungs

_NOW = b"experiments.rungs\nRungs\n"


@pytest.mark.parametrize("former", [b"experiments.race\nRace\n", b"experiments.rungs\nRace\n"])
def test_a_state_with_modules_or_classes_of_another_version_is_refused(
    tmp_path: Path, former: bytes
) -> None:
    saved = pickle.dumps(tuple(SavedRun("fingerprint", "log", 0, Rungs(4))), protocol=0)
    assert _NOW in saved
    (tmp_path / "state-00000001.pickle").write_bytes(saved)
    assert read_state(tmp_path) is not None
    (tmp_path / "state-00000001.pickle").write_bytes(saved.replace(_NOW, former))
    with pytest.raises(LearnerError, match="got one of another version"):
        read_state(tmp_path)


def test_a_folder_of_a_group_of_runners_is_refused_until_it_is_restarted(tmp_path: Path) -> None:
    (tmp_path / "group-id").write_text("a1b2")
    with closing(RunFolder(tmp_path)) as folder:
        with pytest.raises(LearnerError, match="got one of a group of runners"):
            folder.load("fingerprint", "log")
        folder.restart()
        assert folder.load("fingerprint", "log") is None
