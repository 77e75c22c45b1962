"""A request's fields to probabilities: the encoder and the forward pass that training uses.

Pure: the rows and the time come from the caller. Rows may be folded by another thread meanwhile.
That is safe without a lock, and so no request ever waits for one: a table's arrays never shrink or
move under a reader (when it grows, new arrays are filled aside and take their place at once), a
slot never points beyond them, and rows are never taken out. What a reader can see is a row that
one log entry has half reached, which differs from the row before or after by a fraction of one
step: the same as asking a millisecond earlier or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ingest.encode import Encoder
from ingest.fields import TIME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ingest.examples import Encoded
    from ingest.fields import FieldSet
    from pserver.table import RowTable

    Event = Mapping[str, object]


class Scorer(Protocol):
    """What serving needs of a model."""

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return n probabilities of a click; never adds a row."""


class Predictor:
    """Scores the candidates of a request."""

    def __init__(self, fields: FieldSet, model: Scorer) -> None:
        self._encoder = Encoder(fields)
        self._model = model

    def predict(
        self, table: RowTable, context: Event, candidates: Sequence[Event], timestamp_ms: int
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of each candidate, shown in this context; shape (n,).

        `timestamp_ms` is when they are shown; a candidate or context with its own goes before it.
        """
        timed = context if TIME in context else {**context, TIME: timestamp_ms}
        features = self._encoder.encode_candidates(timed, candidates)
        common = timed[TIME]
        event_ms = np.fromiter(
            (each.get(TIME, common) for each in candidates), np.int64, len(candidates)
        )
        return self._model.predict(table, features, event_ms)
