"""Runs a contender in a process of its own, so that its memory can be measured.

`memory_mb` is the growth of the resident memory at its peak, while the contender converts the
stream to its input format and learns it. The interpreter and the stream do not count; the converted
input (batches, lines, dictionaries) and the table of the model do. In a quick run all contenders
share one process, so memory freed by an earlier one hides some of a later one's.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.learner.validation.progressive import auc, log_loss


@dataclass(frozen=True, slots=True)
class Learned:
    """The results of one pass of a contender."""

    examples: int
    seconds: float
    scores: npt.NDArray[np.float64] | None
    """(examples,) each made before its example was learned; None if it does not tell."""

    @property
    def rate(self) -> float:
        """Examples a second."""
        return self.examples / self.seconds


def accuracy(
    labels: npt.NDArray[np.uint8], scores: npt.NDArray[np.float64], common: int
) -> dict[str, float]:
    """Return AUC and log loss of all scores, and of the first that everybody has."""
    labels = labels[: scores.shape[0]]
    return {
        "auc": auc(labels, scores),
        "log_loss": log_loss(labels, scores),
        "common_auc": auc(labels[:common], scores[:common]),
        "common_log_loss": log_loss(labels[:common], scores[:common]),
    }


class Alone:
    """Runs functions in another process: one for all of them if `quick`, else one each."""

    def __init__(self, *, quick: bool) -> None:
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            max_tasks_per_child=None if quick else 1,
        )

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(self, function: Callable[..., Any], *args: Any, **named: Any) -> tuple[Any, float]:
        """Return what it returned, and the MB it took."""
        return self._pool.submit(_measured, function, args, named).result()


def _measured(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, float]:
    before = begin_memory()
    result = function(*args, **named)
    return result, memory_mb(before)


def begin_memory() -> int:
    """Return the resident kB of this process, and measure its peak from now on. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_kb("VmRSS")


def memory_mb(before: int) -> float:
    """Return by how many MB this process has grown since, at its peak."""
    return (_status_kb("VmHWM") - before) / 1024.0


def _status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1])
