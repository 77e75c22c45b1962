"""Vector instructions for kernels: eight floats at once, and neighbouring numbers of a row.

This folder is a low-level optimization. A row has some sixteen floats, too few for LLVM's own
vectorizer, which takes 32 at a time. `simd` lets a kernel name eight coordinates at once;
`simd_rows` loads and stores two or four neighbouring numbers together. With plain loops a
factorization machine learned 125 k examples/s instead of 215 k.

Both reach into internals of numba and llvmlite, which `simd` lists; pyproject.toml pins their minor
versions, and tests/learner/kernels/test_intrinsics.py has a canary for each intrinsic. No plain
fallback is possible: an intrinsic emits LLVM instructions and has no Python body (ARCHITECTURE.md,
known flaws). tests/learner/kernels/test_lanes.py holds the results to those of single numbers, to
the bit.
"""
