"""User modules that would fail in the middle of a stream are refused at start."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch
from torch import nn

from headrace.learner.errors import UnfitModule
from headrace.learner.models.deep.networks.architectures import (
    DCNv2,
    DeepFM,
    DeepInterestNetwork,
    FieldWeightedFM,
    WideAndDeep,
)
from headrace.learner.models.deep.networks.contract import NetworkShape
from headrace.learner.models.deep.networks.user_module import check_module, make_own
from tests.effort import seeds
from tests.learner.models.deep.own_modules import FIT, FORM, UNFIT


@pytest.fixture(autouse=True)
def _same_dice() -> Iterator[None]:
    """Constructors draw the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@pytest.mark.parametrize(
    "form",
    [
        FORM,
        FORM._replace(target=-1),
        FORM._replace(vectors=1, dimensions=1, layers=(1,)),
        FORM._replace(vectors=40, dimensions=16, layers=(64, 32)),
    ],
)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_user_module_that_reads_only_its_example_is_accepted_and_stays_as_it_is(
    form: NetworkShape, seed: int
) -> None:
    torch.manual_seed(seed)
    of_papers = (DCNv2, DeepFM, FieldWeightedFM, WideAndDeep)
    with_target = (DeepInterestNetwork,) if form.target >= 0 else ()
    for kind in (*FIT.values(), *of_papers, *with_target):
        module, again = kind(form), kind(form)
        before = [each.detach().clone() for each in (*module.parameters(), *again.parameters())]
        check_module("ours", module, again, form)
        assert not hasattr(module, "seen")  # a copy was tried
        after = (*module.parameters(), *again.parameters())
        for each, was in zip(after, before, strict=True):
            assert torch.equal(each, was)


@pytest.mark.parametrize(("kind", "expected"), UNFIT.values(), ids=UNFIT)
def test_a_user_module_that_would_fail_in_the_stream_is_refused_at_start(
    kind: type[nn.Module], expected: str
) -> None:
    with pytest.raises(UnfitModule, match=r"expected .* got ") as refused:
        check_module("ours", kind(FORM), kind(FORM), FORM)
    assert expected in str(refused.value)


_NET = """\
import torch
class Net(torch.nn.Module):
    def __init__(self, form):
        super().__init__()
        self.last = torch.nn.Linear({made}, 1)
    def forward(self, batch):
        return batch.wide + self.score(batch)
    def score(self, batch):
        {before}
        return self.last(batch.vectors.flatten(1)).squeeze(1)
"""
_WIDTH = FORM.vectors * FORM.dimensions


def _written(folder: Path, source: str) -> str:
    """Write a file of the user's; return the name of the class Net in it, new to this process."""
    folder.mkdir(exist_ok=True)
    name = f"own_{abs(hash(str(folder))):x}_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(source)
    return f"{name}:Net"


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The import path of a console script: without the working directory."""
    here = ("", ".", str(Path.cwd()))
    made = [each for each in sys.path if each not in here]
    monkeypatch.setattr(sys, "path", made)
    return made


def test_a_module_is_found_in_the_working_directory(
    tmp_path: Path, path: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = _written(tmp_path, _NET.format(made=_WIDTH, before="pass"))
    assert type(make_own(name, FORM)).__name__ == "Net"


def test_an_installed_package_is_not_hidden_by_the_working_directory(
    tmp_path: Path, path: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, installed = tmp_path / "here", tmp_path / "installed"
    name = _written(here, "raise RuntimeError('of the working directory')")
    file = f"{name.partition(':')[0]}.py"
    installed.mkdir()
    (installed / file).write_text(_NET.format(made=_WIDTH, before="pass"))
    monkeypatch.chdir(here)
    path.append(str(installed))
    assert type(make_own(name, FORM)).__name__ == "Net"


def test_a_missing_user_module_is_reported_with_the_searched_paths(
    tmp_path: Path, path: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnfitModule, match="on the import path and in the working") as refused:
        make_own("own_nowhere.at_all:Net", FORM)
    assert str(tmp_path) in str(refused.value)
    name = _written(tmp_path, "")
    with pytest.raises(UnfitModule, match="no 'Net' in ") as refused:
        make_own(name, FORM)
    assert str(tmp_path) in str(refused.value)


_ENDING = "import sys\nclass Net: pass\nsys.exit(3)"
_BREAKING = "import torch\n\ntorch.zeros(2) @ torch.zeros(3)"


@pytest.mark.parametrize(
    ("source", "line", "expected", "found"),
    [
        (_NET.format(made=_WIDTH + 1, before="pass"), 10, "called with a Batch", "RuntimeError("),
        (_NET.format(made="form.depth", before="pass"), 5, "a constructor", "AttributeError("),
        (
            _NET.format(made="__import__('sys').exit(3)", before="pass"),
            5,
            "a constructor",
            "SystemExit(3)",
        ),
        (
            _NET.format(made=_WIDTH, before="raise SystemExit"),
            9,
            "called with a Batch",
            "SystemExit()",
        ),
        (_ENDING, 3, "can be imported", "SystemExit(3)"),
        (_BREAKING, 3, "can be imported", "RuntimeError("),
        ("\nclass Net(", 2, "can be imported", "SyntaxError("),
        ("import nothing_of_that_name", 1, "can be imported", "nothing_of_that_name"),
        (
            _NET.format(made=_WIDTH, before="assert batch.wide.abs().max() < 9, 'too large'"),
            *(9, "called with a Batch", "AssertionError('too large')"),
        ),
    ],
)
def test_an_error_in_user_code_is_reported_with_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    line: int,
    expected: str,
    found: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = _written(tmp_path, source)
    with pytest.raises(UnfitModule, match=r"expected .* got ") as refused:
        make_own(name, FORM)
    said = str(refused.value)
    assert expected in said
    assert found in said
    assert said.endswith(f" at {tmp_path}/{name.partition(':')[0]}.py:{line}")


def test_a_keyboard_interrupt_in_user_code_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = _written(tmp_path, _NET.format(made=_WIDTH, before="raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        make_own(name, FORM)
