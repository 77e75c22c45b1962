"""The folder of a fit: its snapshots, and the progress from which a killed fit resumes.

    FOLDER/20261122T184406.538Z-news-ba47/      the model, once the fit has ended
    FOLDER/_fit/NAME/state.json                 progress of the fit of the model NAME
    FOLDER/_fit/NAME/rows/20261122T…/           the rows at that progress

A save first writes the rows, then the progress that names them, and then removes older rows. After
a kill between any two steps, the progress names complete rows.
"""

from collections.abc import Mapping
from typing import TypeVar
from uuid import uuid4

import fsspec
import msgspec

from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.batch.row_order import RowOrder
from headrace.learner.batch.sources import FilePosition, UnfinishedFit, check_same_fit
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.snapshots.storage import translated

Progress = TypeVar("Progress", bound=msgspec.Struct)


class FitState(UnfinishedFit, frozen=True):
    """The progress of a fit."""

    rows: str
    """Name of the snapshot with the rows; empty at the beginning of the first epoch."""
    epoch: int = 0
    file: int = 0
    block: int = 0
    examples: int = 0
    best_rows: str = ""
    """Name of the snapshot after the best epoch so far; empty without held-out data."""
    best_loss: float | None = None
    """Log loss of the held-out data then."""
    tail: bool = False
    """Whether all epochs are done and the held-out data is being learned."""
    refusals: tuple[RefusedEvents, ...] = ()
    """Rows left out, each counted once, whatever the number of epochs."""
    clicks: int = 0
    """Examples with a click, all epochs together."""
    order: RowOrder = RowOrder()
    """Of the rows of one epoch."""

    @property
    def position(self) -> FilePosition:
        """The position after the last learned block."""
        return FilePosition(self.file, self.block)


class ProgressFolder:
    """The progress of one model's fit in a folder: small files, and the rows that they name."""

    def __init__(self, url: str, kind: str, name: str) -> None:
        """`url`: a folder, or a URL that fsspec knows. Raises StorageFailed."""
        with translated(url, "opening"):
            self._files, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._path = f"{self._root}/{kind}/{name}"
        self._rows = self._files.unstrip_protocol(f"{self._path}/rows")

    def save(self, model: InMemoryModel) -> str:
        """Write rows that the progress will name; return their name."""
        return model.save(self._rows)

    def load(self, name: str, spec: ModelSpec) -> InMemoryModel:
        """Return the model of such rows."""
        return InMemoryModel.load(self._rows, name, spec=spec)

    def _read(self, file: str, kind: type[Progress]) -> Progress | None:
        try:
            found = self._files.cat_file(f"{self._path}/{file}")
        except FileNotFoundError:
            return None
        return msgspec.json.decode(found, type=kind)

    def _replace(self, file: str, value: msgspec.Struct, rows: set[str] | None = None) -> None:
        """Write a small file, as a whole or not at all; then remove other rows than these."""
        aside = f"{self._path}/{file}.new"
        self._files.makedirs(self._path, exist_ok=True)
        self._files.pipe_file(aside, msgspec.json.encode(value))
        self._files.mv(aside, f"{self._path}/{file}")
        if rows is not None and self._files.exists(f"{self._path}/rows"):
            for path in self._files.ls(f"{self._path}/rows", detail=False):
                if path.rstrip("/").rpartition("/")[2] not in rows:
                    self._files.rm(path, recursive=True)

    def _remove(self, first: str) -> None:
        """Remove all; `first`: the file without which the others are no progress."""
        if self._files.exists(f"{self._path}/{first}"):
            self._files.rm_file(f"{self._path}/{first}")
        if self._files.exists(self._path):
            self._files.rm(self._path, recursive=True)


class FitFolder(ProgressFolder):
    """The folder that a fit writes to. Raises StorageFailed."""

    def __init__(self, url: str, name: str) -> None:
        """Make the folder. `name`: of the model; other models may be fitted into the same one."""
        super().__init__(url, "_fit", name)
        self.url = url
        with translated(url, "writing to"):  # now, and not after hours of learning
            self._files.makedirs(self._root, exist_ok=True)
            tried = f"{self._root}/.{name}-{uuid4().hex}"
            self._files.pipe_file(tried, b"")
            self._files.rm_file(tried)

    def read(self, spec: ModelSpec, source: str) -> FitState | None:
        """Return the state of an interrupted fit; None if there is no such fit.

        Raises UnreadableData if it is of another spec or other data.
        """
        state = self._read("state.json", FitState)
        if state is not None:
            check_same_fit(self._path, state, spec, source)
        return state

    def write(self, state: FitState) -> None:
        """Write `state` as the progress, and remove rows that it does not name."""
        self._replace("state.json", state, {state.rows, state.best_rows})

    def finish(self, model: InMemoryModel, marks: Mapping[str, int]) -> str:
        """Write the model, and remove the progress; return the name of its snapshot."""
        name = model.save(self.url, marks)
        self.restart()
        return name

    def restart(self) -> None:
        """Forget the progress."""
        self._remove("state.json")
