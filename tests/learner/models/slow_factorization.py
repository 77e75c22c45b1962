"""A factorization machine as Rendle 2010 prints it: all pairs of inputs, one after the other.

Coordinates of rows are `slow_optimizers.Coordinate`, so this is the reference of every optimizer in
a model as well. Initial vectors are computed here from their definition.
"""

import math
from dataclasses import dataclass, field
from itertools import combinations

from tests.learner.kernels.slow_optimizers import Coordinate, kept
from tests.learner.models.slow_logistic import Row, Seen, SlowLogistic, mixed

_ALL = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass
class SlowFactorization(SlowLogistic):
    """The model: beside the counters of a row, its coordinates, the weight's first."""

    coordinates: dict[int, list[Coordinate]] = field(default_factory=dict)

    def begun(self, row_id: int, f: int) -> float:
        """The initial value of coordinate f of a row's vector."""
        structure = self.spec.structure
        origin = mixed(row_id ^ (structure.seed * _GOLDEN & _ALL))
        draw = mixed(origin + (f + 1) * _GOLDEN & _ALL) >> 40
        return (draw / 2**23 - 1.0) * structure.init_scale * math.sqrt(3)

    def _row(self, row_id: int) -> list[Coordinate]:
        vectors = [self.spec.optimizers.embeddings] * self.spec.structure.dimensions
        of = [self.spec.optimizers.weights, *(each for each in vectors if each is not None)]
        return [Coordinate(optimizer) for optimizer in of]

    def kept_in(self, row_id: int) -> list[float]:
        """The state of a row: of its weight, then of its vector."""
        weight, *vector = self.coordinates[row_id]
        return kept([weight]) + (kept(vector) if vector else [])

    def _standing(self, row_id: int, second: int) -> list[float]:
        """Weight and vector of a row, decayed to this second."""
        found = self.coordinates.get(row_id) or self._row(row_id)
        row = self.rows.get(row_id, Row())
        passed = max(0, second - row.last_seen) if row.last_seen else 0
        begun = [0.0, *(self.begun(row_id, f) for f in range(self.spec.structure.dimensions))]
        return [
            start + each.w * math.exp(-each.optimizer.decay_per_day * passed / 86_400)
            if each.optimizer.name != "ftrl"
            else start + each.w
            for start, each in zip(begun, found, strict=True)
        ]

    def answer(self, seen: Seen) -> tuple[float, list[list[float]]]:
        """Return the probability of a click, and the derivatives of its log-odds by input."""
        rows = [self._standing(row_id, seen.second) for row_id in seen.reads]
        x = [value for _, value in seen.inputs]
        y = sum(row[0] * value for row, value in zip(rows, x, strict=True))  # eq. (1)
        for j, k in combinations(range(1, len(rows)), 2):
            dot = sum(a * b for a, b in zip(rows[j][1:], rows[k][1:], strict=True))
            y += dot * x[j] * x[k]
        derivatives = []
        for k, row in enumerate(rows):  # eq. (4)
            others = [j for j in range(1, len(rows)) if j != k] if k else []
            vector = [x[k] * sum(rows[j][f] * x[j] for j in others) for f in range(1, len(row))]
            derivatives.append([x[k], *vector])
        return 1.0 / (1.0 + math.exp(-y)), derivatives

    def step(
        self, seen: Seen, gradients: list[list[float]], later: list[bool], inactive: tuple[int, ...]
    ) -> list[list[float]]:
        """Count an example in its rows, and step those that no next example of its slate shares.

        Coin bounds each gradient, so it steps by each. Return the gradients that are left.
        """
        left = []
        for (row_id, _), gradient, waits in zip(seen.inputs, gradients, later, strict=True):
            left.append([0.0] * len(gradient))
            if self.bucket(row_id) in inactive:
                continue
            counters = self.rows.setdefault(row_id, Row())
            found = self.coordinates.setdefault(row_id, self._row(row_id))
            for at, (coordinate, each) in enumerate(zip(found, gradient, strict=True)):
                if counters.last_seen and seen.second > counters.last_seen:
                    coordinate.decay(seen.second - counters.last_seen)
                if waits and coordinate.optimizer.name != "coin":
                    left[-1][at] = each
                # the intercept has no vector in eq. (1)
                elif coordinate is found[0] or row_id != seen.inputs[0][0]:
                    coordinate.step(each)
            self.count(counters, seen)
        return left
