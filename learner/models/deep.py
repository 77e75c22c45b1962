"""Deep models: rows gathered for a mini-batch, a torch module over them, gradients added to rows.

torch sees dense arrays alone. It is given the values of the rows that a mini-batch names and of the
layers, returns log-odds and, for the slopes of the loss (learner.label_loss: both label policies),
the gradient by each of these values. Optimizers are the rows' own (learner.optimizers): nothing is
kept in torch between two mini-batches, so what a learner knows is what the parameter server knows.

A learner's batch is cut into mini-batches of at most `mini_batch` examples; scores of one are made
before learning from it. A row's gradient is the sum over the mini-batch, not the mean: a rare row
moves as far as if its example had come alone. Statistics, counters and admission are exact example
by example all the same (learner.models.deep_kernels).

Serving uses the same forward pass, from the rows as they stand.
"""

from __future__ import annotations

import copy
import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ingest.examples import Kind
from learner.input_rows import read_only
from learner.inputs import BLOCK
from learner.models.deep_kernels import (
    Gathered,
    Gradients,
    Span,
    Turns,
    gather,
    look_up,
    scatter,
    slopes,
)
from learner.models.joint import JointLayers
from learner.models.layers import Layers
from learner.models.network import Batch, Form, make_module
from learner.models.rows import ModelOfRows
from learner.row_values import parameters_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor, nn

    from ingest.examples import Encoded, Examples
    from learner.asked_rows import AskedRows
    from learner.input_rows import InputRows
    from learner.inputs import Labelled
    from learner.models.layers import Standing
    from learner.models.together import Together
    from learner.pending import Gaining
    from learner.spec import ModelSpec
    from pserver.table import RowTable

_FARTHEST = 35.0
"""Log-odds are cut here: the probability is never 0 or 1, and its logarithm is finite."""


class DeepModel(ModelOfRows):
    """The model of a spec. One thread learns; any number may predict from a view of their own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """Only a spec with admission has to know how many `buckets` its store has.

        Raises ValueError if it is not told, UnfitModule if the spec names a module that cannot be
        used.
        """
        # learner and server share their machine with others, and matrices here are small
        torch.set_num_threads(1)
        super().__init__(spec, buckets)
        self._spec = spec
        self._parameters = parameters_of(spec)
        self._dimensions = spec.structure.dimensions
        self._mini_batch = spec.structure.mini_batch
        self._arrange = _Arrangement(spec, self._inputs)
        with torch.random.fork_rng():
            self._module = make_module(spec, self._arrange.form)
            self._layers = Layers(spec, self._module, make_module(spec, self._arrange.form))
        self._own = threading.local()
        self._turn_of = np.zeros(0, np.int32)

    @property
    def asked_rows(self) -> AskedRows:
        """Which rows `predict` reads."""
        return self._asked_rows(self._layers.ids)

    def step_together(self, together: Together) -> JointLayers:
        """From now on, step the layers with a group of learners; return who takes part for us."""
        joint = JointLayers(self._spec, self._layers, together)
        self._layers = joint
        return joint

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        return super().rows_needed(examples) + len(self._layers)

    def _answers(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        count = len(features)
        if not count:
            return np.zeros(0)
        inputs = self._inputs
        gathered = self._gathered(count, features.bag_ids.shape[0])
        look_up(
            view.columns,
            self._parameters,
            inputs.program,
            inputs.gate,
            inputs.features(features),
            read_only(event_ms, np.int64),
            inputs.fixed,
            inputs.scratch(features, 1),
            gathered,
        )
        own = self._of_thread()
        own.follow(self._layers, view, int(event_ms.max()) // 1000)
        with torch.inference_mode():
            offsets = features.bag_offsets.astype(np.int64)
            parts = self._arrange.parts(gathered, count)
            log_odds: Tensor = own.module(self._arrange.batch(parts, offsets, count))
        return _probability(log_odds)

    def _learn_all(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        labelled: Labelled,
    ) -> npt.NDArray[np.float64]:
        """Learn mini-batch by mini-batch."""
        if self._turn_of.shape[0] < view.columns.ids.shape[0]:
            self._turn_of = np.full(view.columns.ids.shape[0], -1, np.int32)
        scores = np.empty(len(examples))
        for begin in range(0, len(examples), self._mini_batch):
            end = min(begin + self._mini_batch, len(examples))
            whole = view, gaining, active, examples, labelled
            scores[begin:end] = self._learn_some(*whole, begin, end)
        return scores

    def _learn_some(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        labelled: Labelled,
        begin: int,
        end: int,
    ) -> npt.NDArray[np.float64]:
        inputs, features, count = self._inputs, examples.features, end - begin
        offsets = features.bag_offsets[begin * inputs.bags : end * inputs.bags + 1]
        items = int(offsets[-1] - offsets[0]) if inputs.bags else 0
        gathered = self._gathered(count, items)
        turns = self._turns(gathered.targets.shape[0])
        gather(
            view.columns,
            gaining,
            active,
            self._parameters,
            inputs.program,
            inputs.memory,
            inputs.window_ms,
            inputs.gate,
            inputs.features(features),
            labelled,
            Span(begin, end, inputs.fixed),
            inputs.scratch(features, BLOCK),
            turns,
            gathered,
        )
        seconds = examples.event_ms[begin:end] // 1000
        standing = self._layers.read(view, int(seconds.max()))
        own = self._of_thread()
        own.put(self._layers, standing)
        parts = self._arrange.parts(gathered, count)
        leaves = [*(each.requires_grad_() for each in parts), *own.parameters]
        log_odds: Tensor = own.module(self._arrange.batch(parts, offsets.astype(np.int64), count))
        made, sloping = _probability(log_odds), np.empty(count, np.float32)
        slopes(labelled, begin, made, sloping)
        # not `grad_outputs`: torch imports sympy to compare shapes, some seconds and 50 MB
        loss = torch.dot(log_odds, torch.from_numpy(sloping))
        by_leaf = torch.autograd.grad(loss, leaves, materialize_grads=True)
        gradients = _gradients(*by_leaf[:4])
        scatter(view.columns, gaining, self._parameters, turns, gathered, count, gradients)
        kinds, labels = examples.kinds[begin:end], examples.labels[begin:end]
        shows = int(np.count_nonzero(kinds != Kind.CLICKED))
        clicks = int(labels[kinds != Kind.SHOWN].sum())
        counted = shows, clicks, int(seconds.max())
        joined = self._layers.joined(by_leaf[4:])
        self._layers.step(view, gaining, active, standing, joined, counted)
        return made

    def _of_thread(self) -> _Module:
        if not hasattr(self._own, "module"):
            self._own.module = _Module(copy.deepcopy(self._module))
        found: _Module = self._own.module
        return found

    def _gathered(self, count: int, items: int) -> Gathered:
        positions = count * (self._inputs.fixed + self._inputs.statistics) + items
        return Gathered(
            np.empty(positions, np.float32),
            np.empty((positions - count, self._dimensions), np.float32),
            np.empty(positions, np.float32),
            np.empty(positions, np.int64),
        )

    def _turns(self, positions: int) -> Turns:
        rows = 2 * positions  # what is read and what is stepped, where these differ
        weight, weight_gradient = (np.empty((rows, 1), np.float32) for _ in range(2))
        vector, vector_gradient = (np.empty((rows, self._dimensions), np.float32) for _ in range(2))
        return Turns(
            self._turn_of,
            np.empty(rows, np.int64),
            np.empty(rows, np.bool_),
            weight,
            vector,
            np.empty(rows, np.float32),
            np.empty(rows, np.float32),
            weight_gradient,
            vector_gradient,
            np.zeros(1, np.int64),
        )


class _Module:
    """A module of one thread: its parameters are the layers as they stood when last looked at."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.parameters = module, list(module.parameters())
        self._of: weakref.ref[RowTable] | None = None
        self._as_of = (0, 0)

    def put(self, layers: Layers, standing: Standing) -> None:
        """Let these be its parameters."""
        self._of = None
        layers.put(standing, self.parameters)

    def follow(self, layers: Layers, view: RowTable, now_s: int) -> None:
        """Let its parameters be the layers as the rows stand: looked at only if they changed."""
        as_of = view.changes, now_s if layers.decays else 0
        if self._of is not None and self._of() is view and self._as_of == as_of:
            return
        self.put(layers, layers.read(view, now_s))
        self._of, self._as_of = weakref.ref(view), as_of


class Parts(NamedTuple):
    """What was gathered of n examples with K fixed inputs each, as torch sees it."""

    weights: Tensor  # (n, K)
    vectors: Tensor  # (n, K - 1, d)
    item_weights: Tensor  # (items,)
    item_vectors: Tensor  # (items, d)


class _Arrangement:
    """How positions become the tensors of a `Batch`."""

    def __init__(self, spec: ModelSpec, inputs: InputRows) -> None:
        fields, structure = spec.fields, spec.structure
        self._each, self._bags = inputs.fixed + inputs.statistics, inputs.bags
        self._history, target = -1, -1
        if structure.history:
            self._history = [each.name for each in fields.bags].index(structure.history)
            target = [each.name for each in fields.singles].index(structure.target)
        self.form = Form(
            self._each - 1 + self._bags,
            structure.dimensions,
            structure.layers,
            structure.cross_layers,
            target,
        )

    def parts(self, gathered: Gathered, count: int) -> Parts:
        """Return tensors over what was gathered of `count` examples.

        Cut by numpy: cut by torch, each would have a gradient as long as all of them.
        """
        each, dimensions = self._each, gathered.vectors.shape[1]
        weights, vectors = gathered.weights, gathered.vectors
        fixed = count * each
        return Parts(
            torch.from_numpy(weights[:fixed].reshape(count, each)),
            torch.from_numpy(vectors[: fixed - count].reshape(count, each - 1, dimensions)),
            torch.from_numpy(weights[fixed:]),
            torch.from_numpy(vectors[fixed - count :]),
        )

    def batch(self, parts: Parts, offsets: npt.NDArray[np.int64], count: int) -> Batch:
        """Return the batch of `count` examples; offsets: (count * bags + 1,) of their items."""
        wide, vectors = parts.weights.sum(dim=1), parts.vectors
        dimensions = vectors.shape[2]
        items = vectors.new_zeros(count, 0, dimensions)
        present = torch.zeros(count, 0, dtype=torch.bool)
        if self._bags:
            lengths = np.diff(offsets)
            bag = torch.from_numpy(np.repeat(np.arange(count * self._bags), lengths))
            sums = vectors.new_zeros(count * self._bags, dimensions)
            sums = sums.index_add(0, bag, parts.item_vectors)
            vectors = torch.cat((vectors, sums.view(count, self._bags, dimensions)), dim=1)
            wide = wide.index_add(0, bag // self._bags, parts.item_weights)
        if self._history >= 0:
            begins = offsets[:-1][self._history :: self._bags] - offsets[0]
            lengths = lengths[self._history :: self._bags]
            steps = np.arange(lengths.max(initial=0))
            there = steps < lengths[:, None]
            places = np.where(there, begins[:, None] + steps, 0)
            present = torch.from_numpy(there)
            if places.size:
                items = parts.item_vectors[torch.from_numpy(places)] * present.unsqueeze(2)
        return Batch(wide, vectors, items, present)


def _gradients(
    weights: Tensor, vectors: Tensor, item_weights: Tensor, item_vectors: Tensor
) -> Gradients:
    return Gradients(
        weights.contiguous().view(-1).numpy(),
        vectors.contiguous().flatten(0, 1).numpy(),
        item_weights.contiguous().numpy(),
        item_vectors.contiguous().numpy(),
    )


def _probability(log_odds: Tensor) -> npt.NDArray[np.float64]:
    found = log_odds.detach().numpy().astype(np.float64)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(found, -_FARTHEST, _FARTHEST))))
