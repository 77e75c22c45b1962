"""`headrace serving alias` and `deploy`: change the aliases and models of running servers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.errors import BadOption
from headrace.deploy.options import KafkaOptions, SpecFile, token_in
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.settings import argument, setting

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAliasOptions:
    """Options of `headrace serving alias`."""

    name: str = argument("", metavar="[ALIAS]")
    """Alias. Default: show all."""
    model: list[str] | None = argument(None, metavar="[MODEL | MODEL=WEIGHT ...]")
    """New model of the alias, or several with weights, such as news=95 news-2=5. Default: show
    it."""
    by: str = setting("request_id", metavar="FIELD")
    """Field that splits requests among models, such as user_id."""
    server: tuple[str, ...] = setting(
        ("http://127.0.0.1:8080",), env="HEADRACE_SERVING_URL", metavar="URL"
    )
    """URL of a server. Repeat to switch several in order."""
    expected: str | None = setting(None, metavar="MODEL")
    """Refuse unless the alias now points to this model, or to these models with weights."""
    revert: bool = setting(False)
    """Switch back to the previous model or models."""
    everywhere: bool = setting(False)
    """Write the alias to the topic `deployments` instead, for all servers with --deployments.
    Without a model: remove it there."""
    token_file: Path | None = setting(None, env="HEADRACE_SERVING_ADMIN_TOKEN_FILE", metavar="FILE")
    """File with an admin token."""


def alias(
    options: ServingAliasOptions,
    kafka: KafkaOptions,
) -> None:
    """Show the aliases of servers, switch one to another model and back, or split its traffic."""
    from headrace.deploy.operations.aliases import change_alias, show_aliases

    target = " ".join(options.model or ())
    if target and options.by != "request_id":
        target = f"{target} by {options.by}"
    if options.everywhere:
        if options.revert or not options.name:
            raise BadOption("--everywhere: expected an alias and its models, got no model")
        click.echo(_everywhere(kafka.settings(), options.name, target, options.expected))
        return
    token = token_in(options.token_file)
    for each in options.server:
        if options.revert or target:
            click.echo(
                change_alias(
                    each, token, options.name, None if options.revert else target, options.expected
                )
            )
        else:
            for line in show_aliases(each, options.name):
                click.echo(line)


def _everywhere(kafka: "KafkaSettings", name: str, target: str, expected: str | None) -> str:
    """Change an alias in the topic `deployments`; return a line with the result."""
    from headrace.ingest.errors import MissingTopic
    from headrace.serving.deployments.deployment_records import Deployments, alias_change
    from headrace.serving.deployments.topic_follower import read_deployments, write_deployments
    from headrace.serving.models.traffic_split import canonical

    try:
        now = read_deployments(kafka)
    except MissingTopic:
        now = Deployments()
    before = now.aliases.get(name, "")
    if expected is not None and before != (canonical(expected) if expected else ""):
        raise BadOption(
            f"alias {name}: expected {expected or 'no alias'}, got {before or 'no alias'}"
        )
    chosen = canonical(target) if target else None
    write_deployments(kafka, [alias_change(name, chosen)])
    if chosen is None:
        return f"deployments  {name} is removed" + (f", before {before}" if before else "")
    return f"deployments  {name} is {chosen}" + (f", before {before}" if before else "")


def deploy(
    kafka: KafkaOptions,
    model: SpecFile | None = argument(None, "Model spec (TOML). Default: show.", metavar="[FILE]"),
    remove: str = setting("", "Unload this model instead.", metavar="NAME"),
) -> None:
    """Load a model on every server that runs with --deployments, or unload one.

    The model's rows must be in the parameter server: `headrace pserver init` creates them. A server
    unloads a model once no alias points to it. Without FILE and --remove, print the models and
    aliases of the topic `deployments`.
    """
    from headrace.serving.deployments.deployment_records import model_change
    from headrace.serving.deployments.topic_follower import read_deployments, write_deployments

    settings = kafka.settings()
    if model is not None and remove:
        raise BadOption("expected either FILE or --remove NAME, got both")
    if model is not None:
        spec = model.spec
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
