"""`headrace serving alias`: shows and switches aliases, on servers or for all of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.deploy.cli.options import KAFKA, KafkaAddress, KafkaClient, token_in
from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from headrace.ingest.kafka import KafkaSettings


AliasName = Annotated[str, typer.Argument(metavar="[ALIAS]", help="Alias. Default: show all.")]
Target = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL | MODEL=WEIGHT ...]",
        help="New model of the alias, or several with weights, such as news=95 news-2=5. "
        "Default: show it.",
    ),
]
SplitBy = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="FIELD",
        help="Field that splits requests among models, such as user_id.",
        show_default=True,
    ),
]
Servers = Annotated[
    list[str],
    typer.Option(
        "--server",
        envvar="HEADRACE_SERVING_URL",
        metavar="URL",
        help="URL of a server. Repeat to switch several in order.",
    ),
]
Expected = Annotated[
    str | None,
    typer.Option(
        "--expected",
        metavar="MODEL",
        help="Refuse unless the alias has this model, or these models with weights, now.",
    ),
]
Revert = Annotated[
    bool, typer.Option("--revert", help="Switch back to the previous model or models.")
]
Everywhere = Annotated[
    bool,
    typer.Option(
        "--everywhere",
        help="Write the alias to the topic `deployments` instead, for all servers with "
        "--deployments. Without a model: remove it there.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="HEADRACE_SERVING_ADMIN_TOKEN_FILE",
        metavar="FILE",
        help="File with an admin token.",
    ),
]


def alias(
    name: AliasName = "",
    model: Target = None,
    by: SplitBy = "request_id",
    server: Servers = ["http://127.0.0.1:8080"],  # noqa: B006 - typer copies it
    expected: Expected = None,
    revert: Revert = False,
    everywhere: Everywhere = False,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
    token_file: TokenFile = None,
) -> None:
    """Show the aliases of servers, switch one to another model and back, or split its traffic."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.operations import change_alias, show_aliases

    target = " ".join(model or ())
    if target and by != "request_id":
        target = f"{target} by {by}"
    if everywhere:
        if revert or not name:
            raise BadOption("--everywhere: expected an alias and its models, got no model")
        typer.echo(_everywhere(kafka_settings(kafka, kafka_client), name, target, expected))
        return
    token = token_in(token_file)
    for each in server:
        if revert or target:
            typer.echo(change_alias(each, token, name, None if revert else target, expected))
        else:
            for line in show_aliases(each, name):
                typer.echo(line)


def _everywhere(kafka: "KafkaSettings", name: str, target: str, expected: str | None) -> str:
    """Change an alias in the topic `deployments`; return a line with the result."""
    from headrace.ingest import MissingTopic
    from headrace.serving.deployments import (
        Deployments,
        alias_change,
        read_deployments,
        write_deployments,
    )
    from headrace.serving.models import canonical

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
