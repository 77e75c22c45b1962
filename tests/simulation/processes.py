"""Keepers and servers of a world: the real ones, behind a bad network. Base of all processes.

A process runs one step at a time. It dies in any call that raises Crash, and stops when a bucket is
lost. The next time it is run, it starts again without any memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.ingest.errors import OffsetGone
from headrace.learner.errors import BucketsBehind, LogTruncated, MarkOutsideTopic, TopicMadeAgain
from headrace.pserver.errors import MissingBucket
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.replica.log_chain import LogPosition
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from tests.simulation.batches import WIDTH
from tests.simulation.ledger import Broken, rows_by_id
from tests.simulation.network import Crash, connect

if TYPE_CHECKING:
    from tests.simulation.world import World

_METRICS = KeeperMetrics("simulated")
"""Metrics of all keepers of all worlds. No test reads them."""


class Refused(Exception):
    """The world ends here: a learner refuses a log that lost what was learned from it."""


class SparseTable(RowTable):
    """A table that thinks it worth its while to give a few rows back."""

    @property
    def sparse(self) -> bool:
        """See RowTable."""
        return self._cleared > 3


class Process:
    """One process: not there, or in one of its steps, or between two."""

    kind = ""

    def __init__(self, name: str, world: World) -> None:
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

    @property
    def buckets(self) -> Iterable[int]:
        """The buckets that it follows."""
        return self.replica.buckets if self.replica else range(self.world.shape.buckets)

    def position(self, bucket: int) -> LogPosition | None:
        """Return how far it follows a bucket; None: it does not yet."""
        replica = self.replica
        copied = replica is not None and replica.copied(bucket)
        return replica.position(bucket) if replica is not None and copied else None

    def run(self) -> None:
        """Do one step, or start; survive neither a crash nor a bucket that is lost."""
        self._do(self._step if self.up else self._start)

    def kill(self) -> None:
        """End at once, as on SIGKILL."""
        self._drop()

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
        except (OffsetGone, MarkOutsideTopic) as refusal:
            if self.world.plan.old_ends:  # where Kafka deletes nothing
                raise Broken(f"{self.name} refuses a log that has all it learned") from refusal
            self.world.tally[f"{self.kind}s stopped by a missing offset"] += 1
            self._drop()
        except LogTruncated as refusal:
            if not self.world.topic.cut_beyond_marks:
                raise Broken(f"{self.name} refuses a log that has all it learned") from refusal
            raise Refused from refusal
        except (TopicMadeAgain, BucketsBehind):
            self.world.tally[f"{self.kind}s stopped by a topic made again"] += 1
            self._drop()
            self._refused_topic()
        else:
            there = self.up or self.replica is not None
            if there and self.world.dice.random() < self.world.plan.checked:
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

    def __init__(self, name: str, world: World) -> None:
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
            self._replica = Replica(connect(self.world), self.world.shape, SparseTable(WIDTH))
        self._replica.poll()

    def _step(self) -> None:
        assert self._replica is not None
        self._replica.poll()
        self._replica.compact()

    def _finish(self) -> None:
        pass

    def _drop(self) -> None:
        self._replica = None


class KeeperProcess(Process):
    """A keeper."""

    kind = "keeper"

    def __init__(self, name: str, world: World) -> None:
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
            connect(world),
            world.shape,
            name=self.name,
            keeping=FoldPolicy(
                keep_ms=plan.keep_ms,
                keep_bytes=plan.keep_bytes,
                rows_a_fold=plan.rows_a_fold,
                lease_ms=plan.lease_ms,
                expiry=Expiry(
                    plan.expire_after_s, plan.most_rows - plan.row_limit, interval_ms=200
                ),
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
