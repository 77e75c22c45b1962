"""Deep models: rows gathered for a mini-batch, a torch module over them, gradients added to rows.

torch sees dense arrays only. It receives the values of the layers and of the rows that a mini-batch
names, returns log-odds and, for the slope of the loss (learner.kernels.loss: both label policies),
the gradient by each of these values (for a weight, that of the sum it is in). The optimizers are
those of rows (learner.kernels.optimizers). torch keeps nothing between two mini-batches, so all
that a learner has learned is in the parameter server.

A batch is cut into mini-batches of at most `mini_batch` examples, never within a slate
(learner.inputs.slates). Scores are made before learning from the mini-batch. A row's gradient is
the sum over the mini-batch, not the mean: a rare row moves as far as if its example had come alone.
Statistics, counters and admission are nevertheless exact slate by slate
(learner.models.deep.kernels).

Serving uses the same forward pass over the present rows.
"""

import copy
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.learner.inputs.example_inputs import (
    BLOCK,
    FeatureColumns,
    InputScratch,
    LabelledColumns,
)
from headrace.learner.inputs.required_rows import RequiredRows
from headrace.learner.inputs.slates import cut_between_slates, longest_slate
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.models.deep.batch_tensors import BatchTensors
from headrace.learner.models.deep.device_group import DeviceGroup, start_group
from headrace.learner.models.deep.device_module import CPU, DeviceModule, find_devices
from headrace.learner.models.deep.gradient_kernels import (
    loss_gradients,
    step_rows,
    sum_gradients,
    sum_item_gradients,
    uncount,
)
from headrace.learner.models.deep.kernels import (
    BatchSpan,
    GatheredInputs,
    Turns,
    gather,
    look_up,
    probabilities,
)
from headrace.learner.models.deep.layers import Layers
from headrace.learner.models.deep.networks.architectures import make_module
from headrace.learner.models.deep.passes import WRITTEN, Share, SoloPasses, WrittenPasses
from headrace.learner.models.deep.process_group import ProcessGroup
from headrace.learner.models.deep.synchronous_layers import SynchronousLayers
from headrace.learner.models.row_model import RowModel
from headrace.learner.models.sync_group import MiniBatchEvidence
from headrace.learner.spec.architecture import DEEPFM
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.table import RowTable
from headrace.runtime.kernels.numba_kernels import read_only

log = logging.getLogger(__name__)


class _GatheredBatch(NamedTuple):
    """A batch as its mini-batches need it, and the columns that they change."""

    view: RowTable
    gaining: PendingColumns
    active: npt.NDArray[np.bool_]
    labelled: LabelledColumns
    features: FeatureColumns
    scratch: InputScratch
    examples: Examples


class DeepModel(RowModel):
    """The model of a spec. One thread learns; any number may predict from a view of its own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """`buckets`: of the store; required if the spec has an admission.

        Raises ValueError if it is missing then, UnfitModule if a module cannot be used.
        """
        # learner and server share their machine with others, and matrices here are small
        torch.set_num_threads(1)
        super().__init__(spec, buckets)
        self._spec = spec
        self._dimensions = spec.structure.dimensions
        self._mini_batch = spec.structure.mini_batch
        self._arrange = BatchTensors(spec, self._inputs)
        with torch.random.fork_rng():
            self._module = make_module(spec, self._arrange.form)
            self._layers = Layers(spec, self._module, make_module(spec, self._arrange.form))
        self._network = self._module, self._layers
        self._own = threading.local()
        self._rank = 0
        self._learning: SoloPasses | WrittenPasses | DeviceGroup | None = None
        self._turn_of = np.zeros(0, np.int32)

    @property
    def required_rows(self) -> RequiredRows:
        """The rows that `predict` reads."""
        return self._required_rows(self._layers.ids)

    def step_together(self, together: ProcessGroup) -> SynchronousLayers:
        """Step the layers with a group of learners from now on; return this learner's part."""
        joint = SynchronousLayers(self._spec, self._layers, together)
        self._layers, self._rank = joint, together.place.rank
        return joint

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        return super().rows_needed(examples) + len(self._layers)

    def layers_at(self, view: RowTable, now_s: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the layers by name, decayed to this second."""
        own = self._of_thread()
        own.read(self._layers, view, now_s)
        named = own.module.named_parameters()
        return {name: each.detach().numpy().copy() for name, each in named}

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
            self._row_parameters,
            inputs.program,
            inputs.gate,
            inputs.features(features),
            read_only(event_ms, np.int64),
            inputs.fixed_count,
            inputs.scratch(features, 1),
            gathered,
        )
        own = self._of_thread()
        own.follow(self._layers, view, int(event_ms.max()) // 1000)
        with torch.inference_mode():
            offsets = features.bag_offsets.astype(np.int64)
            parts = self._arrange.parts(gathered, offsets, count)
            log_odds: Tensor = own.module(self._arrange.batch(parts, offsets, count))
        return probabilities(log_odds.numpy(), self._row_parameters.offset)

    def _learn_all(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        labelled: LabelledColumns,
    ) -> npt.NDArray[np.float64]:
        """Learn mini-batch by mini-batch."""
        inputs, features = self._inputs, examples.features
        scratch = inputs.scratch(features, max(BLOCK, longest_slate(labelled.ends)))
        whole = _GatheredBatch(
            view, gaining, active, labelled, inputs.features(features), scratch, examples
        )
        scores, begins = (
            np.empty(len(examples)),
            cut_between_slates(labelled.ends, self._mini_batch),
        )
        ends = [*begins[1:], len(examples)]
        for begin, end, counted in zip(begins, ends, _counts(examples, begins), strict=False):
            if inputs.pulling is not None:
                whole = whole._replace(gaining=inputs.pulling.gaining)
            scores[begin:end] = self._learn_some(whole, begin, end, counted)
        return scores

    def _learn_some(
        self, whole: _GatheredBatch, begin: int, end: int, counted: tuple[int, int, int]
    ) -> npt.NDArray[np.float64]:
        """Learn a mini-batch; return its scores. counted: see `_counts`."""
        view, inputs, count = whole.view, self._inputs, end - begin
        offsets = whole.features.bag_offsets[begin * inputs.bag_count : end * inputs.bag_count + 1]
        offsets = (offsets - offsets[0]).astype(np.int64)
        gathered = self._gathered(count, int(offsets[-1]))
        touched = int(whole.gaining.count[0])
        whole, turns = self._gather(whole, begin, end, gathered)
        gaining, active = whole.gaining, whole.active
        passes = self._of_learner()
        layer_state = passes.own.read(self._layers, view, counted[2])
        parts = self._arrange.parts(gathered, offsets, count)
        log_odds = passes.forward(Share(parts, offsets, count))
        scores = probabilities(log_odds, self._row_parameters.offset)
        sloping = np.empty(count, np.float32)
        loss_gradients(whole.labelled, begin, scores, sloping)
        by_parts, joined = passes.backward(sloping)
        gradients = self._arrange.gradients(by_parts, offsets)
        sum_gradients(turns, gathered, count, gradients)
        poolings = self._row_parameters.poolings
        if poolings.shape[0]:
            work = np.empty(int(offsets[-1]), np.float32)
            sum_item_gradients(turns, gathered, poolings, offsets, count, gradients, work)
        evidence = partial(_evidence, whole, begin, scores, turns, joined)
        if not self._layers.admits(begin, end, evidence):
            uncount(view.columns, gaining, turns, touched)
            return np.full(count, np.nan)
        step_rows(view.columns, gaining, self._row_parameters, turns)
        self._layers.step(view, gaining, active, layer_state, joined, counted)
        return scores

    def _gather(
        self, whole: _GatheredBatch, begin: int, end: int, gathered: GatheredInputs
    ) -> tuple[_GatheredBatch, Turns]:
        """Fill `gathered` with a mini-batch; stop where rows of statistics must be fetched.

        Returns the columns to learn into, which may be new, and the rows that it names.
        """
        inputs, view = self._inputs, whole.view
        pulling, turns = inputs.pulling, self._turns(view.capacity, gathered.targets.shape[0])
        first = None if pulling is None else begin
        while True:
            done = gather(
                view.columns,
                whole.gaining,
                whole.active,
                self._row_parameters,
                inputs.program,
                inputs.memory,
                inputs.window_ms,
                inputs.gate,
                whole.features,
                whole.labelled,
                BatchSpan(begin, end, inputs.fixed_count),
                whole.scratch,
                turns,
                gathered,
                first,
            )
            if pulling is None or first is None or done == end:
                return whole, turns
            lacking = inputs.lacking(whole.scratch)
            named = turns.places[: turns.count[0]]
            ids = view.ids[named]
            turns.turn_of[named] = -1  # places change when rows are evicted, and the pull may fail
            # named rows must stay, whether they gained something or not
            wanted = np.concatenate([lacking, ids])
            pulling.pull_statistics(wanted, whole.examples, done)
            view.reserve(self.rows_needed(whole.examples))
            turns = turns._replace(turn_of=self._reserve_turns(view.capacity))
            named[:] = view.find(ids)
            turns.turn_of[named] = np.arange(ids.shape[0], dtype=np.int32)
            whole, first = whole._replace(gaining=pulling.gaining), done

    def _of_thread(self) -> DeviceModule:
        """Return the module with which this thread predicts."""
        if not hasattr(self._own, "module"):
            self._own.module = DeviceModule(copy.deepcopy(self._module), self._layers)
        found: DeviceModule = self._own.module
        return found

    def _of_learner(self) -> SoloPasses | WrittenPasses | DeviceGroup:
        """Return the passes of the one thread that learns. Raises MissingDevice, DevicesLost."""
        if self._learning is None:
            structure = self._spec.structure
            devices = find_devices(structure.device, structure.devices, self._rank)
            own = self._of_thread()
            if devices != [CPU]:
                names = ", ".join(map(str, devices))
                log.info("model %s: learning the layers on %s", self._spec.name, names)
                module = copy.deepcopy(self._module).to(devices[0])
                own = DeviceModule(module, self._layers, devices[0])
            if devices == [CPU] and self._spec.architecture in WRITTEN:
                pairs = self._spec.architecture == DEEPFM
                self._learning = WrittenPasses(own, self._arrange, pairs=pairs)
            elif len(devices) == 1:
                self._learning = SoloPasses(own, self._arrange)
            else:
                self._learning = start_group(own, self._network, self._arrange, devices)
        return self._learning

    def _gathered(self, count: int, items: int) -> GatheredInputs:
        positions = count * (self._inputs.fixed_count + self._inputs.statistic_count) + items
        return GatheredInputs(
            np.empty(positions, np.float32),
            np.empty((positions - count, self._dimensions), np.float32),
            np.empty(positions, np.float32),
            np.empty(positions, np.int64),
        )

    def _reserve_turns(self, capacity: int) -> npt.NDArray[np.int32]:
        if self._turn_of.shape[0] < capacity:
            self._turn_of = np.full(capacity, -1, np.int32)
        return self._turn_of

    def _turns(self, capacity: int, positions: int) -> Turns:
        rows = 2 * positions  # what is read and what is stepped, where these differ
        weight, weight_gradient, item_gradient = (np.empty((rows, 1), np.float32) for _ in range(3))
        vector, vector_gradient = (np.empty((rows, self._dimensions), np.float32) for _ in range(2))
        return Turns(
            self._reserve_turns(capacity),
            np.empty(rows, np.int64),
            np.empty(rows, np.bool_),
            np.empty(rows, np.bool_),
            weight,
            vector,
            np.empty(rows, np.uint32),
            np.empty(rows, np.uint32),
            np.empty((rows, 4), np.uint32),
            weight_gradient,
            vector_gradient,
            item_gradient,
            np.zeros(1, np.int64),
        )


def _evidence(
    whole: _GatheredBatch,
    begin: int,
    scores: npt.NDArray[np.float64],
    turns: Turns,
    layer_gradients: npt.NDArray[np.float32],
) -> MiniBatchEvidence:
    """Return the evidence about the mini-batch from `begin` on."""
    some, rows = slice(begin, begin + scores.shape[0]), int(turns.count[0])
    by_row = (turns.weight_gradient, turns.vector_gradient, turns.item_gradient)
    of_rows = [each[:rows] for each in by_row]
    largest = [float(np.abs(each).max(initial=0.0)) for each in (*of_rows, layer_gradients)]
    return MiniBatchEvidence(
        scores,
        whole.labelled.labels[some],
        whole.labelled.kinds[some] != Kind.CLICKED,
        float(np.max(largest)),
    )


def _counts(examples: Examples, begins: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return shows, clicks and the second of the last event of each mini-batch."""
    if not begins:
        return []
    shown, clicked = examples.kinds != Kind.CLICKED, examples.kinds != Kind.SHOWN
    shows = np.add.reduceat(shown, begins, dtype=np.int64)
    clicks = np.add.reduceat(examples.labels * clicked, begins, dtype=np.int64)
    seconds = np.maximum.reduceat(examples.event_ms // 1000, begins)
    return list(zip(shows.tolist(), clicks.tolist(), seconds.tolist(), strict=True))
