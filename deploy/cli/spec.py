"""`headrace spec`: check a model spec, and print the JSON Schema for editors."""

from pathlib import Path

import click

from headrace.settings import argument


def check(
    files: list[Path] = argument(help="Model specs in TOML.", metavar="FILE..."),
) -> None:
    """Check model specs and print their names and fingerprints.

    The first invalid spec is refused with file, line, the expected value and the value found.
    """
    from headrace.learner.spec.model_spec import load_spec

    for path in files:
        spec = load_spec(path)
        click.echo(f"{path}: model {spec.name}, fingerprint {spec.fingerprint}")


def schema() -> None:
    """Print the JSON Schema of model specs.

    Editors complete and check specs with it. In Even Better TOML and taplo, write it to a file and
    begin the spec with `#:schema ./headrace-spec.schema.json`.
    """
    import json

    from headrace.learner.spec.schema import spec_schema

    click.echo(json.dumps(spec_schema(), indent=2))
