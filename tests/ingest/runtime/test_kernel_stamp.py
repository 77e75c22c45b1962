"""Every kernel of the product has a stamp, which is the same in every process."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit, typeof, types
from numba.core.dispatcher import Dispatcher

from headrace.kernel_stamp import NoStamp, stamp_of

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("ingest", "pserver", "learner")
DECORATED = re.compile(r"^@(?:kernel|counted_kernel|compiled_and_kept\(.*\))$", re.MULTILINE)


def kernel_modules() -> list[str]:
    """Return the names of the modules that define kernels."""
    paths = (path for part in PARTS for path in sorted((ROOT / part).rglob("*.py")))
    return [
        ".".join(("headrace", *path.relative_to(ROOT).with_suffix("").parts))
        for path in paths
        if DECORATED.search(path.read_text())
    ]


def stamps(modules: list[str]) -> dict[str, str]:
    """Return the stamps of the kernels of these modules, imported in this order."""
    found = {}
    for module in map(importlib.import_module, modules):
        for name, value in vars(module).items():
            if isinstance(value, Dispatcher) and value.__module__ == module.__name__:
                found[f"{module.__name__}.{name}"] = stamp_of(value, [types.int64], b"").hex()
    return dict(sorted(found.items()))


@pytest.mark.thorough
def test_every_kernel_has_the_same_stamp_in_a_process_that_imports_in_another_order() -> None:
    modules = kernel_modules()
    assert len(modules) > 10
    code = f"""
from tests.ingest.runtime.test_kernel_stamp import stamps

print(stamps({modules[::-1]}))
"""
    child = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    here = stamps(modules)
    assert len(here) > 50
    assert child.stdout.strip() == str(here)


@njit
def _counted(x):  # type: ignore[no-untyped-def]
    return x


type_of: Any = typeof


def stamp(kernel: Any, *arguments: types.Type) -> bytes:
    """Return the stamp of a kernel for these types."""
    return stamp_of(kernel, arguments, b"")


def test_types_of_arguments_and_the_source_are_a_part_of_the_stamp() -> None:
    made = {
        stamp(_counted),
        stamp(_counted, types.int64),
        stamp(_counted, types.int64, types.int64),
        stamp(_counted, type_of((1, 2))),
        stamp(_counted, type_of((1, 2.0))),
        stamp_of(_counted, [], b"other"),
    }
    assert len(made) == 6


CONSTANTS = [
    *(0, 1, -1, True, False, None, "", "0", b"", b"0", 0.0, -0.0, 1.0, float("nan"), 0j, ...),
    *((), (0,), (0, 0), (0.0,), ((0,), 0), (0, (0,)), [], [0], {}, {"a": 0}, {"b": 0}, {0: "a"}),
    *(frozenset(), frozenset({0}), frozenset({1}), {1}, abs, len),
    *(np.int64(0), np.int32(0), np.float32(0.0), np.uint64(2**64 - 1), np.float32, np.float64),
    *(np.zeros(2), np.zeros(3), np.zeros((1, 2)), np.zeros((2, 1)), np.zeros(2, np.float32)),
    *(np.zeros(2, [("a", "f4")]), np.zeros(2, [("b", "f4")]), np.dtype("f4"), np.dtype("f8")),
    *(np.array([[1, 2], [3, 4]]), np.asfortranarray([[1, 2], [3, 4]]), np.add, np.subtract),
    *(types.int64, types.float64, types.int64[:], types.int64[::1], type_of((1,))),
]


def test_constants_that_differ_in_type_or_value_have_different_stamps() -> None:
    made: dict[bytes, object] = {}
    for constant in CONSTANTS:

        @njit
        def kernel(constant=constant):  # type: ignore[no-untyped-def]
            return constant

        one = stamp(kernel)
        assert one not in made, (constant, made[one])
        made[one] = constant


def test_equal_functions_have_the_same_stamp_wherever_they_stand() -> None:
    def made() -> Any:
        @njit
        def kernel(x):  # type: ignore[no-untyped-def]
            return x in {"a", "b", "c"}

        return kernel

    assert stamp(made()) == stamp(made())


def test_functions_that_call_each_other_have_a_stamp() -> None:
    @njit
    def even(x):  # type: ignore[no-untyped-def]
        return x == 0 or odd(x - 1)

    @njit
    def odd(x):  # type: ignore[no-untyped-def]
        return x != 0 and even(x - 1)

    assert stamp(even) != stamp(odd)


@pytest.mark.parametrize("constant", [object(), np.array([object()]), iter(())])
def test_an_object_of_an_unknown_kind_has_no_stamp(constant: object) -> None:
    @njit
    def kernel(x):  # type: ignore[no-untyped-def]
        return constant

    with pytest.raises(NoStamp, match="expected constants"):
        stamp(kernel)


def test_a_type_that_contains_an_address_has_no_stamp() -> None:
    with pytest.raises(NoStamp, match="same name in every process"):
        stamp(_counted, types.Dispatcher(_counted))
