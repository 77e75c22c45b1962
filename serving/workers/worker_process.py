"""A worker: a process that answers requests from rows that another keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.http import new_registry
from headrace.ingest.runtime import wall_ms
from headrace.serving.models import ModelRegistry, served_by
from headrace.serving.process import serve
from headrace.serving.replicas import ReplicaCollector
from headrace.serving.workers.follower_process import board_of
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.row_subscriber import SharedRows
from headrace.serving.workers.shared_aliases import ALIASES_BYTES, SharedAliases

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from headrace.learner.spec import ModelSpec
    from headrace.serving.process import ServerSettings
    from headrace.serving.workers.process_pool import WorkerContext


class WorkerModel(NamedTuple):
    """A model that workers answer from."""

    spec: ModelSpec
    buckets: int


@dataclass(frozen=True)
class WorkerWork:
    """What a worker has to do. It travels to another process."""

    settings: ServerSettings
    models: tuple[WorkerModel, ...]
    folder: Path
    listener: socket.socket
    """All workers accept from it: whoever is there takes what others cannot."""
    number: int
    """From 1."""

    def __call__(self, duty: WorkerContext) -> None:
        """Answer until told to end."""
        settings, folder, registry = self.settings, self.folder, new_registry()
        if settings.metrics_port:
            settings = replace(settings, metrics_port=settings.metrics_port + self.number)
        served = []
        for spec, buckets in self.models:
            rows = SharedRows(board_of(folder, spec.name), folder, spec.width, buckets)
            served.append(served_by(spec, buckets, rows, settings.limits))
        registry.register(ReplicaCollector(served, wall_ms))
        names = [each.spec.name for each in self.models]
        aliases = SharedAliases(names, aliases_board(folder), wall_ms, settings.aliases_file)
        serve(
            *(settings, ModelRegistry(served, aliases), registry, self.listener, duty.stop),
            lambda _: duty.ready(),
            broken=lambda: False,
            alone=False,
        )


def aliases_board(folder: Path) -> Mailbox:
    """Return the board on which the aliases stand. No model has a capital in its name."""
    return Mailbox(folder / "ALIASES", ALIASES_BYTES)
