"""The learners of a world: the real loop, with all rows or a bound, and checks of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.ingest.kafka.reading.record_fetcher import RecordFetcher
from headrace.ingest.kafka.reading.source_order import OrderPatience
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.outputs import KafkaOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerClocks, LearnerPorts
from headrace.pserver.replica.log_chain import LogPosition
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Store
from tests.simulation.batches import MOST_EXAMPLES, WIDTH, CountingModel, fields_of
from tests.simulation.bounded import AdmittingModel, AskedRows, held_rows
from tests.simulation.kafka import SimulatedReader, SimulatedScores
from tests.simulation.ledger import Broken, differences, rows_by_id
from tests.simulation.network import SimulatedExchange, connect
from tests.simulation.parking import DoubtingGuard
from tests.simulation.processes import Process, SparseTable

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimulatedClocks(LearnerClocks):
    """The clocks of a learner, and the wall clock of its machine, which steps."""

    wall_ms: Callable[[], int]

    def __init__(self, world: World) -> None:
        super().__init__(world.now_ms, lambda seconds: world.pass_time(20), world.nonce)
        object.__setattr__(self, "wall_ms", world.wall_ms)


class LearnerProcess(Process):
    """A learner: copies its replica, then joins the group and learns."""

    kind = "learner"

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._starting: Replica | CachedReplica | None = None
        self._connection: Store | None = None
        self._accepted = ""
        """Identity of the topic with which the operator starts it."""
        self._accepting = False
        self.learner: Learner | None = None

    @property
    def up(self) -> bool:
        return self.learner is not None

    @property
    def replica(self) -> Replica | None:
        found = self.learner.replica if self.learner else None
        return found if isinstance(found, Replica) else None

    @property
    def flying(self) -> bool:
        """Whether one of its pushes is under way."""
        return self.learner is not None and self.learner._pushes.awaited

    @property
    def accepting(self) -> bool:
        """Whether the operator's acceptance of a topic made again is not used up."""
        if self.learner is None or not self._accepting:
            return bool(self._accepted)
        intake = self.learner.intake
        names = [partition.name for partition in intake._partitions.values()]
        return not any(intake._cursors.begun(name) for name in names)

    def _copy(self, connection: Store) -> Replica | CachedReplica:
        shape, plan = self.world.shape, self.world.plan
        if not plan.most_held:
            return Replica(connection, shape, SparseTable(WIDTH))
        asked = AskedRows(plan)
        return CachedReplica(connection, shape, asked, plan.most_held)  # type: ignore[arg-type]

    def position(self, bucket: int) -> LogPosition | None:
        """See Process; for a bounded learner, the position of its rows."""
        held = self.learner.replica if self.learner else None
        if not isinstance(held, CachedReplica):
            return super().position(bucket)
        return None if bucket in held._anew else held._lookup.position(bucket)

    def _check_held(self, held: CachedReplica) -> None:
        for bucket in range(held.shape.buckets):
            if (at := self.position(bucket)) is not None:
                ids, rows = held_rows(held, bucket)
                wrong = self.world.store.agrees_on(bucket, at.version, at.nonce, ids, rows)
                if wrong:
                    where = f"bucket {bucket} at version {at.version}"
                    raise Broken(f"the rows that {self.name} holds, {where}: {wrong}")

    def settled(self) -> bool:
        """Whether nothing is pending nor under way."""
        return self.learner is not None and self.learner._pushes.settled()

    def _start(self) -> None:
        world = self.world
        if self._starting is None or self._connection is None:
            self._connection = connect(world)
            self._starting = self._copy(self._connection)
        self._starting.poll()
        if not self._starting.complete:
            return
        plan, replica, self._starting = world.plan, self._starting, None
        ports = LearnerPorts(
            world.group.join(self.name, world.pause, plan.old_ends),
            KafkaOutputs(SimulatedScores(world.topic, world.pause), "scores"),
            self._connection,
            SimulatedExchange(self._connection, world),
            RecordFetcher(self._reader),
            accept_topic=self._accepted,
        )
        pace = LearnerPacing(
            push_interval_ms=plan.push_interval_ms,
            backlog_interval_ms=2 * plan.push_interval_ms,
            log_bytes_limit=plan.log_bytes_limit,
            patience=OrderPatience(20, 20),
            recheck_interval_ms=200,
            identity_interval_ms=1000,
            retry_interval_ms=50,
            parked_interval_ms=50,
            unanswered_limit=plan.unanswered_limit,
        )
        clocks = SimulatedClocks(world)
        model = CountingModel(plan.wait_s)
        if plan.most_held or plan.admitted:
            model = AdmittingModel(plan, bounded=plan.most_held > 0)
        guard = DoubtingGuard(world) if plan.parked else BatchGuard(1000)
        fields = fields_of(plan.wait_s)
        self.learner = Learner(ports, replica, model, fields, pace, clocks, guard=guard)
        self._accepting, self._accepted = bool(self._accepted), ""

    def _reader(self) -> SimulatedReader:
        """A reader of single messages, without a group."""
        world = self.world
        return SimulatedReader(world.topic, world.dice, world.pause)

    def _step(self) -> None:
        assert self.learner is not None
        self.learner.step(0.0)
        self._check_unsent()

    def _check_unsent(self) -> None:
        """Raise Broken if more waits for a bucket that does not answer than the limit allows."""
        assert self.learner is not None
        pushes, cursors = self.learner._pushes, self.learner.intake._cursors
        limit = self.world.plan.unanswered_limit + MOST_EXAMPLES
        for bucket in pushes.unanswered:
            sent = {span.source: span.stop for span in pushes._flights[bucket].push.spans}
            unsent = sum(
                batch.examples
                for span in cursors.spans(bucket)
                for batch in self.world.topic.covered(
                    span.source, sent.get(span.source, span.start), span.stop
                )
            )
            if unsent > limit:
                raise Broken(f"{self.name} holds {unsent} examples for silent bucket {bucket}")

    def _finish(self) -> None:
        assert self.learner is not None
        self.learner.finish(self.world.now_ms() + 300)

    def _drop(self) -> None:
        self.learner = self._starting = self._connection = None
        self.world.group.leave(self.name)

    def _refused_topic(self) -> None:
        self._accepted = self.world.topic.accept()

    def check(self) -> None:
        """Also that it sees what is folded, flying and pending together."""
        super().check()
        learner = self.learner
        assert learner is not None
        if isinstance(learner.replica, CachedReplica):
            self._check_held(learner.replica)
        seen, ids = learner.view.everything(), learner.view.ids
        expected = np.zeros((3, ids.shape[0]), np.float64)
        folded = learner.replica.table
        places = folded.find(ids)
        there = np.flatnonzero(places >= 0)
        _add(expected, there, folded.take(places[there]))
        for bucket in range(self.world.shape.buckets):
            flying = learner._pushes.flying(bucket)
            if flying is not None:
                # an entry of its own that it read back while the answer was not there
                _add(expected, learner.view.find(flying.ids), flying)
        _add(expected, np.arange(ids.shape[0]), learner._pending.gaining)
        found = np.array([seen.shows, seen.clicks, seen.values[:, 0]], np.float64)
        if not np.array_equal(found, expected):
            place = int(np.flatnonzero((found != expected).any(axis=0))[0])
            raise Broken(
                f"{self.name} sees row {ids[place]} as {found[:, place]}, with what it knows it "
                f"must be {expected[:, place]} (shows, clicks, first value)"
            )

    def check_view(self) -> None:
        """Raise Broken unless it sees what its replica holds, bit for bit."""
        assert self.learner is not None
        seen = rows_by_id(self.learner.view.everything())
        held = rows_by_id(self.learner.replica.table.everything())
        if wrong := differences(seen, held):
            raise Broken(f"{self.name} does not see what its replica holds: {wrong}")


def _add(
    sums: npt.NDArray[np.float64],
    at: npt.NDArray[np.int64],
    rows: FoldedRows | RowDeltas | PendingColumns,
) -> None:
    """Add shows, clicks and first values of rows to columns `at` of `sums`, shape (3, n)."""
    count = at.shape[0]  # `PendingColumns` has room for more
    sums[0, at] += rows.shows[:count]
    sums[1, at] += rows.clicks[:count]
    sums[2, at] += rows.values[:count, 0]
