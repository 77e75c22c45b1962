"""A worker process: answers requests from the rows of the follower process."""

import socket
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.clock import wall_ms
from headrace.runtime.http.metrics_server import new_registry
from headrace.serving.models.loading import served_by
from headrace.serving.models.registry import ModelRegistry
from headrace.serving.process import ServerSettings, serve
from headrace.serving.replicas.replica_metrics import ReplicaCollector
from headrace.serving.workers.follower_process import board_of
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.process_pool import WorkerContext
from headrace.serving.workers.row_subscriber import SharedRows
from headrace.serving.workers.shared_aliases import ALIASES_BYTES, SharedAliases


@dataclass(frozen=True)
class WorkerWork:
    """The work of a worker. It is pickled into another process."""

    settings: ServerSettings
    models: tuple[tuple[ModelSpec, int], ...]
    """Specs and their counts of buckets."""
    folder: Path
    listener: socket.socket
    """Shared by all workers: any idle worker accepts the next connection."""
    number: int
    """1 for the first worker."""

    def __call__(self, context: WorkerContext) -> None:
        """Answer requests until the end."""
        settings, folder, registry = self.settings, self.folder, new_registry()
        if settings.metrics_port:
            settings = replace(settings, metrics_port=settings.metrics_port + self.number)
        served = []
        for spec, buckets in self.models:
            rows = SharedRows(board_of(folder, spec.name), folder, spec.width, buckets)
            served.append(served_by(spec, buckets, rows, settings.limits))
        registry.register(ReplicaCollector(served, wall_ms))
        names = [spec.name for spec, _ in self.models]
        aliases = SharedAliases(names, aliases_board(folder), wall_ms, settings.aliases_file)
        serve(
            *(settings, ModelRegistry(served, aliases), registry, self.listener, context.stop),
            lambda _: context.ready(),
            alone=False,
        )


def aliases_board(folder: Path) -> Mailbox:
    """Return the mailbox of the aliases. No model's file has this name: they are lower-case."""
    return Mailbox(folder / "ALIASES", ALIASES_BYTES)
