"""Decodes JSON events into the columns that a model needs.

`scan` finds the declared fields of plain events in their bytes. Events that it marks as odd are
read here by `read_event`, the plain fallback. The canonical texts of their values are appended to
the bytes of the messages, so that later steps see no difference. The result is `Decoded`: columns
for the encoder, texts for the joiner, and the reasons why messages are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from headrace.ingest.decoding.json_scanner import (
    ABSENT,
    LIST,
    NEEDS_ITEMS,
    NEEDS_REAL,
    NEEDS_TEXT,
    ODD,
    PLAIN,
    TEXT,
    TICK,
    FieldPositions,
    names_of,
    no_positions,
    scan,
)
from headrace.ingest.events.contract import (
    AHEAD_MS,
    EARLIEST_MS,
    IMPRESSION_ID,
    LATEST_MS,
    REQUEST_ID,
    TIME,
    Reason,
    is_tick,
    read_event,
)
from headrace.ingest.features.fields import FieldSet, Transform
from headrace.ingest.features.hashing import ABSENT as NO_HASH
from headrace.ingest.features.hashing import canonical, real, xxh64
from headrace.runtime.kernels.numba_kernels import kernel

Hashes = npt.NDArray[np.uint64]
Longs = npt.NDArray[np.int64]

_NEEDED = {
    Transform.ID: NEEDS_TEXT,
    Transform.BAG: NEEDS_TEXT | NEEDS_ITEMS,
    Transform.LOG_BUCKET: NEEDS_REAL,
    Transform.NUMBER: NEEDS_REAL,
    Transform.HOUR: NEEDS_REAL,
    Transform.PERIOD: NEEDS_REAL,
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of n messages, in columns."""

    data: npt.NDArray[np.uint8]
    """The bytes of all messages, then the texts that are not among them."""
    found: FieldPositions
    places: dict[str, int]
    """The row of each raw field in `found`."""
    refused: dict[int, Reason]
    """Why a message is not an event, by its index."""

    def __len__(self) -> int:
        return int(self.found.states.shape[0])

    def hashes(self, source: str) -> Hashes:
        """Return the hash of each canonical text of a raw field; shape (n,)."""
        row, found = self.places[source], self.found
        hashes = np.empty(len(self), np.uint64)
        _hash_texts(self.data, found.kinds[row], found.begins[row], found.ends[row], hashes)
        return hashes

    def reals(self, source: str) -> npt.NDArray[np.float64]:
        """Return the numbers of a raw field, NaN where missing; shape (n,)."""
        reals: npt.NDArray[np.float64] = self.found.reals[self.places[source]]
        return reals

    def absent(self, source: str) -> npt.NDArray[np.bool_]:
        """Return where a raw field with text is missing or null; shape (n,)."""
        absent: npt.NDArray[np.bool_] = self.found.kinds[self.places[source]] == ABSENT
        return absent

    def items(self, source: str) -> tuple[Hashes, Longs]:
        """Return the hashes of all items, event by event, and the number of each event; (n,)."""
        row, found = self.places[source], self.found
        kinds, begins, ends = found.kinds[row], found.begins[row], found.ends[row]
        lengths = np.where(kinds == LIST, ends - begins, kinds == TEXT)
        hashes = np.empty(int(lengths.sum()), np.uint64)
        items = found.item_kinds, found.item_begins, found.item_ends
        _hash_items(self.data, kinds, begins, ends, items, hashes)
        return hashes, lengths

    def text_places(self, sources: Sequence[str]) -> tuple[Longs, npt.NDArray[np.int32]]:
        """Return the start of each raw field's text in `data`, and its length, -1 if absent.

        Both have the shape (n, sources).
        """
        rows, found = [self.places[source] for source in sources], self.found
        begins = found.begins[rows].T
        lengths = np.where(found.kinds[rows] == TEXT, found.ends[rows] - found.begins[rows], -1)
        return np.ascontiguousarray(begins), np.ascontiguousarray(lengths.T.astype(np.int32))


class Decoder:
    """Decodes messages of one topic. Without `fields` it reads only their ids and times."""

    def __init__(self, fields: FieldSet | None, *, texts: bool = False) -> None:
        """texts: keep the text of every field, so that a missing value differs from a wrong one."""
        needs = {IMPRESSION_ID: NEEDS_TEXT, TIME: 0}
        if fields is not None:
            for source in (REQUEST_ID, *fields.slice_by):
                needs[source] = needs.get(source, 0) | NEEDS_TEXT
            if weight := fields.weights.source:
                # the text tells a word, which is refused, from a missing value
                needs[weight] = needs.get(weight, 0) | NEEDS_TEXT | NEEDS_REAL
            for field in (*fields.singles, *fields.bags, *fields.numbers):
                if field.source:  # others are made of other fields
                    needed = needs.get(field.source, 0) | _NEEDED[field.transform]
                    needs[field.source] = needed
        if texts:
            needs = {source: need | NEEDS_TEXT for source, need in needs.items()} | {TIME: 0}
        self._needs = needs
        self._names = names_of(needs)
        self._places = {source: row for row, source in enumerate(needs)}

    def decode(self, values: Sequence[bytes], append_ms: Longs) -> Decoded:
        """Return the content of one or more messages."""
        bounds = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=bounds[1:])
        data = np.frombuffer(b"".join(values), np.uint8)
        latest_ms = np.where(append_ms > 0, append_ms + AHEAD_MS, LATEST_MS)
        found = no_positions(self._names, len(values), data.shape[0])
        scan(data, bounds, EARLIEST_MS, latest_ms, self._names, found)
        refused: dict[int, Reason] = {}
        odd = np.flatnonzero(found.states == ODD).tolist()
        if odd:
            texts: list[bytes] = []
            end = data.shape[0]
            for place in odd:
                event = read_event(values[place], int(append_ms[place]))
                if isinstance(event, Reason):
                    refused[place] = event
                else:
                    end = self._keep(event, place, found, texts, end)
            data = np.frombuffer(b"".join([*values, *texts]), np.uint8)
        return Decoded(data, found, self._places, refused)

    def _keep(
        self,
        event: dict[str, object],
        place: int,
        found: FieldPositions,
        texts: list[bytes],
        end: int,
    ) -> int:
        """Record the values of an event as `scan` would; `texts` begin at `end`."""

        def noted(value: object) -> tuple[int, int, int]:
            nonlocal end
            text = canonical(value)
            if text is None:
                return ABSENT, 0, 0
            texts.append(text.encode())
            begin, end = end, end + len(texts[-1])
            return TEXT, begin, end

        found.states[place] = TICK if is_tick(event) else PLAIN
        found.times[place] = cast("int", event[TIME])
        for row, (source, need) in enumerate(self._needs.items()):
            value = event.get(source)
            if isinstance(value, list):
                begin = int(found.item_count[0])
                for item in value if need & NEEDS_ITEMS else []:
                    at = int(found.item_count[0])
                    found.item_kinds[at], found.item_begins[at], found.item_ends[at] = noted(item)
                    found.item_count[0] += 1
                kept = LIST, begin, int(found.item_count[0])
            else:
                kept = noted(value) if need & NEEDS_TEXT else (ABSENT, 0, 0)
            found.kinds[row, place], found.begins[row, place], found.ends[row, place] = kept
            if need & NEEDS_REAL:
                found.reals[row, place] = real(value)
        return end


@kernel
def _hash_texts(data, kinds, begins, ends, hashes):  # type: ignore[no-untyped-def]
    """Write the hash of each text `data[begins[i]:ends[i]]` that is not absent."""
    for i in range(hashes.shape[0]):
        hashes[i] = xxh64(data, begins[i], ends[i]) if kinds[i] == TEXT else NO_HASH


@kernel
def _hash_items(data, kinds, begins, ends, items, hashes):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(kinds.shape[0]):
        if kinds[i] == TEXT:
            hashes[at] = xxh64(data, begins[i], ends[i])
            at += 1
        elif kinds[i] == LIST:
            for j in range(begins[i], ends[i]):
                known = items[0][j] == TEXT
                hashes[at] = xxh64(data, items[1][j], items[2][j]) if known else NO_HASH
                at += 1
