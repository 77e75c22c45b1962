"""Moments of growing samples: what an experiment knows after each of its batches."""

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]


def running_moments(values: Reals) -> tuple[Reals, Reals, Reals]:
    """Return n, mean and standard deviation after each value along the last axis."""
    counts = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    shifted = values - values[..., :1]  # sums of squares keep their digits
    sums, squares = np.cumsum(shifted, -1), np.cumsum(shifted * shifted, -1)
    spread = np.maximum(squares - sums * sums / counts, 0.0)
    deviations = np.sqrt(spread / np.maximum(counts - 1.0, 1.0))
    return counts, sums / counts + values[..., :1], deviations
