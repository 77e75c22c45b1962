"""`headrace spec`: checks model specs, and prints JSON Schemas."""

import json
from pathlib import Path

import click

from headrace.deploy.errors import BadOption
from headrace.ingest.events.json_schema import EventKind
from headrace.runtime.settings import argument, setting


def spec(
    files: list[Path] | None = argument(None, "Model specs in TOML.", metavar="[FILE]..."),
    schema: bool = setting(False, "Print the JSON Schema of model specs."),
    event_schema: EventKind | None = setting(None, "Print the JSON Schema of this kind of event."),
) -> None:
    """Check model specs and print their names and fingerprints, or print a JSON Schema.

    The first invalid spec is refused with file, line, the expected value and the value found.
    Editors complete and check specs with the schema. In Even Better TOML and taplo, write it to a
    file and begin the spec with `#:schema ./headrace-spec.schema.json`.
    """
    from headrace.ingest.events import json_schema
    from headrace.learner.spec.model_spec import load_spec
    from headrace.learner.spec.schema import spec_schema

    if [bool(files), schema, event_schema is not None].count(True) != 1:
        raise BadOption("expected FILE, --schema or --event-schema, got none or several of them")
    if schema:
        click.echo(json.dumps(spec_schema(), indent=2))
    if event_schema is not None:
        click.echo(json.dumps(json_schema.event_schema(event_schema), indent=2))
    for path in files or ():
        found = load_spec(path)
        click.echo(f"{path}: model {found.name}, fingerprint {found.fingerprint}")
