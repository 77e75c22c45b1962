"""The bits of row ids: a mixing function, and the id of the rare row that replaces an id."""

import numpy as np

from headrace.runtime.kernels.numba_kernels import inlined, kernel

_TO_PRIME_A = np.uint64(0xFF51AFD7ED558CCD)


_TO_PRIME_B = np.uint64(0xC4CEB9FE1A85EC53)


@inlined
def mix(bits):  # type: ignore[no-untyped-def]
    """Return 64 bits that each depend on all bits given (MurmurHash3 fmix64). Compiled."""
    bits ^= bits >> np.uint64(33)
    bits *= _TO_PRIME_A
    bits ^= bits >> np.uint64(33)
    bits *= _TO_PRIME_B
    return bits ^ (bits >> np.uint64(33))


NUMBER_BITS = np.uint64(1023)


_PATTERN = np.uint64(0x5A17C0DE5A17C0DE)
"""An arbitrary constant: a hash of 54 bits equals it as rarely as it equals another hash."""


@kernel
def rare_id(row_id, high):  # type: ignore[no-untyped-def]
    """Return the id of the rare row of an id's field and bucket. Compiled.

    high: the bits of an id that say its bucket.
    """
    return (row_id & high) | (_PATTERN & ~high & ~NUMBER_BITS) | (row_id & NUMBER_BITS)
