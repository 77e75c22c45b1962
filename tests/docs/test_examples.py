"""The examples run as they are: specs open, the custom module learns, the notebook's cells work."""

import json
import re
import sys
from itertools import islice
from pathlib import Path

import orjson
import pytest

import headrace
from headrace.ingest.logs.layout import load_layout
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.logs.table_log import TableLog
from tests.docs.notebook import code_cells, run, shown
from tests.docs.pages import DOCS
from tests.docs.walk import EXAMPLES, Walk, copy_of_examples, shape, steps

SITE = EXAMPLES / "news_site"
PAGES = sorted(EXAMPLES.rglob("README.md"))
NOTEBOOKS = sorted(EXAMPLES.rglob("*.ipynb"))
EVENTS = 8_000


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """The first events of the log, by the layout of the example."""
    home = copy_of_examples(tmp_path_factory.mktemp("examples")) / "examples" / "news_site"
    [made] = [step for step in steps((DOCS / "tutorial.md").read_text()) if "make_log" in str(step)]
    with Walk(home) as walk:
        walk.walk(made._replace(commands=[made.commands[1]]))
    log = TableLog(home / "log.csv", load_layout(str(home / "layout.toml")))
    return list(islice(log.lines(), EVENTS))


def learned(model: headrace.LocalModel, lines: list[Line]) -> headrace.LocalModel:
    """The model after it learned these events."""
    impressions = [orjson.loads(line.value) for line in lines if not line.is_click]
    clicks = [orjson.loads(line.value) for line in lines if line.is_click]
    assert clicks
    summary = model.learn(impressions, clicks)
    assert summary.examples == len(lines)
    assert summary.refused == ()
    return model


@pytest.mark.parametrize("name", ["first.toml", "site.toml"])
def test_a_model_of_the_news_site_learns_its_log(name: str, lines: list[Line]) -> None:
    assert learned(headrace.LocalModel(SITE / name), lines).metrics().auc > 0.55


def test_the_custom_module_learns_the_log_of_the_news_site(
    lines: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")
    monkeypatch.syspath_prepend(EXAMPLES / "own_module")
    try:
        model = learned(headrace.LocalModel(EXAMPLES / "own_module" / "towers.toml"), lines[:5_000])
        assert model.metrics().auc > 0.55
    finally:
        sys.modules.pop("two_towers", None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_of_a_notebook_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    notebook = json.loads(path.read_text())
    folder = copy_of_examples(tmp_path) / "examples" / path.parent.relative_to(EXAMPLES)
    for cell, (printed, value) in zip(code_cells(notebook), run(notebook, folder), strict=True):
        assert shape(printed + value) == shape(shown(cell))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_a_page_of_the_examples_names_files_that_exist(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link
