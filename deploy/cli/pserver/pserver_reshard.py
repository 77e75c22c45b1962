"""`headrace pserver reshard`: more buckets for a running model."""

from contextlib import closing

import click

from headrace.deploy.cli.pserver.pserver_snapshots import EXIT_STOPPED
from headrace.deploy.connections import open_store
from headrace.deploy.errors import BadOption
from headrace.deploy.options import MODEL, REDIS, SpecFile
from headrace.runtime.clock import steady_ms
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import setting
from headrace.runtime.termination import stopped_by_signals


def reshard(
    model: SpecFile = MODEL,
    redis: str = REDIS,
    buckets: int | None = setting(
        None, "New number of buckets: a power of two above the present number.", least=1
    ),
    remove_old: bool = setting(
        False, "Remove the buckets from before the last reshard. Restart every process first."
    ),
) -> None:
    """Increase the number of buckets of a running model.

    Learners read the examples that they pushed during the copy again. If interrupted before the
    switch, run it again: nothing has changed for other processes.
    """
    from headrace.deploy.terminal.progress_bars import StepView
    from headrace.pserver.snapshots.resharding import reshard as reshard_model

    if (buckets is None) is not remove_old:
        raise BadOption("expected either --buckets or --remove-old, got both or neither")
    spec = model.spec
    with closing(open_store(redis, spec.name)) as store:
        if buckets is None:
            click.echo(f"{spec.name}: removed {counted(store.remove_old(), 'old bucket')}")
            return
        with stopped_by_signals() as stop, StepView() as shown:
            rows = reshard_model(
                store,
                store.successor(buckets),
                now_ms=steady_ms,
                stop=stop,
                tell=shown.buckets(f"resharding {spec.name}"),
            )
    if rows is None:
        click.echo(f"{spec.name}: stopped, nothing has changed; run it again", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)
    click.echo(
        f"{spec.name}: {counted(buckets, 'bucket')} with {counted(rows, 'row')}. Learners and "
        "keepers stop by themselves and continue with the new buckets when they start again. "
        "Restart servers, then run it with --remove-old"
    )
