"""Transactions that could not be committed, one after another, and when that is no hiccup any more.

Whoever reads, works and writes in transactions goes back to its last commit after an abort and does
the same again. That may go on for as long as Kafka takes to come back, but not for ever, and not as
fast as the machine can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_WAIT_S = 0.05


class Aborts:
    """What to do about aborts since the last commit."""

    def __init__(
        self,
        give_up_s: float,
        now_ms: Callable[[], int],
        rest: Callable[[float], object],
        longest_wait_s: float,
    ) -> None:
        """rest: lets so many seconds pass, or fewer if there is an end to come to."""
        self._give_up_s, self._now_ms = give_up_s, now_ms
        self._rest_for, self._longest_wait_s = rest, longest_wait_s
        self._in_a_row = 0
        self._since_ms: int | None = None

    def over(self) -> None:
        """Something was committed."""
        self._in_a_row, self._since_ms = 0, None

    def bear(self, error: Exception) -> None:
        """Note an abort. Raises `error` if nothing was committed for too long."""
        now_ms = self._now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms > self._give_up_s * 1000:
            raise error

    def rest(self) -> None:
        """Wait before going on: not at all after the first, then twice as long each time."""
        if self._in_a_row:
            wait_s = _FIRST_WAIT_S * 2.0 ** min(self._in_a_row, 10)
            self._rest_for(min(wait_s, self._longest_wait_s))
        self._in_a_row += 1
