"""`headrace spec`: checks model specs, and prints the JSON Schema for editors."""

from pathlib import Path

import click

from headrace.deploy.errors import BadOption
from headrace.runtime.settings import argument, setting


def spec(
    files: list[Path] | None = argument(None, "Model specs in TOML.", metavar="[FILE]..."),
    schema: bool = setting(False, "Print the JSON Schema of model specs."),
) -> None:
    """Check model specs and print their names and fingerprints, or print their schema.

    The first invalid spec is refused with file, line, the expected value and the value found.
    Editors complete and check specs with the schema. In Even Better TOML and taplo, write it to a
    file and begin the spec with `#:schema ./headrace-spec.schema.json`.
    """
    import json

    from headrace.learner.spec.model_spec import load_spec
    from headrace.learner.spec.schema import spec_schema

    if schema == bool(files):
        raise BadOption(f"expected either FILE or --schema, got {'both' if schema else 'neither'}")
    if schema:
        click.echo(json.dumps(spec_schema(), indent=2))
    for path in files or ():
        found = load_spec(path)
        click.echo(f"{path}: model {found.name}, fingerprint {found.fingerprint}")
