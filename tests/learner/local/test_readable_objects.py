"""The text of public objects, as a notebook or a traceback shows it."""

import headrace

SPEC = """
[model]
name = "site"
[fields]
user = { number = 1, transform = "id" }
tags = { number = 2, transform = "bag" }
[statistics]
rate = { number = 20, statistic = "rate", of = "user" }
"""
NEW_YEAR_MS = 1_767_225_600_000


def test_a_model_shows_its_name_its_architecture_and_the_examples_it_learned() -> None:
    model = headrace.LocalModel(headrace.parse_spec(SPEC, "site.toml"))
    untrained = '<LocalModel "site": logistic_regression, 0 examples learned, 0 rows>'
    assert repr(model) == untrained
    model.learn([{"impression_id": "i", "timestamp_ms": NEW_YEAR_MS, "user": "u", "tags": ["a"]}])
    assert "1 example learned" in repr(model)
    assert f"{len(model)} rows" in repr(model)


def test_a_spec_shows_its_inputs_and_not_its_text() -> None:
    spec = headrace.parse_spec(SPEC, "site.toml")
    assert repr(spec) == '<ModelSpec "site": logistic_regression of user, tags, rate>'


def test_a_summary_shows_the_first_refused_events_and_counts_the_others() -> None:
    model = headrace.LocalModel(headrace.parse_spec(SPEC, "site.toml"))
    events = [{"impression_id": f"i{each}", "timestamp_ms": 1} for each in range(5_000)]
    text = repr(model.learn(events))
    assert text.startswith("LearnSummary(examples=0, refused=(RefusedEvent(reason='expected")
    assert text.endswith("... 4,997 more))")
    assert len(text) < 1_000


def test_a_client_shows_its_address_and_never_its_token() -> None:
    client = headrace.CollectorClient("http://127.0.0.1:9", "a-long-enough-secret")
    try:
        text = repr(client)
    finally:
        client.close(0)
    assert text == "<CollectorClient http://127.0.0.1:9: 0 events not yet acknowledged>"
    assert "closed" in repr(client)
