"""`headrace spec`: check a model spec, and print the JSON Schema for editors."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import Annotated

import typer

app = typer.Typer(help="Check model specs.", no_args_is_help=True)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Model specs in TOML.")],
) -> None:
    """Check model specs and print their names and fingerprints.

    The first invalid spec is refused with file, line, the expected value and the value found.
    """
    from headrace.learner.spec import load_spec

    for path in files:
        spec = load_spec(path)
        typer.echo(f"{path}: model {spec.name}, fingerprint {spec.fingerprint}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of model specs.

    Editors complete and check specs with it. In Even Better TOML and taplo, write it to a file and
    begin the spec with `#:schema ./headrace-spec.schema.json`.
    """
    import json

    from headrace.learner.spec import spec_schema

    typer.echo(json.dumps(spec_schema(), indent=2))
