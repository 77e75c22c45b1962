"""`headrace serving deploy`: loads and unloads models on running servers, by a topic."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.deploy.cli.options import KAFKA, KafkaAddress, KafkaClient, valid_specs
from headrace.deploy.process_logs import show_warnings_only

SpecFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Model spec (TOML).", callback=valid_specs)
]
ModelName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.")]


def deploy(model: SpecFile, kafka: KafkaAddress = KAFKA, kafka_client: KafkaClient = None) -> None:
    """Load a model on every server that runs with --deployments.

    The model's rows must be in the parameter server: `headrace pserver init` creates them.
    """
    from headrace.deploy.connections import kafka_settings
    from headrace.learner.spec import load_spec
    from headrace.serving.deployments import model_change, write_deployments

    spec = load_spec(model)
    write_deployments(kafka_settings(kafka, kafka_client), [model_change(spec.name, spec.text)])
    typer.echo(f"deployed {spec.name}: /health/ready of a server has its progress")


def undeploy(
    model: ModelName, kafka: KafkaAddress = KAFKA, kafka_client: KafkaClient = None
) -> None:
    """Unload a deployed model. A server unloads it once no alias points to it."""
    from headrace.deploy.connections import kafka_settings
    from headrace.serving.deployments import model_change, write_deployments

    write_deployments(kafka_settings(kafka, kafka_client), [model_change(model, None)])
    typer.echo(f"undeployed {model}")


def deployments(kafka: KafkaAddress = KAFKA, kafka_client: KafkaClient = None) -> None:
    """Print the models and aliases of the topic `deployments`."""
    show_warnings_only()
    from headrace.deploy.connections import kafka_settings
    from headrace.serving.deployments import read_deployments

    found = read_deployments(kafka_settings(kafka, kafka_client))
    for name in sorted(found.models):
        typer.echo(f"model  {name}")
    for name, target in sorted(found.aliases.items()):
        typer.echo(f"alias  {name} is {target}")
