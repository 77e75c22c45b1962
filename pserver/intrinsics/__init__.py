"""Compiled access to the memory of rows, below what numba offers in Python.

Looking up, reading and changing rows is the inner loop of learners, replicas and servers, and rows
are outside of every cache. Plain numba code waits for each row's memory in turn, and computes
addresses for strides and negative indexes that rows never have. `row_prefetch` asks for memory
ahead, and `row_view` declares that a row's floats are contiguous.

These modules reach into numba and LLVM: the internal functions `cgutils.get_item_pointer` and
`arrayobj.populate_array`, the layout of numba's array structure, and `llvm.prefetch`. A new version
of numba may change them, so pyproject.toml pins the minor versions of numba and llvmlite, and
tests/pserver/rows/test_intrinsics.py has a canary for each intrinsic. No plain fallback is
possible: an intrinsic has no Python body (ARCHITECTURE.md, known flaws).
"""
