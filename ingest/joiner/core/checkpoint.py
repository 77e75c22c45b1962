"""How far a joiner has come in one partition, small enough for the metadata of an offset.

A joiner's memory is a function of what it read of late, so it is never stored. What is stored is
where to begin reading again, how far to read in silence, the clocks to set then, and the counters.
"""

from __future__ import annotations

import msgspec

FORMAT = 1


class JoinerCounters(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was counted since the first event of the partition.

    Every message of the impressions is one of: an accepted impression, a duplicate, a dead letter,
    a tick. Every message of the clicks is one of: a click, a dead letter, a tick; and every click
    becomes one of: learned, late, a duplicate; or it waits. So without duplicates, and with nothing
    waiting, clicks = learned + late_clicks.
    """

    impressions: int = 0
    """Accepted, each once."""
    clicks: int = 0
    """Accepted messages: learned, late, duplicate and waiting ones."""
    late_clicks: int = 0
    """More than the window from their impression, or without one."""
    duplicate_impressions: int = 0
    """An impression again within two windows."""
    duplicate_clicks: int = 0
    """A second click of an impression whose first is learned."""
    examples: int = 0
    """`immediate`: impressions and learned clicks; `window`: impressions whose window closed.
    Either without the dropped negatives."""
    dead_letters: int = 0
    ticks: int = 0
    dropped_negatives: int = 0
    """Examples that down-sampling left out."""

    @property
    def duplicates(self) -> int:
        """Messages that said what another had said."""
        return self.duplicate_impressions + self.duplicate_clicks

    def __add__(self, other: JoinerCounters) -> JoinerCounters:
        names = self.__struct_fields__
        return JoinerCounters(*(getattr(self, name) + getattr(other, name) for name in names))


class InputPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far one source was read."""

    position: int
    """First offset not yet taken; -1 if none ever was."""
    rewind: int
    """First offset to read again; at most `position`, and equal to it if nothing is held."""
    clock_ms: int
    """Greatest event time taken."""
    rewind_clock_ms: int
    """The same when `rewind` was reached."""


class JoinerCheckpoint(msgspec.Struct, frozen=True):
    """All that a joiner needs to go on as if it had never stopped."""

    watermark_ms: int
    least_delay_ms: int
    """Least time from an event to its append, of all that were taken."""
    shown: InputPosition
    clicked: InputPosition
    counters: JoinerCounters
    format: int = FORMAT

    def to_json(self) -> str:
        """Return it as JSON, some 400 characters."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> JoinerCheckpoint:
        """Return what `to_json` was called on. Raises ValueError if it is nothing of the kind."""
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"expected the checkpoint of a joiner in the metadata of an offset, "
                f"found {text[:80]!r}: {error}"
            ) from error
        if found.format != FORMAT:
            raise ValueError(f"joiner checkpoint: expected format {FORMAT}, found {found.format}")
        return found
