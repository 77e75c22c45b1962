"""Encodes the rows of tables as labelled examples, column by column.

The outcome of a row is known, so the row becomes one example under either label policy: kind
CLOSED, learned once, counted as a show and, if its label is 1, as a click. Nothing is joined: a
table has no late clicks and no duplicates. A field gets the same ids as from an event with the
row's values (`ArrowColumns`).
"""

import difflib
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from headrace.ingest.events.contract import AHEAD_MS, REQUEST_ID, TIME
from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.arrow_columns import ArrowColumns
from headrace.ingest.features.cells.times import milliseconds_of
from headrace.ingest.features.cells.values import numbers_of
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.ingest.features.example_weights import weights_of
from headrace.ingest.features.field_sources import LEAST_ALIKE
from headrace.ingest.features.fields import FieldSet


class TableEncoder:
    """Encodes rows for the models of one set of fields."""

    def __init__(self, fields: FieldSet) -> None:
        self._fields = fields
        self._encoder = Encoder(fields)

    @property
    def sources(self) -> frozenset[str]:
        """Columns that the fields are computed from; a table may lack some of them."""
        fields = self._fields
        every = (*fields.singles, *fields.bags, *fields.numbers)
        return frozenset(field.source for field in every if field.source)

    def lacking(self, found: Collection[str]) -> list[str]:
        """Return the columns that fields and weights need and a table of these columns lacks.

        Raises ValueError if it lacks all of them, or has a similar name in place of one.
        """
        wanted = {*self.sources, self._fields.weights.source} - {None, "", TIME}
        missing, others = sorted(wanted - set(found)), sorted(set(found) - wanted)
        alike = [
            f"{other!r} in place of {name!r}"
            for name in missing
            for other in difflib.get_close_matches(name, others, 1, LEAST_ALIKE)
        ]
        if alike or (missing and len(missing) == len(wanted)):
            raise ValueError(
                f"expected columns for the fields of the spec, among them {', '.join(missing)}, "
                f"got {', '.join(alike or others)}. Correct the source of these fields in the "
                "spec, or the names of the columns"
            )
        return missing

    def features(self, columns: Mapping[str, pa.Array], event_ms: npt.NDArray[np.int64]) -> Encoded:
        """Return the inputs of n rows at these times, (n,). Raises TypeError: see ArrowColumns."""
        sources = self.sources
        used = {name: values for name, values in columns.items() if name in sources}
        if TIME in sources:
            used[TIME] = pa.array(event_ms)
        count = event_ms.shape[0]
        return self._encoder.encode_columns(count, ArrowColumns(count, used))

    def examples(
        self,
        columns: Mapping[str, pa.Array],
        event_ms: npt.NDArray[np.int64],
        labels: npt.NDArray[np.uint8],
        weights: npt.NDArray[np.float32] | None = None,
        first: int = 0,
    ) -> Examples:
        """Return n rows as examples with these labels, (n,), and weights, (n,) or None for 1.

        A column `request_id`, of strings, says which rows were shown together.
        `first`: number of the first row; admission by probability draws by it. The weights of the
        spec's own field, `[examples] weight`, multiply `weights`. A spec that drops negatives keeps
        all of them here, with weight 1: the model it approximates. Raises TypeError for a column of
        a type that no event can have, ValueError for a weight that is no number from 0 to a
        million.
        """
        count = event_ms.shape[0]
        numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
        return Examples(
            fingerprint=self._fields.fingerprint,
            watermark_ms=int(event_ms.max(initial=0)),
            kinds=np.full(count, Kind.CLOSED, np.uint8),
            labels=labels,
            event_ms=event_ms,
            shown_ms=event_ms,
            append_ms=event_ms,
            impression_ids=numbers,
            request_ids=columns.get(REQUEST_ID, pa.nulls(count, pa.string())),
            features=self.features(columns, event_ms),
            slices={},
            weights=self._weights(columns, count, weights),
        )

    def _weights(
        self,
        columns: Mapping[str, pa.Array],
        count: int,
        given: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.float32] | None:
        source = self._fields.weights.source
        if source not in columns:
            return given
        values = columns[source]
        absent = values.is_null().to_numpy(zero_copy_only=False)
        own, bad = weights_of(absent, ArrowColumns(count, {source: values}).reals(source))
        if bad.any():
            raise ValueError(
                f"column {source!r}: expected weights from 0 to a million, "
                f"got {values[int(bad.argmax())]} in row {int(bad.argmax())}"
            )
        return own if given is None else own * given


def times_of(columns: Mapping[str, pa.Array], count: int, default_ms: int) -> npt.NDArray[np.int64]:
    """Return the times of n rows in milliseconds, (n,); `default_ms` where it is missing.

    The column `timestamp_ms` has milliseconds as numbers, or times; times without a zone are UTC.
    """
    values = columns.get(TIME)
    if values is None:
        return np.full(count, default_ms, np.int64)
    if not pt.is_temporal(values.type) and numbers_of(values) is None:
        raise TypeError(
            f"column {TIME!r}: expected milliseconds as numbers, or times, got {values.type}"
        )
    numbers = milliseconds_of(values, "ms").fill_null(default_ms)
    times: npt.NDArray[np.int64] = numbers.to_numpy()
    return times


def learnable_times(
    columns: Mapping[str, pa.Array], count: int, now_ms: int
) -> npt.NDArray[np.int64]:
    """Return the times of n rows to learn, (n,); `now_ms` where it is missing.

    Raises ValueError for a time more than a day after `now_ms`, as the joiner refuses it: keepers
    would expire all other rows of its buckets. Raises TypeError: see `times_of`.
    """
    times = times_of(columns, count, now_ms)
    ahead = times > now_ms + AHEAD_MS
    if ahead.any():
        raise ValueError(
            f"column {TIME!r}: expected times in milliseconds, at most a day ahead, got "
            f"{columns[TIME][int(ahead.argmax())]}. Correct the unit, or remove such rows"
        )
    return times
