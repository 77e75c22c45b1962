"""`headrace spec`: checks model specs, and prints JSON Schemas."""

import json

import click

from headrace.deploy.errors import BadOption
from headrace.deploy.options import SpecFile
from headrace.ingest.events.json_schema import EventKind
from headrace.runtime.settings import argument, setting


def spec(
    files: list[SpecFile] | None = argument(None, "Model specs in TOML.", metavar="[FILE]..."),
    schema: bool = setting(False, "Print the JSON Schema of model specs."),
    event_schema: EventKind | None = setting(None, "Print the JSON Schema of this kind of event."),
) -> None:
    """Check model specs and print their names and fingerprints, or print a JSON Schema.

    The first invalid spec is refused with file, line, the expected value and the value found.
    Editors complete and check specs with the schema. In Even Better TOML and taplo, write it to a
    file and begin the spec with `#:schema ./headrace-spec.schema.json`.
    """
    from headrace.ingest.events import json_schema
    from headrace.learner.spec.schema import spec_schema

    if [bool(files), schema, event_schema is not None].count(True) != 1:
        raise BadOption("expected FILE, --schema or --event-schema, got none or several of them")
    if schema:
        click.echo(json.dumps(spec_schema(), indent=2))
    if event_schema is not None:
        click.echo(json.dumps(json_schema.event_schema(event_schema), indent=2))
    for each in files or ():
        click.echo(f"{each.path}: model {each.spec.name}, fingerprint {each.spec.fingerprint}")
