"""Hashes, streams and strings in memory, with the commands that headrace sends.

A command answers as the server does: bytes, whole numbers, None, lists, or a ResponseError. An
unknown command or option is a KeyError or ValueError of this process: the server would know it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from redis import ResponseError

EntryId = tuple[int, int]
"""Of an entry of a stream: milliseconds and sequence number."""
Hash = dict[bytes, bytes]

_GREATEST = (1 << 64) - 1
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NOT_GREATER = "The ID specified in XADD is equal or smaller than the target stream top item"


@dataclass(slots=True)
class Stream:
    """Entries by ascending id. A stream remembers its last id when its entries are trimmed."""

    ids: list[EntryId] = field(default_factory=list)
    fields: list[list[bytes]] = field(default_factory=list)
    """Of each entry: name, value, name, value, ..."""
    last: EntryId = (0, 0)

    def copy(self) -> Stream:
        """Return a copy that later commands leave alone."""
        return Stream(self.ids.copy(), self.fields.copy(), self.last)


Value = bytes | Hash | Stream


class _Command(NamedTuple):
    execute: Callable[..., Any]
    least_words: int
    """Fewest words after the name."""
    writes: bool


class Keyspace:
    """The keys of one server."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.values: dict[bytes, Value] = {}
        self._clock_ms = clock_ms
        self._expires_ms: dict[bytes, int] = {}

    def execute(self, words: Sequence[bytes], *, read_only: bool = False) -> Any:
        """Execute one command and return its reply. Raises ResponseError."""
        name = words[0].upper()
        command = _COMMANDS[name]
        if self._expires_ms:
            self._expire()
        if len(words) <= command.least_words:
            lower = words[0].decode().lower()
            raise ResponseError(f"wrong number of arguments for '{lower}' command")
        if read_only and command.writes:
            raise ResponseError("Write commands are not allowed from read-only scripts.")
        return command.execute(self, *words[1:])

    def _hash(self, key: bytes) -> Hash:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise ResponseError(_WRONG_TYPE)
        return value

    def _stream(self, key: bytes) -> Stream | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, Stream):
            raise ResponseError(_WRONG_TYPE)
        return value

    # ---------------------------------------------------------------- strings and keys

    def _get(self, key: bytes) -> bytes | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bytes):
            raise ResponseError(_WRONG_TYPE)
        return value

    def _set(self, key: bytes, value: bytes, *options: bytes) -> bytes | None:
        left = [option.upper() for option in options]
        life_ms = None
        if left[-2:-1] == [b"PX"]:
            life_ms = int(left.pop())
            left.pop()
        if left not in ([], [b"NX"]):
            raise ValueError(f"expected NX and PX with milliseconds, got {options!r}")
        if left and key in self.values:
            return None
        self.values[key] = value
        self._expires_ms.pop(key, None)
        if life_ms is not None:
            self._expires_ms[key] = self._clock_ms() + life_ms
        return b"OK"

    def _expire(self) -> None:
        now_ms = self._clock_ms()
        for key in [key for key, end_ms in self._expires_ms.items() if end_ms <= now_ms]:
            self._remove(key)

    def _remove(self, *keys: bytes) -> int:
        for key in keys:
            self._expires_ms.pop(key, None)
        return sum(self.values.pop(key, None) is not None for key in keys)

    def _time(self) -> list[bytes]:
        seconds, milliseconds = divmod(self._clock_ms(), 1000)
        return [b"%d" % seconds, b"%d" % (1000 * milliseconds)]

    # ---------------------------------------------------------------- hashes

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        if len(pairs) % 2:
            raise ResponseError("wrong number of arguments for 'hset' command")
        found = self._hash(key)
        before = len(found)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        self.values[key] = found
        return len(found) - before

    def _hdel(self, key: bytes, *fields: bytes) -> int:
        found = self._hash(key)
        removed = sum(found.pop(name, None) is not None for name in fields)
        if not found:
            self.values.pop(key, None)
        return removed

    def _hget(self, key: bytes, name: bytes) -> bytes | None:
        return self._hash(key).get(name)

    def _hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        return list(map(self._hash(key).get, fields))

    def _hgetall(self, key: bytes) -> list[bytes]:
        return [word for pair in self._hash(key).items() for word in pair]

    def _hlen(self, key: bytes) -> int:
        return len(self._hash(key))

    def _hexists(self, key: bytes, name: bytes) -> int:
        return int(name in self._hash(key))

    def _hscan(self, key: bytes, cursor: bytes, option: bytes = b"", count: bytes = b"10") -> Any:
        """Scan in the order of a checksum of the names, so that a cursor outlives changes."""
        if option.upper() not in (b"", b"COUNT"):
            raise ValueError(f"expected COUNT, got {option!r}")
        found = self._hash(key)
        left = sorted((at, name) for name in found if (at := crc32(name)) >= int(cursor))
        page = left[: int(count)]
        page += [each for each in left[int(count) :] if each[0] == page[-1][0]]
        after = b"0" if len(page) == len(left) else b"%d" % (page[-1][0] + 1)
        return [after, [word for _, name in page for word in (name, found[name])]]

    # ---------------------------------------------------------------- streams

    def _xadd(self, key: bytes, entry_id: bytes, *pairs: bytes) -> bytes:
        if len(pairs) % 2:
            raise ResponseError("wrong number of arguments for 'xadd' command")
        parsed = _id(entry_id, 0)
        if parsed == (0, 0):
            raise ResponseError("The ID specified in XADD must be greater than 0-0")
        stream = self._stream(key) or Stream()
        if parsed <= stream.last:
            raise ResponseError(_NOT_GREATER)
        stream.ids.append(parsed)
        stream.fields.append(list(pairs))
        stream.last = parsed
        self.values[key] = stream
        return b"%d-%d" % parsed

    def _xrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> list[Any]:
        least, greatest = _id(start, 0), _id(end, _GREATEST)
        stream = self._stream(key)
        if stream is None:
            return []
        first, past = bisect_left(stream.ids, least), bisect_right(stream.ids, greatest)
        if options:
            name, count = options
            if name.upper() != b"COUNT" or count == b"0":
                raise ValueError(f"expected COUNT and a number from 1, got {options}")
            past = min(past, first + int(count))
        ids, fields = stream.ids[first:past], stream.fields[first:past]
        return [[b"%d-%d" % each, list(words)] for each, words in zip(ids, fields, strict=True)]

    def _xtrim(self, key: bytes, strategy: bytes, least: bytes) -> int:
        if strategy.upper() != b"MINID":
            raise ValueError(f"expected MINID, got {strategy!r}")
        stream = self._stream(key)
        if stream is None:
            return 0
        removed = bisect_left(stream.ids, _id(least, 0))
        del stream.ids[:removed], stream.fields[:removed]
        return removed


def _id(text: bytes, sequence: int) -> EntryId:
    """Parse the id of an entry; `sequence` completes one that has milliseconds alone."""
    if text in (b"-", b"+"):
        return (0, 0) if text == b"-" else (_GREATEST, _GREATEST)
    milliseconds, dash, rest = text.partition(b"-")
    if not milliseconds.isdigit() or (dash and not rest.isdigit()):
        raise ResponseError("Invalid stream ID specified as stream command argument")
    return int(milliseconds), int(rest) if dash else sequence


_COMMANDS = {
    b"GET": _Command(Keyspace._get, 1, False),
    b"SET": _Command(Keyspace._set, 2, True),
    b"DEL": _Command(Keyspace._remove, 1, True),
    b"UNLINK": _Command(Keyspace._remove, 1, True),
    b"TIME": _Command(Keyspace._time, 0, False),
    b"HSET": _Command(Keyspace._hset, 3, True),
    b"HDEL": _Command(Keyspace._hdel, 2, True),
    b"HGET": _Command(Keyspace._hget, 2, False),
    b"HMGET": _Command(Keyspace._hmget, 2, False),
    b"HGETALL": _Command(Keyspace._hgetall, 1, False),
    b"HLEN": _Command(Keyspace._hlen, 1, False),
    b"HEXISTS": _Command(Keyspace._hexists, 2, False),
    b"HSCAN": _Command(Keyspace._hscan, 2, False),
    b"XADD": _Command(Keyspace._xadd, 4, True),
    b"XRANGE": _Command(Keyspace._xrange, 3, False),
    b"XTRIM": _Command(Keyspace._xtrim, 3, True),
}
