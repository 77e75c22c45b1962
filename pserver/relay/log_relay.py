"""Writes the blocks of a relay: follows all logs of a model and thins them by interval.

Every server that follows the logs reads all of them, so the network of the store carries each log
once for each server. A relay follows them once, and writes the rows that changed in an interval to
one topic, from which any number of servers and regions read.

The invariant: a reader that has applied the blocks of a bucket up to a position has the rows of a
replica at this position of the log, as far as they are relayed.

A relay keeps no state. After a restart it continues from the last block in the topic (`resume`):
the log says which rows changed since. If the log no longer has these entries, or a failover rewrote
them, the relay writes a base, which is all rows of the bucket. It also writes bases now and then
(`rebase`), so that new readers need not read the topic from its beginning.

Two relays of one model would write blocks that do not continue each other. The process that writes
the topic must therefore fence an earlier one, with Kafka transactions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import Unreachable
from headrace.pserver.relay.relay_block import BlockHeader, RelayPosition, pack_block
from headrace.pserver.relay.relay_section import RelayedColumns, RelayForm
from headrace.pserver.replica.log_chain import BrokenHistory, chain
from headrace.pserver.replica.replica import BucketRecopied, Deleted, Folded, Replica
from headrace.pserver.rows.deltas import EntryHeader, SourceReached, unpack_entry
from headrace.pserver.rows.table import Places
from headrace.pserver.store import ENTRIES_A_POLL, Store

_ROWS_A_BLOCK = 20_000
"""At 100 bytes a row, blocks stay far below Kafka's largest message."""


@dataclass(slots=True)
class _Unsent:
    """The changes of a bucket since its last block."""

    ids: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    reached: dict[str, SourceReached] = field(default_factory=dict)

    def add(self, ids: npt.NDArray[np.uint64], header: EntryHeader) -> None:
        self.ids.append(ids)
        for now in header.reached:
            before = self.reached.get(now.source, now)
            self.reached[now.source] = SourceReached(
                now.source,
                min(now.start, before.start),
                max(now.stop, before.stop),
                max(now.append_ms, before.append_ms),
                now.clicks if before is now else before.clicks + now.clicks,
            )


class LogRelay:
    """Follows a model's logs, and makes blocks. Not safe for use from several threads."""

    def __init__(
        self,
        store: Store,
        replica: Replica,
        columns: RelayedColumns | RelayForm,
        *,
        rows_a_block: int = _ROWS_A_BLOCK,
    ) -> None:
        self._store, self._replica, self._columns = store, replica, columns
        self._rows_a_block = rows_a_block
        self._sent: dict[int, RelayPosition] = {}
        self._unsent: dict[int, _Unsent] = {}

    def resume(self, positions: Mapping[int, RelayPosition]) -> None:
        """Continue after the last complete blocks in the topic, by bucket. Call before `step`."""
        self._sent.update(positions)

    def rebase(self, bucket: int) -> None:
        """Write all rows of the bucket with the next blocks."""
        self._sent.pop(bucket, None)

    def step(self) -> int:
        """Read what is new in the logs; return how many entries and buckets were read.

        Raises every StoreError but Unreachable.
        """
        read = 0
        for change in self._replica.poll(ENTRIES_A_POLL):
            read += isinstance(change, Folded | Deleted | BucketRecopied)
            match change:
                case Folded(bucket=bucket, header=header):
                    self._of(bucket).add(change.deltas.ids, header)
                case Deleted(bucket=bucket, header=header):
                    self._of(bucket).add(change.ids, header)
                case BucketRecopied(bucket=bucket):
                    self._copied(bucket)
        self._replica.compact()
        return read

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (bucket, block) for what changed since the last call; bases first of all.

        The caller writes all blocks, or ends and resumes from those that it wrote.
        """
        for bucket in self._replica.buckets:
            if not self._replica.copied(bucket):
                continue
            at = self._replica.position(bucket)
            stop = RelayPosition(at.version, at.nonce)
            if bucket not in self._sent:
                yield from self._base(bucket)
            elif self._sent[bucket] != stop:
                yield bucket, self._changes(bucket)
            self._sent[bucket] = stop
            self._unsent.pop(bucket, None)

    def _of(self, bucket: int) -> _Unsent:
        return self._unsent.setdefault(bucket, _Unsent())

    def _copied(self, bucket: int) -> None:
        """Find the changes since the last block in the log; without them, begin a new base."""
        sent = self._sent.get(bucket)
        if sent is None:
            return
        unsent = _Unsent()
        try:
            self._read_since(bucket, sent, unsent)
        except (BrokenHistory, Unreachable):
            self.rebase(bucket)
        else:
            self._unsent[bucket] = unsent

    def _read_since(self, bucket: int, sent: RelayPosition, unsent: _Unsent) -> None:
        """Add the log's entries from `sent` to the replica's position. Raises BrokenHistory."""
        goal, (version, nonce) = self._replica.position(bucket), sent
        if version > goal.version:
            raise BrokenHistory(f"bucket {bucket} went back")
        while version < goal.version:
            [polled] = self._store.poll({bucket: version}, ENTRIES_A_POLL)
            if isinstance(polled, Unreachable):
                raise BrokenHistory(f"bucket {bucket} does not answer")
            for entry in chain(version, nonce, polled):
                if version == goal.version:
                    break
                version, nonce = entry.version, entry.nonce
                header, content = unpack_entry(entry.blob)
                unsent.add(content.ids, header)
        if nonce != goal.nonce:
            raise BrokenHistory(f"bucket {bucket} has another history since the last block")

    def _base(self, bucket: int) -> Iterator[tuple[int, bytes]]:
        table = self._replica.table
        places = self._replica.places(bucket)
        places = places[table.take(places).exist()]
        at = self._replica.position(bucket)
        reached = list(at.reached.values())
        starts = range(0, max(places.shape[0], 1), self._rows_a_block)
        for part, start in enumerate(starts):
            chosen = places[start : start + self._rows_a_block]
            last = part == len(starts) - 1
            yield bucket, self._packed(bucket, None, chosen, reached if last else [], part, last)

    def _changes(self, bucket: int) -> bytes:
        unsent = self._of(bucket)
        ids = np.unique(np.concatenate([*unsent.ids, np.zeros(0, np.uint64)]))
        places = self._replica.table.find_or_add(ids)
        reached = list(unsent.reached.values())
        return self._packed(bucket, self._sent[bucket], places, reached)

    def _packed(
        self,
        bucket: int,
        start: RelayPosition | None,
        places: Places,
        reached: Sequence[SourceReached],
        part: int = 0,
        last: bool = True,
    ) -> bytes:
        at, shape = self._replica.position(bucket), self._replica.shape
        stop = RelayPosition(at.version, at.nonce)
        header = BlockHeader(
            shape.fingerprint,
            *(bucket, shape.width, 0, start, stop, at.event_ms, at.append_ms, list(reached), []),
            part=part,
            last=last,
        )
        return pack_block(header, self._replica.table.take(places), self._columns)
