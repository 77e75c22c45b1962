"""Messages of the rows topic: the parts of examples, scores and predictions that evaluation needs.

Examples and scores arrive in batches, predictions one by one, all partitioned by impression. But
metrics within a request need all its impressions in one place. The feeders therefore extract the
necessary columns, sample by request, and write to a single partition, one message every few tenths
of a second. Ids become 64-bit hashes, with the hash of row ids. Values to slice by become hashes,
too, and the message lists their texts.

A message is MessagePack (msgspec) around four tables of fixed width, so neither side loops over
impressions. It also has the position of its sources: the time that each has reached, and whether
it was at its end. Evaluation is a function of these messages and nothing else.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.hashing import hash_strings, hash_text
from headrace.ingest.kafka.protocols import Committed
from headrace.learner.loop.scores import Scores
from headrace.runtime.undecodable import UNDECODABLE

Table = npt.NDArray[np.void]
Hashes = npt.NDArray[np.uint64]

FORMAT = 1
LEARNED = "learned"
"""Alias of the scores that the learner gave."""
BY_NAME = "by-name"
"""Alias of predictions whose request named the model."""
LONGEST_TEXT = 100
"""Characters of a value to slice by. Longer values are truncated."""

SHOWN = np.dtype([("id", "<u8"), ("request", "<u8"), ("time_ms", "<i8"), ("label", "u1")])
CLICKED = np.dtype([("id", "<u8"), ("time_ms", "<i8")])
SCORED = np.dtype([("id", "<u8"), ("time_ms", "<i8"), ("score", "<f8")])
SERVED = np.dtype([("id", "<u8"), ("time_ms", "<i8"), ("score", "<f8"), ("series", "<u4")])


class UnreadableRows(ValueError):
    """A message of the rows topic has another format."""


class ServedPrediction(msgspec.Struct, frozen=True):
    """The fields of a message of the topic `predictions` that evaluation reads."""

    impression_id: str
    model: str
    alias: str
    """Empty if the request named the model."""
    score: float
    time: int
    """Event time of the candidate or the request, in ms."""
    request_id: str | None = None


class EvaluationRows(msgspec.Struct, array_like=True):
    """Rows of many impressions, in the order to fold them."""

    format: int = FORMAT
    now_ms: int = 0
    """Wall time of the writer."""
    sample: float = 1.0
    """Share of the requests in the message."""
    standings: dict[str, tuple[int | None, bool]] = {}
    """By source: the event time reached, if any, and whether the source was at its end."""
    shown: bytes = b""
    slices: bytes = b""
    """(n, fields) <u8: for each row of `shown`, the hash of its value in each field."""
    texts: dict[int, str] = {}
    """The values behind the hashes."""
    clicked: bytes = b""
    scored: bytes = b""
    served: bytes = b""
    series: list[str] = []
    """The aliases that `served` numbers."""
    late: int = 0
    """Rows left out because their minute was closed; 0 in the feeder's message."""
    positions: dict[str, int] = {}
    """By source: the first offset after the rows, if the message has rows of the source."""
    origins: dict[str, tuple[str, int]] = {}
    """By source of `positions`: the id of its topic, and the leader epoch of the last record."""

    def tables(self) -> tuple[Table, Table, Table, Table]:
        """Return shown, clicked, scored and served as read-only arrays."""
        return (
            np.frombuffer(self.shown, SHOWN),
            np.frombuffer(self.clicked, CLICKED),
            np.frombuffer(self.scored, SCORED),
            np.frombuffer(self.served, SERVED),
        )

    def slice_hashes(self, fields: int) -> Hashes:
        """Return `slices` as an array of (n, fields)."""
        count = len(self.shown) // SHOWN.itemsize
        return np.frombuffer(self.slices, "<u8").reshape(count, fields)


_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(EvaluationRows)


def pack(rows: EvaluationRows) -> bytes:
    """Encode a message."""
    return _pack.encode(rows)


def unpack(blob: bytes) -> EvaluationRows:
    """Decode a message. Raises UnreadableRows."""
    try:
        rows = _unpack.decode(blob)
    except UNDECODABLE as error:
        raise UnreadableRows(f"rows of evaluation: expected MessagePack, got: {error}") from error
    if rows.format != FORMAT:
        raise UnreadableRows(
            f"rows of evaluation: expected format {FORMAT}, got {rows.format}: use the version of "
            "headrace that wrote them, or a newer one"
        )
    return rows


class RowsBuilder:
    """Collects rows for the next message."""

    def __init__(self, fields: Sequence[str], sample: float) -> None:
        self._fields, self._sample = tuple(fields), sample
        self._shown: list[Table] = []
        self._slices: list[Hashes] = []
        self._texts: dict[int, str] = {}
        self._clicked: list[Table] = []
        self._scored: list[Table] = []
        self._served: list[ServedPrediction] = []
        self.size = 0
        """Rows so far."""

    def examples(self, batch: Examples) -> None:
        """Add a batch of examples."""
        ids = hash_strings(batch.impression_ids)
        requests = _requests(batch.request_ids, ids)
        kept = _kept(requests, self._sample)
        first = kept & (batch.kinds != Kind.CLICKED)
        again = kept & (batch.kinds == Kind.CLICKED)
        self._shown.append(
            _table(SHOWN, ids[first], requests[first], batch.shown_ms[first], batch.labels[first])
        )
        columns = [
            self._sliced(batch.slices[name].filter(pa.array(first))) for name in self._fields
        ]
        self._slices.append(
            np.stack(columns, axis=1) if columns else np.zeros((int(first.sum()), 0), np.uint64)
        )
        self._clicked.append(_table(CLICKED, ids[again], batch.shown_ms[again]))
        self.size += int(kept.sum())

    def scores(self, batch: Scores) -> None:
        """Add a batch of scores. Scores outside 0 to 1 are left out."""
        ids = hash_strings(batch.impression_ids)
        kept = _kept(_requests(batch.request_ids, ids), self._sample) & _sound(batch.scores)
        self._scored.append(_table(SCORED, ids[kept], batch.event_ms[kept], batch.scores[kept]))
        self.size += int(kept.sum())

    def prediction(self, made: ServedPrediction) -> bool:
        """Add a prediction, if it is sampled; return False if its score is outside 0 to 1."""
        if not 0.0 <= made.score <= 1.0:
            return False
        identity = made.request_id if made.request_id is not None else made.impression_id
        if self._sample == 1.0 or _kept(np.array([hash_text(identity)]), self._sample)[0]:
            self._served.append(made)
            self.size += 1
        return True

    def take(
        self,
        now_ms: int,
        standings: dict[str, tuple[int | None, bool]],
        positions: Mapping[str, Committed] | None = None,
    ) -> EvaluationRows:
        """Return the collected rows, and start over.

        positions: by source, the position after its rows; the metadata is the topic id.
        """
        names = sorted({_series(made.alias) for made in self._served})
        numbers = {name: number for number, name in enumerate(names)}
        served = _table(
            SERVED,
            hash_strings(pa.array([made.impression_id for made in self._served], pa.string())),
            np.array([made.time for made in self._served], np.int64),
            np.array([made.score for made in self._served], np.float64),
            np.array([numbers[_series(made.alias)] for made in self._served], np.uint32),
        )
        rows = EvaluationRows(
            now_ms=now_ms,
            sample=self._sample,
            standings=standings,
            shown=_bytes(self._shown),
            slices=b"".join(each.tobytes() for each in self._slices),
            texts=self._texts,
            clicked=_bytes(self._clicked),
            scored=_bytes(self._scored),
            served=served.tobytes(),
            series=names,
            positions={name: at.offset for name, at in (positions or {}).items()},
            origins={
                name: (at.metadata, at.leader_epoch) for name, at in (positions or {}).items()
            },
        )
        self.__init__(self._fields, self._sample)  # type: ignore[misc]
        return rows

    def _sliced(self, values: pa.Array) -> Hashes:
        cut = pc.utf8_slice_codeunits(values.cast(pa.string()), 0, LONGEST_TEXT)
        different = cut.drop_null().unique()
        for code, text in zip(hash_strings(different).tolist(), different.to_pylist(), strict=True):
            self._texts[code] = text
        return hash_strings(cut)


def _series(alias: str) -> str:
    """Return the name of an alias here. An alias `learned` must not pass for the learner."""
    return f"{LEARNED}-alias" if alias == LEARNED else alias or BY_NAME


def _requests(request_ids: pa.StringArray, ids: Hashes) -> Hashes:
    """Return the hash of each request. An impression without a request is one by itself."""
    alone = request_ids.is_null().to_numpy(zero_copy_only=False)
    return np.where(alone, ids, hash_strings(request_ids))


def _kept(requests: Hashes, sample: float) -> npt.NDArray[np.bool_]:
    """Return the mask of sampled requests. It depends on their ids only."""
    kept: npt.NDArray[np.bool_] = (requests >> np.uint64(11)) * 2.0**-53 < sample
    return kept


def _sound(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return (scores >= 0.0) & (scores <= 1.0)


def _table(kind: np.dtype[np.void], *columns: npt.NDArray[np.generic]) -> Table:
    table = np.empty(columns[0].shape[0], kind)
    for name, column in zip(kind.names or (), columns, strict=True):
        table[name] = column
    return table


def _bytes(tables: list[Table]) -> bytes:
    return b"".join(table.tobytes() for table in tables)
