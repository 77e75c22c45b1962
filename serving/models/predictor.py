"""Computes click probabilities with the encoder and the forward pass that training uses.

The predictor is pure: rows and time come from the caller. Another thread may fold updates into the
rows meanwhile. That is safe without a lock (`pserver.rows.table`), so no request waits for one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import TIME
from headrace.ingest.features.encoder import Encoder, Event
from headrace.ingest.features.fields import FieldSet
from headrace.learner.models.explanations import Explanations
from headrace.learner.models.row_model import RowModel
from headrace.serving.replicas.status import RowSource
from headrace.serving.requests.candidates import Candidates

Scores = npt.NDArray[np.float64]


class Predictor:
    """Scores the candidates of a request."""

    def __init__(self, fields: FieldSet, model: RowModel) -> None:
        self._encoder = Encoder(fields)
        self._model = model

    def predict(
        self,
        rows: RowSource,
        candidates: Candidates,
        now_ms: int,
        ends: npt.NDArray[np.int64] | None = None,
    ) -> Scores:
        """Return the click probability of each candidate; shape (n,).

        now_ms: time of candidates without a time of their own. ends: (n,) the first candidate
        after the request of each; None if all are of one request.
        """
        features = candidates.encode(self._encoder, now_ms)
        event_ms = candidates.times(now_ms)
        return self._model.predict(rows.table_for(features, event_ms), features, event_ms, ends)

    def predict_events(self, rows: RowSource, events: Sequence[Event]) -> Scores:
        """Return the click probability of each event, a request by itself; shape (n,).

        Every event needs a time. For few events: the encoder works event by event.
        """
        features = self._encoder.encode_few(events)
        event_ms = np.array([event[TIME] for event in events], np.int64)
        alone = np.arange(1, len(events) + 1)
        return self._model.predict(rows.table_for(features, event_ms), features, event_ms, alone)

    def uncertainty(self, rows: RowSource, candidates: Candidates, now_ms: int) -> Scores:
        """Return the largest change of each log-odds by one more outcome; shape (n,).

        Raises NoUncertainty if the model does not count its observations.
        """
        features = candidates.encode(self._encoder, now_ms)
        event_ms = candidates.times(now_ms)
        return self._model.uncertainty(rows.table_for(features, event_ms), features, event_ms)

    def explain(self, rows: RowSource, candidates: Candidates, now_ms: int) -> Explanations:
        """Return what each field contributes to the log-odds of each candidate."""
        features = candidates.encode(self._encoder, now_ms)
        return self._model.explain(rows.table_for, features, candidates.times(now_ms))
