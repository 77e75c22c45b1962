"""`headrace pserver`: make a model in the parameter server, keep it, look at it."""

from typing import Annotated

import typer

from deploy.commands.options import REDIS, Buckets, MetricsPort, ModelFile, RedisUrl

app = typer.Typer(help="The parameter server.", no_args_is_help=True)


@app.command()
def init(model: ModelFile, redis: RedisUrl = REDIS, buckets: Buckets = 64) -> None:
    """Make a model; where it is there already, check that it is the same."""
    from deploy.commands.building import open_store
    from deploy.errors import BadOption
    from learner.spec import load_spec
    from pserver.store import Shape

    spec = load_spec(model)
    if buckets & (buckets - 1) or buckets > 1 << 16:
        raise BadOption(
            f"--buckets / HEADRACE_BUCKETS: expected a power of two up to 65536, found {buckets}"
        )
    store = open_store(redis, spec.name)
    try:
        store.create(Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text))
    finally:
        store.close()
    typer.echo(f"{spec.name}: {buckets} buckets, {spec.width} floats a row, {spec.fingerprint}")


@app.command()
def keep(
    model: ModelFile,
    redis: RedisUrl = REDIS,
    name: Annotated[
        str,
        typer.Option(
            "--name", envvar="HEADRACE_KEEPER", help="Holder of buckets. Default: the host's name."
        ),
    ] = "",
    metrics_port: MetricsPort = 0,
) -> None:
    """Fold the logs into rows and trim them, until stopped. Any number may run."""
    from deploy.commands.building import open_store
    from deploy.signals import stopped_by_signals
    from learner.agreement import check_agreement
    from learner.spec import load_spec
    from pserver.keeping import KeeperSettings, run_keeper

    spec = load_spec(model)
    store = open_store(redis, spec.name)
    try:
        check_agreement(spec, store.shape())
        with stopped_by_signals() as stop:
            run_keeper(KeeperSettings(name=name, metrics_port=metrics_port), store, stop)
    finally:
        store.close()


@app.command()
def inspect(model: ModelFile, redis: RedisUrl = REDIS) -> None:
    """Show where each bucket lies, what it holds and how far it has learned."""
    from rich.console import Console

    from deploy.commands.building import open_store
    from deploy.inspection import inspect_store
    from learner.spec import load_spec

    store = open_store(redis, load_spec(model).name)
    try:
        # a table is for a screen, and for a pipe: there it is as wide as it has to be
        console = Console()
        console.print(inspect_store(store), soft_wrap=not console.is_terminal)
    finally:
        store.close()
