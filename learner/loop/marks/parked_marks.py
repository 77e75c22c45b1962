"""Names and values of the marks of parked messages. Pure functions.

A message that the batch guard suspects is parked: the bucket passes it without learning it. The
mark `SOURCE#OFFSET` says so. The push that passes the message begins this mark, and the push that
learns it later ends it, so the fence of a push also covers what a bucket left out:

    mark of SOURCE      mark of SOURCE#OFFSET    the message at OFFSET
    up to OFFSET        0 (not stored)           not yet read
    beyond OFFSET       not 0                    parked
    beyond OFFSET       0 (not stored)           learned, or dropped by an operator

The value of the mark has, from its lowest bits: the request of an operator (2 bits), the number of
examples of the message (46 bits), and the test that found it suspect (5 bits; 0 in marks of older
versions). Lua's numbers are exact to 53 bits. An operator's command moves the mark with a push,
like a learner, and never touches the rows.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

_SEPARATOR = "#"
_REQUEST_BITS = 2
_EXAMPLES_BITS = 46


class ParkedCause(IntEnum):
    """The test that found a message suspect. The values are stored: never reuse one."""

    UNKNOWN = 0
    MORE_CLICKS = 1
    FEWER_CLICKS = 2
    LEVEL_SCORES = 3
    INVERTED_LABELS = 4
    NUMBERS = 5
    REPEATS = 6

    def __str__(self) -> str:
        """Return its name for people."""
        return self.name.lower().replace("_", " ")


class ParkedRequest(IntEnum):
    """The request of an operator about a parked message."""

    NOTHING = 0
    LEARN = 1
    DROP = 2


class ParkedMessage(NamedTuple):
    """A parked message, as the marks of all buckets have it."""

    source: str
    """`topic id/partition`, as in the marks."""
    offset: int
    examples: int
    request: ParkedRequest
    """The strongest request of any bucket."""
    buckets: int
    """The number of buckets that have not learned it."""
    cause: ParkedCause = ParkedCause.UNKNOWN

    @property
    def mark(self) -> str:
        """The name of its mark."""
        return parked_mark(self.source, self.offset)

    @property
    def partition(self) -> int:
        """The partition of the topic of examples."""
        return int(self.source.rpartition("/")[2])

    def described(self) -> dict[str, str | int]:
        """Return it for JSON."""
        return {
            "topic_id": self.source.rpartition("/")[0],
            "partition": self.partition,
            "offset": self.offset,
            "examples": self.examples,
            "buckets": self.buckets,
            "request": self.request.name.lower(),
            "cause": str(self.cause),
        }


def parked_mark(source: str, offset: int) -> str:
    """Return the name of the mark of a parked message."""
    return f"{source}{_SEPARATOR}{offset}"


def is_parked_mark(name: str) -> bool:
    """Return whether a mark is that of a parked message."""
    return _SEPARATOR in name


def parked_place(name: str) -> tuple[str, int]:
    """Return the source and the offset that the mark of a parked message names."""
    source, _, offset = name.rpartition(_SEPARATOR)
    return source, int(offset)


def parked_value(
    examples: int,
    request: ParkedRequest = ParkedRequest.NOTHING,
    cause: ParkedCause = ParkedCause.UNKNOWN,
) -> int:
    """Return the value of the mark of a message with so many examples."""
    return (cause << _EXAMPLES_BITS | examples) << _REQUEST_BITS | request


def parked_request(value: int) -> ParkedRequest:
    """Return what an operator asked for."""
    return ParkedRequest(value & (1 << _REQUEST_BITS) - 1)


def _parked_cause(value: int) -> ParkedCause:
    code = value >> _REQUEST_BITS + _EXAMPLES_BITS
    known = code in ParkedCause.__members__.values()
    return ParkedCause(code) if known else ParkedCause.UNKNOWN  # of a newer version


def parked_messages(marks: Iterable[Mapping[str, int]]) -> list[ParkedMessage]:
    """Return the messages that any bucket with these marks has parked, by source and offset."""
    found: dict[str, list[int]] = {}
    for own in marks:
        for name, value in own.items():
            if value and is_parked_mark(name):
                found.setdefault(name, []).append(value)
    return sorted(
        ParkedMessage(
            *parked_place(name),
            max(values) >> _REQUEST_BITS & (1 << _EXAMPLES_BITS) - 1,
            max(parked_request(value) for value in values),
            len(values),
            max(_parked_cause(value) for value in values),
        )
        for name, values in found.items()
    )
