"""The rules of joining: label policy, watermark, duplicates, late clicks; shared with the kernel.

The label policy (`ingest/features/fields.py`) says what an impression becomes.
`immediate` makes an example with label 0 when the impression is taken, and a second with label 1 at
its click. With `wait_s`, it makes the first one when the wait has passed; if the click was taken
before, this example has label 1 and is the only one. `window` makes one example when the window
closes: a wait as long as the window, after which a click is late (`JoinRule.closing`).

There are three clocks of event time. None of them goes back:

- the clock of impressions and the clock of clicks: the greatest time taken from that source;
- the watermark: the greatest time taken from either source. Windows close by the watermark.
  `watermark` says what the time of an event is, and how a source at its end moves it.

The state must come out the same when the input is read again from an earlier place, with another
interleaving of the two sources. That makes a restart exact, and it leads to these rules. W is the
window, S the clock of impressions, C the clock of clicks, M the watermark. An entry or click keeps
the clock of its source (`clock`) at the moment it was taken:

- an impression with a time before S - W is refused; that depends on impressions alone;
- an entry lives while S <= last + 2W, where `last` is the clock when the entry or a duplicate of it
  was last seen; an impression whose entry lives is a duplicate. This also depends on impressions
  alone;
- an entry is open while M <= clock + W. Its example is made when M passes clock + D, where D is the
  wait, or W under `window`. So M alone tells which entries are examples already, and a click taken
  again after a restart becomes an example only if its entry is one;
- a click meets a living entry if click.clock <= last + W, whichever of the two came first. It is
  learned if the entry is open, not clicked before, click.clock >= clock - W, and the two times are
  at most W apart. It is a duplicate if all this holds but the entry was clicked. Otherwise it is
  late;
- a click that meets no entry waits while S <= click.clock + W and M <= click.clock + 2W. After
  that it is late if a living entry of its id was seen in the meantime, and unmatched otherwise. The
  sum of the two counts is exact; which of the two a click enters may differ after a restart.

So for given S, C and M, the clicks that wait, the entries that live and the open entries that were
clicked are functions of the sets of events taken. Two cases are not obvious. First, an entry that
has met a click cannot die before the click stops waiting (last + 2W >= click.clock + W). So a click
never meets an entry in one reading and waits in another. Second, an open entry cannot have missed a
click in range because the click had waited too long (clock <= click.clock + W held all along).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Kind
from headrace.ingest.joiner.core.input import EventRole

Longs = npt.NDArray[np.int64]

NEVER = -(1 << 61)
"""The value of a clock that no event has set."""
FOREVER = 1 << 61
WAIT = -(1 << 62)
"""The floor of a source that is not at its end: its next event must be waited for."""

# indexes of the state array
WATERMARK, LEAST_DELAY, SHOWN_CLOCK, CLICKED_CLOCK = 0, 1, 2, 3
IMPRESSIONS, CLICKS, LATE_CLICKS, DUPLICATE_IMPRESSIONS, DUPLICATE_CLICKS = 4, 5, 6, 7, 8
EXAMPLES, DEAD_LETTERS, TICKS, DROPPED_NEGATIVES = 9, 10, 11, 12
UNMATCHED_CLICKS = 13
NEEDED = 14
"""Examples that must fit into `JoinedRows` at once, after `run` returned GROW."""
STATE_SIZE = 15

# results of `run`
BLOCKED, FULL, GROW = 0, 1, 2

EVENT, TICK, REFUSED = int(EventRole.EVENT), int(EventRole.TICK), int(EventRole.REFUSED)
SHOWN, CLICKED, CLOSED = int(Kind.SHOWN), int(Kind.CLICKED), int(Kind.CLOSED)
MARGIN = 4
"""Room beyond the limit: one event makes at most two examples outside the sweep."""


class JoinedRows(NamedTuple):
    """The output of one run of the kernel."""

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
    """The parameters of one run of the kernel."""

    window_ms: int
    delay_ms: int
    """Event time from an impression to its example (`LabelPolicy.delay_ms`)."""
    closing: bool
    """Whether the policy is `window`."""
    silent: bool
    """Whether there is no output, because the input is read again."""
    floor_shown: int
    """Limit of event time while there is no impression to take; WAIT: it must not advance."""
    floor_clicked: int
    until_ms: int
    """Take no event later than this."""
    at_end_ms: int
    """Take no event later than this either, unless it is live (`watermark`)."""
    limit: int
    """Stop after this many events taken, or examples made."""
    keep_below: np.uint64
    """A negative whose draw of 64 bits is at most this is kept (`features.example_weights`)."""
