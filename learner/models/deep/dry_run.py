"""A batch learned by one learner alone, and forgotten: what it would do to a model, before it does.

Of learners that step their layers together nobody can take a step back
(learner.models.deep.synchronous_layers). So each rehearses a batch before it brings it to a round:
it copies the rows that the batch names and the layers as the group has them, has them learned by a
model that knows nobody else, and looks at scores and gains as the guard looks at those of a learner
on its own. The others' steps between its mini-batches are not in it, else it is what will happen.
That is the price of learning twice.

What is remembered of impressions, and of ids that are rare, the other model remembers by itself: it
learns the same batches in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.learner.kernels import PendingGains, view_of
from headrace.pserver import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.learner.kernels import PendingColumns
    from headrace.learner.models.deep.deep_model import DeepModel
    from headrace.learner.models.deep.synchronous_layers import SynchronousLayers
    from headrace.learner.spec import ModelSpec
    from headrace.pserver.rows import RowTable

    Ids = npt.NDArray[np.uint64]


class DryRun:
    """Learns batches in rows that are copies."""

    def __init__(
        self, spec: ModelSpec, make: Callable[[int], DeepModel], layers: SynchronousLayers
    ) -> None:
        """`make` makes a model of `spec`, given how many buckets the store has."""
        self._spec, self._make, self._layers = spec, make, layers
        self._model: DeepModel | None = None
        self._rows = self._copies = view_of(spec.width)

    def __call__(
        self, view: RowTable, active: npt.NDArray[np.bool_], examples: Examples
    ) -> tuple[npt.NDArray[np.float64], float]:
        """Return what scores learning makes, and the largest float that any row gains of it.

        Changes nothing, and asks nobody. active: (buckets,) as in learning.
        """
        buckets, spec, features = active.shape[0], self._spec, examples.features
        if self._model is None:
            self._model = self._make(buckets)
        model, asked = self._model, self._model.asked_rows
        asked.pull_with(self)
        self._rows, self._copies = view, view_of(spec.width)
        shape = Shape(spec.name, buckets, spec.width, spec.fingerprint, "")
        self._pending = PendingGains(self._copies, shape)
        self._copy(np.concatenate([asked.always, asked.of_features(features)]))
        self._layers.write(self._copies)
        if asked.statistics:
            self._copy(asked.of_statistics(self._copies, features, examples.shown_ms))
        self._copies.reserve(model.rows_needed(examples))
        scores = model.learn(self._copies, self.gaining, active, examples)
        return scores, self._pending.largest()

    @property
    def gaining(self) -> PendingColumns:
        """The columns of what the copies gained."""
        return self._pending.reserve()

    def pull_statistics(self, ids: Ids, examples: Examples, begin: int) -> None:  # noqa: ARG002 (all rows are here)
        """Copy these rows, too."""
        self._copy(ids)

    def _copy(self, ids: Ids) -> None:
        """Have these rows, as they are outside unless they are here; ids may repeat."""
        lacking = np.unique(ids[self._copies.find(ids) < 0])
        self._copies.find_or_add(lacking)
        places = self._rows.find(lacking)
        self._copies.put(self._rows.take(places[places >= 0]))
