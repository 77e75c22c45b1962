"""docs/guides/producing.md is true: its refused events, layout and Python."""

import ast
import re
import shlex

import orjson
import pytest

from headrace.ingest.client import CollectorClient
from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.responses import TOO_LARGE
from headrace.ingest.collector.validation import check
from headrace.ingest.events.contract import Reason
from headrace.ingest.logs.layout import parse_layout
from headrace.runtime.http.bearer_tokens import Tokens
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "guides/producing.md").read_text()
NOW_MS = 1_767_225_600_000


def refusals() -> list[tuple[str, str, str]]:
    rows = re.findall(r"^\| `(.*)` \| `(\w+)` \| (?:`(\w+)`)? ?\|$", PAGE, re.MULTILINE)
    assert rows
    return rows


@pytest.mark.parametrize(("event", "reason", "field"), refusals())
def test_an_event_of_the_table_is_refused_for_the_reason_it_says(
    event: str, reason: str, field: str
) -> None:
    [refused] = check([event.strip().encode() or b" "], NOW_MS, CollectorLimits()).refused
    assert (refused.reason, refused.field) == (reason, field)
    assert refused.expected
    assert refused.found


def test_every_reason_is_on_the_page() -> None:
    explained = set(re.findall(r"`(\w+)`", PAGE))
    assert {reason.name.lower() for reason in Reason} | {TOO_LARGE} <= explained


def test_events_that_the_page_shows_are_taken() -> None:
    shown = re.findall(r"^    topic \w+ +(\{.*\})$", PAGE, re.MULTILINE)
    curls = [shlex.split(line) for line in PAGE.splitlines() if line.startswith("curl ")]
    posted = [words[words.index("-d") + 1] for words in curls]
    checked = check([text.encode() for text in shown + posted], NOW_MS, CollectorLimits())
    assert len(shown) == 2
    assert len(posted) == 1
    assert not checked.refused
    # curl would call it a form, which the collector refuses
    assert "Content-Type: application/json" in curls[0]
    [token] = re.findall(r"Authorization: Bearer (\S+)'", PAGE)
    assert f"HEADRACE_COLLECT_TOKENS={token} " in PAGE
    assert f'"{token}"' in PAGE
    Tokens([token])  # raises BadTokens


def test_the_layout_of_the_page_is_valid() -> None:
    [text] = blocks(PAGE, "toml")
    parse_layout(text, "producing.md")  # raises SpecError


def test_the_python_of_the_page_calls_the_client_correctly() -> None:
    [text] = blocks(PAGE, "python")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [each.func.attr for each in calls if isinstance(each.func, ast.Attribute)]
    assert named == ["impression", "click"]
    assert all(callable(getattr(CollectorClient, name)) for name in named)
    events = [ast.literal_eval(each.args[0]) for each in calls if each.args[0:1] and named]
    sent = [orjson.dumps(each) for each in events if isinstance(each, dict)]
    assert len(sent) == 2
    assert not check(sent, NOW_MS, CollectorLimits()).refused
