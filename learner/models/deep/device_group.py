"""Divides each mini-batch of one learner among several devices, each with a process of its own.

With `[model] devices = N`, the learner keeps the rows, the batches, the loss and the steps. The
forward and backward pass of the layers is divided: process i has a copy of the module on device i
and gets the i-th share of the examples. For each mini-batch,

    learner -> process   the layers, and the share's gathered inputs
    process -> learner   log-odds of the share
    learner -> process   slope of the loss by each log-odds
    process -> learner   gradients by the share's inputs
    all                  sum of the layers' gradients: one all-reduce, NCCL on CUDA, gloo on the CPU

The learner itself is process 0. An example's log-odds do not depend on the others, so the result is
that of one process, but for the order in which the layers' gradients are summed. Every optimizer,
guard and kind of store works unchanged, and the processes keep nothing between mini-batches.

`synchronous = true` is another thing: learners with partitions of their own, which step in rounds
and whose mini-batches add up. It needs as many learners, and sees rows of ids a round late. Both
may be combined. The refused alternative is threads in one process: torch's operators of small
matrices hold the interpreter's lock for most of their time.

Arrays pass through pipes, since a pipe waits without a timeout and ends with its process. If a
process ends, the learner ends with an error, and what it did not push is learned again.
"""

import contextlib
import itertools
import multiprocessing
import pickle
import signal
import weakref
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from headrace.learner.errors import DevicesLost, GroupBroken
from headrace.learner.models.deep.batch_tensors import BatchParts, BatchTensors
from headrace.learner.models.deep.device_module import DeviceModule
from headrace.learner.models.deep.layers import Layers
from headrace.learner.models.deep.passes import Share, SharePass
from headrace.learner.models.deep.process_group import GroupConfig, ProcessGroup

Floats = npt.NDArray[np.float32]

_HOST, _TIMEOUT_S = "127.0.0.1", 300.0


class DevicePlace(NamedTuple):
    """The arguments of a process that takes shares."""

    rank: int
    size: int
    port: int
    device: str
    template: bytes
    """Module, layers and arrangement of tensors, pickled."""


def cut_shares(whole: Share, size: int) -> list[Share]:
    """Divide a mini-batch into shares whose sizes differ by at most one example."""
    bags = (whole.offsets.shape[0] - 1) // max(whole.examples, 1)
    bounds = [whole.examples * at // size for at in range(size + 1)]
    found = []
    for begin, end in itertools.pairwise(bounds):
        offsets = whole.offsets[begin * bags : end * bags + 1]
        items = slice(int(offsets[0]), int(offsets[-1]))
        wide, vectors, item_vectors = whole.parts
        parts = BatchParts(wide[begin:end], vectors[begin:end], item_vectors[items])
        found.append(Share(parts, offsets - offsets[0], end - begin))
    return found


class DeviceGroup:
    """The learner's part: divides mini-batches, and takes the first share. Used by one thread."""

    def __init__(
        self,
        own: DeviceModule,
        arrange: BatchTensors,
        together: ProcessGroup,
        others: Sequence[Connection],
    ) -> None:
        """others: the ends of the pipes to the processes, by rank from 1 on."""
        self.own, self._arrange, self._others = own, arrange, others
        own.together = together
        self._pass: SharePass | None = None
        self._bounds = np.zeros(0, np.int64)

    def forward(self, whole: Share) -> Floats:
        """Return the log-odds of a mini-batch. Raises DevicesLost."""
        mine, *rest = cut_shares(whole, 1 + len(self._others))
        self._bounds = np.cumsum([0, mine.examples, *(each.examples for each in rest)])
        with _whole_group():
            for pipe, share in zip(self._others, rest, strict=True):
                arrays = tuple(each.numpy() for each in share.parts)
                pipe.send((self.own.values, arrays, share.offsets, share.examples))
            self._pass = SharePass(self.own, self._arrange, mine)
            return np.concatenate([self._pass.log_odds, *(each.recv() for each in self._others)])

    def backward(self, slopes: Floats) -> tuple[BatchParts, Floats]:
        """Return gradients by inputs and by layers, the latter valid until the next call.

        Raises DevicesLost.
        """
        assert self._pass is not None  # after `forward`
        cut = np.split(slopes, self._bounds[1:-1])
        with _whole_group():
            for pipe, some in zip(self._others, cut[1:], strict=True):
                pipe.send(some)
            by_parts, by_layers = self._pass.gradients(cut[0])
            others = [map(torch.from_numpy, pipe.recv()) for pipe in self._others]
            found = [by_parts, *(BatchParts(*each) for each in others)]
            joined = self.own.joined(by_layers)
        self._pass = None
        return BatchParts(*(torch.cat(each) for each in zip(*found, strict=True))), joined


@contextlib.contextmanager
def _whole_group():  # type: ignore[no-untyped-def]
    try:
        yield
    except (EOFError, OSError, GroupBroken) as error:
        raise DevicesLost(f"{type(error).__name__} {error}".strip()) from error


def serve_shares(
    pipe: Connection, own: DeviceModule, arrange: BatchTensors, together: ProcessGroup
) -> None:
    """Take shares until the learner ends."""
    own.together = together
    while True:
        try:
            values, arrays, offsets, count = pipe.recv()
        except EOFError:
            return
        own.set(values)
        parts = BatchParts(*(torch.from_numpy(each) for each in arrays))
        template = SharePass(own, arrange, Share(parts, offsets, count))
        pipe.send(template.log_odds)
        by_parts, by_layers = template.gradients(pipe.recv())
        pipe.send(tuple(each.contiguous().numpy() for each in by_parts))
        own.joined(by_layers)


def start_group(
    own: DeviceModule, template: object, arrange: BatchTensors, devices: Sequence[torch.device]
) -> DeviceGroup:
    """Start a process for each device but the first, and meet them. Raises DevicesLost.

    template: a module on the host, and its layers.
    """
    if multiprocessing.current_process().daemon:
        why = "a process of fit --store, which starts no others: use --workers instead of devices"
        raise DevicesLost(why)
    timeout, size = timedelta(seconds=_TIMEOUT_S), len(devices)
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False, timeout=timeout)
    # pickled here: multiprocessing would move tensors to shared memory
    blob = pickle.dumps((template, arrange))
    context, pipes = multiprocessing.get_context("spawn"), []
    processes: list[BaseProcess] = []
    for rank in range(1, size):
        mine, theirs = context.Pipe()
        place = DevicePlace(rank, size, store.port, str(devices[rank]), blob)
        process = context.Process(target=_enter, args=(theirs, place), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    with _whole_group():
        # a pipe waits without a timeout, for processes that take long to import torch
        for pipe in pipes:
            pipe.recv()
        together = ProcessGroup(store, _place(0, size), devices[0])
    group = DeviceGroup(own, arrange, together, pipes)
    weakref.finalize(group, _end, pipes, processes)
    return group


def _place(rank: int, size: int) -> GroupConfig:
    return GroupConfig(rank, size, timeout_s=_TIMEOUT_S)


def _end(pipes: Sequence[Connection], processes: Sequence[BaseProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(_TIMEOUT_S)


def _enter(pipe: Connection, place: DevicePlace) -> None:
    """Take shares in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner ends it
    torch.set_num_threads(1)
    timeout = timedelta(seconds=_TIMEOUT_S)
    store: Store = TCPStore(_HOST, place.port, is_master=False, timeout=timeout)
    module: nn.Module
    layers: Layers
    (module, layers), arrange = pickle.loads(place.template)  # noqa: S301 (from the learner)
    device = torch.device(place.device)
    own = DeviceModule(module.to(device), layers, device)
    with contextlib.suppress(OSError, EOFError, GroupBroken):  # the learner ended
        pipe.send(None)
        together = ProcessGroup(store, _place(place.rank, place.size), device)
        serve_shares(pipe, own, arrange, together)
