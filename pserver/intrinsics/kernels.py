"""The decorators of compiled kernels.

Most kernels neither allocate memory nor are called from C. Without numba's reference counting
(`_nrt`) and without a wrapper for C they compile faster and skip the counting. `_nrt` is not
documented; numba's own sorting kernels use it. ingest.runtime.numba_kernels has decorators of the
same kind, because neither part may import the other.
"""

from typing import Any

from numba import njit

from headrace.kernel_cache import compiled_and_kept

_BARE: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}

kernel: Any = compiled_and_kept(**_BARE)
"""Compiles a kernel and caches its machine code on disk."""

counted_kernel: Any = compiled_and_kept(nogil=True)
"""Compiles a kernel with reference counting, for kernels that take records out of arrays."""

inlined_kernel: Any = njit(forceinline=True, **_BARE)
"""Compiles a function into each of its callers; it has no machine code of its own to cache."""
