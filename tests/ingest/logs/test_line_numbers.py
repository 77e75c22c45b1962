"""The numbers of lines are those of the file, however it is read."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.logs.line_numbers import NumberedLines, after_skipped

LINES = st.lists(st.sampled_from(["", "a", "b,c"]), max_size=30)


@given(lines=LINES, ending=st.sampled_from(["\n", "\r\n"]), size=st.integers(1, 40))
def test_a_line_with_text_has_its_number_in_the_file(
    lines: list[str], ending: str, size: int
) -> None:
    file = NumberedLines(pa.PythonFile(io.BytesIO(ending.join(lines).encode()), mode="r"))
    while file.read(size):
        pass
    filled = [number for number, text in enumerate(lines, 1) if text]
    assert [file.line_of(place) for place in range(1, len(filled) + 1)] == filled


@pytest.mark.parametrize(
    ("first", "rows", "skipped", "number"),
    [(2, 0, (), 2), (2, 3, (), 5), (2, 0, (2, 3), 4), (2, 1, (3,), 4), (5, 2, (2, 6, 8, 9), 10)],
)
def test_skipped_lines_are_no_rows(
    first: int, rows: int, skipped: tuple[int, ...], number: int
) -> None:
    assert after_skipped(first, rows, skipped) == number
