"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from headrace.serving.models import SnapshotModel, StoreModel


def both(
    files: list[Path], places: list[str], redis: str, stack: ExitStack
) -> list[StoreModel | SnapshotModel]:
    """Return the models of these specs and snapshots; `stack` closes what was opened."""
    return [*opened(stack, files, redis), *frozen(places)]


def opened(stack: ExitStack, files: list[Path], redis: str) -> list[StoreModel]:
    """Return the models of these specs with their stores, which `stack` closes."""
    from headrace.deploy.connections import open_store
    from headrace.learner.spec import load_spec
    from headrace.serving.models import StoreModel

    made = []
    for each in files:
        spec = load_spec(each)
        store = open_store(redis, spec.name, read_only=True)
        stack.callback(store.close)
        made.append(StoreModel(spec, store))
    return made


def frozen(given: Sequence[str]) -> list[SnapshotModel]:
    """Return the snapshots of NAME=PLACE. Raises BadOption, BadSnapshot, SnapshotError."""
    from headrace.serving.models import find_frozen

    pairs = [each.partition("=") for each in given]
    for name, equals, place in pairs:
        if not (name and equals and place):
            raise BadOption(
                f"--snapshot / HEADRACE_SERVING_SNAPSHOT: expected NAME=PLACE, found {name!r}"
            )
    return [find_frozen(name, place) for name, _, place in pairs]
