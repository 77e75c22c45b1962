"""Optimizers as their papers print them: one coordinate, plain numbers, nothing additive.

Written independently of the kernels. Weight decay is done as the seconds go by, one after another,
where the kernels catch up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.learner.spec.optimizer_spec import Optimizer

DAY_S = 86_400
KEPT = {"sgd": "w", "adagrad": "wn", "ftrl": "zn", "adam": "wmvt", "coin": "mnv"}
"""The state of a group in a row: t is held once, the other components once a coordinate."""


def kept(group: list[Coordinate]) -> list[float]:
    """Return what a row holds of coordinates that one optimizer moves."""
    names = KEPT[group[0].optimizer.name]
    found = [float(getattr(each, name)) for name in names.replace("t", "") for each in group]
    return [*found, float(group[0].t)] if "t" in names else found


@dataclass
class Coordinate:
    """A parameter, and how one optimizer moves it."""

    optimizer: Optimizer
    w: float = 0.0
    z: float = 0.0
    n: float = 0.0
    m: float = 0.0
    v: float = 0.0
    t: int = 0

    def decay(self, seconds: float) -> None:
        """Let so much time pass."""
        if self.optimizer.name not in ("ftrl", "coin"):
            self.w *= math.exp(-self.optimizer.decay_per_day * seconds / DAY_S)

    def step(self, g: float) -> None:
        """Take one step along a gradient."""
        getattr(self, "_" + self.optimizer.name)(g)

    def _sgd(self, g: float) -> None:
        self.w -= self.optimizer.alpha * g

    def _adagrad(self, g: float) -> None:
        # Duchi et al. 2011, figure 1, diagonal: G_t = sum of g g^T, x -= eta (delta + G^1/2)^-1 g
        self.n += g * g
        self.w -= self.optimizer.alpha * g / (self.optimizer.epsilon + math.sqrt(self.n))

    def _ftrl(self, g: float) -> None:
        # McMahan et al. 2013, Algorithm 1
        o = self.optimizer
        sigma = (math.sqrt(self.n + g * g) - math.sqrt(self.n)) / o.alpha
        self.z, self.n = self.z + g - sigma * self.w, self.n + g * g
        if abs(self.z) <= o.l1:
            self.w = 0.0
        else:
            rate = (o.beta + math.sqrt(self.n)) / o.alpha + o.l2
            self.w = -(self.z - math.copysign(o.l1, self.z)) / rate

    def _adam(self, g: float) -> None:
        # Kingma and Ba 2015, Algorithm 1
        o = self.optimizer
        self.t += 1
        self.m = o.beta1 * self.m + (1 - o.beta1) * g
        self.v = o.beta2 * self.v + (1 - o.beta2) * g * g
        m_hat = self.m / (1 - o.beta1**self.t)
        v_hat = self.v / (1 - o.beta2**self.t)
        self.w -= o.alpha * m_hat / (math.sqrt(v_hat) + o.epsilon)

    def _coin(self, g: float) -> None:
        # Orabona and Tommasi 2017, Algorithm 2: bet, see the coin, keep what was won. Here n sums
        # the sizes, m the gradients taken away, v is the wealth beyond what it began with
        o = self.optimizer
        coin = -min(max(g, -o.beta), o.beta)
        self.v += coin * self.w
        self.m += coin
        self.n += abs(coin)
        self.w = (o.alpha + self.v) * self.m / (o.beta * (o.beta + self.n))
