"""Confidence sequences: intervals for a mean that hold at all comparisons at once.

A fixed-horizon interval at 95 % is wrong far more often than in 5 % of experiments if it is looked
at again and again. A confidence sequence covers the mean at *every* n at once with probability
1 - alpha (Robbins, "Statistical methods related to the law of the iterated logarithm", 1970;
Howard et al., "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021). With x_1,
..., x_n of mean m and standard deviation s, Robbins' normal mixture gives asymptotically
(Waudby-Smith et al., "Time-uniform central limit theory and asymptotic confidence sequences", 2021)

    m +- s sqrt((n rho^2 + 1) / (n^2 rho^2) log((n rho^2 + 1) / alpha^2))                     (1)

An experiment has few batches, some dozens, and s is estimated from them too. (1) then errs in 7 to
11 % of experiments at a promised 5 %. So the mixture is taken over the t statistic instead (Lai,
"On confidence sequences", 1976; Lindon et al., "Anytime-valid linear models", 2022; Wang and
Ramdas, "Anytime-valid t-tests", 2023): with r = 1 / rho^2, k = r / (r + n), t = sqrt(n) m / s

    E_n = sqrt(k) [(1 + t^2 / (n - 1)) / (1 + k t^2 / (n - 1))]^(n / 2)                       (2)

is a martingale of mean 1 for Gaussian x of mean 0 and any variance. By Ville's inequality it ever
reaches 1 / alpha with probability alpha at most. The means that (2) does not reject are

    m +- s sqrt((n - 1) u / n),  u = (c - 1) / (1 - c k),  c = (1 / (alpha sqrt(k)))^(2 / n)   (3)

and all means where c k >= 1. For many batches, (3) becomes (1). Both hold for batches that are
nearly independent and nearly normal, which is why batches are long (`losses`).
"""

import math

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]


def mixture_precision(alpha: float, batches: float) -> float:
    """Return r for which (1) is narrowest after so many batches (Waudby-Smith et al., 2021)."""
    spread = -2.0 * math.log(alpha)
    return batches / (spread + math.log(spread) + 1.0)


def half_width(
    counts: Reals, deviations: Reals, alpha: float | Reals, precision: float | Reals
) -> Reals:
    """Return half the widths of (3); infinite with too few values.

    counts: n, from 1 up. deviations: s, with n - 1 in the denominator; 0 where n is 1. `precision`:
    r. The four are of one shape, or are numbers.
    """
    counts = np.asarray(counts, np.float64)
    k = precision / (precision + counts)
    with np.errstate(over="ignore", invalid="ignore"):
        c = (1.0 / (alpha * np.sqrt(k))) ** (2.0 / counts)
        bounded = (c * k < 1.0) & (counts > 1)
        u = np.where(bounded, (c - 1.0) / np.where(bounded, 1.0 - c * k, 1.0), np.inf)
        width = deviations * np.sqrt((counts - 1.0) * u / counts)
    return np.where(bounded, width, np.inf)
