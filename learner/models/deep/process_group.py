"""Sums over a fixed group of processes, by torch.distributed: NCCL on CUDA, gloo on the CPU.

Learners that step together form one (gloo), and so do the devices of one learner.

The group forms once, when its learners start, and lives as long as all of them: every round of each
waits for every other. If one dies, or is silent for longer than the timeout, all end with an error.
Their launcher (torchrun, Kubernetes) starts all of them again, and they form a new group from the
rows in the parameter server. The refused alternative is a group that continues with fewer members:
it would have to agree on who took part in the last round. Marks and examples in Kafka already
record that, at the price of a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

from headrace.learner.errors import GroupBroken

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A learner's place in its group, as torchrun sets it."""

    rank: int
    """From 0; rank 0 brings the layers with which the group starts."""
    size: int
    """Number of learners, all of which must take part."""
    host: str = "127.0.0.1"
    """The meeting place: rank 0 listens there, unless the launcher does (`hosted`)."""
    port: int = 29_500
    hosted: bool = False
    """Whether the launcher (torchrun's agent) listens there instead of rank 0."""
    attempt: str = "0"
    """Distinguishes a group from the one before it at the same meeting place."""
    timeout_s: float = 60.0
    """For forming the group and for every round: longer than the longest pause of a member."""


class ProcessGroup:
    """One learner's part in the group. Used by the thread that learns."""

    def __init__(
        self, store: Store, place: GroupConfig, device: torch.device | None = None
    ) -> None:
        """Meet the other members. Raises GroupBroken if one is missing.

        device: of all tensors that are summed; the CPU by default.
        """
        self.place = place
        device = device or torch.device("cpu")
        prefixed = PrefixStore(f"headrace/{place.attempt}", store)
        self._group: Any
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
                self._group = torch.distributed.ProcessGroupNCCL(
                    prefixed, place.rank, place.size, torch.distributed.ProcessGroupNCCL.Options()
                )
            else:
                timeout = timedelta(seconds=place.timeout_s)
                self._group = ProcessGroupGloo(prefixed, place.rank, place.size, timeout)
            self.add_tensor(torch.zeros(1, device=device))
        except RuntimeError as error:
            raise GroupBroken(place.rank, place.size, str(error)) from error

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Replace these numbers by their sum over all learners, the same bits in each.

        Returns when all have called. Raises GroupBroken.
        """
        self.add_tensor(torch.from_numpy(numbers))

    def add_tensor(self, numbers: Tensor) -> None:
        """Do the same with a tensor on the group's device."""
        try:
            self._group.allreduce([numbers]).wait()
        except RuntimeError as error:
            raise GroupBroken(self.place.rank, self.place.size, str(error)) from error


def join_group(place: GroupConfig) -> ProcessGroup:
    """Form the group at its meeting place. Raises GroupBroken."""
    try:
        store = TCPStore(
            place.host,
            place.port,
            is_master=place.rank == 0 and not place.hosted,
            wait_for_workers=False,
            timeout=timedelta(seconds=place.timeout_s),
        )
    except RuntimeError as error:
        raise GroupBroken(place.rank, place.size, str(error)) from error
    return ProcessGroup(store, place)
