"""A topic of examples with transaction markers, and a consumer group whose members go stale.

A rebalance gives a partition to its new owner at once, but tells the old one only after some polls:
until then that one is a zombie, learning and pushing what is no longer its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.stream import AtEnd, Gained, Happening, Lost, Record, Source

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

TOPIC = "examples.simulated"


class SimulatedTopic:
    """Partitions of (offset, value, append_ms); markers leave holes in the offsets."""

    def __init__(self, partitions: int) -> None:
        self.records: dict[Source, list[Record]] = {
            Source(TOPIC, partition): [] for partition in range(partitions)
        }
        self.ends: dict[Source, int] = dict.fromkeys(self.records, 0)

    def append(self, source: Source, value: bytes, append_ms: int, marker: bool) -> None:
        """Add one batch, and a transaction marker behind it."""
        self.records[source].append(Record(source, self.ends[source], append_ms, value))
        self.ends[source] += 2 if marker else 1

    def from_offset(self, source: Source, offset: int, limit: int) -> list[Record]:
        """Up to `limit` records at or beyond an offset."""
        return [record for record in self.records[source] if record.offset >= offset][:limit]


class SimulatedReader:
    """One member's end of the group; `Reader` over a SimulatedTopic."""

    def __init__(self, topic: SimulatedTopic, dice: random.Random) -> None:
        self._topic, self._dice = topic, dice
        self._positions: dict[Source, int] = {}
        self._paused: set[Source] = set()
        self._told_end: set[Source] = set()
        self._news: list[tuple[int, Happening]] = []  # (polls to wait, what)

    def tell(self, happening: Happening, after_polls: int) -> None:
        """Let the member know of a partition gained or lost, some polls later."""
        self._news.append((after_polls, happening))

    def polls_until_lost(self, source: Source) -> int:
        """After how many polls this member will have heard that it lost the source."""
        return max((polls for polls, news in self._news if news == Lost(source)), default=0)

    def poll(self, timeout_s: float) -> list[Happening]:
        happenings: list[Happening] = []
        waiting: list[tuple[int, Happening]] = []
        for polls, news in self._news:
            if polls > 0:
                waiting.append((polls - 1, news))
                continue
            happenings.append(news)
            if isinstance(news, Lost):
                self._positions.pop(news.source, None)
        self._news = waiting
        for source, position in self._positions.items():
            if source in self._paused:
                continue
            records = self._topic.from_offset(source, position, self._dice.randint(1, 3))
            happenings += records
            if records:
                self._positions[source] = records[-1].offset + 1
                self._told_end.discard(source)
            elif source not in self._told_end:
                self._told_end.add(source)
                self._positions[source] = self._topic.ends[source]
                happenings.append(AtEnd(source, self._topic.ends[source]))
        return happenings

    def start(self, offsets: Mapping[Source, int]) -> None:
        for source, offset in offsets.items():
            self._positions[source] = offset
            self._told_end.discard(source)

    def pause(self, sources: Iterable[Source]) -> None:
        self._paused.update(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        self._paused.difference_update(sources)

    def held(self, source: Source) -> tuple[int, int]:
        return 0, self._topic.ends[source]

    def topic_id(self, topic: str) -> str:
        return "simulated"

    def commit(self, offsets: Mapping[Source, int]) -> None:
        pass

    def close(self) -> None:
        pass


class Group:
    """Who owns which partition; gives them around anew when asked."""

    def __init__(self, topic: SimulatedTopic, dice: random.Random) -> None:
        self._topic, self._dice = topic, dice
        self._members: dict[str, SimulatedReader] = {}
        self._owners: dict[Source, str] = {}

    def join(self, name: str) -> SimulatedReader:
        """A (re)started member: whatever it owned before, it has to be given again."""
        reader = SimulatedReader(self._topic, self._dice)
        self._members[name] = reader
        self._owners = {s: owner for s, owner in self._owners.items() if owner != name}
        for source in self._topic.records:
            if source not in self._owners:
                self._give(source, self._dice.choice(list(self._members)))
        return reader

    def leave(self, name: str) -> None:
        """A member died."""
        del self._members[name]
        for source, owner in list(self._owners.items()):
            if owner == name:
                del self._owners[source]
                if self._members:
                    self._give(source, self._dice.choice(list(self._members)))

    def rebalance(self) -> None:
        """Move one partition to somebody."""
        source = self._dice.choice(list(self._topic.records))
        before = self._owners.get(source)
        after = self._dice.choice(list(self._members))
        if before == after:
            return
        if before in self._members:
            self._members[before].tell(Lost(source), self._dice.randint(0, 12))
        self._give(source, after)

    def _give(self, source: Source, name: str) -> None:
        self._owners[source] = name
        # behind any news of its loss that has not yet been told
        self._members[name].tell(Gained(source), self._members[name].polls_until_lost(source))
