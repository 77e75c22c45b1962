"""Modules that would go wrong in the midst of a stream are refused before it begins."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch
from torch import Tensor, nn

from learner.errors import UnfitModule
from learner.models.network import Batch, Form
from learner.models.own_module import check_module, make_own

FORM = Form(vectors=3, dimensions=4, layers=(8,), cross_layers=1, target=0)


class Summing(nn.Module):
    """Fit: whatever an example has is summed."""

    def __init__(self, form: Form = FORM) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.ones(form.dimensions))

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        both = batch.vectors.sum(1) + self.interest(batch)
        return batch.wide + both @ self.mix

    def interest(self, batch: Batch) -> Tensor:
        """Return what items come to, (n, d)."""
        return batch.items.sum(1)


class Largest(Summing):
    """The largest of no items is nothing that torch knows."""

    def interest(self, batch: Batch) -> Tensor:
        """Return the largest of each dimension."""
        return batch.items.max(dim=1).values


class Mean(Summing):
    """An example with fewer items than its neighbour has a mean with zeros."""

    def interest(self, batch: Batch) -> Tensor:
        """Return the mean over the longest example's number."""
        return batch.items.sum(1) / max(1, batch.items.shape[1])


class MaskedMean(Summing):
    """Fit: it looks at what is present."""

    def interest(self, batch: Batch) -> Tensor:
        """Return the mean over an example's own items."""
        return batch.items.sum(1) / batch.present.sum(1, keepdim=True).clamp(min=1)


class Attending(Summing):
    """No item is present: all weights are those of minus infinity."""

    def interest(self, batch: Batch) -> Tensor:
        """Return items weighed by a softmax over those present."""
        logits = (batch.items @ self.mix).masked_fill(~batch.present, -torch.inf)
        return (logits.softmax(1).unsqueeze(2) * batch.items).sum(1)


class Centred(Summing):
    """An example less the others of its batch."""

    def interest(self, batch: Batch) -> Tensor:
        """Return what is to be added: minus the batch's mean."""
        return -batch.vectors.sum(1).mean(0, keepdim=True).expand(batch.wide.shape[0], -1)


class Normed(Summing):
    """What has no variance: one example."""

    def __init__(self, form: Form = FORM) -> None:
        super().__init__(form)
        self.norm = nn.BatchNorm1d(form.dimensions, track_running_stats=False)

    def interest(self, batch: Batch) -> Tensor:
        """Return what a batch norm without buffers makes of vectors."""
        normed: Tensor = self.norm(batch.vectors.sum(1))
        return normed


class Random(Summing):
    """Two answers to one question."""

    def interest(self, batch: Batch) -> Tensor:
        """Return noise."""
        return torch.rand(batch.wide.shape[0], FORM.dimensions)


class Hidden(Centred):
    """What hangs on the batch goes through a layer that begins with zeros."""

    def __init__(self, form: Form = FORM) -> None:
        super().__init__(form)
        self.gate = nn.Parameter(torch.zeros(form.dimensions))

    def interest(self, batch: Batch) -> Tensor:
        """Return nothing, to begin with."""
        return super().interest(batch) * self.gate


class Double(Summing):
    """Float32 inside, float64 at the end."""

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds in another type than is learned from."""
        return super().forward(batch).double()


class Remembering(Summing):
    """Fit: it keeps its last answer, for somebody to look at."""

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        self.seen = super().forward(batch)
        return self.seen


@pytest.mark.parametrize("module", [Summing(), MaskedMean(), Remembering()])
def test_a_module_that_minds_only_its_example_is_fit(module: nn.Module) -> None:
    before = [each.detach().clone() for each in module.parameters()]
    check_module("ours", module, FORM)
    assert not hasattr(module, "seen")  # a copy was tried
    for each, was in zip(module.parameters(), before, strict=True):
        assert torch.equal(each, was)
    check_module("ours", module, FORM._replace(target=-1))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Largest(), "called with a Batch of 2 examples, up to 0 items each"),
        (Mean(), "alone as beside others"),
        (Attending(), "finite log-odds of a Batch of 3 examples, up to 2 items each"),
        (Centred(), "alone as beside others"),
        (Normed(), "Batch of 1 examples"),
        (Random(), "alone as beside others"),
        (Hidden(), "alone as beside others"),
        (Double(), "expected log-odds of torch.float32, found torch.float64"),
    ],
)
def test_a_module_that_would_break_later_is_refused_now(module: nn.Module, expected: str) -> None:
    with pytest.raises(UnfitModule, match=r"expected .* found ") as refused:
        check_module("ours", module, FORM)
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
def test_a_file_that_cannot_be_imported_is_refused_whatever_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, found: str
) -> None:
    name = f"own_{abs(hash(source)):x}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnfitModule, match="expected a class that can be imported") as refused:
        make_own(f"{name}:Broken", FORM)
    assert found in str(refused.value)
