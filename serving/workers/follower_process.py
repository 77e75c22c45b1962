"""The follower process: follows the logs or relays, or loads the snapshots, for all workers."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from headrace.ingest.status import status_in
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.table import RowTable
from headrace.runtime.clock import wall_ms
from headrace.runtime.http.metrics_server import new_registry
from headrace.runtime.process import running_process
from headrace.serving.errors import ServingError
from headrace.serving.models.loading import SnapshotModel, StoreModel, compatible_spec
from headrace.serving.process import (
    OBJECTS_BETWEEN_COLLECTIONS,
    ServerSettings,
    failures_of_all,
    running,
)
from headrace.serving.replicas.replica_metrics import ReplicaCollector
from headrace.serving.replicas.status import LocalRows
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.process_pool import WorkerContext
from headrace.serving.workers.row_publisher import RowPublisher
from headrace.serving.workers.shared_memory import SharedFiles

Opening = Callable[[ExitStack], list[StoreModel | SnapshotModel]]

log = logging.getLogger(__name__)

_LOOK_S = 0.05


class _FollowedModel(NamedTuple):
    """A model whose rows this process keeps up to date."""

    spec: ModelSpec
    rows: LocalRows
    publisher: RowPublisher


@dataclass(frozen=True)
class FollowerWork:
    """The work of the follower. It is pickled into another process."""

    settings: ServerSettings
    opening: Opening
    """Opens the models in the process that uses them."""
    folder: Path

    def __call__(self, context: WorkerContext) -> None:
        """Follow until the end. Raises the error of a first copy if all models fail."""
        settings, registry = self.settings, new_registry()
        with ExitStack() as stack:
            kept = _open(self.opening(stack), settings, registry, self.folder)
            health = stack.enter_context(
                running_process(
                    "server",
                    status_in(settings.told_to),
                    registry,
                    settings.metrics_address,
                    objects_between_collections=OBJECTS_BETWEEN_COLLECTIONS,
                )
            )
            died = stack.enter_context(dead_threads())
            stack.enter_context(running([each.rows for each in kept]))
            said = False
            health.ready_when(lambda: any(each.publisher.complete for each in kept))
            while not context.stop.wait(_LOOK_S):
                health.stepped()
                if died:
                    raise ServingError(f"expected threads to follow the logs, got: {died[0]}")
                if any(each.publisher.complete for each in kept):
                    if not said:
                        context.ready()
                    said = True
                    continue
                for failure in failures_of_all([each.rows for each in kept]):
                    raise failure
        if context.orphaned:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def dead_threads() -> Iterator[list[BaseException]]:
    """Yield a list that collects the exceptions of threads that die.

    A follower whose thread died would publish nothing and seem healthy. The process ends instead,
    and the supervisor starts another.
    """
    died: list[BaseException] = []
    before = threading.excepthook

    def note(args: threading.ExceptHookArgs) -> None:
        about = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
        log.error("a thread ended", exc_info=about)
        died.append(about[1])

    threading.excepthook = note
    try:
        yield died
    finally:
        threading.excepthook = before


def board_of(folder: Path, model: str) -> Mailbox:
    """Return the mailbox with the status of a model's rows."""
    return Mailbox(folder / f"{model}.board")


def _open(
    models: list[StoreModel | SnapshotModel],
    settings: ServerSettings,
    registry: CollectorRegistry,
    folder: Path,
) -> list[_FollowedModel]:
    loader = settings.loader(registry)
    kept = []
    for each, shape in compatible_spec(models):
        name = each.spec.name
        files = SharedFiles(folder, f"{name}.rows")
        table = RowTable(shape.width, files)
        publisher = RowPublisher(board_of(folder, name), files, table)
        rows = loader.rows(each, shape, table, publisher.publish)
        kept.append(_FollowedModel(each.spec, rows, publisher))
    registry.register(ReplicaCollector(kept, wall_ms))
    return kept
