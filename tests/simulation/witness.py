"""A store on an embedded server that checks every call against the expected effect.

The server runs functions.lua, and the product's `RedisStore` calls it. The witness keeps a ledger
of each bucket. It checks every call that changes something, and raises Broken at once if

    a push does not have exactly the examples of its ranges without those that it parks, or applies
    although a mark is not at the start of its range, or covers an impression whose score is not
    delivered, or a recreated topic that no operator accepted
    a keeper changes anything without the lease or after its end, or takes or releases another
    keeper's lease
    a fold writes a row that differs from the row at that version, removes an existing row, or
    removes entries that the log no longer has
    a trim removes an entry that a row lacks
    a deletion is decided on a state that the row never had

A bucket that a failover sets back gets the ledger of that time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.pserver.errors import LostLease, Unreachable
from headrace.pserver.redis_backend.commands import names_of_all
from headrace.pserver.redis_backend.redis_store import RedisStore
from headrace.pserver.rows.deltas import Deletions, RowDeltas, unpack_entry
from headrace.pserver.rows.row_codec import StoredRows
from headrace.pserver.store import BucketAnswer, Delete, Fold, OffsetSpan, Push, Shape, Trim
from tests.embedded_valkey.keyspace import Value
from tests.embedded_valkey.server import EmbeddedValkey
from tests.simulation.batches import Total, summed
from tests.simulation.bucket_state import BucketState, entries_in, folded_versions, read_state
from tests.simulation.ledger import Broken, Ledger, Row, differences, rows_by_id, rows_of
from tests.simulation.parking import drops, learned_by
from tests.simulation.topic import SimulatedTopic

_ROWS_A_CHUNK = 8
"""So that much can happen between two chunks."""
_SUB_HASHES = 4


class Memory:
    """A bucket as it was at some time, with its ledger."""

    def __init__(
        self, bucket: int, state: BucketState, values: Mapping[bytes, Value], ledger: Ledger
    ) -> None:
        """`values`: what the bucket's keys held."""
        self.bucket, self.state, self.values, self.ledger = bucket, state, values, ledger.copy()
        self.abandoned = False
        """Whether the bucket went back to before this: it can be restored, but not fail over."""


class WitnessedStore(RedisStore):
    """A store that raises Broken when a call breaks an invariant."""

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int],
        nonces: Callable[[], bytes],
        topic: SimulatedTopic,
        tally: Counter[str],
        projected: Callable[[Mapping[int, Any]], dict[int, Total]],
    ) -> None:
        """`projected`: makes rows comparable whose ids depend on admission."""
        self._projected = projected
        self._server = EmbeddedValkey(clock_ms)
        super().__init__(
            self._server,  # type: ignore[arg-type]  # in the place of the client of real servers
            "simulated",
            _SUB_HASHES,
            nonces,
            _ROWS_A_CHUNK,
        )
        self._clock_ms = clock_ms
        self._topic, self._tally = topic, tally
        self.ledgers: dict[int, Ledger] = {}
        self._histories: dict[tuple[int, int, bytes], list[dict[int, Row]]] = {}
        self._looked_at: set[bytes] = set()  # nonces of pushes
        self._behind: dict[tuple[int, str], int] = {}
        """Restored bucket and source with which it must not go on -> acceptances until then."""
        self.changing: Callable[[int], None] = lambda bucket: None
        """Called before a bucket is changed: what a follower that lags may still have."""
        self.accepting: Callable[[], bool] = lambda: False
        """Returns whether a learner was started with --accept-topic, and has not used it up."""

    # ---------------------------------------------------------------- what processes call

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        """See Store. A learner that reads an empty store may begin the present topic."""
        if not self._learned():
            self._topic.accepted.add(self._topic.now.identity)
        return super().marks(buckets)

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        """See Store."""
        answers: list[BucketAnswer | Unreachable] = []
        for push in pushes:
            before = self.state(push.bucket)
            self._look_at(push)
            self.changing(push.bucket)
            answers += super().push([push])
            if self.state(push.bucket).version == before.version:
                self._tally["pushes refused or repeated"] += 1
                continue
            self._tally["pushes applied"] += 1
            for span in push.spans:
                if before.marks.get(span.source, 0) != span.start:
                    raise Broken(f"{span} was applied to bucket {push.bucket} at {before.marks}")
                self._check_accepted(push.bucket, span)
            self._check_scores(push)
            self.ledgers[push.bucket].add(unpack_entry(push.blob)[1])
            self.ledgers[push.bucket].dropped |= {s.source for s in push.spans if drops(s)}
            self._know(push.bucket)
        return answers

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """See Store."""
        before = self.state(bucket)
        claimed = super().claim(bucket, keeper, lease_ms)
        held = before.keeper not in ("", keeper) and self._clock_ms() < before.lease_ms
        if claimed and held:
            raise Broken(f"{keeper} took the lease of {bucket} that {before.keeper} has")
        return claimed

    def release(self, bucket: int, keeper: str) -> None:
        """See Store."""
        before = self.state(bucket)
        super().release(bucket, keeper)
        if before.keeper not in (keeper, self.state(bucket).keeper):
            raise Broken(f"{keeper} released the lease of {bucket} that {before.keeper} has")

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        """See Store."""
        answers: list[LostLease | Unreachable | None] = []
        for fold in folds:
            held = self._held(fold)
            self.changing(fold.bucket)
            answers += super().fold([fold])
            if self._done(fold, held, "folds", answers[-1]):
                self._check_fold(fold)
        return answers

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        """See Store."""
        answers: list[LostLease | Unreachable | None] = []
        for trim in trims:
            held = self._held(trim)
            self.changing(trim.bucket)
            answers += super().trim([trim])
            if self._done(trim, held, "trims", answers[-1]):
                self._check_trim(trim)
        return answers

    def delete(self, deletes: Sequence[Delete]) -> list[LostLease | Unreachable | None]:
        """See Store."""
        answers: list[LostLease | Unreachable | None] = []
        for delete in deletes:
            held = self._held(delete)
            self.changing(delete.bucket)
            answers += super().delete([delete])
            if self._done(delete, held, "deletions", answers[-1]):
                content = unpack_entry(delete.blob)[1]
                assert isinstance(content, Deletions)
                self._check_deletions(delete, content)
                self.ledgers[delete.bucket].add(content)
                self._know(delete.bucket)
        return answers

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """See Store."""
        before = self._state_or_none(bucket)
        yield from super().rows(bucket)
        after = self._state_or_none(bucket)
        self._tally["logs trimmed while rows were read"] += (
            before is not None and after is not None and after.trimmed > before.trimmed
        )

    # ---------------------------------------------------------------- what the world does

    def create(self, shape: Shape) -> None:
        """See Store."""
        super().create(shape)
        for bucket in range(shape.buckets):
            self._begin(bucket, Ledger(0, {}))

    def at_memory_limit(self) -> AbstractContextManager[None]:
        """Let the server refuse meanwhile what needs memory."""
        return self._server.at_memory_limit()

    def state(self, bucket: int) -> BucketState:
        """Return the marks of a bucket. Raises MissingBucket."""
        state = self._state_or_none(bucket)
        if state is None:
            raise self._lifecycle.lost(bucket)
        return state

    def entries(self, bucket: int) -> int:
        """Return the number of entries in the log of a bucket."""
        return entries_in(self._values.get(self.key(bucket, "log")))

    def remember(self, bucket: int) -> Memory:
        """Return the bucket as it is now, for `go_back` and `restore`."""
        values = self._server.copy_of(self._keys(bucket))
        return Memory(bucket, self.state(bucket), values, self.ledgers[bucket])

    def go_back(self, memory: Memory) -> None:
        """Fail over: the bucket is what it was then, log, lease and all."""
        self._server.put_back(self._keys(memory.bucket), memory.values)
        self.ledgers[memory.bucket] = memory.ledger.copy()

    def lose(self, bucket: int) -> None:
        """The bucket comes back empty."""
        self._server.put_back(self._keys(bucket), {})
        del self.ledgers[bucket]

    def restore(self, bucket: int, memory: Memory | None) -> None:
        """Restore a lost bucket as an operator would: from a snapshot, or empty."""
        rows = memory.ledger.rows if memory else {}
        version = memory.ledger.head if memory else 0
        self.load(bucket, version, memory.state.marks if memory else {}, [rows_of(rows)])
        self._begin(bucket, Ledger(version, rows))
        self.ledgers[bucket].dropped |= memory.ledger.dropped if memory else set()
        self._note_behind(bucket)

    def _note_behind(self, bucket: int) -> None:
        """Note the sources that must not go on in a restored bucket without the operator."""
        names = self._topic.now.names
        marks = [
            self.state(each).marks
            for each in range(self.shape().buckets)
            if each not in self.missing()
        ]
        mine = self.state(bucket).marks
        for name in names:
            self._behind.pop((bucket, name), None)  # of an earlier loss of the same bucket
            partition = name.rpartition("/")[2]
            learned = any(each.get(name, 0) for each in marks)
            lacks = any(
                mark > mine.get(source, 0)
                for each in marks
                for source, mark in each.items()
                if source not in names and source.rpartition("/")[2] == partition
            )
            if learned and lacks and not mine.get(name, 0) and not self.accepting():
                self._behind[bucket, name] = self._topic.acceptances

    def _keys(self, bucket: int) -> list[bytes]:
        return [self.key(bucket, name) for name in names_of_all(_SUB_HASHES)]

    @property
    def _values(self) -> Mapping[bytes, Value]:
        return self._server.keyspace.values

    def _state_or_none(self, bucket: int) -> BucketState | None:
        return read_state(self._values.get(self.key(bucket, "marks")))

    # ---------------------------------------------------------------- looking

    def agrees(self, bucket: int, version: int, nonce: bytes, rows: dict[int, Row]) -> str:
        """Say how rows differ from all that were at that version of a history; empty if not."""
        known = self._histories.get((bucket, version, nonce), [{}])
        return "" if rows in known else differences(rows, known[-1])

    def agrees_on(
        self, bucket: int, version: int, nonce: bytes, ids: Sequence[int], rows: dict[int, Row]
    ) -> str:
        """Say how some of the rows differ from all that were at that version; see `agrees`."""
        known = self._histories.get((bucket, version, nonce), [{}])
        some = [{i: each[i] for i in ids if i in each} for each in known]
        return "" if rows in some else differences(rows, some[-1])

    def _begin(self, bucket: int, ledger: Ledger) -> None:
        self.ledgers[bucket] = ledger
        self._know(bucket)

    def _know(self, bucket: int) -> None:
        state, rows = self.state(bucket), self.ledgers[bucket].rows
        known = self._histories.setdefault((bucket, state.version, state.nonce), [])
        if rows not in known:
            known.append(rows)

    def _held(self, named: Fold | Trim | Delete) -> bool:
        state = self.state(named.bucket)
        return state.keeper == named.keeper and self._clock_ms() < state.lease_ms

    def _done(
        self,
        named: Fold | Trim | Delete,
        held: bool,
        what: str,
        answer: LostLease | Unreachable | None,
    ) -> bool:
        self._tally[f"{what} done" if answer is None else f"{what} refused"] += 1
        if answer is None and not held:
            raise Broken(f"{what} of {named.keeper}, who has not the lease of {named.bucket}")
        return answer is None

    def _look_at(self, push: Push) -> None:
        if push.nonce in self._looked_at:
            return
        self._looked_at.add(push.nonce)
        content = unpack_entry(push.blob)[1]
        assert isinstance(content, RowDeltas)
        below = 65 - self.shape().buckets.bit_length()
        expected = summed(
            (row_id, total)
            for batch in learned_by(push, self._topic)
            for row_id, total in batch.gains
            if row_id >> below == push.bucket
        )
        found = self._projected({i: row[:5] for i, row in rows_by_id(content).items()})
        expected = self._projected(expected)
        if found != expected:
            raise Broken(f"a push of {push.spans}: {differences(found, expected)}")

    def _check_scores(self, push: Push) -> None:
        for batch in learned_by(push, self._topic):
            for impression in batch.shown:
                if impression not in self._topic.scored:
                    raise Broken(f"{push.spans} marks {impression} as learned, without a score")

    def _check_accepted(self, bucket: int, span: OffsetSpan) -> None:
        """Check that examples of a topic made again are learned because its operator said so."""
        identity = span.source.rpartition("/")[0]
        learned = self._learned()
        if learned - {identity} and identity not in self._topic.accepted:
            raise Broken(f"{span} was learned after {learned}, and no operator accepted it")
        self._topic.accepted.add(identity)  # a late push of an earlier life changes nothing now
        if self._behind.get((bucket, span.source)) == self._topic.acceptances:
            raise Broken(f"{span} was learned in bucket {bucket}, restored from before that topic")

    def _learned(self) -> set[str]:
        """Return the identities of the topics of which any bucket has learned something."""
        return {
            name.rpartition("/")[0]
            for bucket in range(self.shape().buckets)
            if (state := self._state_or_none(bucket)) is not None
            for name, mark in state.marks.items()
            if mark
        }

    def _check_fold(self, fold: Fold) -> None:
        ledger, trimmed = self.ledgers[fold.bucket], self.state(fold.bucket).trimmed
        found, then = rows_by_id(fold.rows), ledger.at(fold.version)
        ids: list[int] = [*fold.rows.ids.tolist(), *fold.gone.tolist()]
        expected = {row_id: then[row_id] for row_id in ids if row_id in then}
        if found != expected:
            what = f"bucket {fold.bucket} folded to {fold.version}"
            raise Broken(f"{what}: {differences(found, expected)}")
        for row_id in fold.rows.ids.tolist():
            ledger.gone.pop(row_id, None)
        ledger.gone |= dict.fromkeys(fold.gone.tolist(), fold.version)
        for row_id in ids if fold.version < trimmed else []:
            if then.get(row_id) != ledger.at(trimmed).get(row_id):
                raise Broken(
                    f"bucket {fold.bucket}: row {row_id} lost what is trimmed to {trimmed}"
                )

    def _check_trim(self, trim: Trim) -> None:
        state, ledger = self.state(trim.bucket), self.ledgers[trim.bucket]
        trimmed = ledger.at(state.trimmed)
        keys = self._keys(trim.bucket)
        folded = folded_versions(self._values.get(key) for key in keys if b":rows:" in key)
        for row_id in folded.keys() | trimmed.keys():
            version = folded.get(row_id, ledger.gone.get(row_id, 0))
            if version >= state.trimmed:
                continue
            if ledger.at(version).get(row_id) != trimmed.get(row_id):
                raise Broken(
                    f"bucket {trim.bucket} was trimmed to {state.trimmed}, but row {row_id} is "
                    f"folded to {version} and lacks what came after"
                )

    def _check_deletions(self, delete: Delete, content: Deletions) -> None:
        then = self.ledgers[delete.bucket].at(delete.version)
        for row_id, last_seen in zip(*(c.tolist() for c in content), strict=True):
            if row_id not in then or then[row_id][3] != last_seen:
                raise Broken(
                    f"bucket {delete.bucket}: deletes row {row_id} as seen at {last_seen}, at "
                    f"{delete.version} it was {then.get(row_id)}"
                )
