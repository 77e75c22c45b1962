"""Learners that step together: sums over a fixed group of processes, by torch.distributed (gloo).

The group is formed once, when its learners start, and lives as long as all of them: every round of
each waits for every other. One that is lost, or silent for longer than the timeout, ends them all,
at once and with an error; whoever started them (torchrun, an operator of Kubernetes) starts all of
them again, and they form a new group from what the parameter server has. A group that went on with
fewer would have to agree on who had taken part in the last round; marks and examples in Kafka
already say all that, at the price of a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from headrace.learner.errors import GroupBroken

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch.distributed import Store  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A learner's place in its group, as torchrun and its like tell it."""

    rank: int
    """From 0; the first one says what the layers are when the group forms."""
    size: int
    """Learners, all of which have to be there."""
    host: str = "127.0.0.1"
    """Where the group meets: the first one listens there, unless who started it does."""
    port: int = 29_500
    hosted: bool = False
    """Whether somebody else listens there (torchrun's agent), and not the first learner."""
    attempt: str = "0"
    """Tells a group from the one before it, at one meeting place."""
    timeout_s: float = 60.0
    """For forming the group, and for every round: longer than the longest pause of any."""


class ProcessGroup:
    """One learner's part in the group. Used by the thread that learns."""

    def __init__(self, store: Store, place: GroupConfig) -> None:
        """Meet the others. Raises GroupBroken if they do not come."""
        self.place = place
        try:
            self._group = ProcessGroupGloo(
                PrefixStore(f"headrace/{place.attempt}", store),
                place.rank,
                place.size,
                timedelta(seconds=place.timeout_s),
            )
            self.add(torch.zeros(1).numpy())
        except RuntimeError as error:
            raise GroupBroken(place.rank, place.size, str(error)) from error

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Put the sum over all learners in the place of these numbers, in every one the same bits.

        Returns when all have called. Raises GroupBroken.
        """
        try:
            self._group.allreduce([torch.from_numpy(numbers)]).wait()  # type: ignore[attr-defined]
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
