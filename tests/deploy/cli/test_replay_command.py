"""`headrace ingest replay` as live traffic: its options, and the warning about a missing server."""

from pathlib import Path

import pytest

from headrace.deploy.cli.ingest.ingest_replay import _answers, _Asking, _client
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.models.shipped import path_of
from headrace.ingest.logs.ndjson import Line
from headrace.learner.spec.model_spec import load_spec
from tests.deploy.in_process import Commands


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repeat"], "--repeat: expected --now beside it"),
        (["--now"], "--now: expected --speed with a number, such as --speed 60, got max"),
        (["--now", "--speed", "60", "--resume-as", "week"], "--now: expected no --resume-as"),
    ],
)
def test_live_traffic_needs_a_pace_and_cannot_resume(
    headrace: Commands, tmp_path: Path, words: list[str], said: str
) -> None:
    spec = str(path_of("demo"))
    ended = headrace("ingest", "replay", "--model", spec, "--data", str(tmp_path), *words)
    assert ended.code == 2
    assert said in ended.err


def test_a_server_that_does_not_answer_is_named_once_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with _client(url, "production", None, load_spec(path_of("demo"))) as client:
        asking = _Asking(client, url)
        for number in range(3):
            key = f"i{number}".encode()
            value = b'{"impression_id": "%b", "timestamp_ms": 1, "user_id": "u1"}' % key
            asking([Line(1, is_click=False, key=key, value=value)], 0.0)
    assert capsys.readouterr().err.count(f"expected answers from {url} (--ask), got none yet") == 1
    assert _answers(client) == "answers to 3 requests: none; 3 without an answer in time"
