"""A request's fields to probabilities: the encoder and the forward pass that training uses.

Pure: the rows and the time come from the caller. RowSource may be folded by another thread
meanwhile. That is safe without a lock, and so no request ever waits for one: a table's arrays never
shrink or move under a reader (when it grows or is compacted, new arrays, or a new index alone, are
filled aside and take their place at once), and a slot never points beyond them. What a reader can
see is a row that one log entry has half reached, which differs from the row before or after by a
fraction of one step: the same as asking a millisecond earlier or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.ingest.events import TIME
from headrace.ingest.features import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from headrace.ingest.features import Encoded, Event, FieldSet
    from headrace.pserver.rows import RowTable
    from headrace.serving.replicas import RowSource
    from headrace.serving.requests import Candidates

    Scores = npt.NDArray[np.float64]


class Scorer(Protocol):
    """What serving needs of a model."""

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return n probabilities of a click; never adds a row."""

    def uncertainty(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return how far one more outcome could move each. Raises NoUncertainty."""


class Predictor:
    """Scores the candidates of a request."""

    def __init__(self, fields: FieldSet, model: Scorer) -> None:
        self._encoder = Encoder(fields)
        self._model = model

    def predict(self, rows: RowSource, candidates: Candidates, now_ms: int) -> Scores:
        """Return the probability of a click of each candidate, shown at `now_ms` unless it says
        otherwise; shape (n,).
        """
        features = candidates.encode(self._encoder, now_ms)
        event_ms = candidates.times(now_ms)
        return self._model.predict(rows.table_for(features, event_ms), features, event_ms)

    def predict_events(self, rows: RowSource, events: Sequence[Event]) -> Scores:
        """Return the probability of a click of each event, which has its time; shape (n,).

        For a few: fields are taken event by event.
        """
        features = self._encoder.encode_few(events)
        event_ms = np.array([event[TIME] for event in events], np.int64)
        return self._model.predict(rows.table_for(features, event_ms), features, event_ms)

    def uncertainty(self, rows: RowSource, candidates: Candidates, now_ms: int) -> Scores:
        """Return how far one more outcome could move the log-odds of each candidate; shape (n,).

        Raises NoUncertainty where the model does not keep count of what it saw.
        """
        features = candidates.encode(self._encoder, now_ms)
        event_ms = candidates.times(now_ms)
        return self._model.uncertainty(rows.table_for(features, event_ms), features, event_ms)
