"""The demo, short, with every real part: what it promises stands in its summary."""

from __future__ import annotations

import re
import shlex
import urllib.request
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from deploy.models import path_of
from deploy.synthetic import SyntheticStream, World, write_log
from tests.deploy.command import running

if TYPE_CHECKING:
    from pathlib import Path

START_MS = 1_700_000_000_000


def ask(command: str) -> dict[str, Any]:
    """What the printed command would bring."""
    _, _, url, _, body = shlex.split(command)
    with urllib.request.urlopen(url, body.encode(), timeout=10) as answer:
        return dict(orjson.loads(answer.read()))


def sent(summary: str) -> tuple[str, str]:
    """Impressions and clicks that the summary says were sent."""
    found = re.search(r"([\d,]+) impressions and ([\d,]+) clicks went through Kafka", summary)
    assert found is not None
    return found.group(1), found.group(2)


@pytest.mark.timeout(300)
def test_a_live_model_is_ahead_of_a_frozen_one_and_every_event_counts_once() -> None:
    with running("demo", "--seconds", "15", "--events", "600", "--port", "0") as demo:
        answer = ask(demo.wait_for(r"curl -s .*'\n").group(0))
        assert len(answer["predictions"]) == 2
        assert demo.end() == 0, demo.output
        summary = demo.output
    impressions, _ = sent(summary)
    assert f"add up to {impressions} shows" in summary
    assert "as many as were sent" in summary
    accuracy = re.search(r"live model had an AUC of (\S+), and .* (\S+): it is", summary)
    assert accuracy is not None, summary
    assert float(accuracy.group(1)) > float(accuracy.group(2))
    assert re.search(r"half took less than \d+ ms", summary)


@pytest.mark.timeout(300)
def test_a_log_can_be_shown_instead(tmp_path: Path) -> None:
    written = write_log(tmp_path, SyntheticStream(World(), 1, START_MS), 60, requests_s=20)
    model = ("--model", str(path_of("demo")))
    with running("demo", "--seconds", "8", "--data", str(tmp_path), "--port", "0", *model) as demo:
        assert demo.end() == 0, demo.output
    assert sent(demo.output) == (f"{written.impressions:,}", f"{written.clicks:,}")
    assert "as many as were sent" in demo.output
