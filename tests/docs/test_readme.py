"""README is true: its links, outputs and benchmarks exist, and it is short."""

import importlib.util
import re

import pytest

from headrace.deploy.demo.view import DemoSummary, EventCounts, summary
from headrace.deploy.reports.model_comparison import ComparisonSnapshot, DriftReport
from headrace.ingest.logs.layout import parse_layout
from headrace.learner.spec.model_spec import load_spec, parse_spec
from tests.docs.page_picture import LARGEST_BYTES, PICTURE
from tests.docs.pages import blocks, commands
from tests.docs.walk import EXAMPLES, ROOT

PAGE = (ROOT / "README.md").read_text()
DOOR, _, LINKS = PAGE.partition("## Documentation")
MOST_WORDS = 690


def test_the_readme_is_short() -> None:
    assert LINKS
    assert len(DOOR.split()) <= MOST_WORDS


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE))))
def test_a_link_of_the_readme_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_picture_of_the_readme_is_small() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in PAGE
    assert PICTURE.stat().st_size <= LARGEST_BYTES


@pytest.mark.parametrize("module", re.findall(r"`python -m (tests\.bench\.\S+)", PAGE))
def test_a_benchmark_of_the_readme_exists(module: str) -> None:
    assert importlib.util.find_spec(module.rstrip("`")) is not None


def test_the_model_and_data_of_the_readme_take_fifteen_lines() -> None:
    part = PAGE.partition("## Your own model and data")[2].partition("\n## ")[0]
    spec, layout = blocks(part, "toml")
    [command] = commands(part)
    lines = [line for line in f"{spec}{layout}{command}".splitlines() if line]
    assert len(lines) <= 15
    first = load_spec(EXAMPLES / "news_site" / "first.toml")
    assert parse_spec(spec, "site.toml").fields == first.fields
    parse_layout(layout, "layout.toml")


def test_the_output_of_the_demo_is_what_the_readme_shows() -> None:
    """The figures are those of the run behind the picture. Paste the text if its words changed."""
    fields = dict.fromkeys(map(str, range(9)), 296_620), dict.fromkeys(map(str, range(9)), 53_642)
    said = summary(
        DemoSummary(
            seconds=181,
            impressions=296_620,
            clicks=53_642,
            frozen_at_s=61,
            last=ComparisonSnapshot(live=0.766, frozen=0.584, truth=0.808, impressions=103_575),
            last_s=60,
            p50_ms=95,
            p99_ms=275,
            rows=57_651,
            counted=EventCounts(296_620, 53_642, 0, *fields),
            upheaval=DriftReport(90, 0.767, 0.619, 0.554, 12),
        )
    )
    quickstart = PAGE.partition("## Quickstart")[2]
    assert blocks(quickstart, "text")[0].strip() == said


def test_the_answer_of_the_readme_has_the_keys_of_an_answer() -> None:
    [answer] = blocks(PAGE, "json")
    tutorial = "".join(blocks((ROOT / "docs" / "tutorial.md").read_text(), "json"))
    keys = re.compile(r'"(\w+)":')
    assert set(keys.findall(answer)) <= set(keys.findall(tutorial))
