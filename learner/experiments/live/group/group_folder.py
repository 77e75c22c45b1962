"""The folder that the runners of a group share.

    FOLDER/group-id                       id of the run; another one is published: another folder
    FOLDER/models/step-*/arm-*.pickle     models of the arms at a saved step
    FOLDER/state-*.pickle, ...            as of a runner that is alone (`run_folder`)

The leader holds the lock and writes. The others read the newest state, and write models.
"""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING, NamedTuple

from headrace.learner.experiments.live.history_topic import PublishedFolder
from headrace.learner.experiments.run_folder import RunFolder, SavedRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.learner.experiments.history import ArmRecord
    from headrace.learner.experiments.live.group.agreement import Place

_ID, _MODELS = "group-id", "models"


class GroupState(NamedTuple):
    """The state that the leader saves."""

    run: object
    place: Place


class LeaderFolder(PublishedFolder):
    """The folder of the leader, which saves what the group agreed on."""

    place: Place | None = None
    """Of the state that was loaded."""
    saving: Place | None = None
    """Of the state to save; None: a save is not agreed on."""

    def newest(self, fingerprint: str, source: str) -> SavedRun | None:
        """Return the newest state, and note its place."""
        saved = super().newest(fingerprint, source)
        if saved is not None:
            self.place = saved.run.place
            saved = saved._replace(run=saved.run.run)
        return saved

    def save(self, fingerprint: str, source: str, run: object) -> None:
        """Save and publish if it was agreed on, and remove the models of earlier saves."""
        if self.saving is None:
            return
        super().save(fingerprint, source, GroupState(run, self.saving))
        kept = models_of(self.path) / f"step-{self.saving.step:010}"
        for older in models_of(self.path).glob("step-*"):
            if older < kept:
                shutil.rmtree(older, ignore_errors=True)
        self.saving = None


class FollowerFolder(RunFolder):
    """The folder of a runner that does not lead: it reads states, and writes none."""

    place: Place | None = None

    def __init__(self, path: Path) -> None:
        """Take no lock."""
        self.path = path

    def close(self) -> None:
        """Nothing is locked."""

    def load(self, fingerprint: str, source: str) -> SavedRun | None:
        """Return the newest state, while the leader may replace it."""
        saved = self.newest(fingerprint, source)
        if saved is None:
            return None
        self.place = saved.run.place
        return saved._replace(run=saved.run.run)

    def append(self, records: Sequence[ArmRecord]) -> None:
        """The leader writes the history."""

    def save(self, fingerprint: str, source: str, run: object) -> None:
        """The leader saves."""


def models_of(folder: Path) -> Path:
    """Return the folder of the models."""
    return folder / _MODELS


def group_id(folder: Path) -> str | None:
    """Return the id of a shared folder; None if no group has used it."""
    try:
        return (folder / _ID).read_text()
    except FileNotFoundError:
        return None


def new_group_id(folder: Path) -> str:
    """Give a folder an id."""
    found = secrets.token_hex(8)
    (folder / _ID).write_text(found)
    return found


def forget_group(folder: Path) -> None:
    """Remove what a group wrote beside the states."""
    (folder / _ID).unlink(missing_ok=True)
    shutil.rmtree(models_of(folder), ignore_errors=True)
