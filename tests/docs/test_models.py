"""docs/guides/models.md is true: its specs and figures are those of the code."""

import re
import sys
from pathlib import Path

import pytest

import headrace.deploy
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.learner.models.factory import open_model
from headrace.learner.spec.architecture import MODEL
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.spec.optimizer_spec import Optimizer, floats
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "guides/models.md").read_text()
SPECS = blocks(PAGE, "toml")


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_floats_are_what_optimizers_take() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for name, weight, vector in rows:
        each, more = re.fullmatch(r"(\d ?)?d(?: \+ (\d))?", vector).groups()  # type: ignore[union-attr]
        optimizer = Optimizer(name)
        assert int(weight) == floats(optimizer, 1)
        assert int(each or 1) * 8 + int(more or 0) == floats(optimizer, 8)
    news = parse_spec(
        (Path(headrace.deploy.__file__).parent / "models/news_deepfm.toml").read_text(), "m"
    )
    assert f"a row of `news_deepfm.toml` has 3 + 2 · 8 = {news.width} floats" in " ".join(
        PAGE.split()
    )


def test_every_field_of_form_and_batch_is_documented() -> None:
    own = PAGE.partition("## Your own torch module")[2]
    first_cells = set(quoted(" ".join(re.findall(r"^\| (`.*?) \|", own, re.MULTILINE))))
    assert set(NetworkShape._fields) | set(NetworkBatch._fields) <= first_cells


def test_there_is_a_spec_of_every_architecture_and_of_every_section() -> None:
    specs = [parse_spec(text, "models.md") for text in SPECS]
    assert {each.architecture for each in specs} == set(MODEL.kinds)
    assert any(each.structure.synchronous for each in specs)
    assert any(each.fields.weights.source for each in specs)
    assert any(each.fields.weights.sampling for each in specs)
    assert any(each.calibration for each in specs)
    assert any(each.admission for each in specs)


@pytest.mark.parametrize("text", SPECS)
def test_a_spec_of_the_page_opens_as_a_model(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")
    [source] = blocks(PAGE, "python")
    (tmp_path / "own.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        open_model(parse_spec(text, "models.md"), buckets=4)
    finally:
        sys.modules.pop("own", None)
