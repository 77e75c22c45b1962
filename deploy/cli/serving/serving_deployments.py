"""`headrace serving deploy`: loads and unloads models on running servers, by a topic."""

from pathlib import Path

import click

from headrace.deploy.cli.options import KafkaOptions, valid_specs
from headrace.deploy.errors import BadOption
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.settings import argument, setting


def deploy(
    kafka: KafkaOptions,
    model: Path | None = argument(
        None, "Model spec (TOML). Default: show.", metavar="[FILE]", check=valid_specs
    ),
    remove: str = setting("", "Unload this model instead.", metavar="NAME"),
) -> None:
    """Load a model on every server that runs with --deployments, or unload one.

    The model's rows must be in the parameter server: `headrace pserver init` creates them. A server
    unloads a model once no alias points to it. Without FILE and --remove, print the models and
    aliases of the topic `deployments`.
    """
    from headrace.learner.spec.model_spec import load_spec
    from headrace.serving.deployments.deployment_records import model_change
    from headrace.serving.deployments.topic_follower import read_deployments, write_deployments

    settings = kafka.settings()
    if model is not None and remove:
        raise BadOption("expected either FILE or --remove NAME, got both")
    if model is not None:
        spec = load_spec(model)
        write_deployments(settings, [model_change(spec.name, spec.text)])
        click.echo(f"deployed {spec.name}: /health/ready of a server has its progress")
    elif remove:
        write_deployments(settings, [model_change(remove, None)])
        click.echo(f"undeployed {remove}")
    else:
        show_warnings_only()
        found = read_deployments(settings)
        for name in sorted(found.models):
            click.echo(f"model  {name}")
        for name, target in sorted(found.aliases.items()):
            click.echo(f"alias  {name} is {target}")
