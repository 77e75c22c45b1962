"""What a network of a deep model is: a module that makes one number of an example's inputs.

A module is made with `Form` and called with `Batch`; it returns the log-odds of a click, (n,). That
is all the contract there is, and a module of one's own that keeps it (`architecture = "module"`,
`module = "package.file:Class"`) is trained and served as those here are. Its parameters live in
rows of the parameter server: what it keeps anywhere else would never reach a server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from learner.architecture import DCN_V2, DEEPFM, DIN, FIELD_WEIGHTED_FM, MODULE, WIDE_AND_DEEP
from learner.errors import UnfitModule

if TYPE_CHECKING:
    from learner.spec import ModelSpec


class Form(NamedTuple):
    """What a module has to know to make its layers."""

    vectors: int
    """Vectors an example has: one a single-valued field, number, statistic and bag."""
    dimensions: int
    """Floats of each."""
    layers: tuple[int, ...]
    """Widths of hidden layers."""
    cross_layers: int
    target: int
    """Which vector the items of histories are compared with; -1 where the spec names none."""


class Batch(NamedTuple):
    """Inputs of n examples."""

    wide: Tensor
    """(n,) sum of the weights of all inputs, the intercept's among them."""
    vectors: Tensor
    """(n, vectors, d): embeddings, of a number times its value, of a bag the sum of its items'. In
    the order: single-valued fields, numbers, statistics, bags, each by ascending number."""
    items: Tensor
    """(n, longest, d) embeddings of the items of the bag `history`, in order, or (n, 0, d)."""
    present: Tensor
    """(n, longest) bool: False where an example has fewer items."""


def make_module(spec: ModelSpec, form: Form) -> nn.Module:
    """Return the module that a spec declares. Raises UnfitModule, saying why."""
    if spec.architecture == MODULE:
        return _own(spec.structure.module, form)
    # each file of its own, loaded when its model is
    from learner.models import dcn, deepfm, din, field_weighted, wide_and_deep

    return {
        WIDE_AND_DEEP: wide_and_deep.WideAndDeep,
        DEEPFM: deepfm.DeepFM,
        DCN_V2: dcn.DCNv2,
        FIELD_WEIGHTED_FM: field_weighted.FieldWeightedFM,
        DIN: din.DeepInterestNetwork,
    }[spec.architecture](form)


def hidden_layers(width: int, layers: tuple[int, ...]) -> nn.Sequential:
    """Return fully connected layers with ReLU between them, and their output as it is."""
    made: list[nn.Module] = []
    for each in layers:
        made += [nn.Linear(width, each), nn.ReLU()]
        width = each
    return nn.Sequential(*made)


def _own(name: str, form: Form) -> nn.Module:
    where, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(where), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnfitModule(name, "a class that can be imported", str(error)) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UnfitModule(name, "a class derived from torch.nn.Module", repr(found))
    try:
        module = found(form)
    except Exception as error:
        raise UnfitModule(name, f"a constructor that takes {form}", repr(error)) from error
    check_module(name, module, form)
    return module


def check_module(name: str, module: nn.Module, form: Form) -> None:
    """Raise UnfitModule if the module is not what a deep model can train and serve."""
    buffers = [each for each, _ in module.named_buffers()]
    if buffers:
        expected = "no buffers, which would never reach a server (batch norm has some)"
        raise UnfitModule(name, expected, ", ".join(buffers))
    for each, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise UnfitModule(name, "parameters of torch.float32", f"{each} of {parameter.dtype}")
    if any(isinstance(each, nn.modules.dropout._DropoutNd) for each in module.modules()):  # noqa: SLF001
        raise UnfitModule(name, "no dropout: an example is learned once", "a dropout layer")
    for count in (2, 3):
        vectors = torch.full((count, form.vectors, form.dimensions), 0.1, requires_grad=True)
        items = torch.full((count, 2, form.dimensions), 0.1, requires_grad=True)
        wide, present = torch.zeros(count, requires_grad=True), torch.ones(count, 2).bool()
        try:
            answer = module(Batch(wide, vectors, items, present))
        except Exception as error:
            expected = f"a module that can be called with a Batch of {count} examples"
            raise UnfitModule(name, expected, repr(error)) from error
        if not isinstance(answer, Tensor) or answer.shape != (count,):
            found = tuple(answer.shape) if isinstance(answer, Tensor) else repr(answer)
            raise UnfitModule(name, f"log-odds of shape ({count},)", str(found))
        if not bool(torch.isfinite(answer).all()):
            raise UnfitModule(name, "finite log-odds of ordinary inputs", str(answer.tolist()))
        try:
            leaves = [wide, vectors, items, *module.parameters()]
            torch.autograd.grad(answer.sum(), leaves, allow_unused=True)
        except Exception as error:
            expected = "log-odds that have a gradient by inputs and parameters"
            raise UnfitModule(name, expected, repr(error)) from error
