"""A kernel is compiled again if anything that it contains has changed, also in another file.

The tests load the same files several times, as processes do. Each change keeps the size and the
time of the file, as an update by pip may.
"""

import collections
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


CONSTANT = "BY = 5\n"
"""The file constant.py, which other.py imports."""
OTHER = """
import numpy as np

from constant import BY
from headrace.runtime.kernels.numba_kernels import inlined

@inlined
def part(x):
    return BY * x
"""
KERNELS = """
import other
from headrace.runtime.kernels.kernel_cache import compiled_and_kept
from other import *

@compiled_and_kept(nogil=True)
def scaled(x):
    return {}

def answer():
    return scaled(1)
"""
SCALED = KERNELS.format("part(x)")


def write(path: Path, text: str) -> None:
    """Write a file and give it the size and time of every other version of it."""
    path.write_text(text)
    os.utime(path, ns=(0, 0))


def loaded_again(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of kernels as a new process would load it."""
    for name in ("kernels", "other", "constant"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("kernels")


def was_compiled(kernels: Any) -> bool:
    """Return whether the kernel was compiled, and its machine code not loaded."""
    return not sum(kernels.scaled.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with three modules, which are imported without files of bytecode."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in (("constant", CONSTANT), ("other", OTHER), ("kernels", SCALED)):
        write(tmp_path / f"{name}.py", text)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "before", "after", "result"),
    [
        ("kernels.py", "part(x)", "part(9)", 45),
        ("other.py", "BY * x", "BY + x", 6),
        ("constant.py", "BY = 5", "BY = 7", 7),
    ],
)
def test_a_kernel_is_compiled_again_after_a_change_in_a_file_that_it_needs(
    file: str, before: str, after: str, result: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for compiled in (True, False):
        kernels = loaded_again(monkeypatch)
        assert kernels.answer() == 5
        assert was_compiled(kernels) == compiled
    text = (folder / file).read_text()
    assert len(before) == len(after) and before in text
    write(folder / file, text.replace(before, after))
    for compiled in (True, False):
        kernels = loaded_again(monkeypatch)
        assert kernels.answer() == result
        assert was_compiled(kernels) == compiled


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("headrace.runtime.kernels.kernel_sources._VERSIONS", ("0.0.0",)),
        ("numba.config.BOUNDSCHECK", 1),
    ],
    ids=["versions of the compilers", "a setting of numba"],
)
def test_a_change_that_machine_code_depends_on_compiles_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: object
) -> None:
    assert loaded_again(monkeypatch).answer() == 5
    monkeypatch.setattr(setting, value)
    kernels = loaded_again(monkeypatch)
    assert kernels.answer() == 5
    assert was_compiled(kernels)


@pytest.mark.thorough
def test_a_kernel_that_is_called_during_the_import_of_its_module_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called_early = KERNELS.format("np.ones(3).shape[0] * x") + "\nanswer()\nshape = 5\n"
    write(folder / "kernels.py", called_early)
    for compiled in (True, False):
        kernels = loaded_again(monkeypatch)
        assert kernels.scaled(2.0) == 6.0
        assert was_compiled(kernels) == compiled
    assert len(list(folder.glob("__pycache__/*.nbc"))) == 2


CLOSURE = """
from headrace.runtime.kernels.kernel_cache import compiled_and_kept

def made(by):
    @compiled_and_kept(nogil=True)
    def scaled(x):
        return x * by
    return scaled

five, six = made(5), made(6)
"""


@pytest.mark.thorough
def test_kernels_with_a_closure_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "kernels.py", CLOSURE)
    for _ in range(2):
        kernels = loaded_again(monkeypatch)
        assert (kernels.five(2), kernels.six(2)) == (10, 12)
    assert not list(folder.glob("__pycache__/*.nbc"))


@pytest.mark.thorough
def test_a_kernel_is_compiled_again_if_fields_of_a_tuple_of_its_caller_change_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        folder / "kernels.py",
        KERNELS.format("x.two").replace("import other\n", "").replace("from other import *\n", ""),
    )
    for fields, expected in ((("one", "two"), 2), (("two", "one"), 1)):
        kernels = loaded_again(monkeypatch)
        made: Any = collections.namedtuple
        pair = made("pair", fields)
        assert kernels.scaled(pair(1, 2)) == expected
        assert was_compiled(kernels)


@pytest.mark.thorough
def test_a_file_that_changes_after_the_import_does_not_hide_old_machine_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = loaded_again(monkeypatch)
    write(folder / "constant.py", CONSTANT.replace("5", "6"))
    assert kernels.answer() == 5
    assert loaded_again(monkeypatch).answer() == 6
