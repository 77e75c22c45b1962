"""What the loop asks of a group of learners that step together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pserver.table import RowTable


class Rounds(Protocol):
    """Where learners step together: each round of each needs all of them."""

    busy: bool
    """Whether anybody had examples in the last round."""

    def idle(self, view: RowTable) -> None:
        """Take part with nothing. Raises GroupBroken."""

    def leave(self, why: str) -> None:
        """Raise GroupBroken, here and soon in all of them."""
