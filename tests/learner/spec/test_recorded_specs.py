"""Recorded specs keep their fingerprints and refusals, and the JSON Schema agrees with them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

import headrace.deploy
from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecError, SpecText
from headrace.learner.spec.model_spec import SECTIONS, parse_spec
from headrace.learner.spec.schema import spec_schema
from tests.learner.spec.recorded_specs import ACCEPTED, REFUSED

MODELS = Path(headrace.deploy.__file__).parent / "models"
SCHEMA = spec_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)

HEAVY = ("numba", "pyarrow", "torch", "confluent_kafka", "redis", "fastapi")
"""Imports that take longer than reading a spec."""


# a test of all specs, not one test a spec: 700 tests cost more than what they look at
def test_a_recorded_spec_keeps_its_fingerprints() -> None:
    for spec in ACCEPTED:
        parsed = parse_spec(spec.text, "m.toml")
        where = SpecText("m.toml", spec.text)
        fields = parse_fields(where.tables(), where)
        assert parsed.fingerprint == spec.fingerprint, spec.text
        assert fields.fingerprint == spec.fields_fingerprint, spec.text


def test_a_recorded_refusal_keeps_its_message() -> None:
    for spec in REFUSED:
        with pytest.raises(SpecError) as caught:
            parse_spec(spec.text, "m.toml")
        assert str(caught.value) == spec.message, spec.text


def test_the_schema_of_specs_is_a_schema() -> None:
    VALIDATOR.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(SECTIONS)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_spec_conforms_to_the_schema(path: Path) -> None:
    VALIDATOR.validate(tomllib.loads(path.read_text()))


def test_a_valid_spec_conforms_to_the_schema() -> None:
    for spec in ACCEPTED:
        assert VALIDATOR.is_valid(tomllib.loads(spec.text)), spec.text


def test_the_schema_refuses_an_invalid_spec() -> None:
    for spec in REFUSED:
        if spec.by_schema:
            assert not VALIDATOR.is_valid(tomllib.loads(spec.text)), spec.text


def test_reading_a_spec_imports_no_compiler_no_arrow_and_no_kafka_client() -> None:
    script = (
        "import sys\n"
        "import headrace\n"
        "from headrace.learner.spec.schema import spec_schema\n"
        "headrace.load_spec(sys.argv[1]), spec_schema()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    command = [sys.executable, "-P", "-c", script, str(MODELS / "news_dcn.toml")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
