"""One arm: a model in memory, its scores that wait for outcomes, and its losses."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet
from headrace.learner.experiments.experiment_file import ArmPlan
from headrace.learner.experiments.losses import LossPieces, LossTable, Settled, loss_sums
from headrace.learner.local.in_memory_model import InMemoryModel


class FieldSelection:
    """The fields of an arm among those that examples have."""

    def __init__(self, given: FieldSet, own: FieldSet) -> None:
        """`own`: some of the fields of `given`."""
        self._bags = len(given.bags)
        self._whole = (
            (own.singles, own.bags, own.numbers) == (given.singles, given.bags, given.numbers)
        )  # fmt: skip
        self._singles = [given.singles.index(field) for field in own.singles]
        self._numbers = [given.numbers.index(field) for field in own.numbers]
        self._chosen = [given.bags.index(field) for field in own.bags]

    def __call__(self, examples: Examples) -> Examples:
        """Return the examples with the arm's fields."""
        if self._whole:
            return examples
        features = examples.features
        return replace(
            examples,
            features=Encoded(
                np.ascontiguousarray(features.ids[:, self._singles]),
                *self._some_bags(features, len(examples)),
                np.ascontiguousarray(features.numbers[:, self._numbers]),
            ),
        )

    def _some_bags(
        self, features: Encoded, count: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        if len(self._chosen) == self._bags:
            return features.bag_ids, features.bag_offsets
        begins = features.bag_offsets[:-1].reshape(count, self._bags)[:, self._chosen].reshape(-1)
        every = np.diff(features.bag_offsets).reshape(count, self._bags)
        lengths = every[:, self._chosen].reshape(-1)
        offsets: npt.NDArray[np.int32] = np.zeros(lengths.shape[0] + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        items = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
        return features.bag_ids[items], offsets


class Arm:
    """An arm that learns. It can be pickled, and its copy learns on as it would."""

    def __init__(self, plan: ArmPlan, given: FieldSet, *, remote: bool = False) -> None:
        """`given`: the fields that examples have. `remote`: tasks learn, this takes their scores.

        Raises MissingTorch.
        """
        self.plan = plan
        self.model = None if remote else InMemoryModel(plan.spec)
        self.losses = LossTable()
        self.examples = 0
        """Learned."""
        self.pieces = LossPieces()
        """All losses, for ranks at rungs."""
        self.found_better = False
        self._select = FieldSelection(given, plan.spec.fields)
        self._scores: deque[npt.NDArray[np.float64]] = deque()

    def step(
        self,
        examples: Examples,
        settled: Sequence[Settled],
        scores: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Score the next block, learn it, and take the outcomes that are final.

        scores: of a remote arm, whose task has learned the block.
        """
        if scores is None:
            assert self.model is not None
            scores = self.model.learn(self._select(examples))
        self._scores.append(scores[examples.kinds != Kind.CLICKED])
        self.examples += len(examples)
        self.settle(settled)

    def settle(self, settled: Sequence[Settled]) -> None:
        """Take the outcomes of the oldest blocks."""
        for outcomes in settled:
            sums = loss_sums(outcomes, self._scores.popleft())
            self.losses.add_sums(outcomes, sums)
            self.pieces.add(outcomes, sums)
