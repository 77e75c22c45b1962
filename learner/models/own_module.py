"""Modules of one's own: found by name, and tried before anything is learned.

What would go wrong in the midst of a stream is looked for here: batches of one example, examples
without recent items, an answer that hangs on who else is in the batch. A server asks for candidates
in other company than a learner met them in, so such an answer would be another one there.
"""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from learner.errors import UnfitModule
from learner.models.network import Batch

if TYPE_CHECKING:
    from learner.models.network import Form

_ITEMS = (2, 0, 1)
"""How many recent items the examples of the larger trial batch have."""
_CLOSE = 1e-4
"""Log-odds that differ by less are the same: sums of floats in another order."""


def make_own(name: str, form: Form) -> nn.Module:
    """Return the module `package.file:Class`. Raises UnfitModule, saying why."""
    where, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(where), class_name)
    except Exception as error:
        # whatever its file raises: it is not ours
        raise UnfitModule(name, "a class that can be imported", repr(error)) from error
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
    tried = copy.deepcopy(module)  # one that remembers its last batch must not remember a trial
    for items, only in ((_ITEMS, None), ((0, 0), None), *((_ITEMS, k) for k in range(len(_ITEMS)))):
        _answer(name, tried, _trial(form, items, only))
    _check_company(name, tried, form)


def _check_company(name: str, module: nn.Module, form: Form) -> None:
    """Raise UnfitModule if an example's answer hangs on who else is asked for. Moves parameters."""
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():  # a layer that begins with zeros hides what it is for
            parameter.add_(torch.randn(parameter.shape, generator=dice), alpha=0.1)
        together = module(_trial(form, _ITEMS))
        for place, items in enumerate(_ITEMS):
            alone = module(_trial(form, _ITEMS, place))[0]
            if abs(alone - together[place]) > _CLOSE * (1.0 + abs(alone)):
                expected = "the same log-odds of an example alone as beside others with their items"
                found = f"{alone:.6g} and {together[place]:.6g}, with {items} items of its own"
                raise UnfitModule(name, expected, found)


def _trial(form: Form, items: tuple[int, ...], only: int | None = None) -> Batch:
    """Return a batch of examples that have so many items each, or only one of these examples."""
    chosen = slice(None) if only is None else slice(only, only + 1)
    longest = max(items[chosen])
    count, present = len(items), torch.arange(max(items)) < torch.tensor(items).unsqueeze(1)
    size = form.vectors * form.dimensions
    vectors = torch.linspace(-0.2, 0.3, count * size).reshape(count, -1, form.dimensions)
    listed = torch.linspace(0.3, -0.2, count * max(items) * form.dimensions)
    listed = listed.reshape(count, -1, form.dimensions) if max(items) else vectors[:, :0]
    whole = Batch(torch.linspace(-0.1, 0.1, count), vectors, listed * present.unsqueeze(2), present)
    return Batch(
        whole.wide[chosen].requires_grad_(),
        whole.vectors[chosen].requires_grad_(),
        whole.items[chosen, :longest].requires_grad_(),
        whole.present[chosen, :longest],
    )


def _answer(name: str, module: nn.Module, batch: Batch) -> None:
    """Raise UnfitModule unless it answers a batch with log-odds that can be learned from."""
    count, longest = batch.present.shape
    trial = f"a Batch of {count} examples, up to {longest} items each"
    try:
        answer = module(batch)
    except Exception as error:
        raise UnfitModule(name, f"a module that can be called with {trial}", repr(error)) from error
    if not isinstance(answer, Tensor) or answer.shape != (count,):
        found = tuple(answer.shape) if isinstance(answer, Tensor) else repr(answer)
        raise UnfitModule(name, f"log-odds of shape ({count},)", str(found))
    if answer.dtype != torch.float32:
        raise UnfitModule(name, "log-odds of torch.float32", str(answer.dtype))
    if not bool(torch.isfinite(answer).all()):
        raise UnfitModule(name, f"finite log-odds of {trial}", str(answer.tolist()))
    try:
        leaves = [batch.wide, batch.vectors, batch.items, *module.parameters()]
        torch.autograd.grad(answer.sum(), leaves, allow_unused=True)
    except Exception as error:
        expected = "log-odds that have a gradient by inputs and parameters"
        raise UnfitModule(name, expected, repr(error)) from error
