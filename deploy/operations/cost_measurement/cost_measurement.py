"""Measures all constants of a plan on this machine.

A cost by fields is measured with 8 and with 40 fields, a cost by floats with rows of 2 and of 34
floats. Nothing but Valkey is started. Costs that need Kafka, and the load of idle processes, are
those of `recorded_costs`.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from headrace.deploy.local.services import ValkeyCluster
from headrace.deploy.operations.cost_measurement.event_timing import (
    JoinerTrial,
    LearnerTrial,
    ServerTrial,
    median_us,
)
from headrace.deploy.operations.cost_measurement.row_timing import RowTrial
from headrace.deploy.operations.cost_measurement.trial_model import TrialEvents, trial_spec
from headrace.deploy.operations.planning import RECORDED, LinearCost, LogCost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.deploy.operations.cost_measurement.row_timing import FoldTimes, RowTimes
    from headrace.deploy.operations.planning import UnitCosts

FEW_FIELDS, MANY_FIELDS = 8, 40
NARROW, WIDE = 2, 34
_MESSAGES = 40
"""Messages of examples that a learner repeats: enough rows to leave the processor's caches."""


class _EventTimes(NamedTuple):
    """Microseconds of an event, an example and a candidate."""

    join: float
    learn: float
    score: float


def calibrate(
    architectures: Sequence[str], seconds: float, report: Callable[[str], None]
) -> UnitCosts:
    """Return the constants of this machine.

    seconds: time of each measurement, besides its preparation. report: receives one line for each
    step. Raises SpecError for an unknown architecture, MissingTorch, StackError.
    """
    found = {}
    for architecture in architectures:
        report(f"joining, learning and scoring {architecture}")
        few, many = (
            _event_times(architecture, fields, seconds) for fields in (FEW_FIELDS, MANY_FIELDS)
        )
        found[architecture] = _EventTimes._make(map(_by_fields, few, many))
    report("pushing, following and folding rows in two Valkey shards")
    rows = _row_costs()
    join = next(iter(found.values())).join
    measured = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return replace(
        rows,
        source=f"{processor_name()}, {measured}",
        join=join,
        learn={name: each.learn for name, each in found.items()},
        score={name: each.score for name, each in found.items()},
    )


def _event_times(architecture: str, fields: int, seconds: float) -> _EventTimes:
    spec, events = trial_spec(architecture, fields), TrialEvents(fields)
    joiner = JoinerTrial(spec, events)
    blobs: list[bytes] = []

    def join() -> tuple[float, int]:
        spent = joiner.step()
        if len(blobs) < _MESSAGES:
            blobs.extend(joiner.blobs)
        return spent

    join_us = median_us(join, seconds)
    while len(blobs) < _MESSAGES:
        join()
    learner = LearnerTrial(spec, blobs)
    learn_us = median_us(learner.step, seconds)
    return _EventTimes(
        join_us, learn_us, median_us(ServerTrial(spec, events, learner).step, seconds)
    )


def _row_costs() -> UnitCosts:
    with tempfile.TemporaryDirectory(prefix="headrace-calibrate-") as directory:
        nodes = ValkeyCluster(Path(directory))
        try:
            nodes.launch()
            nodes.wait_ready()
            narrow, wide = (_measured_rows(nodes, width) for width in (NARROW, WIDE))
        finally:
            nodes.stop()
    rows = {
        name: _by_floats(getattr(narrow[0], name), getattr(wide[0], name))
        for name in narrow[0]._fields
    }
    logs = {name: LogCost(rows[name], getattr(wide[1], name)) for name in rows}
    keep = [max(0.0, each[2].keep - each[0].follow) for each in (narrow, wide)]
    return replace(
        RECORDED,
        **logs,
        keep=_by_floats(*keep),
        store_fold=_by_floats(narrow[2].store, wide[2].store),
        stored_bytes=_by_floats(narrow[2].stored_bytes, wide[2].stored_bytes),
    )


def _measured_rows(nodes: ValkeyCluster, width: int) -> tuple[RowTimes, RowTimes, FoldTimes]:
    trial = RowTrial(nodes, width)
    try:
        return trial.rows(), trial.entries(), trial.fold()
    finally:
        trial.close()


def line_through(first: float, first_us: float, second: float, second_us: float) -> LinearCost:
    """Return the cost that has these times at these numbers; never negative, for noise."""
    each_us = max(0.0, (second_us - first_us) / (second - first))
    fixed_us = first_us - each_us * first
    if fixed_us < 0.0:
        return LinearCost(0.0, second_us / second)
    return LinearCost(round(fixed_us, 4), round(each_us, 5))


def _by_fields(few_us: float, many_us: float) -> LinearCost:
    return line_through(FEW_FIELDS, few_us, MANY_FIELDS, many_us)


def _by_floats(narrow: float, wide: float) -> LinearCost:
    return line_through(NARROW, narrow, WIDE, wide)


def processor_name() -> str:
    """Return the name of this machine's processor, as far as the system gives it."""
    cores = os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {cores} cores"
