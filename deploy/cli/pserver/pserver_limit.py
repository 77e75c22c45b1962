"""`headrace pserver limit`: the most rows that a model may have, set by the operator."""

from pathlib import Path

import click

from headrace.deploy.cli.options import MODEL, REDIS
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import setting


def limit(
    model: Path = MODEL,
    redis: str = REDIS,
    rows: int | None = setting(
        None,
        "Most rows of the model; 0 removes the limit. Default: only show the limit.",
        least=0,
        most=10**12,
    ),
) -> None:
    """Set the most rows that a model may have, so that it leaves room for other models.

    Keepers delete the least recently seen rows beyond it, as with `most_rows` in the section
    [expiry] of the spec; the lower of both counts. Running keepers follow within ten seconds. The
    limit belongs to the name of the model: you may set it before the model exists, and it outlives
    `drop`.
    """
    from headrace.deploy.connections import open_store
    from headrace.learner.spec.model_spec import load_spec

    name = load_spec(model).name
    store = open_store(redis, name)
    try:
        if rows is not None:
            store.limit_rows(rows)
        found = store.row_limit()
    finally:
        store.close()
    click.echo(f"{name}: at most {counted(found, 'row')}" if found else f"{name}: no limit on rows")
