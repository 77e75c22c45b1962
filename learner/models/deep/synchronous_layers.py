"""Layers that several learners step together, so that theirs is the step of one with all examples.

Rows of ids are stepped by whoever names them, and a little staleness costs little: few examples
share one. Layers are in every example. So a spec may ask for them to be stepped synchronously: in a
round every learner brings the gradient of its mini-batch, or nothing; the gradients are summed; and
all take the one step of the sum. Their layers are equal, bit for bit, at all times.

What of that step is pushed, and by whom? A push covers the offsets of its learner's own partitions,
so it may hold just what that learner's own examples have contributed. The step of the sum G of
gradients g splits that way:

    sgd        w gains -alpha G                   = sum of -alpha g
    adagrad    w gains -alpha G / (root + eps)    = sum of -alpha g / (root + eps)
               n gains G^2                        = sum of G^2 (examples of g / examples of G)

where root = sqrt(n + G^2) is everyone's. The shares add up to the step; each is pushed, refused or
read again with the examples it came from; and what a learner loses by dying is what its own
examples contributed, which are learned again. Counters are exact to the unit in any case, as are
the sums of gradients; the roots are those of the round that a gradient was in. FTRL and Adam, whose
steps subtract a part of what is there, do not split by gradients: a spec that asks for both is
refused, and so is weight decay.

The layers that are stepped are therefore not the rows of this learner's view, which lack the
others' shares until they are folded, but a state of the group's own: begun with the rows that the
first learner sees when the group forms, and gone with the group. Servers see the rows as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest.runtime import kernel
from headrace.learner.errors import GroupBroken
from headrace.learner.kernels import count_row
from headrace.learner.models.deep.layers import Layers, LayerState
from headrace.learner.spec import ADAGRAD, Optimizer
from headrace.pserver.rows import find_or_add

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.learner.kernels import PendingColumns
    from headrace.learner.models.deep.dry_run import DryRun
    from headrace.learner.models.deep.process_group import ProcessGroup
    from headrace.learner.spec import ModelSpec
    from headrace.pserver.rows import RowTable

    Floats = npt.NDArray[np.float32]


@kernel
def _gain(columns, gaining, active, ids, gains, counted):  # type: ignore[no-untyped-def]
    """Add to the chunks that are active what they gained, and count these examples there."""
    for i in range(ids.shape[0]):
        if active[i]:
            place = find_or_add(columns, ids[i])
            for k in range(gains.shape[1]):
                columns.values[place, k] += gains[i, k]
                gaining.values[place, k] += gains[i, k]
            count_row(columns, gaining, place, counted[0], counted[1], np.uint32(counted[2]))


class SynchronousLayers(Layers):
    """The parameters of one module in rows, stepped by a group of learners together."""

    rehearse: DryRun

    def __init__(self, spec: ModelSpec, layers: Layers, together: ProcessGroup) -> None:
        """`layers`: the same, of a learner on its own. Sums once: all learners have to do it."""
        self.__dict__.update(layers.__dict__)
        self._together = together
        self._optimizer = spec.optimizers.dense or Optimizer()
        kinds = 2 if self._optimizer.name == ADAGRAD else 1
        self._gained = np.zeros((kinds, *self._begun.shape), np.float32)  # w, and n if there is one
        self._joined = False
        self.busy = False
        """Whether anybody had examples in the last round."""

    def read(self, view: RowTable, now_s: int, values: Floats) -> LayerState:  # noqa: ARG002 (nothing decays)
        """Write the layers to `values`, as the group has them."""
        self._join(view)
        np.add(self._begun, self._gained[0], out=values)
        return LayerState(np.ones(len(self), np.float32), np.full(len(self), -1, np.int64))

    def step(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        standing: LayerState,  # noqa: ARG002 (it is the state's own)
        gradient: Floats,
        counted: tuple[int, int, int],
    ) -> None:
        """Take the step of everybody's mini-batch; gain what this one contributed to it.

        Of chunks whose bucket is not active, this mini-batch was counted before: it brings nothing.
        """
        bits = active.shape[0].bit_length() - 1
        bucket = (self.ids >> np.uint64(1)) >> np.uint64(63 - bits)
        mine = active[bucket.astype(np.int64)]
        own = gradient * mine[:, None]
        weight = (mine * np.float32(max(counted[0], counted[1], 1))).astype(np.float32)
        gains = self._round(own, weight)
        _gain(view.columns, gaining, mine, self.ids, gains, np.array(counted, np.int64))

    def idle(self, view: RowTable) -> None:
        """Take part in a round with nothing: the others' step is taken here too."""
        self._join(view)
        self._round(np.zeros_like(self._begun), np.zeros(len(self), np.float32))

    def write(self, view: RowTable) -> None:
        """Set the rows of a view to the layers as the group has them."""
        places, coordinates = view.find_or_add(self.ids), self._begun.shape[1]
        for kind, gained in enumerate(self._gained):
            view.columns.values[places, kind * coordinates : (kind + 1) * coordinates] = gained

    def leave(self, why: str) -> None:
        """Raise GroupBroken: what this learner brought to a round does not hold any more."""
        place = self._together.place
        raise GroupBroken(place.rank, place.size, why)

    def _round(self, own: Floats, weight: Floats) -> Floats:
        """Sum, step, and return the share of it that `own` has; (chunks, floats of the group)."""
        message = np.concatenate((own.ravel(), weight))
        self._together.add(message)
        joint = message[: own.size].reshape(own.shape)
        weights = message[own.size :]
        self.busy = bool(weights.any())
        alpha = np.float32(self._optimizer.alpha)
        if self._optimizer.name != ADAGRAD:
            self._gained[0] -= alpha * joint
            return -alpha * own
        squares = joint * joint
        rate = alpha / (np.sqrt(self._gained[1] + squares) + np.float32(self._optimizer.epsilon))
        self._gained[0] -= rate * joint
        self._gained[1] += squares
        part = weight / np.maximum(weights, np.float32(1.0))
        return np.concatenate((-rate * own, squares * part[:, None]), axis=1)

    def _join(self, view: RowTable) -> None:
        """Begin with the rows as the first learner of the group sees them."""
        if self._joined:
            return
        self._joined = True
        places = view.find(self.ids)
        there = places >= 0
        begun = np.zeros_like(self._gained)
        if self._together.place.rank == 0:
            coordinates = self._begun.shape[1]
            for kind in range(begun.shape[0]):
                floats = slice(kind * coordinates, (kind + 1) * coordinates)
                begun[kind, there] = view.columns.values[places[there], floats]
        flat = begun.ravel()
        self._together.add(flat)
        self._gained = flat.reshape(begun.shape)
