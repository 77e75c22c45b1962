"""A worker: a process that answers requests from rows that another keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ingest.clock import wall_ms
from ingest.collector.http_server import new_registry
from serving.metrics import ReplicaCollector
from serving.models.opening import served_by
from serving.models.served import Models
from serving.process import serve
from serving.workers.aliases import ALIASES_BYTES, SharedAliases
from serving.workers.board import Board
from serving.workers.following import board_of
from serving.workers.reading import SharedRows

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from learner.spec import ModelSpec
    from serving.process import ServerSettings
    from serving.workers.crew import Duty


class ModelHere(NamedTuple):
    """A model that workers answer from."""

    spec: ModelSpec
    buckets: int


@dataclass(frozen=True)
class WorkerWork:
    """What a worker has to do. It travels to another process."""

    settings: ServerSettings
    models: tuple[ModelHere, ...]
    folder: Path
    listener: socket.socket
    """All workers accept from it: whoever is there takes what others cannot."""
    number: int
    """From 1."""

    def __call__(self, duty: Duty) -> None:
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
            *(settings, Models(served, aliases), registry, self.listener, duty.stop),
            lambda _: duty.ready(),
            broken=lambda: False,
            alone=False,
        )


def aliases_board(folder: Path) -> Board:
    """Return the board on which the aliases stand. No model has a capital in its name."""
    return Board(folder / "ALIASES", ALIASES_BYTES)
