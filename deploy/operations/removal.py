"""Removes a model from the store, unless it is in use or the operator does not confirm."""

import time
from collections.abc import Callable

from headrace.deploy.errors import DeployError
from headrace.pserver.errors import MissingModel
from headrace.pserver.inspection.model_survey import Survey, drop_leftovers, survey
from headrace.pserver.inspection.usage import signs_of_use
from headrace.pserver.redis_backend.redis_store import RedisStore
from headrace.runtime.counted_nouns import counted

_SIGNS_SHOWN = 3


def drop_model(
    store: RedisStore,
    model: str,
    confirm: Callable[[str], bool],
    *,
    force: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> str:
    """Remove a model; return a summary. `confirm` gets a description of the model.

    Also removes leftovers of an interrupted drop or restore, and of a model whose shape is lost.
    Raises DeployError, MissingModel, Unreachable.
    """
    seen = survey(store, model)
    if seen.trouble is not None and not isinstance(seen.trouble, MissingModel):
        raise seen.trouble
    if seen.shape is None and not seen.buckets:
        try:
            store.missing()  # an init that was interrupted before it wrote anything
        except MissingModel as error:
            raise DeployError(f"expected the model {model!r} in the store, got none") from error
    _check_reachable(seen)
    if not force and (signs := signs_of_use(store, seen, wait)):
        shown = "; ".join(signs[:_SIGNS_SHOWN])
        more = f"; and {counted(len(signs) - _SIGNS_SHOWN, 'bucket')} more" * (
            len(signs) > _SIGNS_SHOWN
        )
        raise DeployError(
            f"expected {model!r} to be unused, got {shown}{more}. Stop its learners, keepers and "
            "servers (the lease of a killed keeper ends in seconds), or give --force"
        )
    rows = sum(each.rows for each in seen.buckets)
    if not confirm(
        f"{model}: {counted(len(seen.buckets), 'bucket')}, {counted(rows, 'row')}, and their logs"
    ):
        raise DeployError(f"{model} was not removed")
    store.drop()
    drop_leftovers(store, seen.nodes)
    return f"{model} is removed: {counted(len(seen.buckets), 'bucket')}, {counted(rows, 'row')}"


def _check_reachable(seen: Survey) -> None:
    """Refuse to remove a part of a model: the rest would look like data loss."""
    for each in seen.buckets:
        if each.trouble is not None:
            raise DeployError(f"expected every server to answer, got {each.trouble}")
