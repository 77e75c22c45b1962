"""A model in this process: learns events, predicts, measures its accuracy, saves and loads.

Events take the path of the service, without its processes. The joiner's decoder and rules make
labelled examples, the encoder makes ids and numbers, and the model scores the candidates of a
request before it learns from them. Functions that need a store are missing: no batch is
quarantined, no row expires, and one learner holds all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import TIME
from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoder, Event
from headrace.ingest.features.unknown_fields import first_unknown, known_fields
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.logs.layout import LogLayout, load_layout
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.logs.opening import open_log
from headrace.learner.local.event_input import (
    Events,
    context_of,
    labelled,
    message_of,
    rows_of,
    time_of,
)
from headrace.learner.local.event_join import (
    EVENTS_A_TURN,
    EventJoin,
    JoinedEvents,
    RefusedEvent,
)
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.loop.scores import Scores, scores_of
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.learner.validation.outcomes import Outcomes, join_outcomes
from headrace.learner.validation.progressive import ProgressiveValidation
from headrace.runtime.clock import wall_ms
from headrace.runtime.counted_nouns import counted

_REFUSED_SHOWN = 3
"""Refused events in the text of a summary. A log in a wrong unit has millions of them."""


@dataclass(frozen=True, slots=True)
class LearnSummary:
    """The result of one call of `learn` or `flush`."""

    examples: int
    """Learned; with `policy = "immediate"` a click is an example of its own."""
    refused: tuple[RefusedEvent, ...]
    """Events that cannot be used, in the order they were given."""

    def __repr__(self) -> str:
        """Return the counts, and the first refused events."""
        first = [repr(each) for each in self.refused[:_REFUSED_SHOWN]]
        if len(self.refused) > _REFUSED_SHOWN:
            first.append(f"... {len(self.refused) - _REFUSED_SHOWN:,} more")
        return f"LearnSummary(examples={self.examples}, refused=({', '.join(first)}))"


class LocalModel:
    """A model of a spec, in memory. Not safe for use from several threads."""

    def __init__(self, spec: ModelSpec | Path | str) -> None:
        """Make a model that has learned nothing.

        `spec`: a spec, or the path of its TOML file. Raises SpecError; MissingTorch if the spec is
        of a deep model and torch is not installed; UnfitModule for a module of your own.
        """
        self.spec = spec = spec if isinstance(spec, ModelSpec) else load_spec(spec)
        self._model = InMemoryModel(spec)
        self._encoder = Encoder(spec.fields)
        self._join = EventJoin(spec.fields)
        self._rows_seen = 0
        self._examples: list[Examples] = []
        self._scores: list[Scores] = []

    def __repr__(self) -> str:
        """Return name, architecture, the examples learned here and the rows."""
        learned = counted(sum(map(len, self._examples)), "example")
        name, kind = self.spec.name, self.spec.architecture
        return f'<LocalModel "{name}": {kind}, {learned} learned, {counted(len(self), "row")}>'

    def __len__(self) -> int:
        """Return the number of rows that the model has."""
        return len(self._model)

    # ------------------------------------------------------------------------------- learning

    def learn(
        self, impressions: Events, clicks: Events = (), *, label: str | None = None
    ) -> LearnSummary:
        """Join impressions with clicks and learn the examples, in the order of event time.

        `impressions` and `clicks` are iterables of mappings, or DataFrames. Their fields are those
        that producers send: `impression_id`, `timestamp_ms` (or a datetime) and the fields of the
        spec. Pass calls in the order of event time: as in the service, an impression is refused if
        an earlier one is newer by more than the label window. An event up to a day in the future
        gets the present time, and a later one is refused. With `policy = "window"`, an example is
        learned when its window closes: by a later call, or by `flush`.

        `label`: a column of the impressions that says whether they were clicked, as 0 and 1, -1 and
        1, true and false, yes and no, a count, or a time. Pass no clicks with it; `impression_id`
        is then optional. Raises ValueError if a row lacks the column, or the column contains
        another word. Raises TypeError if the events are neither mappings nor a DataFrame, or
        contain a value that JSON cannot represent.
        """
        if label is None:
            shown, clicked = [*rows_of(impressions)], [*rows_of(clicks)]
        else:
            rows = rows_of(impressions, label)
            shown, clicked = labelled(rows, label, self._rows_seen)
            self._rows_seen += len(shown)
        for side, events in ((EventSide.IMPRESSIONS, shown), (EventSide.CLICKS, clicked)):
            timed = sorted(((time_of(event), event) for event in events), key=lambda pair: pair[0])
            self._join.offer(side, [(time_ms, message_of(event)) for time_ms, event in timed])
        return self._learn(self._join.joined())

    def learn_log(
        self, path: Path | str, layout: Path | str = "auto", *, sort: bool = False
    ) -> LearnSummary:
        """Learn a log on disk, a few thousand events at a time.

        `path`: a directory with `impressions.ndjson` and `clicks.ndjson`, or a CSV, Parquet or
        NDJSON file. `layout`: for a file, the name or path of the layout of its columns, or "auto"
        for a guess from its first rows. `sort`: sort by event time first. One call of `learn` with
        all events of the log gives the same model. Raises NoEventsError, SpecError.
        """
        path = Path(path)
        lines = open_log(path, _layout_of(path, layout), sort=sort).lines()
        return self._learn(self._joined(lines))

    def _joined(self, lines: Iterator[Line]) -> Iterator[JoinedEvents]:
        while part := list(islice(lines, EVENTS_A_TURN)):
            self._join.offer_lines(part)
            yield from self._join.joined(more_follow=True)
        yield from self._join.joined()

    def flush(self) -> LearnSummary:
        """Close all open label windows and learn the examples of their impressions.

        Later clicks on these impressions are late and not learned.
        """
        return self._learn(self._join.closed())

    def _learn(self, joined: Iterable[JoinedEvents]) -> LearnSummary:
        count, refused = 0, list[RefusedEvent]()
        for examples, dead in joined:
            count += len(examples)
            refused += dead
            if len(examples):
                self._learn_examples(examples)
        return LearnSummary(count, tuple(refused))

    def _learn_examples(self, examples: Examples) -> None:
        self._scores.append(scores_of(examples, self._model.learn(examples)))
        nothing = Examples.empty(self.spec.fields)
        self._examples.append(replace(examples, features=nothing.features))

    # ----------------------------------------------------------------------------- predicting

    def predict(
        self,
        candidates: Events,
        context: Event | None = None,
        *,
        at_ms: int | None = None,
        strict: bool = False,
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n candidates; shape (n,).

        `context`: fields that all candidates share; a value of the candidate itself has priority.
        `at_ms`: the time at which the candidates are shown, by default now; a `timestamp_ms` of the
        candidate has priority. `strict`: raise ValueError if the context or a candidate has a field
        that the model does not read, such as a misspelled name. By default, such fields are
        ignored. The model does not change.
        """
        own, shared = list(rows_of(candidates)), context_of(context)
        if strict:
            _check_known(own, shared, self.spec)
        if not own:
            return np.zeros(0, np.float64)
        shared = {TIME: wall_ms() if at_ms is None else at_ms, **shared}
        features = self._encoder.encode_candidates(shared, own)
        common_ms = time_of(shared)
        times = [time_of(event) if TIME in event else common_ms for event in own]
        return self._model.predict(features, np.array(times, np.int64))

    # ------------------------------------------------------------------------------ measuring

    def outcomes(self) -> Outcomes:
        """Return the label and the score of every impression, made before the model learned it."""
        return join_outcomes(self._examples, self._scores)

    def metrics(self) -> ProgressiveValidation:
        """Return the accuracy of the scores that were made before learning.

        An impression without a click so far counts as not clicked. With the policy `window`, a
        score is made when the label window closes, and knows more than a served one. A figure is
        NaN where it is undefined: without impressions, or with one of the two labels only.
        """
        return self.outcomes().figures()

    # --------------------------------------------------------------------- saving and loading

    def save(self, folder: Path | str) -> str:
        """Write the model as a snapshot; return its name.

        `folder`: a folder, or a URL that fsspec supports; it may contain several snapshots. Pending
        impressions and the scores so far are not saved. Raises StorageFailed.
        """
        return self._model.save(folder)

    @classmethod
    def load(
        cls, folder: Path | str, name: str | None = None, *, spec: ModelSpec | None = None
    ) -> LocalModel:
        """Return the model of a snapshot: one that `save` wrote, or a running model's.

        `name`: the snapshot in the folder, by default the newest. `spec`: the expected spec, by
        default the snapshot's own. Raises NoSnapshot, DamagedSnapshot, StorageFailed, WrongModel if
        `spec` differs.
        """
        saved = InMemoryModel.load(folder, name, spec=spec)
        model = cls(saved.spec)
        model._model = saved
        return model


def _layout_of(path: Path, layout: Path | str) -> LogLayout | None:
    """Return the layout of a file; None for a directory."""
    if layout != "auto":
        return load_layout(str(layout))
    return guess_layout(path).layout if path.is_file() else None


def _check_known(candidates: Sequence[Event], context: Event, spec: ModelSpec) -> None:
    rows = ((f"candidates[{i}]", row) for i, row in enumerate(candidates))
    unknown = first_unknown(context, rows, known_fields(spec.fields))
    if unknown:
        raise ValueError(f"{unknown.path}: expected {unknown.expected}, got {unknown.found}")
