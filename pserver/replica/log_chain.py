"""Checks that the entries of a log continue what was read before.

Each entry names the nonce of the entry before it, so the entries form a chain. The chain reveals
every break: a gap (entries trimmed before they were read), a link that does not fit, and a head
that is below the reader's or has another nonce at the same version (a failover rewrote history).
The reader then reads the bucket again from the beginning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.pserver.errors import StoreError
from headrace.pserver.rows.deltas import (
    Deletions,
    EntryHeader,
    RowDeltas,
    SourceReached,
    unpack_entry,
)
from headrace.pserver.store import Entry, PollResult, Shape


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A replica's position in one bucket's log."""

    version: int
    nonce: bytes
    event_ms: int
    """Greatest event time that the bucket's rows have learned from; 0 if unknown."""
    append_ms: int
    """Greatest append time of the events that the bucket's rows have learned from; 0 if unknown."""
    reached: Mapping[str, SourceReached]
    """Source -> its last position in an entry. Entries trimmed before they were read are not
    included."""

    def precedes(self, version: int, previous: bytes) -> bool:
        """Whether an entry of this version, after nonce `previous`, is exactly the next."""
        return version == self.version + 1 and previous == self.nonce


class BrokenHistory(Exception):
    """The log does not continue what was read before. The bucket has to be read again."""


def log_of(polled: PollResult) -> Sequence[Entry]:
    """Return the log's first entries. Raises BrokenHistory if entries before them are missing."""
    entries = polled.entries
    if not entries:
        if polled.version != polled.trimmed:
            raise BrokenHistory(f"bucket {polled.bucket}: the log was trimmed while it was read")
        return ()
    if entries[0].version != polled.trimmed + 1:
        raise BrokenHistory(f"bucket {polled.bucket}: the log was trimmed while it was read")
    return [entries[0], *_links(entries[0].version, entries[0].nonce, entries[1:])]


def chain(version: int, nonce: bytes, polled: PollResult) -> Sequence[Entry]:
    """Return the entries that continue (version, nonce). Raises BrokenHistory if they do not."""
    if polled.version < version or (polled.version == version and polled.nonce != nonce):
        raise BrokenHistory(f"bucket {polled.bucket} went back to version {polled.version}")
    if polled.trimmed > version or (polled.version > version and not polled.entries):
        raise BrokenHistory(f"bucket {polled.bucket}: entries after {version} were trimmed")
    return _links(version, nonce, polled.entries)


def _links(version: int, nonce: bytes, entries: Sequence[Entry]) -> Sequence[Entry]:
    for entry in entries:
        if entry.version != version + 1 or entry.previous != nonce:
            raise BrokenHistory(f"entry {entry.version} does not follow entry {version}")
        version, nonce = entry.version, entry.nonce
    return entries


def advanced(position: LogPosition, version: int, nonce: bytes, header: EntryHeader) -> LogPosition:
    """Return the position after an entry."""
    reached = dict(position.reached)
    for now in header.reached:
        before = reached.get(now.source)
        append_ms = max(now.append_ms, before.append_ms if before else 0)
        # a keeper's entry repeats the keeper's position, which may be behind this one
        stop = max(now.stop, before.stop if before else 0)
        reached[now.source] = SourceReached(now.source, now.start, stop, append_ms, now.clicks)
    return LogPosition(
        version,
        nonce,
        max(position.event_ms, header.event_ms),
        max(position.append_ms, header.append_ms),
        reached,
    )


def unpacked(shape: Shape, bucket: int, entry: Entry) -> tuple[EntryHeader, RowDeltas | Deletions]:
    """Return the content of an entry.

    Raises StoreError if its rows are not of the model's width, or of another bucket.
    """
    header, content = unpack_entry(entry.blob)
    where = f"bucket {bucket}, entry {entry.version}"
    if isinstance(content, RowDeltas) and header.width != shape.width:
        raise StoreError(f"{where}: expected rows of {shape.width} floats, got {header.width}")
    if content.ids.shape[0]:
        # buckets are ranges of ids: the least and the greatest decide
        ends = np.array([content.ids.min(), content.ids.max()])
        for found in shape.bucket_of(ends).tolist():
            if found != bucket:
                raise StoreError(f"{where}: expected ids of this bucket, got one of bucket {found}")
    return header, content
