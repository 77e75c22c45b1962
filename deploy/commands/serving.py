"""`headrace serving`: answer requests."""

import typer

from deploy.commands.options import REDIS, Host, MetricsPort, ModelFile, Port, RedisUrl

app = typer.Typer(help="Answer requests.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def run(
    model: ModelFile,
    redis: RedisUrl = REDIS,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    metrics_port: MetricsPort = 0,
) -> None:
    """Follow a model in the parameter server and answer requests over HTTP, until stopped."""
    from deploy.commands.building import open_store
    from deploy.signals import stopped_by_signals
    from learner.spec import load_spec
    from serving.process import ServerSettings, run_server

    spec = load_spec(model)
    settings = ServerSettings(host=host, port=port, metrics_port=metrics_port)
    store = open_store(redis, spec.name, read_only=True)
    try:
        with stopped_by_signals() as stop:
            run_server(settings, spec, store, stop)
    finally:
        store.close()
