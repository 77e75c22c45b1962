"""Cuts a stream into messages that arrive at a rate, as a backlog, or after an outage."""

from collections.abc import Iterator
from typing import NamedTuple

_TRANSACTION_S = 0.05
"""Time of the events that a joiner gathers in one message, live."""
_BACKLOG = 4096
"""Examples of a message when there are many."""
RESTART = 7_000
"""Examples between two restarts: more than a new process learns before it judges."""


class Arrival(NamedTuple):
    """A way to cut a stream into messages."""

    rate: int
    """Examples a second, live."""
    outage_s: float = 0.0
    """Length of one outage, at 40 % of the stream. Its events arrive at once after it."""
    backlog: bool = False
    """Whether the whole stream is there from the beginning."""
    restarts: bool = False
    """Whether a new process goes on after each `RESTART` examples."""

    @property
    def name(self) -> str:
        """Return a name for people."""
        how = "backlog" if self.backlog else "live"
        restarts = ", restarts" * self.restarts
        return f"{how}, {self.rate:,}/s{restarts}" + (
            f", outage {self.outage_s:g} s" * bool(self.outage_s)
        )

    def messages(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the begin and the end of each message of so many examples."""
        live = _BACKLOG if self.backlog else max(int(self.rate * _TRANSACTION_S), 1)
        out = int(0.4 * count)
        back = min(out + int(self.outage_s * self.rate), int(0.8 * count))
        begin = 0
        while begin < count:
            size = _BACKLOG if out <= begin < back else live
            end = min(begin + size, count)
            if begin < out < end and self.outage_s:
                end = out
            yield begin, end
            begin = end


ARRIVALS = (
    *(Arrival(rate) for rate in (100, 1_000, 10_000)),
    *(Arrival(rate, outage_s) for rate in (100, 1_000, 10_000) for outage_s in (5.0, 60.0, 600.0)),
    Arrival(1_000, backlog=True),
    Arrival(1_000, restarts=True),
    Arrival(1_000, backlog=True, restarts=True),
)
