"""Layers that several learners step together, as one learner with all their examples would.

Each row of an id is stepped by the learners that name it. Few examples share one, so a little
staleness costs little. Layers are in every example, so a spec may ask for synchronous steps: in a
round every learner brings the gradient of one mini-batch, or nothing; the gradients are summed in
one all-reduce; and all take the one step of the sum. Their layers are equal, bit for bit.

Each learner pushes its own part of that step. A push covers the offsets of its own partitions, so
it may hold only what its own examples contributed. The step of the sum G of gradients g splits:

    sgd        w gains -alpha G                   = sum of -alpha g
    adagrad    w gains -alpha G / (root + eps)    = sum of -alpha g / (root + eps)
               n gains G^2                        = sum of G^2 (examples of g / examples of G)

where root = sqrt(n + G^2) is the same for all. The parts add up to the step. Each is pushed,
refused or read again with the examples it came from; when a learner dies, the parts of its own
examples are lost, and these are learned again. Counters are exact to the unit in any case, as are
the sums of gradients; the roots are those of the round that a gradient was in. The steps of FTRL
and Adam subtract a part of the present value and do not split by gradients: a spec that asks for
both is refused, as is weight decay.

The layers being stepped are therefore not the rows of this learner's view, which lack the others'
parts until they are folded, but a state of the group. It starts with the rows that the first
learner sees when the group forms, and ends with the group. Servers read the rows as always.

A step that all members took cannot be taken back. So a learner inspects the scores and gradients of
its mini-batch before the all-reduce. One that would break the model is quarantined: its learner
brings zeros to the round, as if it had nothing, and takes the step of the others. The refused
alternatives: a dry run of each batch in copies of its rows shows the same and halves the speed; a
flag in the message that stops the round for all makes healthy mini-batches wait for a broken one.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.learner.errors import GroupBroken
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.kernels.row_counters import count_row
from headrace.learner.models.deep.layers import Layers, LayerState
from headrace.learner.models.deep.process_group import ProcessGroup
from headrace.learner.models.sync_group import MiniBatchEvidence, Quarantined, SyncGroup
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.spec.optimizer_spec import ADAGRAD, Optimizer
from headrace.pserver.rows.table import RowTable, find_or_add
from headrace.runtime.kernels.numba_kernels import kernel

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


class SynchronousLayers(Layers, SyncGroup):
    """The parameters of one module in rows, stepped by a group of learners together."""

    def __init__(self, spec: ModelSpec, layers: Layers, together: ProcessGroup) -> None:
        """`layers`: the same parameters, as one learner steps them."""
        self.__dict__.update(layers.__dict__)
        self._together = together
        self._optimizer = spec.optimizers.dense or Optimizer()
        kinds = 2 if self._optimizer.name == ADAGRAD else 1
        self._gained = np.zeros((kinds, *self._begun.shape), np.float32)  # w, and n if there is one
        self._joined = False
        self._inspect: Callable[[MiniBatchEvidence], str | None] = lambda _: None
        self._quarantined: list[Quarantined] = []

    def inspect_with(self, inspect: Callable[[MiniBatchEvidence], str | None]) -> None:
        """Inspect every mini-batch before its round; a reason keeps it out."""
        self._inspect = inspect

    def quarantined(self) -> Sequence[Quarantined]:
        """Return what was kept out of rounds since the last call."""
        held, self._quarantined = self._quarantined, []
        return held

    def admits(self, begin: int, end: int, evidence: Callable[[], MiniBatchEvidence]) -> bool:
        """Return whether a mini-batch may be stepped; if not, take the step of the others."""
        reason = self._inspect(evidence())
        if reason is not None:
            self._quarantined.append(Quarantined(begin, end, reason))
            self._bring_nothing()
        return reason is None

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
        layer_state: LayerState,  # noqa: ARG002 (it is the state's own)
        gradient: Floats,
        counted: tuple[int, int, int],
    ) -> None:
        """Take the step of all members' mini-batches; gain what this one contributed to it.

        A chunk whose bucket is not active has this mini-batch already, so it brings nothing there.
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
        self._bring_nothing()

    def leave(self, why: str) -> None:
        """Raise GroupBroken: what this learner brought to a round no longer holds."""
        place = self._together.place
        raise GroupBroken(place.rank, place.size, why)

    def _bring_nothing(self) -> None:
        self._round(np.zeros_like(self._begun), np.zeros(len(self), np.float32))

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
