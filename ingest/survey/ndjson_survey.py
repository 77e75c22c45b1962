"""Surveys NDJSON: lines go through the joiner's decoder, so every reason is the joiner's own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from headrace.ingest.decoding.decoder import Decoded, Decoder
from headrace.ingest.decoding.json_scanner import ABSENT, LIST, TEXT, TICK
from headrace.ingest.events.contract import IMPRESSION_ID, TIME
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.logs.byte_streams import opened_text
from headrace.ingest.survey.event_tallies import RefusalTally
from headrace.ingest.survey.findings import (
    FieldCoverage,
    FieldValues,
    RefusedEvents,
    SurveyedEvents,
    shortened,
)

_BYTES_A_BLOCK = 8 << 20


class LineReader:
    """Reads one file of events."""

    def __init__(self, path: Path, fields: FieldSet | None, refused: RefusalTally) -> None:
        self.path, self._refused = path, refused
        self._decoder = Decoder(fields, texts=True)

    def blocks(self, coverage: Sequence[FieldCoverage], now_ms: int) -> Iterator[SurveyedEvents]:
        """Yield the events of each block of lines, adding to the coverage and the refusals."""
        with self.path.open("rb") as file:
            for numbers, lines in _blocks_of_lines(opened_text(file, self.path)):
                yield self._block(numbers, lines, coverage, now_ms)

    def _block(
        self,
        numbers: npt.NDArray[np.int64],
        lines: list[bytes],
        coverage: Sequence[FieldCoverage],
        now_ms: int,
    ) -> SurveyedEvents:
        decoded = self._decoder.decode(lines, np.full(len(lines), now_ms, np.int64))
        self._refuse(decoded, lines, numbers)
        good = decoded.found.states != TICK
        good[list(decoded.refused)] = False
        for each in coverage:
            if (row := decoded.places.get(each.source)) is not None:
                each.count(_values_in(decoded, row, good))
        kept = np.flatnonzero(good)

        def show(place: int) -> tuple[str, str]:
            text = lines[kept[place]].decode("utf-8", "replace").rstrip()
            return self._place(int(numbers[kept[place]])), shortened(text)

        return SurveyedEvents(
            len(lines),
            set(_event(lines[0]) or {}),
            decoded.found.times[kept],
            decoded.hashes(IMPRESSION_ID)[kept],
            show,
        )

    def _place(self, line: int) -> str:
        return f"{self.path}, line {line}"

    def _refuse(
        self, decoded: Decoded, lines: Sequence[bytes], numbers: npt.NDArray[np.int64]
    ) -> None:
        for place, reason in decoded.refused.items():
            if self._refused.knows(reason):
                self._refused.add(RefusedEvents(reason, 1))
                continue
            text = shortened(lines[place].decode("utf-8", "replace"))
            where, time = self._place(int(numbers[place])), _time_in(lines[place])
            self._refused.add(RefusedEvents(reason, 1, where, text, time))


def _blocks_of_lines(file: BinaryIO) -> Iterator[tuple[npt.NDArray[np.int64], list[bytes]]]:
    """Yield blocks of lines that are not empty, with their numbers in the file, from 1."""
    rest, first = b"", 1
    while read := file.read(_BYTES_A_BLOCK):
        *lines, rest = (rest + read).split(b"\n")
        numbers = np.arange(first, first + len(lines), dtype=np.int64)
        first += len(lines)
        if b"" in lines or b"\r" in lines:
            filled = np.array([bool(line.rstrip()) for line in lines], np.bool_)
            numbers, lines = numbers[filled], [line for line in lines if line.rstrip()]
        if lines:
            yield numbers, lines
    if rest.rstrip():
        yield np.array([first], np.int64), [rest]


def _values_in(decoded: Decoded, row: int, good: npt.NDArray[np.bool_]) -> FieldValues:
    found = decoded.found
    kinds = found.kinds[row]

    def text(place: int) -> str:
        if kinds[place] == LIST:
            return "an array"
        begin, end = int(found.begins[row, place]), int(found.ends[row, place])
        return decoded.data[begin:end].tobytes().decode("utf-8", "replace")

    return FieldValues(good & (kinds != ABSENT), kinds != TEXT, ~np.isnan(found.reals[row]), text)


def _time_in(line: bytes) -> float | None:
    event = _event(line)
    time = event.get(TIME) if event else None
    known = isinstance(time, int | float) and not isinstance(time, bool)
    return float(time) if known else None  # type: ignore[arg-type]


def _event(line: bytes) -> dict[str, object] | None:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None
