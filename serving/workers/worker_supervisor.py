"""Runs a server of several processes: one follows the logs, the others answer on one port.

The supervisor answers no requests. It opens the models once to check that they can be served,
listens on the port, creates the folder of shared memory, and keeps the other processes running
(`process_pool`):

    supervisor ──► follower      logs or snapshots ──► rows and mailboxes in the folder
               ──► worker 1..N   the folder ──► answers

If a worker is killed, the requests that it was answering fail. Connections that are not accepted
yet go to another worker. Without a follower, workers keep answering from stale rows and report that
state. A new follower fills a new table, and the workers switch to it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from headrace.runtime.clock import wall_ms
from headrace.runtime.http.server import listening_socket
from headrace.serving.errors import ServingError
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.loading import compatible_spec
from headrace.serving.process import ServerSettings, tokens_of
from headrace.serving.workers.follower_process import FollowerWork, Opening
from headrace.serving.workers.process_pool import ManagedProcess, end_all
from headrace.serving.workers.shared_aliases import tell_aliases
from headrace.serving.workers.shared_memory import shared_folder, shared_place
from headrace.serving.workers.worker_process import WorkerWork, aliases_board

log = logging.getLogger(__name__)

_LOOK_S = 0.1
_MARGIN_S = 10.0
"""Time to end beyond draining and finishing."""


def run_workers(
    settings: ServerSettings,
    opening: Opening,
    workers: int,
    stop: threading.Event,
    listening: Callable[[int], None] = lambda _: None,
    formatter: logging.Formatter | None = None,
) -> None:
    """Serve with this many workers until `stop` is set; then let all of them drain.

    opening: called in two processes, so it must be picklable. listening: called with the port once
    all workers accept requests. formatter: of the log lines of the other processes. Raises the
    errors of `run_server`, and ServingError if a process cannot start.
    """
    tokens_of(settings)
    if settings.bounds is not None:
        raise ServingError("expected one worker with a row cache, got several: omit --workers")
    with ExitStack() as stack:
        models = tuple(
            (each.spec, shape.buckets) for each, shape in compatible_spec(opening(stack))
        )
    names = [spec.name for spec, _ in models]
    aliases = Aliases(names, settings.aliases, wall_ms, settings.aliases_file)
    with (
        listening_socket(settings.host, settings.port) as listener,
        shared_folder(shared_place()) as folder,
    ):
        log.info("sharing rows in %s", folder)
        board = aliases_board(folder)
        tell_aliases(board, aliases.table)
        board.close()
        managed = partial(ManagedProcess, formatter=formatter)
        follower = managed("follower", FollowerWork(settings, opening, folder))
        answering = [
            managed(f"worker {each}", WorkerWork(settings, models, folder, listener, each))
            for each in range(1, workers + 1)
        ]
        try:
            _keep(follower, answering, stop, lambda: listening(listener.getsockname()[1]))
        finally:
            drain_s = settings.drain_ms / 1000 + settings.finish_s
            end_all(answering, drain_s + _MARGIN_S)
            end_all([follower], _MARGIN_S)


def _keep(
    follower: ManagedProcess,
    answering: Sequence[ManagedProcess],
    stop: threading.Event,
    listening: Callable[[], None],
) -> None:
    """Keep all processes running until `stop` is set. Raises the error of one that cannot start."""
    began_s, said = time.monotonic(), False
    while not stop.is_set():
        for each in (follower, *answering):
            each.supervise()
        if not said and all(each.was_ready for each in answering):
            log.info("all workers answer after %.1f s", time.monotonic() - began_s)
            listening()
            said = True
        stop.wait(_LOOK_S)
