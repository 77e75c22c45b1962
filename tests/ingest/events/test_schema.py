"""Tests that the published schema and the joiner's rule accept the same events."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headrace.deploy.cli.main import app
from headrace.ingest.events.contract import EARLIEST_MS, LATEST_MS, Reason, is_tick, read_event
from headrace.ingest.events.json_schema import EXAMPLES, EventKind, event_schema

KINDS = list(EventKind)
VALIDATORS = {kind: Draft202012Validator(event_schema(kind)) for kind in KINDS}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)
times = st.one_of(
    st.integers(EARLIEST_MS - 2, EARLIEST_MS + 2),
    st.integers(LATEST_MS - 2, LATEST_MS + 2),
    st.sampled_from([1_767_225_600_000.0, 1_767_225_600_000.5, "1767225600000"]),
    values,
)
events = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "impression_id": st.one_of(st.text(st.characters(codec="utf-8"), max_size=3), values),
            "timestamp_ms": times,
            "request_id": values,
            "value": values,
            "article_id": values,
        },
    ),
    st.fixed_dictionaries(
        {"impression_id": st.just("a"), "timestamp_ms": times},
        optional={"request_id": values, "value": values, "article_id": values},
    ),
)


@given(event=events, kind=st.sampled_from(KINDS))
def test_the_schema_accepts_what_the_joiner_accepts(event: Any, kind: EventKind) -> None:
    read = read_event(json.dumps(event).encode(), append_ms=0)
    accepted = not isinstance(read, Reason) and not is_tick(read)
    assert VALIDATORS[kind].is_valid(event) == accepted, read


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_schema_is_valid_and_accepts_its_example(kind: EventKind) -> None:
    made = event_schema(kind)
    Draft202012Validator.check_schema(made)
    VALIDATORS[kind].validate(EXAMPLES[kind])
    assert made["examples"] == [EXAMPLES[kind]]
    assert made["required"] == ["impression_id", "timestamp_ms"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_command_prints_the_published_schema(
    kind: EventKind, capsys: pytest.CaptureFixture[str]
) -> None:
    app(["spec", "--event-schema", kind.value], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == event_schema(kind)
