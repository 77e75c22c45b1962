"""User modules that would fail in the middle of a stream are refused at start."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch
from torch import Tensor, nn

from headrace.learner.errors import UnfitModule
from headrace.learner.models.deep.contract import NetworkBatch, NetworkShape
from headrace.learner.models.deep.networks import (
    DCNv2,
    DeepFM,
    DeepInterestNetwork,
    FieldWeightedFM,
    WideAndDeep,
)
from headrace.learner.models.deep.user_module import check_module, make_own
from tests.effort import seeds

FORM = NetworkShape(vectors=3, dimensions=4, layers=(8,), cross_layers=1, target=0)


class Summing(nn.Module):
    """Fit: all inputs of an example are summed."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.ones(form.dimensions))

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        both = batch.vectors.sum(1) + self.interest(batch)
        return batch.wide + both @ self.mix

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what items come to, (n, d)."""
        return batch.items.sum(1)


class Largest(Summing):
    """The largest of no items is nothing that torch knows."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the largest of each dimension."""
        return batch.items.max(dim=1).values


class Mean(Summing):
    """An example with fewer items than its neighbour has a mean with zeros."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the mean over the longest example's number."""
        return batch.items.sum(1) / max(1, batch.items.shape[1])


class MaskedMean(Summing):
    """Fit: it looks at what is present."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the mean over an example's own items."""
        return batch.items.sum(1) / batch.present.sum(1, keepdim=True).clamp(min=1)


class Attending(Summing):
    """No item is present: all weights are those of minus infinity."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return items weighed by a softmax over those present."""
        logits = (batch.items @ self.mix).masked_fill(~batch.present, -torch.inf)
        return (logits.softmax(1).unsqueeze(2) * batch.items).sum(1)


class Centred(Summing):
    """An example less the others of its batch."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what is to be added: minus the batch's mean."""
        return -batch.vectors.sum(1).mean(0, keepdim=True).expand(batch.wide.shape[0], -1)


class Normed(Summing):
    """No variance: one example."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.norm = nn.BatchNorm1d(form.dimensions, track_running_stats=False)

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what a batch norm without buffers makes of vectors."""
        normed: Tensor = self.norm(batch.vectors.sum(1))
        return normed


class Random(Summing):
    """Two answers to one question."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return noise."""
        return torch.rand(batch.wide.shape[0], FORM.dimensions)


class Hidden(Centred):
    """The dependence on the batch goes through a layer that starts with zeros."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.gate = nn.Parameter(torch.zeros(form.dimensions))

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return nothing, to begin with."""
        return super().interest(batch) * self.gate


class Double(Summing):
    """Float32 inside, float64 at the end."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds in another type than is learned from."""
        return super().forward(batch).double()


class Remembering(Summing):
    """Fit: it keeps its last answer for inspection."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        self.seen = super().forward(batch)
        return self.seen


class Listed(Summing):
    """Its layers are in a list that torch does not look into."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.layers = [nn.Linear(form.dimensions, form.dimensions)]

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the output of an untrained layer."""
        made: Tensor = self.layers[0](batch.vectors.sum(1))
        return made


class ListedConstant(Listed):
    """It begins alike wherever it is made, and stays there."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        for each in self.layers[0].parameters():
            nn.init.constant_(each, 0.5)


class Projecting(Summing):
    """Every process projects in a direction of its own."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.direction = torch.randn(form.dimensions)

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return vectors, projected."""
        return batch.vectors.sum(1) * self.direction


class ProjectingLate(Projecting):
    """The direction is seen once a parameter that begins with zero moves."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        nn.init.zeros_(self.mix)


class Seeded(Summing):
    """Fit: what it draws is the same everywhere."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        dice = torch.Generator().manual_seed(3)
        self.direction = torch.randn(form.dimensions, generator=dice)

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return vectors, projected."""
        return batch.vectors.sum(1) * self.direction


class Another(Summing):
    """As deep as dice say."""

    made = 0

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        Another.made += 1
        self.more = nn.Parameter(torch.zeros(Another.made))


class Deep(nn.Module):
    """Fit: a network that ignores the sum of weights."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()
        wide = form.vectors * form.dimensions
        self.layers = nn.Sequential(nn.Linear(wide, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        made: Tensor = self.layers(batch.vectors.flatten(1)).squeeze(1)
        return made


class NeverNegative(Deep):
    """Fit, if odd: it never says less than one half."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds of zero or more."""
        return super().forward(batch).relu()


class Bounded(Deep):
    """Fit: it never says that it is sure."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds from -1 to 1."""
        return super().forward(batch).tanh()


class NoParameters(nn.Module):
    """Fit: embeddings are all it has."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        return batch.wide + batch.vectors.sum((1, 2))


class Probable(Summing):
    """The sigmoid is taken twice: here, and of what is returned."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return probabilities."""
        return super().forward(batch).sigmoid()


class DeepProbable(Deep):
    """So it is here, where the sum of weights is ignored."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return probabilities."""
        return super().forward(batch).sigmoid()


class OneOfTwo(Summing):
    """A probability, without the word."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return the click's share of two classes."""
        log_odds = super().forward(batch)
        return torch.stack((torch.zeros_like(log_odds), log_odds), dim=1).softmax(1)[:, 1]


class Shut(Summing):
    """Never copied: who answers needs a module a thread."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.twice = self.mix * 2.0


class Unbegun(nn.Module):
    """Its constructor forgets that of nn.Module."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        pass

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        return batch.wide


@pytest.fixture(autouse=True)
def _same_dice() -> Iterator[None]:
    """Constructors draw the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def _check(kind: type[nn.Module], form: NetworkShape = FORM) -> nn.Module:
    """Check a module as if a spec had named it; return it."""
    module = kind(form)
    check_module("ours", module, kind(form), form)
    return module


@pytest.mark.parametrize(
    "kind",
    [
        *(Summing, MaskedMean, Remembering, Seeded, Deep, NeverNegative, Bounded, NoParameters),
        *(DCNv2, DeepFM, DeepInterestNetwork, FieldWeightedFM, WideAndDeep),
    ],
)
def test_a_user_module_that_reads_only_its_example_is_accepted(kind: type[nn.Module]) -> None:
    module, again = kind(FORM), kind(FORM)
    before = [each.detach().clone() for each in (*module.parameters(), *again.parameters())]
    check_module("ours", module, again, FORM)
    assert not hasattr(module, "seen")  # a copy was tried
    after = (*module.parameters(), *again.parameters())
    for each, was in zip(after, before, strict=True):
        assert torch.equal(each, was)


@pytest.mark.parametrize(
    "form",
    [
        FORM._replace(target=-1),
        FORM._replace(vectors=1, dimensions=1, layers=(1,)),
        FORM._replace(vectors=40, dimensions=16, layers=(64, 32)),
    ],
)
@pytest.mark.parametrize("seed", seeds(5))
def test_a_valid_user_module_is_accepted_for_every_shape(form: NetworkShape, seed: int) -> None:
    torch.manual_seed(seed)
    for kind in (Summing, Deep, NeverNegative, Bounded, WideAndDeep, DeepFM, DCNv2):
        _check(kind, form)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Largest, "called with a Batch of 2 examples, up to 0 items each"),
        (Mean, "alone and in a batch"),
        (Attending, "finite log-odds of a Batch of 3 examples, up to 2 items each"),
        (Centred, "alone and in a batch"),
        (Normed, "Batch of 1 examples"),
        (Random, "alone and in a batch"),
        (Hidden, "alone and in a batch"),
        (Double, "expected log-odds of torch.float32, got torch.float64"),
        (Listed, "nn.ModuleList), got a tensor of shape (4, 4)"),
        (ListedConstant, "nn.ModuleList), got a tensor of shape (4, 4)"),
        (Projecting, "the same log-odds from every instance"),
        (ProjectingLate, "the same log-odds from every instance"),
        (Another, "parameters of the same names and shapes"),
        (Probable, "answers from 0 to 1 alone"),
        (DeepProbable, "answers from 0 to 1 alone"),
        (OneOfTwo, "answers from 0 to 1 alone"),
        (Shut, "copy.deepcopy copies"),
        (Unbegun, "calls super().__init__()"),
    ],
)
def test_a_user_module_that_would_fail_in_the_stream_is_refused_at_start(
    kind: type[nn.Module], expected: str
) -> None:
    with pytest.raises(UnfitModule, match=r"expected .* got ") as refused:
        _check(kind)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class Broken(", "SyntaxError"),
        ("raise RuntimeError('no such file: weights.bin')", "weights.bin"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("import torch\nclass Other(torch.nn.Module): pass", "Broken"),
    ],
)
def test_a_user_file_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, found: str
) -> None:
    name = f"own_{abs(hash(source)):x}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnfitModule, match="expected a class that can be imported") as refused:
        make_own(f"{name}:Broken", FORM)
    assert found in str(refused.value)


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
