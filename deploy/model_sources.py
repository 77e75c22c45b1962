"""Opens the models that a command serves: specs with their stores, and snapshots.

`serving run`, its workers and `serving score` share these functions. A store is opened read-only,
so that a server needs no right to write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from headrace.serving.models.loading import SnapshotModel, StoreModel

log = logging.getLogger(__name__)


def both(
    files: list[Path], places: list[str], modules: Sequence[str], redis: str, stack: ExitStack
) -> list[StoreModel | SnapshotModel]:
    """Return the models of these specs and snapshots. `stack` closes the stores.

    modules: torch modules that the snapshots may import.
    """
    return [*opened(stack, files, redis), *frozen(places, modules)]


def opened(stack: ExitStack, files: list[Path], redis: str) -> list[StoreModel]:
    """Return the models of these specs. `stack` closes their stores."""
    from headrace.deploy.connections import open_store
    from headrace.learner.spec.model_spec import load_spec
    from headrace.serving.models.loading import StoreModel

    models = []
    for path in files:
        spec = load_spec(path)
        store = open_store(redis, spec.name, read_only=True)
        stack.callback(store.close)
        models.append(StoreModel(spec, store))
    return models


def deployed(modules: Sequence[str], redis: str, text: str, stack: ExitStack) -> StoreModel:
    """Return the model of the text of a spec. `stack` closes its store.

    modules: torch modules that it may import. Raises SpecError, BadOption, StoreError.
    """
    from headrace.deploy.connections import open_store
    from headrace.learner.spec.model_spec import parse_spec
    from headrace.serving.models.loading import StoreModel

    spec = parse_spec(text, "topic deployments")
    module = spec.structure.module
    if module and module not in modules:
        raise BadOption(
            f"model {spec.name}: its spec imports the torch module {module}, which runs its code: "
            f"expected --allow-module {module}, got {', '.join(modules) or 'no module allowed'}"
        )
    store = open_store(redis, spec.name, read_only=True)
    stack.callback(store.close)
    return StoreModel(spec, store)


def frozen(given: Sequence[str], modules: Sequence[str] = ()) -> list[SnapshotModel]:
    """Return the snapshots of NAME=PLACE. Raises BadOption, ServingError, SnapshotError.

    modules: torch modules that they may import.
    """
    from headrace.serving.models.loading import find_frozen

    pairs = [each.partition("=") for each in given]
    for name, equals, place in pairs:
        if not (name and equals and place):
            raise BadOption(
                f"--snapshot / HEADRACE_SERVING_SNAPSHOT: expected NAME=PLACE, got {name!r}"
            )
    models = [find_frozen(name, place, modules) for name, _, place in pairs]
    for each in models:
        if each.spec.name != each.manifest.model:
            log.info(
                "%s is the name here of the model %s, of which %s is a snapshot (--snapshot)",
                *(each.spec.name, each.manifest.model, each.place),
            )
    return models
