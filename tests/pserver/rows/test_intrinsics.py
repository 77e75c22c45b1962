"""Canaries of the intrinsics, which reach into numba; each names the file to look at."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import jit

from headrace.pserver.intrinsics.row_prefetch import prefetch, prefetch_at, prefetch_row
from headrace.pserver.intrinsics.row_view import record_of, row_of
from headrace.pserver.rows.columns import lay_out
from headrace.runtime.kernels.numba_kernels import kernel

ROWS, WIDTH = 5, 37
LOOK_AT = "numba has changed: look at pserver/intrinsics/"
COLUMNS: dict[str, tuple[Any, ...]] = {
    "ids": (np.uint64,),
    "shows": (np.uint64,),
    "seen": (np.uint32,),
    "values": (np.float32, (WIDTH,)),
}


def interleaved() -> dict[str, npt.NDArray[Any]]:
    """Columns of a table: the floats of a row are contiguous, and the rows are not."""
    columns = lay_out(ROWS, COLUMNS)
    columns["shows"][:] = np.arange(ROWS) * 10
    columns["seen"][:] = np.arange(ROWS) + 100
    columns["values"][:] = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    return columns


def compiled_anew(dispatcher: Any, *arguments: Any) -> Any:
    """The kernel with the same options, compiled for these arguments and not read from a cache."""
    anew = jit(**dispatcher.targetoptions)(dispatcher.py_func)
    anew(*arguments)
    return anew


@kernel
def _double_row(values, place):  # type: ignore[no-untyped-def]
    row = row_of(values, place)
    for k in range(row.shape[0]):
        row[k] *= np.float32(2.0)
    return row.shape[0]


def test_row_of_is_the_row_itself_and_its_width() -> None:
    columns = interleaved()
    expected = columns["values"].copy()
    expected[3] *= 2
    width = _double_row(columns["values"], np.int64(3))
    message = LOOK_AT + "row_view.py, _row_of (get_item_pointer, populate_array)"
    assert width == WIDTH, message
    np.testing.assert_array_equal(columns["values"], expected, err_msg=message)
    assert columns["seen"].tolist() == [100, 101, 102, 103, 104], message


@kernel
def _contiguous_sum(values, place):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    row = row_of(values, place)
    for k in range(row.shape[0]):
        total += row[k]
    return total


def test_row_of_is_typed_as_contiguous() -> None:
    """This is the reason for it: the compiler may process several floats at a time."""
    columns = interleaved()
    assert _contiguous_sum(columns["values"], np.int64(1)) == columns["values"][1].sum()
    anew = compiled_anew(_contiguous_sum, columns["values"], np.int64(1))
    [overload] = anew.overloads.values()
    typed = overload.type_annotation.typemap
    layouts = {name: kind.layout for name, kind in typed.items() if hasattr(kind, "layout")}
    assert layouts["row"] == "C", f"{LOOK_AT}row_view.py, _row_of: the view is {layouts['row']!r}"
    assert layouts["values"] == "A", "the test's columns are not interleaved"


_shown_and_seen = record_of({"shows": COLUMNS["shows"], "seen": COLUMNS["seen"]})


@kernel
def _note_seen(shows, place, seconds):  # type: ignore[no-untyped-def]
    record = _shown_and_seen(shows, place)
    record.shows += np.uint64(1)
    record.seen = seconds


def test_record_of_reads_and_writes_neighbouring_columns_of_one_row() -> None:
    columns = interleaved()
    _note_seen(columns["shows"], np.int64(2), np.uint32(7))
    message = LOOK_AT + "row_view.py, record_of (get_item_pointer, records)"
    assert columns["shows"].tolist() == [0, 10, 21, 30, 40], message
    assert columns["seen"].tolist() == [100, 101, 7, 103, 104], message
    assert columns["values"][2].tolist() == list(range(2 * WIDTH, 3 * WIDTH)), message


@kernel
def _prefetch_first(values, place):  # type: ignore[no-untyped-def]
    prefetch(values, place)


@kernel
def _prefetch_one(values, place):  # type: ignore[no-untyped-def]
    prefetch_at(values, place, 20)


@kernel
def _prefetch_all(values, place):  # type: ignore[no-untyped-def]
    prefetch_row(values, place)


@pytest.mark.parametrize(
    ("hinted", "hints"), [(_prefetch_first, 1), (_prefetch_one, 1), (_prefetch_all, 3)]
)
def test_a_prefetch_is_an_instruction_that_changes_nothing(hinted: Any, hints: int) -> None:
    columns = interleaved()
    before = columns["values"].copy()
    hinted(columns["values"], np.int64(4))
    np.testing.assert_array_equal(columns["values"], before)
    anew = compiled_anew(hinted, columns["values"], np.int64(4))
    [code] = anew.inspect_llvm().values()
    calls = code.count("call void @llvm.prefetch")
    assert calls >= hints, f"{LOOK_AT}row_prefetch.py: expected {hints} llvm.prefetch, got {calls}"
