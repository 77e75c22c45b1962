"""Requests that are shown to users resemble real ones."""

import json

import pytest

from headrace.deploy.models.shipped import path_of
from headrace.learner.spec.model_spec import load_spec, parse_spec
from headrace.serving.api.openapi import examples
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.request_decoder import RequestDecoder
from headrace.serving.requests.sample_requests import sample_fields, sample_request

CONTEXTS = {
    "demo": {"user_id", "device"},
    "news": {"user_id", "page_id", "device_type", "slate_size"},
}
FIELDS = """
[model]
name = "m"
[fields]
"""


@pytest.mark.parametrize("name", sorted(CONTEXTS))
def test_a_sample_puts_the_user_and_the_device_into_the_context(name: str) -> None:
    fields = load_spec(path_of(name)).fields
    for shown in (examples(fields)["candidates"]["value"], sample_request(fields)):
        assert set(shown["context"]) == CONTEXTS[name]
        assert not CONTEXTS[name] & {key for each in shown["candidates"] for key in each}
        first, second = shown["candidates"]
        assert first != second


def test_a_sample_has_a_value_for_every_field_and_is_accepted() -> None:
    spec = load_spec(path_of("news"))
    decoder = RequestDecoder(spec.fields, RequestLimits())
    shown = sample_request(spec.fields)
    named = {*shown["context"], *shown["candidates"][0]}
    assert named == set(sample_fields(spec.fields, 1))
    decoder.decode(json.dumps(shown).encode())


def test_a_history_names_the_user_and_the_item_where_words_do_not() -> None:
    text = """
        who = { number = 1, transform = "id", source = "w" }
        what = { number = 2, transform = "id", source = "player" }
        last = { number = 3, transform = "history", of = "who", item = "what", last = 5 }
    """
    fields = parse_spec(FIELDS + text, "m.toml").fields
    assert sample_request(fields) == {
        "context": {"w": "w-1"},
        "candidates": [{"player": "player-1"}, {"player": "player-2"}],
    }


def test_candidates_have_all_fields_if_none_would_be_left() -> None:
    text = 'user = { number = 1, transform = "id" }\npage_rank = { number = 2, transform = "id" }\n'
    assert set(sample_request(parse_spec(FIELDS + text, "m.toml").fields)["context"]) == {"user"}
    only = parse_spec(FIELDS + text.splitlines()[0], "m.toml").fields
    assert sample_request(only)["context"] == {}
