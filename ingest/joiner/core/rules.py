"""The rules of joining, and the vocabulary that the core and its compiled half share.

Time has three clocks, all of event time and none ever going back:

- the clock of impressions and the clock of clicks: the greatest time taken from that source;
- the watermark: the greatest time taken from either, and what windows close by.

An event's time is its timestamp, but not later than its append to Kafka: a producer whose clock is
hours ahead would otherwise hold up its partition for hours. A tick's time stands as it is.

A source at its end may yet deliver an event of any time. What it may hold up is bounded by wall
time, and by what Kafka's appends tell of wall time: while one source is at its end, an event of the
other is taken if event time has come no further than its own append less the least delay, from
event to append, ever seen. A backlog of an hour so takes no hour; history that is replayed faster
than it happened has ever smaller delays, and waits for its other half.

What is remembered must come out the same when the input is read again from an older place, in
another interleaving of the two sources; that is what makes a restart exact. Hence the rules, with W
the window, S the clock of impressions, C that of clicks, M the watermark, and an entry or click
keeping the clock of its source (`clock`) at the moment it was taken:

- an impression with a time before S - W is refused; whether it is depends on impressions alone;
- an entry lives while S <= last + 2W, `last` being the clock when it or a duplicate of it was last
  seen; an impression whose entry lives is a duplicate. This, too, depends on impressions alone;
- an entry is open while M <= clock + W; `window` makes its example when M passes that;
- a click meets a living entry if click.clock <= last + W, whichever of them came first. It is
  learned if the entry is open, not clicked before, click.clock >= clock - W, and the two times are
  at most W apart; it is a duplicate if all holds but the entry was clicked; otherwise it is late;
- a click that meets no entry waits while S <= click.clock + W and M <= click.clock + 2W, and is
  late after that.

So at given S, C and M, which clicks wait, which entries live, and which open ones were clicked are
functions of the sets of events taken. For the two that are not obvious: an entry that has met a
click cannot die before the click stops waiting (last + 2W >= click.clock + W), so a click is never
met by an entry and found waiting on another reading; and an entry that is open cannot have missed
a click in range because it had waited too long (clock <= click.clock + W held all along).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.examples import Kind
from headrace.ingest.joiner.core.input import EventRole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

NEVER = -(1 << 61)
"""A clock that no event has set."""
FOREVER = 1 << 61
WAIT = -(1 << 62)
"""In place of a source's floor: it is not at its end, so what comes next must be waited for."""

# places in the state
WATERMARK, LEAST_DELAY, SHOWN_CLOCK, CLICKED_CLOCK = 0, 1, 2, 3
IMPRESSIONS, CLICKS, LATE_CLICKS, DUPLICATE_IMPRESSIONS, DUPLICATE_CLICKS = 4, 5, 6, 7, 8
EXAMPLES, DEAD_LETTERS, TICKS, DROPPED_NEGATIVES = 9, 10, 11, 12
NEEDED = 13
"""Examples that must fit into `JoinedRows` at once, where `run` answered GROW."""
STATE_SIZE = 14

# what `run` answers
BLOCKED, FULL, GROW = 0, 1, 2

EVENT, TICK, REFUSED = int(EventRole.EVENT), int(EventRole.TICK), int(EventRole.REFUSED)
SHOWN, CLICKED, CLOSED = int(Kind.SHOWN), int(Kind.CLICKED), int(Kind.CLOSED)
MARGIN = 4
"""Room beyond the limit: one event makes at most two examples outside the sweep."""


class JoinedRows(NamedTuple):
    """What one run makes."""

    kinds: npt.NDArray[np.uint8]  # (limit + MARGIN,)
    labels: npt.NDArray[np.uint8]
    sequences: Longs  # of the entry
    event_ms: Longs
    shown_ms: Longs  # event time of the impression
    append_ms: Longs
    dead_sides: npt.NDArray[np.uint8]
    dead_places: Longs  # in the chunk of that side
    counts: Longs  # (3,) examples, dead letters, events taken


class JoinRule(NamedTuple):
    """What one run goes by."""

    window_ms: int
    closing: bool
    """Whether the policy is `window`."""
    silent: bool
    """Whether nothing is to be made: the input is read again."""
    floor_shown: int
    """How far event time may go while impressions have none to offer; WAIT if it may not."""
    floor_clicked: int
    until_ms: int
    """Take nothing later than this."""
    limit: int
    """Stop after so many events taken, or examples made."""
    keep_below: np.uint64
    """A negative whose draw of 64 bits is up to this is kept (`example_weights`)."""
