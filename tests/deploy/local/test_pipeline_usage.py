"""Tests the commands that `headrace up` prints: the shell sends events that the joiner accepts."""

import json
import shlex
import subprocess
import time

import pytest

from headrace.deploy.local.pipeline_usage import sample_event, usage_of
from headrace.deploy.models.shipped import path_of
from headrace.ingest.events.contract import Reason, read_event
from headrace.ingest.features.field_sources import carried_fields
from headrace.learner.spec.model_spec import load_spec, parse_spec


@pytest.mark.parametrize("name", ["demo", "news", "news_dcn"])
def test_a_printed_event_has_a_usable_value_for_every_field(name: str) -> None:
    spec = load_spec(path_of(name))
    event = sample_event(spec, 1)
    for each in carried_fields(spec.fields):
        assert isinstance(event[each.source], list) == (each.transform == "bag"), each


def test_the_printed_commands_send_events_of_now_and_ask_for_predictions() -> None:
    replay = "headrace ingest replay --data log.csv"
    text = usage_of(load_spec(path_of("demo")), "http://here:1", "http://there:2", replay)
    assert text.index(replay) < text.index("curl "), "a log is refused after events of now"
    commands = [line for line in text.splitlines() if line.startswith("curl ")]
    sent = []
    for command in commands:
        # the shell itself expands the time
        echoed = subprocess.run(
            ["sh", "-c", command.replace("curl", "printf '%s\\n'", 1)],
            capture_output=True,
            text=True,
            check=True,
        )
        words = echoed.stdout.splitlines()
        assert words[1].startswith("http://")
        sent.append((words[1], json.loads(words[-1])))
    assert [url for url, _ in sent] == [
        "http://there:2/v1/impressions",
        "http://there:2/v1/clicks",
        "http://here:1/v1/models/demo:predict",
    ]
    now_ms = int(time.time() * 1000)
    for _, event in sent[:2]:
        assert not isinstance(read_event(json.dumps(event).encode(), now_ms), Reason)
        assert abs(event["timestamp_ms"] - now_ms) < 60_000
    assert sent[0][1]["impression_id"] == sent[1][1]["impression_id"]
    assert len(sent[2][1]["candidates"]) == 2
    assert all(shlex.split(command) for command in commands)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "A new model predicts about 0.5, base_rate in its spec,"),
        ("base_rate = 0.02", "A new model predicts about 0.02, base_rate in its spec,"),
        ('loss = "choice"', "A new model predicts the same for each"),
        ('[label]\npolicy = "window"\nwindow_s = 60', "when the label window ends, 60 s\nafter"),
        ("[label]\nwindow_s = 60", "Until then, the model learns that the impression has none"),
    ],
)
def test_the_printed_text_explains_the_first_predictions(more: str, told: str) -> None:
    text = f'[model]\nname = "m"\n{more}\n[fields.user]\nnumber = 1\ntransform = "id"\n'
    usage = usage_of(parse_spec(text, "m.toml"), "http://here:1", "http://there:2", "")
    assert told in usage
    assert all(len(line) <= 100 for line in usage.splitlines() if not line.startswith("curl "))
