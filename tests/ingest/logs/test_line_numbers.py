"""The numbers of lines are those of the file, however it is read."""

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs import table_file
from headrace.ingest.logs.layout import FileLayout
from headrace.ingest.logs.line_numbers import CsvLines, after_skipped
from headrace.ingest.logs.table_file import TableBlock, TableFile

TEXT = st.lists(st.sampled_from(["a", ",", '"', "\n", "\r\n", "\r", ""]), max_size=40)


def lines_of(text: str) -> list[int]:
    """Return the line in which each row that is not empty begins, with another parser."""
    rows, found, begin = csv.reader(io.StringIO(text, newline="")), [], 1
    for row in rows:
        if row:
            found.append(begin)
        begin = rows.line_num + 1
    return found


@given(parts=TEXT)
@example(parts=['"', "\r\n", '"', '"', "\n", '"', "a", '"', "\r", ",", "a"])
def test_a_row_has_the_number_of_the_line_in_which_it_begins(parts: list[str]) -> None:
    text = "".join(parts)
    lines = CsvLines(pa.BufferReader(text.encode()), ",", 1 << 20)
    expected = lines_of(text)
    assert [lines.line_of(row) for row in range(1, len(expected) + 1)] == expected
    assert [lines.line_of(row) for row in range(len(expected), 0, -1)] == expected[::-1]


@pytest.mark.parametrize(
    ("first", "rows", "skipped", "number"),
    [(2, 0, (), 2), (2, 3, (), 5), (2, 0, (2, 3), 4), (2, 1, (3,), 4), (5, 2, (2, 6, 8, 9), 10)],
)
def test_skipped_lines_are_no_rows(
    first: int, rows: int, skipped: tuple[int, ...], number: int
) -> None:
    assert after_skipped(first, rows, skipped) == number


def comments(path: Path, count: int) -> list[int]:
    """Write rows with values of two lines, empty lines and wide rows; return where rows begin."""
    text, lines, line = "id,comment\n", [], 2
    for number in range(count):
        lines.append(line)
        text += f'{number},"first\nsecond, of ""{number}"""\n'
        line += 2
        if number % 3 == 0:
            text += "\n"
            line += 1
        if number % 5 == 0:
            text += f'{number},"much\r\ntoo",wide\n'
            line += 2
    path.write_bytes(text.encode())
    return lines


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_values_with_line_breaks_are_read_and_rows_named_by_their_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(table_file, "_BYTES_A_BLOCK", block_bytes)
    path = tmp_path / "log.csv"
    expected = comments(path, 100)
    places, values, wide = [], [], []
    for block in TableFile(path, "csv", FileLayout()).blocks():
        if isinstance(block, TableBlock):
            places += [block.place(row) for row in range(block.rows)]
            values += block.arrow["comment"].to_pylist()
        else:
            wide.append(block.line)
    assert places == [f"line {line}" for line in expected]
    assert values == [f'first\nsecond, of "{number}"' for number in range(100)]
    assert wide == [
        line + 2 + (place % 3 == 0) for place, line in enumerate(expected) if place % 5 == 0
    ]


@pytest.mark.parametrize("block_bytes", [128, 1 << 20])
@pytest.mark.parametrize(
    "row", ['7,"no end', '"7,no end', '7,"two\nlines, ""quoted""'], ids=["last", "first", "two"]
)
def test_a_value_whose_quote_is_not_closed_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, row: str
) -> None:
    monkeypatch.setattr(table_file, "_BYTES_A_BLOCK", block_bytes)
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["id,comment", *["1,x"] * 20, row, *["2,y"] * 100, ""]))
    with pytest.raises(SpecError, match="value that begins with one in line 22, got none"):
        list(TableFile(path, "csv", FileLayout()).blocks())


def test_quotes_inside_of_a_value_without_quotes_are_text(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('id,size\n1,5" screen\n2,7" screen\n')
    [block] = TableFile(path, "csv", FileLayout()).blocks()
    assert isinstance(block, TableBlock)
    assert block.arrow["size"].to_pylist() == ['5" screen', '7" screen']
    assert block.place(1) == "line 3"


def test_no_thread_of_arrow_holds_a_python_object_once_a_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("a,b\n" + "1,2\n" * 5_000_000)
    blocks = TableFile(path, "csv", FileLayout()).blocks()
    next(blocks)
    assert table_file._handlers, "the handler of odd rows is held while rows are left"
    del blocks
    assert table_file.handlers_released()
