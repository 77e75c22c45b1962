"""A plain reference for the ids of crosses, one number at a time."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.hashing import field_ids, fmix64

_FACTOR = 0x165667B19E3779F9


def cross_ids(parts: Sequence[npt.NDArray[np.uint64]], number: int) -> npt.NDArray[np.uint64]:
    """Return the ids of the crosses of these fields' ids; a part of one id stands for all."""
    hashes = []
    for row in zip(*np.broadcast_arrays(*parts), strict=True):
        hashed = number
        for part in row:
            mixed = (hashed * _FACTOR + int(part)) % (1 << 64)
            hashed = int(np.uint64(fmix64(np.uint64(mixed))))
        hashes.append(hashed)
    return field_ids(np.array(hashes, np.uint64), number)
