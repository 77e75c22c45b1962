"""A saved state of an experiment is readable after its modules were renamed."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from headrace.learner.experiments.run_folder import SavedRun, read_state
from headrace.learner.experiments.rungs import Race

if TYPE_CHECKING:
    from pathlib import Path


def test_a_state_that_names_a_module_by_its_former_name_is_read(tmp_path: Path) -> None:
    saved = pickle.dumps(tuple(SavedRun("fingerprint", "log", 0, Race(4))), protocol=0)
    assert b"experiments.rungs" in saved
    former = saved.replace(b"experiments.rungs", b"experiments.race")
    (tmp_path / "state-00000001.pickle").write_bytes(former)
    found = read_state(tmp_path)
    assert found is not None
    assert isinstance(found.run, Race)
