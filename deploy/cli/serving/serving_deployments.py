"""`headrace serving deploy`: loads and unloads models on running servers, by a topic."""

from pathlib import Path

import click

from headrace.deploy.cli.options import KAFKA, KAFKA_CLIENT, valid_specs
from headrace.deploy.process_logs import show_warnings_only
from headrace.settings import argument


def deploy(
    model: Path = argument(help="Model spec (TOML).", metavar="FILE", check=valid_specs),
    kafka: str = KAFKA,
    kafka_client: list[str] | None = KAFKA_CLIENT,
) -> None:
    """Load a model on every server that runs with --deployments.

    The model's rows must be in the parameter server: `headrace pserver init` creates them.
    """
    from headrace.deploy.connections import kafka_settings
    from headrace.learner.spec.model_spec import load_spec
    from headrace.serving.deployments.deployment_records import model_change
    from headrace.serving.deployments.topic_follower import write_deployments

    spec = load_spec(model)
    write_deployments(kafka_settings(kafka, kafka_client), [model_change(spec.name, spec.text)])
    click.echo(f"deployed {spec.name}: /health/ready of a server has its progress")


def undeploy(
    model: str = argument(help="Name of the model.", metavar="NAME"),
    kafka: str = KAFKA,
    kafka_client: list[str] | None = KAFKA_CLIENT,
) -> None:
    """Unload a deployed model. A server unloads it once no alias points to it."""
    from headrace.deploy.connections import kafka_settings
    from headrace.serving.deployments.deployment_records import model_change
    from headrace.serving.deployments.topic_follower import write_deployments

    write_deployments(kafka_settings(kafka, kafka_client), [model_change(model, None)])
    click.echo(f"undeployed {model}")


def deployments(kafka: str = KAFKA, kafka_client: list[str] | None = KAFKA_CLIENT) -> None:
    """Print the models and aliases of the topic `deployments`."""
    show_warnings_only()
    from headrace.deploy.connections import kafka_settings
    from headrace.serving.deployments.topic_follower import read_deployments

    found = read_deployments(kafka_settings(kafka, kafka_client))
    for name in sorted(found.models):
        click.echo(f"model  {name}")
    for name, target in sorted(found.aliases.items()):
        click.echo(f"alias  {name} is {target}")
