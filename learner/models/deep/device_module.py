"""A torch module on a device: its parameters are the layers as last read, its inputs host arrays.

Rows stay on the host, in the table that learner and server share. For each mini-batch, the gathered
vectors and the layers are copied to the device, and log-odds and gradients are copied back. On the
CPU nothing is copied: parameters and gradients are views of the host's arrays.

A device pays if layers are wide and mini-batches large (`mini_batch` of some thousands). Servers
always predict on the CPU: they score tens of candidates at a time, which takes less than a copy.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.learner.errors import MissingDevice
from headrace.learner.models.deep.process_group import ProcessGroup
from headrace.learner.spec.architecture import AUTO, CUDA

if TYPE_CHECKING:
    from headrace.learner.models.deep.layers import Layers, LayerState
    from headrace.pserver.rows.table import RowTable

CPU = torch.device("cpu")


def find_devices(name: str, devices: int = 1, rank: int = 0) -> list[torch.device]:
    """Return the devices that `[model] device` and `devices` name.

    rank: of the learner in its group. The learners of one machine divide its devices among them.
    Raises MissingDevice if it is `cuda` and torch finds no CUDA device, or fewer than `devices`.
    """
    count = torch.cuda.device_count() if name in (AUTO, CUDA) else 0
    if (name == CUDA and not count) or 0 < count < devices:
        raise MissingDevice(devices, count, torch.__version__, torch.version.cuda)
    if not count:
        return [CPU] * devices
    return [torch.device(CUDA, (rank * devices + at) % count) for at in range(devices)]


class DeviceModule:
    """A module of one thread, on one device."""

    def __init__(
        self, module: nn.Module, layers: Layers, device: torch.device = CPU, *, copied: bool = False
    ) -> None:
        """copied: copy between host and device even if the device is the CPU, for tests."""
        self.module, self.device = module, device
        self.parameters = list(module.parameters())
        self.values, cut_values = layers.buffers()
        """Its parameters in the coordinates of `Layers`, as last read."""
        self.gradient, self.cut_gradient = layers.buffers()
        """Room for the gradient by its parameters; the same room cut to their shapes."""
        self._count = layers.count
        self._there: Tensor | None = None
        if copied or device.type != CPU.type:
            self._there = torch.empty(self.values.size, device=device)
            cut_values = _cut(self._there, cut_values)
        for parameter, buffer in zip(self.parameters, cut_values, strict=True):
            parameter.data = buffer
        self.together: ProcessGroup | None = None
        """Processes whose gradients `joined` adds up."""
        self._of: weakref.ref[RowTable] | None = None
        self._as_of = (0, 0)

    def read(self, layers: Layers, view: RowTable, now_s: int) -> LayerState:
        """Set its parameters to the layers in the present rows."""
        self._of = None
        state = layers.read(view, now_s, self.values)
        self._copy_there()
        return state

    def set(self, values: npt.NDArray[np.float32]) -> None:
        """Set its parameters to these `values` of another."""
        self._of = None
        self.values[:] = values
        self._copy_there()

    def _copy_there(self) -> None:
        if self._there is not None:
            self._there.copy_(torch.from_numpy(self.values.reshape(-1)))

    def follow(self, layers: Layers, view: RowTable, now_s: int) -> None:
        """Set its parameters to the layers in the present rows, if those changed."""
        as_of = view.changes, now_s if layers.decays else 0
        if self._of is not None and self._of() is view and self._as_of == as_of:
            return
        self.read(layers, view, now_s)
        self._of, self._as_of = weakref.ref(view), as_of

    def joined(self, gradients: Sequence[Tensor]) -> npt.NDArray[np.float32]:
        """Return gradients in the coordinates of `Layers`; valid until the next call."""
        if self._there is not None:
            # one copy instead of one for each parameter
            flat = torch.cat([each.reshape(-1) for each in gradients])
            if self.together is not None:
                self.together.add_tensor(flat)
            gradients = _cut(flat.cpu(), self.cut_gradient)
        for buffer, each in zip(self.cut_gradient, gradients, strict=True):
            buffer.copy_(each)
        if self._there is None and self.together is not None:
            self.together.add(self.gradient.reshape(-1)[: self._count])
        return self.gradient


def _cut(flat: Tensor, shapes: Sequence[Tensor]) -> list[Tensor]:
    """Return views of `flat` with the shapes of these tensors, one after the other."""
    found, begin = [], 0
    for each in shapes:
        end = begin + math.prod(each.shape)
        found.append(flat[begin:end].view(each.shape))
        begin = end
    return found
