"""`headrace spec`: checks specs, and prints a schema that they conform to."""

import json
import tomllib
from pathlib import Path

import jsonschema

from headrace.deploy.models.shipped import path_of
from headrace.runtime.termination import REFUSED
from tests.deploy.in_process import Commands

NEWS = path_of("news")


def test_valid_specs_are_listed_with_their_fingerprints(headrace: Commands) -> None:
    result = headrace("spec", str(NEWS))
    assert result.code == 0, result.err
    assert result.out == f"{NEWS}: model news, fingerprint 43cc269b3f09876b\n"


def test_an_invalid_spec_is_refused_with_file_and_line(headrace: Commands, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(NEWS.read_text().replace("[model]", "[modle]", 1))
    line = broken.read_text().splitlines().index("[modle]") + 1
    result = headrace("spec", str(NEWS), str(broken))
    assert result.code == REFUSED
    assert result.err.startswith(f"headrace: {broken}:{line}: expected a section, one of ")
    assert 'did you mean "model"?), found "modle"' in result.err


def test_the_printed_schema_accepts_a_shipped_spec(headrace: Commands) -> None:
    result = headrace("spec", "--schema")
    assert result.code == 0, result.err
    schema = json.loads(result.out)
    jsonschema.validate(tomllib.loads(NEWS.read_text()), schema)
