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
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.serving.models.loading import SnapshotModel, StoreModel

log = logging.getLogger(__name__)


def served_models(
    files: list[Path], places: list[str], modules: Sequence[str], redis: str, stack: ExitStack
) -> list[StoreModel | SnapshotModel]:
    """Return the models of these specs and snapshots. `stack` closes the stores.

    modules: torch modules that the snapshots may import.
    """
    from headrace.learner.spec.model_spec import load_spec

    stored = [store_model(load_spec(path), redis, stack) for path in files]
    return [*stored, *snapshot_models(places, modules)]


def store_model(spec: ModelSpec, redis: str, stack: ExitStack) -> StoreModel:
    """Return the model of this spec. `stack` closes its store. Raises StoreError."""
    from headrace.deploy.connections import open_store
    from headrace.serving.models.loading import StoreModel

    store = open_store(redis, spec.name, read_only=True)
    stack.callback(store.close)
    return StoreModel(spec, store)


def deployed_model(modules: Sequence[str], redis: str, text: str, stack: ExitStack) -> StoreModel:
    """Return the model of the text of a spec. `stack` closes its store.

    modules: torch modules that it may import. Raises SpecError, BadOption, StoreError.
    """
    from headrace.learner.spec.model_spec import parse_spec

    spec = parse_spec(text, "topic deployments")
    module = spec.structure.module
    if module and module not in modules:
        raise BadOption(
            f"model {spec.name}: its spec imports the torch module {module}, which runs its code: "
            f"expected --allow-module {module}, got {', '.join(modules) or 'no module allowed'}"
        )
    return store_model(spec, redis, stack)


def snapshot_models(given: Sequence[str], modules: Sequence[str] = ()) -> list[SnapshotModel]:
    """Return the snapshots of NAME=PLACE. Raises BadOption, ServingError, SnapshotError.

    modules: torch modules that they may import.
    """
    from headrace.serving.models.loading import find_frozen

    for each in given:
        name, _, place = each.partition("=")
        if not (name and place):
            raise BadOption(
                f"--snapshot / HEADRACE_SERVING_SNAPSHOT: expected NAME=PLACE, got {each!r}"
            )
    pairs = (each.split("=", 1) for each in given)
    models = [find_frozen(name, place, modules) for name, place in pairs]
    for model in models:
        if model.spec.name != model.manifest.model:
            log.info(
                "%s is the name here of the model %s, of which %s is a snapshot (--snapshot)",
                *(model.spec.name, model.manifest.model, model.place),
            )
    return models
