"""Surveys NDJSON: lines go through the joiner's decoder, so every reason is the joiner's own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from headrace.ingest.decoding.decoder import Decoded, Decoder
from headrace.ingest.decoding.json_scanner import ABSENT, LIST, TEXT, TICK
from headrace.ingest.events.contract import IMPRESSION_ID, TIME
from headrace.ingest.features.fields import FieldSet, Transform
from headrace.ingest.logs.byte_streams import opened_text
from headrace.ingest.survey.event_tallies import RefusalTally
from headrace.ingest.survey.findings import FieldCoverage, RefusedEvents, shortened

_BYTES_A_BLOCK = 8 << 20
_NUMBERS = (Transform.NUMBER, Transform.LOG_BUCKET)


class DecodedLines(NamedTuple):
    """The events of a block of lines."""

    lines: int
    times: npt.NDArray[np.int64]
    """Of the events that are not refused and not ticks; shape (n,)."""
    hashes: npt.NDArray[np.uint64]
    """Of their ids; shape (n,)."""
    places: npt.NDArray[np.int64]
    """Their line numbers, from 1; shape (n,)."""
    names: set[str]
    """Names in the first event."""


class LineReader:
    """Reads one file of events."""

    def __init__(self, path: Path, fields: FieldSet | None, refused: RefusalTally) -> None:
        self.path, self._refused = path, refused
        self._decoder = Decoder(fields, texts=True)

    def blocks(self, coverage: Sequence[FieldCoverage], now_ms: int) -> Iterator[DecodedLines]:
        """Yield the events of each block of lines, adding to the coverage and the refusals."""
        with self.path.open("rb") as file:
            for numbers, lines in _blocks_of_lines(opened_text(file, self.path)):
                decoded = self._decoder.decode(lines, np.full(len(lines), now_ms, np.int64))
                self._refuse(decoded, lines, numbers)
                good = decoded.found.states != TICK
                good[list(decoded.refused)] = False
                for each in coverage:
                    _cover(each, decoded, good)
                kept = np.flatnonzero(good)
                yield DecodedLines(
                    len(lines),
                    decoded.found.times[kept],
                    decoded.hashes(IMPRESSION_ID)[kept],
                    numbers[kept],
                    _names(lines[0]),
                )

    def find(self, line: int) -> tuple[str, str]:
        """Return the place and the text, shortened, of the line with this number."""
        with self.path.open("rb") as file:
            for number, text in enumerate(opened_text(file, self.path), 1):
                if number == line:
                    return self._place(line), shortened(text.decode("utf-8", "replace").rstrip())
        return self._place(line), ""

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


def _cover(each: FieldCoverage, decoded: Decoded, good: npt.NDArray[np.bool_]) -> None:
    row = decoded.places.get(each.source)
    if row is None:
        return
    kinds = decoded.found.kinds[row]
    present = good & (kinds != ABSENT)
    each.present += int(np.count_nonzero(present))
    wrong = np.zeros(0, np.bool_)
    if each.transform == Transform.BAG:
        single = present & (kinds == TEXT)
        each.single += int(np.count_nonzero(single))
        each.example = each.example or _text(decoded, row, single)
    elif each.transform in _NUMBERS:
        wrong = present & np.isnan(decoded.found.reals[row])
    else:
        wrong = present & (kinds == LIST)
    if count := int(np.count_nonzero(wrong)):
        each.unusable += count
        each.example = each.example or _text(decoded, row, wrong)


def _text(decoded: Decoded, row: int, chosen: npt.NDArray[np.bool_]) -> str:
    if not chosen.any():
        return ""
    place, found = int(np.argmax(chosen)), decoded.found
    if found.kinds[row, place] == LIST:
        return "an array"
    begin, end = int(found.begins[row, place]), int(found.ends[row, place])
    return shortened(decoded.data[begin:end].tobytes().decode("utf-8", "replace"))


def _time_in(line: bytes) -> float | None:
    event = _event(line)
    time = event.get(TIME) if event else None
    known = isinstance(time, int | float) and not isinstance(time, bool)
    return float(time) if known else None  # type: ignore[arg-type]


def _names(line: bytes) -> set[str]:
    return set(_event(line) or {})


def _event(line: bytes) -> dict[str, object] | None:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None
