"""The folder of a fit: its snapshots, and the progress from which a killed fit resumes.

    FOLDER/20261122T184406.538Z-news-ba47/      the model, once the fit has ended
    FOLDER/_fit/NAME.json                       progress of the fit of the model NAME
    FOLDER/_fit/20261122T…/                     the rows at that progress

A save first writes the rows, then the progress that names them, and then removes older rows. After
a kill between any two steps, the progress names complete rows.
"""

import re
from collections.abc import Mapping
from uuid import uuid4

import fsspec
import msgspec

from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.batch.row_order import RowOrder
from headrace.learner.batch.sources import FilePosition, check_same_fit
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.snapshots.storage import translated

_UNFINISHED = "_fit"


class FitState(msgspec.Struct, frozen=True):
    """The progress of a fit."""

    fingerprint: str
    """Of the spec."""
    source: str
    """The identity of the source."""
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


class FitFolder:
    """The folder that a fit writes to. Raises StorageFailed."""

    def __init__(self, url: str, name: str) -> None:
        """Make the folder. `url`: a folder, or a URL that fsspec knows. `name`: of the model."""
        self.url = url
        with translated(url, "opening"):
            self._files, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._aside = f"{url.rstrip('/')}/{_UNFINISHED}"
        self._path = f"{self._root}/{_UNFINISHED}/{name}.json"
        with translated(url, "writing to"):  # now, and not after hours of learning
            self._files.makedirs(self._root, exist_ok=True)
            tried = f"{self._root}/.{name}-{uuid4().hex}"
            self._files.pipe_file(tried, b"")
            self._files.rm_file(tried)
        # other models may be fitted into the same folder
        self._own = re.compile(rf"[0-9T.]+Z-{re.escape(name)}-[0-9a-f]{{4}}")

    def read(self, spec: ModelSpec, source: str) -> FitState | None:
        """Return the state of an interrupted fit; None if there is no such fit.

        Raises UnreadableData if it is of another spec or other data.
        """
        if not self._files.exists(self._path):
            return None
        state = msgspec.json.decode(self._files.cat_file(self._path), type=FitState)
        check_same_fit(self._path, state, spec, source)
        return state

    def load(self, name: str, spec: ModelSpec) -> InMemoryModel:
        """Return the rows of a state."""
        return InMemoryModel.load(self._aside, name, spec=spec)

    def save(self, model: InMemoryModel) -> str:
        """Write rows that a state will name."""
        return model.save(self._aside)

    def write(self, state: FitState) -> None:
        """Write `state` as the progress, and remove rows that it does not name."""
        self._files.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        aside = f"{self._path}.new"
        self._files.pipe_file(aside, msgspec.json.encode(state))
        self._files.mv(aside, self._path)
        self._remove_all_but({state.rows, state.best_rows})

    def finish(self, model: InMemoryModel, marks: Mapping[str, int]) -> str:
        """Write the model, and remove the progress; return the name of its snapshot."""
        name = model.save(self.url, marks)
        self.restart()
        return name

    def restart(self) -> None:
        """Forget the progress."""
        if self._files.exists(self._path):
            self._files.rm_file(self._path)
        self._remove_all_but(set())

    def _remove_all_but(self, names: set[str]) -> None:
        folder = self._path.rpartition("/")[0]
        if not self._files.exists(folder):
            return
        for path in self._files.ls(folder, detail=False):
            name = path.rstrip("/").rpartition("/")[2]
            if self._own.fullmatch(name) and name not in names:
                self._files.rm(path, recursive=True)
