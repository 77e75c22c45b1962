"""The edge of a runner in a group: its messages, its membership, and the record of the group.

Each interface has an implementation in memory here, for tests; `kafka_ports` has those on Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    Pause = Callable[[], None]

TOKENS = 12
"""Partitions of a group's topic, and so the most runners that learn. More of them share the arms
more evenly."""


class GroupRecord(msgspec.Struct, frozen=True):
    """Settings of a group, which its first runner publishes, and all others need."""

    folder: str
    """Id of the shared folder, and of the run."""
    experiment: str
    """Fingerprint of the experiment file."""
    offsets: list[int]
    """First offsets of the examples."""
    sums: int
    """First offset of the group's messages."""


class GroupLog(Protocol):
    """The messages of a group in one order."""

    at_end: bool
    """Whether all messages that were written before the last `read` have been read."""

    def start(self, offset: int) -> None:
        """Read from this offset, or from the first that is left."""

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """Return offsets and messages; wait for the first up to `timeout_s`."""

    def end(self) -> int:
        """Return the offset behind the last message."""

    def send(self, message: bytes) -> None:
        """Append a message, soon."""


class Membership(Protocol):
    """The tokens of this runner: partitions that the group assigned to it."""

    def tokens(self) -> frozenset[int]:
        """Return the tokens now."""


class GroupRegistry(Protocol):
    """The record of the group, in the topic of experiments."""

    def read(self) -> GroupRecord | None:
        """Return the record; None before the first runner."""

    def write(self, record: GroupRecord) -> None:
        """Publish the record."""


class GroupPorts(NamedTuple):
    """The edge of one runner."""

    log: GroupLog
    membership: Membership
    registry: GroupRegistry
    now_s: Callable[[], float]
    pause: Pause
    """Waits a moment."""
    alive: Callable[[], None] = lambda: None
    """Called while the runner waits for others."""


class MemoryLog:
    """Messages in a list, which the runners of a test share."""

    def __init__(self, messages: list[bytes], pause: Pause = lambda: None) -> None:
        self.messages, self._pause = messages, pause
        self.at_end = False
        self._next = 0

    def start(self, offset: int) -> None:
        """Read from this offset."""
        self._next, self.at_end = offset, False

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """Return what is there; pause if there is nothing and it may wait."""
        found = list(enumerate(self.messages))[self._next :]
        self._next += len(found)
        self.at_end = True
        if not found and timeout_s:
            self._pause()
        return found

    def end(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    def send(self, message: bytes) -> None:
        """Append a message."""
        self.messages.append(message)


class MemoryMembership:
    """Tokens that a test assigns."""

    def __init__(self, tokens: frozenset[int]) -> None:
        self.assigned = tokens

    def tokens(self) -> frozenset[int]:
        """Return the tokens now."""
        return self.assigned


class MemoryRegistry:
    """A record in memory, which the runners of a test share."""

    def __init__(self) -> None:
        self.record: GroupRecord | None = None

    def read(self) -> GroupRecord | None:
        """Return the record."""
        return self.record

    def write(self, record: GroupRecord) -> None:
        """Keep the record."""
        self.record = record
