"""The checkpoint of one partition, small enough for the metadata of a committed offset.

The state of a joiner is a function of its recent input, so it is never stored. The checkpoint has
the offsets to read again from, the offsets up to which to read without output, the clocks to set
then, and the counters.
"""

from __future__ import annotations

import msgspec

CHECKPOINT_FORMAT = 1


class JoinerCounters(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts since the first event of the partition.

    Each message of impressions is an accepted impression, a duplicate, a dead letter or a tick.
    Each message of clicks is a click, a dead letter or a tick. Each click becomes learned, late,
    unmatched or a duplicate, or it waits (`learned_clicks`).
    Checkpoints written before `unmatched_clicks` existed count those clicks as late.
    """

    impressions: int = 0
    """Accepted, without repeated ones."""
    clicks: int = 0
    """Accepted messages: learned, late, unmatched, duplicate and waiting ones."""
    late_clicks: int = 0
    """More than the window from their impression."""
    duplicate_impressions: int = 0
    """Impressions repeated within two windows."""
    duplicate_clicks: int = 0
    """Further clicks of an impression whose first click is learned."""
    examples: int = 0
    """`immediate`: impressions and learned clicks; `window`: impressions whose window closed.
    Both without the dropped negatives."""
    dead_letters: int = 0
    ticks: int = 0
    dropped_negatives: int = 0
    """Examples dropped by down-sampling."""
    unmatched_clicks: int = 0
    """Without an impression of their id within two windows."""

    @property
    def duplicates(self) -> int:
        """Repeated messages of both topics."""
        return self.duplicate_impressions + self.duplicate_clicks

    def __add__(self, other: JoinerCounters) -> JoinerCounters:
        names = self.__struct_fields__
        return JoinerCounters(*(getattr(self, name) + getattr(other, name) for name in names))


class InputPosition(msgspec.Struct, frozen=True, array_like=True):
    """The position in one source."""

    position: int
    """First offset not yet taken; -1 before the first."""
    rewind: int
    """First offset to read again; at most `position`, and equal to it if nothing must be read."""
    clock_ms: int
    """Greatest event time taken."""
    rewind_clock_ms: int
    """Greatest event time taken when `rewind` was reached."""


class JoinerCheckpoint(msgspec.Struct, frozen=True):
    """All that a joiner needs to continue as if it had never stopped."""

    watermark_ms: int
    least_delay_ms: int
    """Least time from an event to its append, of all events taken."""
    shown: InputPosition
    clicked: InputPosition
    counters: JoinerCounters
    format: int = CHECKPOINT_FORMAT
