"""Learners, keepers and servers of a world: the real ones, behind a bad network.

A process runs one step at a time. It dies in any call that raises Crash, and stops when a bucket is
lost. The next time it is run, it starts again without any memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.ingest.errors import OffsetGone
from headrace.learner.errors import BucketsBehind, MarkOutsideTopic, TopicMadeAgain
from headrace.learner.loop.batch_guard import BatchGuard
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerClocks, LearnerPorts
from headrace.pserver.errors import MissingBucket
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from tests.simulation.batches import FIELDS, WIDTH, CountingModel
from tests.simulation.kafka import SimulatedScores
from tests.simulation.ledger import Broken, differences, rows_by_id
from tests.simulation.network import Connection, Crash, SimulatedExchange, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from headrace.learner.kernels.pending_deltas import PendingColumns
    from headrace.pserver.rows.deltas import RowDeltas
    from headrace.pserver.rows.row_codec import FoldedRows
    from headrace.pserver.store import Shape
    from tests.simulation.kafka import Group
    from tests.simulation.network import Network
    from tests.simulation.plan import Plan
    from tests.simulation.topic import SimulatedTopic
    from tests.simulation.witness import WitnessedStore

_METRICS = KeeperMetrics("simulated")
"""Metrics of all keepers of all worlds. No test reads them."""


class SparseTable(RowTable):
    """A table that thinks it worth its while to give a few rows back."""

    @property
    def sparse(self) -> bool:
        """See RowTable."""
        return self._cleared > 3


class Place(Surroundings, Protocol):
    """The parts of the world that a process uses."""

    plan: Plan
    shape: Shape
    store: WitnessedStore
    network: Network
    topic: SimulatedTopic
    group: Group

    def now_ms(self) -> int:
        """Time since the world began."""

    def wall_ms(self) -> int:
        """The time of day, as the machine of a process has it; it steps."""

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""

    def nonce(self) -> bytes:
        """Eight random bytes."""


class SimulatedClocks(LearnerClocks):
    """The clocks of a learner, and the wall clock of its machine, which steps."""

    wall_ms: Callable[[], int]

    def __init__(self, world: Place) -> None:
        super().__init__(world.now_ms, lambda seconds: world.pass_time(20), world.nonce)
        object.__setattr__(self, "wall_ms", world.wall_ms)


class Process:
    """One process: not there, or in one of its steps, or between two."""

    kind = ""

    def __init__(self, name: str, world: Place) -> None:
        self.name, self.world = name, world
        self.running = False
        """Whether the process pauses in the middle of a step, while others go on."""

    @property
    def up(self) -> bool:
        """Whether it does its work: not dead, and not still starting."""
        raise NotImplementedError

    @property
    def replica(self) -> Replica | None:
        """The replica it works with."""
        raise NotImplementedError

    def run(self) -> None:
        """Do one step, or start; survive neither a crash nor a bucket that is lost."""
        self._do(self._step if self.up else self._start)

    def end(self) -> None:
        """End in good order, as on SIGTERM."""
        if self.up:
            self._do(self._finish)
        self._drop()

    def _do(self, work: object) -> None:
        self.running = True
        try:
            work()  # type: ignore[operator]
        except Crash:
            self.world.tally[f"{self.kind}s killed"] += 1
            self._drop()
        except MissingBucket:
            self.world.tally[f"{self.kind}s stopped by a lost bucket"] += 1
            self._drop()
        except (OffsetGone, MarkOutsideTopic):
            self.world.tally[f"{self.kind}s stopped by a missing offset"] += 1
            self._drop()
        except (TopicMadeAgain, BucketsBehind):
            self.world.tally[f"{self.kind}s stopped by a topic made again"] += 1
            self._drop()
            self._refused_topic()
        else:
            if self.replica is not None and self.world.dice.random() < self.world.plan.checked:
                self.check()
        finally:
            self.running = False

    def _start(self) -> None:
        raise NotImplementedError

    def _step(self) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _drop(self) -> None:
        raise NotImplementedError

    def _refused_topic(self) -> None:
        """Let the operator act on a topic that was made again."""

    def check(self) -> None:
        """Raise Broken unless every row is what it was at the version the replica says."""
        replica = self.replica
        if replica is None:
            return
        for bucket in replica.buckets:
            if replica.copied(bucket):
                position = replica.position(bucket)
                rows = rows_by_id(replica.table.take(replica.places(bucket)))
                wrong = self.world.store.agrees(bucket, position.version, position.nonce, rows)
                if wrong:
                    where = f"bucket {bucket} at version {position.version}"
                    raise Broken(f"the replica of {self.name}, {where}: {wrong}")


class ServerProcess(Process):
    """A replica that follows, as serving does."""

    kind = "server"

    def __init__(self, name: str, world: Place) -> None:
        super().__init__(name, world)
        self._replica: Replica | None = None

    @property
    def up(self) -> bool:
        return self._replica is not None and self._replica.complete

    @property
    def replica(self) -> Replica | None:
        return self._replica

    def _start(self) -> None:
        if self._replica is None:
            connection = Connection(self.world.store, self.world.network, self.world)
            self._replica = Replica(connection, self.world.shape, SparseTable(WIDTH))
        self._replica.poll()

    def _step(self) -> None:
        assert self._replica is not None
        self._replica.poll()
        self._replica.compact()

    def _finish(self) -> None:
        pass

    def _drop(self) -> None:
        self._replica = None


class LearnerProcess(Process):
    """A learner: copies its replica, then joins the group and learns."""

    kind = "learner"

    def __init__(self, name: str, world: Place) -> None:
        super().__init__(name, world)
        self._starting: Replica | None = None
        self._connection: Connection | None = None
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
        """Whether a push of it is under way."""
        return self.learner is not None and self.learner._pushes.awaited

    @property
    def accepting(self) -> bool:
        """Whether the operator's acceptance of a topic made again is not used up."""
        if self.learner is None or not self._accepting:
            return bool(self._accepted)
        intake = self.learner._intake
        names = [partition.name for partition in intake._partitions.values()]
        return not any(intake._cursors.begun(name) for name in names)

    def settled(self) -> bool:
        """Whether nothing is pending nor under way."""
        return self.learner is not None and self.learner._pushes.settled()

    def _start(self) -> None:
        world = self.world
        if self._starting is None or self._connection is None:
            self._connection = Connection(world.store, world.network, world)
            self._starting = Replica(self._connection, world.shape, SparseTable(WIDTH))
        self._starting.poll()
        if not self._starting.complete:
            return
        plan, replica, self._starting = world.plan, self._starting, None
        ports = LearnerPorts(
            world.group.join(self.name, world.pause),
            SimulatedScores(world.topic, world.pause),
            "scores",
            self._connection,
            SimulatedExchange(self._connection, world),
            accept_topic=self._accepted,
        )
        pace = LearnerPacing(
            push_interval_ms=plan.push_interval_ms,
            backlog_interval_ms=2 * plan.push_interval_ms,
            log_bytes_limit=plan.log_bytes_limit,
            order_wait_ms=20,
            recheck_interval_ms=200,
            retry_interval_ms=50,
        )
        clocks = SimulatedClocks(world)
        self.learner = Learner(
            ports, replica, CountingModel(), FIELDS, pace, clocks, guard=BatchGuard()
        )
        self._accepting, self._accepted = bool(self._accepted), ""

    def _step(self) -> None:
        assert self.learner is not None
        self.learner.step(0.0)

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


class KeeperProcess(Process):
    """A keeper."""

    kind = "keeper"

    def __init__(self, name: str, world: Place) -> None:
        super().__init__(name, world)
        self.keeper: Keeper | None = None

    @property
    def up(self) -> bool:
        return self.keeper is not None

    @property
    def replica(self) -> Replica | None:
        return self.keeper.replica if self.keeper else None

    def _start(self) -> None:
        world, plan = self.world, self.world.plan
        self.keeper = Keeper(
            Connection(world.store, world.network, world),
            world.shape,
            name=self.name,
            keeping=FoldPolicy(
                keep_ms=plan.keep_ms,
                keep_bytes=plan.keep_bytes,
                rows_a_fold=plan.rows_a_fold,
                lease_ms=plan.lease_ms,
                expiry=Expiry(plan.expire_after_s, plan.most_rows, interval_ms=200),
            ),
            now_ms=world.now_ms,
            draw_nonce=world.nonce,
            metrics=_METRICS,
        )
        self.keeper.replica.table = SparseTable(WIDTH)

    def _step(self) -> None:
        assert self.keeper is not None
        self.keeper.step()

    def _finish(self) -> None:
        assert self.keeper is not None
        self.keeper.release()

    def _drop(self) -> None:
        self.keeper = None
