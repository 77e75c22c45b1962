"""Runs many seeds on all cores, and reports them in their order."""

import logging
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Generator
from typing import NamedTuple

from tests.simulation.ledger import Broken
from tests.simulation.world import run

_SEEDS_A_TASK = 8


class Outcome(NamedTuple):
    """Result of one seed."""

    seed: int
    tally: Counter[str]
    """Counts of deeds and faults. Empty if an invariant was broken."""
    failure: str
    """Which promise was broken, and the plan; empty if none."""


def outcome(seed: int, about: str | None = None) -> Outcome:
    """Run one seed, of a kind of world if one is named."""
    try:
        return Outcome(seed, run(seed, about=about), "")
    except Broken as broken:
        return Outcome(seed, Counter(), str(broken))


def search(seeds: range, workers: int | None = None) -> Generator[Outcome, None, None]:
    """Run seeds on `workers` processes (as many as there are cores, if None), yield in order."""
    workers = min(workers or len(os.sched_getaffinity(0)), len(seeds))
    if workers < 2:
        yield from map(outcome, seeds)
        return
    # spawn, not fork: the caller may have threads
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _begin_worker) as pool:
        yield from pool.imap(outcome, seeds, _SEEDS_A_TASK)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends the pool
    logging.disable(logging.CRITICAL)
