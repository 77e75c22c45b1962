"""The folder of an experiment: its history, and what it needs to go on after a kill.

    FOLDER/history.ndjson           records of arms, rungs and decisions
    FOLDER/state-00000012.pickle    the runner's state after so many saves, complete
    FOLDER/work-0f3a.../            staged log and checkpoints of an executor (`executors`)
    FOLDER/lock                     held while a runner writes

A state is written beside the others, synced, and renamed, and older ones are removed after that. It
says how many bytes of the history belong to it. Records behind them are of work that was lost, and
are made again. Pickles are read from the folder that the runner itself writes. A state
with modules or classes that this version does not have is refused.
"""

import fcntl
import hashlib
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.history import ArmRecord, decoded, encoded

_HISTORY, _LOCK = "history.ndjson", "lock"


class SavedRun(NamedTuple):
    """A saved state."""

    fingerprint: str
    """Of the experiment file and its control."""
    source: str
    """Identity of the log."""
    history: int
    """Bytes of the history that belong to it."""
    run: Any
    """The state of the runner."""


class RunFolder:
    """The folder of one experiment, on a local disk."""

    def __init__(self, path: Path) -> None:
        """Lock the folder. Raises LearnerError if another runner writes to it."""
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = (path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise LearnerError(
                f"{path}: expected a folder that no other runner writes to, got one in use. Wait "
                "for the other runner, or give --to another folder"
            ) from error

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def load(self, fingerprint: str, source: str) -> SavedRun | None:
        """Return the newest state, and cut the history to it; None if it is missing.

        Raises LearnerError.
        """
        saved = read_state(self.path)
        if saved is None:
            (self.path / _HISTORY).write_bytes(b"")
            return None
        for what, found, expected in (
            ("experiment file and control", saved.fingerprint, fingerprint),
            ("log", saved.source, source),
        ):
            if found != expected:
                raise LearnerError(
                    f"{self.path}: expected the run of this {what}, got a run of another one. Give "
                    "--to another folder, or start again with --restart"
                )
        with (self.path / _HISTORY).open("r+b") as history:
            history.truncate(saved.history)
        return saved

    def append(self, records: Sequence[ArmRecord]) -> None:
        """Add records to the history."""
        with (self.path / _HISTORY).open("ab") as history:
            history.write(encoded(records))

    def save(self, fingerprint: str, source: str, run: object) -> None:
        """Make `run` the state, with all records so far."""
        history = self.path / _HISTORY
        with history.open("rb") as file:
            os.fsync(file.fileno())
        saved = SavedRun(fingerprint, source, history.stat().st_size, run)
        older = _states_in(self.path)
        number = 1 + (int(older[-1].stem.partition("-")[2]) if older else 0)
        path = self.path / f"state-{number:08}.pickle"
        aside = path.with_suffix(".new")
        with aside.open("wb") as file:
            pickle.dump(tuple(saved), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename survives a loss of power before older states go
        finally:
            os.close(folder)
        for state in older:
            state.unlink()

    def saved_lines(self) -> list[bytes]:
        """Return the lines of the history."""
        return (self.path / _HISTORY).read_bytes().splitlines()

    @property
    def begun(self) -> bool:
        """Whether a state was saved."""
        return bool(_states_in(self.path))

    def restart(self) -> None:
        """Forget the run."""
        for state in _states_in(self.path):
            state.unlink()
        (self.path / _HISTORY).unlink(missing_ok=True)
        for work in self.path.glob("work-*"):
            shutil.rmtree(work)

    def work_path(self, fingerprint: str, source: str) -> Path:
        """Return the folder for files that belong to this experiment and this log only."""
        digest = hashlib.sha256(f"{fingerprint} {source}".encode()).hexdigest()
        return self.path / f"work-{digest[:16]}"


def read_state(path: Path) -> SavedRun | None:
    """Return the newest state of a folder, to which a runner may write; None without any.

    Raises LearnerError for a state of another version.
    """
    while states := _states_in(path):
        try:
            return SavedRun(*pickle.loads(states[-1].read_bytes()))  # noqa: S301 - the runner's
        except FileNotFoundError:
            continue  # the runner has saved a newer one, and removed this one
        except (ImportError, AttributeError) as error:
            raise LearnerError(
                f"{states[-1]}: expected a state of this version of headrace, got one of another "
                f"version ({error}). Start again with --restart, or continue with that version"
            ) from error
    return None


def _states_in(path: Path) -> list[Path]:
    return sorted(path.glob("state-*.pickle"))


def read_history(path: Path) -> list[ArmRecord]:
    """Return the records of a folder; a runner may write to it. Raises LearnerError."""
    try:
        lines = (path / _HISTORY).read_bytes()
    except OSError as error:
        raise LearnerError(
            f"{path}: expected the folder of an experiment, with {_HISTORY}, found: {error}"
        ) from error
    return decoded(lines[: lines.rfind(b"\n") + 1])
