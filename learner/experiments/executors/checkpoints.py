"""Checkpoints of arms: which files there are, and which of them are kept.

FOLDER/arm-00003/chunk-00000012.pickle    results of chunk 11, and the model behind it
"""

import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol


class FinishedArm(Protocol):
    """An arm that ended."""

    @property
    def examples(self) -> int:
        """Learned."""

    @property
    def difference(self) -> float:
        """Mean paired difference to the control; NaN if unknown."""

    @property
    def number(self) -> int:
        """Number of the arm."""


def checkpoint_path(folder: Path, number: int, chunk: int) -> Path:
    """Return the checkpoint of an arm that its chunk `chunk` begins with."""
    return folder / f"arm-{number:05}" / _name(chunk)


def clean_checkpoints(
    folder: Path, needed: Mapping[int, int], ended: Iterable[FinishedArm], keep_best: int
) -> None:
    """Remove the checkpoints that neither an arm that learns nor one of the best needs.

    `needed`: arm -> chunk that it learns next, whose checkpoint is kept with those behind it.
    """
    ranked = [each.number for each in sorted(ended, key=_rank)]
    kept, over = ranked[:keep_best], ranked[keep_best:]
    for each in folder.glob("arm-*"):
        number = int(each.name.partition("-")[2])
        files = sorted(each.glob("chunk-*.pickle"))
        if number in needed:
            files = [file for file in files if file.name < _name(needed[number])]
        elif number in kept:
            files = files[:-1]
        elif number in over:
            shutil.rmtree(each)
            continue
        else:
            continue  # the control, or an arm of lost work that begins again
        for file in files:
            file.unlink()


def _name(chunk: int) -> str:
    return f"chunk-{chunk:08}.pickle"


def _rank(arm: FinishedArm) -> tuple[int, float, int]:
    """Order arms: the one that came furthest first, then the lowest difference."""
    difference = math.inf if math.isnan(arm.difference) else arm.difference
    return -arm.examples, difference, arm.number
